#!/usr/bin/env bash
# Proves the CUDA part on a machine with a GPU: builds, runs the GPU tests, looks at them with compute-sanitizer, and measures.
#   scripts/gpu_check.sh [--prefix DIR] [--build DIR] [--out DIR] [build] [test] [sanitize] [bench]
# Without phases: all, in this order. Each takes less than nine minutes, so that they can be run one by one.
#   --prefix DIR   headers and libraries that the machine lacks (Eigen, doctest, fmt, ...), as under /usr
#   --build DIR    build folder (default build/cuda)
#   --out DIR      where gpu.json and gpu.md go, and bench.json and bench.md: our figures beside PyTorch's, where python3
#                  has it (default the build folder)
# Without a GPU it says so and ends with 77.
set -euo pipefail
cd "$(dirname "$0")/.."

prefix= build=build/cuda out= phases=()
while [ $# -gt 0 ]; do
  case $1 in
    --prefix) prefix=$(realpath "$2"); shift 2 ;;
    --build) build=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    -h | --help) sed -n '2,10s/^# \?//p' "$0"; exit 0 ;;
    build | test | sanitize | bench) phases+=("$1"); shift ;;
    *) echo "gpu_check.sh: unknown argument '$1' (--help)" >&2; exit 2 ;;
  esac
done
[ ${#phases[@]} -gt 0 ] || phases=(build test sanitize bench)
out=${out:-$build}
mkdir -p "$build" "$out"

if ! nvidia-smi -L >/dev/null 2>&1; then
  echo "skipped: this machine has no GPU (nvidia-smi -L)"
  exit 77
fi
if [ -n "$prefix" ]; then
  export CMAKE_PREFIX_PATH=$prefix CPATH=$prefix/include LIBRARY_PATH=$prefix/lib:$prefix/lib/x86_64-linux-gnu
  export LD_LIBRARY_PATH=$LIBRARY_PATH${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
fi
# What is a test's own device on other machines is the GPU here.
unset LOCKSTEP_TEST_CUDA

results=()
phase() {  # name, command...
  local name=$1 start=$SECONDS code=0
  shift
  echo "== $name"
  "$@" >"$out/$name.log" 2>&1 || code=$?
  tail -n 15 "$out/$name.log"
  results+=("$name $([ $code = 0 ] && echo passed || echo "failed($code)") $((SECONDS - start))")
}

do_build() {
  cmake --preset cuda -B "$build" -DLOCKSTEP_BUILD_SAMPLES=ON -DLOCKSTEP_BUILD_BENCH=ON &&
    cmake --build "$build" -j "$(nproc)"
}
do_test() { ctest --test-dir "$build" -L '^cuda$' --output-on-failure --no-tests=error; }
# racecheck and memcheck take a kernel hundreds of times its time: small shapes only.
do_sanitize() {
  local tool code=0
  for tool in memcheck racecheck; do
    echo "-- $tool"
    compute-sanitizer --tool "$tool" --error-exitcode 9 "$build/tests/test_cuda" \
      --test-case='losses*,products*,operations along*,indexing*,ten steps*' || code=$?
  done
  return $code
}
# Ours and PyTorch's in turn, on an otherwise idle GPU. The first use: the second of two runs, with files in the page cache.
rows_of() {
  local command=("$@") start
  "${command[@]}" || return
  "${command[@]}" --first-use || return
  start=$(date +%s.%N)
  "${command[@]}" --first-use || return
  python3 -c 'import json, sys, time
print(json.dumps({"name": "first_use", "seconds": round(time.time() - float(sys.argv[1]), 3)}))' "$start"
}
do_bench() {
  rows_of "$build/bench/bench_gpu" >"$out/bench_ours.jsonl" || return
  if python3 -c 'import torch' 2>/dev/null; then
    rows_of python3 bench/peers/torch_gpu.py >"$out/bench_torch.jsonl" || return
  else
    echo "python3 has no PyTorch here: our figures only"
    : >"$out/bench_torch.jsonl"
  fi
  python3 bench/support/gpu_table.py "$out/bench_ours.jsonl" "$out/bench_torch.jsonl" "$out/bench"
}
for name in "${phases[@]}"; do phase "$name" "do_$name"; done

gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)
cuda=$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
{
  echo "| phase | result | seconds |"
  echo "|---|---|---|"
  for line in "${results[@]}"; do echo "| ${line// / | } |"; done
  echo
  echo "GPU and driver: $gpu; CUDA $cuda; commit $commit."
} | tee "$out/gpu.md"
{
  printf '{"gpu": "%s", "cuda": "%s", "commit": "%s", "phases": [' "$gpu" "$cuda" "$commit"
  separator=
  for line in "${results[@]}"; do
    read -r name state seconds <<<"$line"
    printf '%s{"phase": "%s", "result": "%s", "seconds": %s}' "$separator" "$name" "$state" "$seconds"
    separator=', '
  done
  echo ']}'
} >"$out/gpu.json"
! grep -q failed <<<"${results[*]}"
