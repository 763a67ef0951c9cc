#!/usr/bin/env bash
# The contract programs build with one compiler command and run. Our headers must cause no warning in them: unlike
# CMake's imported target, pkg-config's -I does not make them system headers.
source "$(dirname "$0")/package_env.sh"
export PKG_CONFIG_PATH=$libdir/pkgconfig
[ "$(pkg-config --modversion lockstep)" = "$VERSION" ]
for source in *.cpp; do
  shadow=-Wshadow
  case $source in 09_*|10_*) shadow=-Wno-shadow ;; esac  # they shadow names of their own
  "$CXX" -Wall -Wextra -Wpedantic $shadow -Wconversion -Wsign-conversion -Wold-style-cast -Wnon-virtual-dtor \
    -Woverloaded-virtual -Wextra-semi -Wundef -Werror "$source" $(pkg-config --cflags --libs lockstep) -o "${source%.cpp}"
done
"$CXX" -Wall -Wextra -Wpedantic -Werror launcher/two_ranks.cpp $(pkg-config --cflags --libs lockstep-launch) -o two_ranks
run_programs pkg-config ""
env -u LD_LIBRARY_PATH ./two_ranks  # finds the library by the run path of lockstep.pc
