#!/usr/bin/env bash
# Builds preset release and runs all tests, from a bare clone. Arguments go to ctest (for example: -R tensor).
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install_packages.sh all
cmake --preset release
cmake --build --preset release
python3 -c 'import torch' 2>/dev/null || echo "PyTorch is not installed: golden values come from tests/golden alone."
ctest --preset release -j "$((2 * $(nproc)))" "$@"  # many tests wait more than they compute
