#!/usr/bin/env bash
# The contract programs build with one plain compiler command and run.
source "$(dirname "$0")/package_env.sh"
export PKG_CONFIG_PATH=$libdir/pkgconfig
[ "$(pkg-config --modversion lockstep)" = "$VERSION" ]
for source in *.cpp; do
  "$CXX" "$source" $(pkg-config --cflags --libs lockstep) -o "${source%.cpp}"
done
run_programs pkg-config ""
