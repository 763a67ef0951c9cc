# shellcheck shell=bash disable=SC2034
# Sourced by the package tests: installs into a prefix of the test's own.
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"
prefix=$SCRATCH/prefix
"$CMAKE" --install "$BUILD" --prefix "$prefix" >install.log || { cat install.log; exit 1; }
libdir=$(dirname "$(find "$prefix" -name 'liblockstep.*' | head -1)")
export LD_LIBRARY_PATH=$libdir${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# Copied away from the tree, so that only the installed headers can be found.
cp "$SOURCE"/tests/contract/*.cpp .

run_programs() {
  for source in *.cpp; do
    echo "$1: ${source%.cpp}"
    "./$2${source%.cpp}" >output 2>&1 || { tail -20 output; exit 1; }
    tail -2 output
  done
}
