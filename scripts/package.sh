#!/usr/bin/env bash
# Writes lockstep_<version>_<architecture>.deb, with kernels for every instruction set, and packages of the backends gloo
# and mpi to build/package/package.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install_packages.sh package
cmake --preset release -B build/package -DLOCKSTEP_CPU_LEVELS=all -DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_BUILD_SAMPLES=OFF \
  -DLOCKSTEP_WITH_CUDA=OFF
cmake --build build/package
(cd build/package && cpack -G DEB)
echo "To install: apt-get install ./build/package/package/*.deb"
