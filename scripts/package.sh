#!/usr/bin/env bash
# Writes build/package/package/lockstep_<version>_<architecture>.deb, with kernels for every instruction set.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install_packages.sh all
cmake --preset release -B build/package -DLOCKSTEP_CPU_LEVELS=all -DLOCKSTEP_BUILD_TESTS=OFF -DLOCKSTEP_BUILD_SAMPLES=OFF
cmake --build build/package
cd build/package && cpack -G DEB
