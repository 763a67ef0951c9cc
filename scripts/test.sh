#!/usr/bin/env bash
# Builds preset release and runs all tests, from a bare clone. Arguments are passed to ctest (for example: -R tensor).
# LOCKSTEP_CMAKE_OPTIONS holds options for CMake, separated by spaces: LOCKSTEP_CMAKE_OPTIONS=-DLOCKSTEP_WERROR=ON.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install_packages.sh all
read -ra cmake_options <<<"${LOCKSTEP_CMAKE_OPTIONS:-}"
cmake --preset release "${cmake_options[@]}"
cmake --build --preset release
python3 -c 'import torch' 2>/dev/null || echo "PyTorch is not installed: golden values come from tests/golden alone."
ctest --preset release -j "$((2 * $(nproc)))" "$@"  # many tests mostly wait
