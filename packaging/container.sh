#!/usr/bin/env bash
# Builds and installs everything in the container of packaging/Dockerfile, for any processor of its architecture.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/install_packages.sh demo
cmake --preset release -DLOCKSTEP_CPU_LEVELS=all -DLOCKSTEP_BUILD_TESTS=OFF
cmake --build --preset release
cmake --install build/release --prefix /usr/local
ldconfig
