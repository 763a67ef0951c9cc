#!/usr/bin/env bash
# Compares our figures with the peers' and the goals, in one run on one core; also as JSON in build/bench/results.json.
#   scripts/bench.sh [--full | --threads] [--repeats N] [filter]  the filter is part of a row's name: mlp, logreg, 1m
# --threads only compares operations with two threads and with one, and thread pools; it fails if a goal is missed.
# --full adds rows that need clean builds of the library: their time, and the size of a static sample.
# Peers: LibTorch if CMake finds it (Debian: libtorch-dev; elsewhere CMAKE_PREFIX_PATH), and LIBTORCH_WHEEL, the torch
# folder of an unpacked wheel (bench/README.md); for attention and GPTs, the PyTorch 2 of PYTHON (/usr/bin/python3).
set -euo pipefail
cd "$(dirname "$0")/.."
full=; threads=; filter=; repeats=3
while [ $# -gt 0 ]; do
  case $1 in
    --full) full=1 ;;
    --threads) threads=1 ;;
    --repeats) repeats=$2; shift ;;
    -*) sed -n '2,7s/^# //p' "$0"; exit 2 ;;
    *) filter=$1 ;;
  esac
  shift
done

scripts/install_packages.sh all
build=build/bench
options=(-DLOCKSTEP_BUILD_TESTS=OFF)
cmake --preset release -B $build -DLOCKSTEP_BUILD_BENCH=ON "${options[@]}" >/dev/null
cmake --build $build ${threads:+--target bench_threads} | tail -1
if [ -n "$threads" ]; then
  exec $build/bench/bench_threads --filter "$filter" --rounds $((3 * repeats + 2))
fi

arguments=(--bin $build/bench --result $build/results.json --repeats "$repeats" --filter "$filter"
  --include "$PWD/include" --contract tests/contract/01_single.cpp --sample "$PWD/$build/samples/logistic_regression")

# The peers: Debian's LibTorch and the wheel, by default and with AVX-512 enabled if the processor has it.
add_peer() {  # name, build folder, options of its configuration
  local name=$1 folder=$2
  cmake -S bench/peers/libtorch -B "$folder" "${@:3}" >/dev/null 2>&1 || true
  if ! cmake --build "$folder" 2>/dev/null | tail -1 || [ ! -x "$folder/libtorch_small" ]; then
    arguments+=(--skipped "$name: not found, or its peers do not build")
    return
  fi
  arguments+=(--peer "$name=$folder")
  grep -qw avx512f /proc/cpuinfo && arguments+=(--peer "$name, avx512=$folder=avx512")
  return 0
}
add_peer "LibTorch" build/peers
if [ -n "${LIBTORCH_WHEEL:-}" ]; then
  add_peer "LibTorch wheel" build/peers-wheel "-DLIBTORCH_WHEEL=$LIBTORCH_WHEEL"
else
  arguments+=(--skipped "LibTorch wheel: LIBTORCH_WHEEL is not set")
fi
python=${PYTHON:-/usr/bin/python3}
if "$python" -c 'from torch.nn.functional import scaled_dot_product_attention' 2>/dev/null; then
  arguments+=(--torch "$python")
else
  arguments+=(--skipped "PyTorch's attention and GPT: $python has no PyTorch 2 (PYTHON chooses another)")
fi
# The time to compile against LibTorch: with Debian's headers, otherwise the wheel's.
peer_source=bench/peers/libtorch/compile_me.cpp
if [ -f /usr/include/torch/csrc/api/include/torch/torch.h ]; then
  arguments+=(--peer-source $peer_source --peer-flags "-isystem /usr/include/torch/csrc/api/include")
elif [ -n "${LIBTORCH_WHEEL:-}" ]; then
  wheel_include=$LIBTORCH_WHEEL/include
  arguments+=(--peer-source $peer_source --peer-flags "-isystem $wheel_include -isystem $wheel_include/torch/csrc/api/include")
fi

if [ -n "$full" ]; then
  unset CMAKE_CXX_COMPILER_LAUNCHER  # a compiler cache would falsify the time
  clean=$(mktemp -d)
  trap 'rm -rf "$clean"' EXIT
  cmake --preset release -B "$clean/library" "${options[@]}" >/dev/null
  before=$(date +%s.%N)
  cmake --build "$clean/library" --target lockstep -- -j2 >/dev/null
  arguments+=(--row "clean_library_build=$(awk -v a="$before" -v b="$(date +%s.%N)" 'BEGIN { print b - a }')")
  cmake --preset release -B "$clean/static" "${options[@]}" -DBUILD_SHARED_LIBS=OFF -DLOCKSTEP_WITH_ONEDNN=OFF >/dev/null
  cmake --build "$clean/static" --target logistic_regression >/dev/null
  strip "$clean/static/samples/logistic_regression"
  bytes=$(stat -c %s "$clean/static/samples/logistic_regression")
  arguments+=(--row "stripped_static_sample=$(awk -v b="$bytes" 'BEGIN { print b / 1e6 }')")
else
  arguments+=(--skipped "clean_library_build, stripped_static_sample: only with --full")
fi

read -r load _ </proc/loadavg
echo "load average $load; $(nproc) cores. Other work on the machine makes all figures worse, and not equally."
$build/bench/bench_run "${arguments[@]}"
