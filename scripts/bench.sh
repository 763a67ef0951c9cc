#!/usr/bin/env bash
# Compares our figures with the peers' and the goals, in one run on one core; also as JSON in build/bench/results.json.
#   scripts/bench.sh [--full | --threads] [--repeats N] [filter]  the filter is part of a row's name: mlp, logreg, 1m
# --threads only compares operations with two threads and with one, and thread pools; it fails if a goal is missed.
# --full adds rows that need clean builds of the library: their time, and the size of a static sample.
# Peers: the PyTorch 2 of PYTHON (/usr/bin/python3), of whose wheel the LibTorch programs are built as well, or of another
# one (LIBTORCH_WHEEL: its torch folder); and the LibTorch that CMake finds, if any (CMAKE_PREFIX_PATH; Debian: libtorch-dev).
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

# PyTorch 2: its Python programs, and its wheel, whose headers and libraries make the LibTorch programs.
python=${PYTHON:-/usr/bin/python3}
read -r torch_version torch_folder < <("$python" -c '
import torch
from torch.nn.functional import scaled_dot_product_attention  # since 2.0
print(".".join(torch.__version__.split(".")[:2]), torch.__path__[0])' 2>/dev/null) || true
if [ -n "${torch_version:-}" ]; then
  arguments+=(--torch "PyTorch $torch_version=$python")
else
  arguments+=(--skipped "PyTorch's attention, GPT, recurrent and vision rows: $python has no PyTorch 2 (PYTHON chooses another)")
fi
wheel=${LIBTORCH_WHEEL:-${torch_folder:-}}
header=include/torch/csrc/api/include/torch/torch.h
[ -n "$wheel" ] && [ ! -f "$wheel/$header" ] && arguments+=(--skipped "$wheel: no $header") && wheel=

wheel_name=
add_peer() {  # what it is, build folder, its configuration's options; sets peer_name, empty if there is none
  peer_name=
  cmake -S bench/peers/libtorch -B "$2" "${@:3}" >/dev/null 2>&1 || true
  if ! cmake --build "$2" 2>/dev/null | tail -1 || [ ! -x "$2/libtorch_small" ]; then
    arguments+=(--skipped "$1: not found, or its programs do not build")
    return
  fi
  peer_name="LibTorch $(cat "$2/version")"
  [ "$peer_name" = "$wheel_name" ] && peer_name+=" of CMake"
  arguments+=(--peer "$peer_name=$2")
}
[ -n "$wheel" ] && add_peer "LibTorch of $wheel" build/peers-wheel "-DLIBTORCH_WHEEL=$wheel" && wheel_name=$peer_name
add_peer "LibTorch that CMake finds" build/peers
# Debian's uses AVX2 by default. A wheel chooses AVX-512.
if [ -n "$peer_name" ] && grep -qw avx512f /proc/cpuinfo; then
  arguments+=(--peer "$peer_name, avx512=build/peers=avx512")
fi
# The time to compile against LibTorch: with the wheel's headers, otherwise Debian's.
include=
if [ -n "$wheel_name" ]; then
  include=$wheel/include
elif [ -f /usr/$header ]; then
  include=/usr/include
fi
if [ -n "$include" ]; then
  flags="-isystem $include/torch/csrc/api/include"
  [ "$include" = /usr/include ] || flags+=" -isystem $include"
  arguments+=(--peer-source bench/peers/libtorch/compile_me.cpp --peer-source-name "${wheel_name:-${peer_name:-LibTorch}}"
    --peer-flags "$flags")
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
