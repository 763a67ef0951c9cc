#!/usr/bin/env bash
# Cross-compiles the library and tests for 64-bit ARM (aarch64), and runs the tests under qemu-user.
#   scripts/cross_aarch64.sh [suite ...]      suites of tests: tensor autograd nn optim, unless others are given
# Adds the architecture arm64 to the system's packages and installs compiler, emulator and libraries. To keep your system as it
# is, run the script in a bare one: scripts/bare_system.sh bookworm 'bash scripts/cross_aarch64.sh'
set -euo pipefail
cd "$(dirname "$0")/.."
suites=("$@")
[ $# -gt 0 ] || suites=(tensor autograd nn optim)

sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
$sudo dpkg --add-architecture arm64
$sudo apt-get update -qq
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends g++-aarch64-linux-gnu qemu-user \
  cmake ninja-build pkg-config libeigen3-dev nlohmann-json3-dev doctest-dev libxxhash-dev \
  libfmt-dev:arm64 zlib1g-dev:arm64 libssl-dev:arm64 >/dev/null

cmake -S . -B build/aarch64 -G Ninja -DCMAKE_TOOLCHAIN_FILE=cmake/aarch64.cmake -DCMAKE_BUILD_TYPE=Release \
  -DLOCKSTEP_QUICK_BUILD=ON -DLOCKSTEP_OPTIMISE_KERNELS=-O3 \
  -DLOCKSTEP_BUILD_SAMPLES=OFF -DLOCKSTEP_BUILD_TOOLS=OFF -DLOCKSTEP_WITH_CUDA=OFF \
  -DLOCKSTEP_WITH_GLOO=OFF -DLOCKSTEP_WITH_MPI=OFF -DLOCKSTEP_WITH_PNG=OFF -DLOCKSTEP_WITH_JPEG=OFF  # the libraries found would be this system's
targets=()
for suite in "${suites[@]}"; do targets+=("test_$suite" "test_${suite}_threads"); done
cmake --build build/aarch64 --target lockstep_libraries "${targets[@]}"
# Not under an emulator: one test executes its own program again, one counts the threads of the process, also the emulator's.
ctest --test-dir build/aarch64 -R "^($(IFS='|'; echo "${suites[*]}"))\\." -E '^tensor\.test_(environment|fork)$' \
  -j "$(nproc)" --output-on-failure
