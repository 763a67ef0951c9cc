#!/usr/bin/env bash
# Checks the CUDA part on a machine with a GPU: builds, runs the GPU tests and the contract's programs, runs
# compute-sanitizer, and measures.
#   scripts/gpu_check.sh [--prefix DIR] [--build DIR] [--out DIR] [--dry-run] [build] [test] [contract] [sanitize] [bench]
# Default: all phases, in this order. Each ends within nine minutes, so that it can be run alone; a step that fails or
# times out does not stop the next ones. The table of all steps is printed last.
#   --prefix DIR   headers and libraries missing on the machine (Eigen, doctest, fmt, ...), from scripts/gpu_deps.sh
#   --build DIR    build folder (default build/cuda)
#   --out DIR      folder of gpu.json, gpu.md, logs, bench.json and bench.md (our figures next to PyTorch's,
#                  if python3 has PyTorch); default: the build folder
#   --dry-run      prints the steps and their limits in seconds, and runs nothing
# Without a GPU prints a message and exits with 77.
set -euo pipefail
cd "$(dirname "$0")/.."

prefix='' build=build/cuda out='' dry='' phases=()
while [ $# -gt 0 ]; do
  case $1 in
    --prefix) prefix=$(realpath "$2"); shift 2 ;;
    --build) build=$2; shift 2 ;;
    --out) out=$2; shift 2 ;;
    --dry-run) dry=yes; shift ;;
    -h | --help) sed -n '2,13s/^# \?//p' "$0"; exit 0 ;;
    build | test | contract | sanitize | bench) phases+=("$1"); shift ;;
    *) echo "gpu_check.sh: unknown argument '$1' (--help)" >&2; exit 2 ;;
  esac
done
[ ${#phases[@]} -gt 0 ] || phases=(build test contract sanitize bench)
out=${out:-$build}

if [ -z "$dry" ]; then
  if ! nvidia-smi -L >/dev/null 2>&1; then
    echo "skipped: this machine has no GPU (nvidia-smi -L)"
    exit 77
  fi
  mkdir -p "$build" "$out"
  build=$(realpath "$build") out=$(realpath "$out")
fi
options=(-DLOCKSTEP_WERROR=OFF)  # this machine's compiler may have warnings that we have not seen
architecture=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -1 | tr -d .) || true
[ -z "$architecture" ] || options+=("-DLOCKSTEP_CUDA_ARCHITECTURES=$architecture")
if [ -n "$prefix" ]; then  # programs find the libraries by their rpath; Python must not load them
  triplet=$(uname -m)-linux-gnu
  libraries=$prefix/lib:$prefix/lib/$triplet
  export libraries LIBRARY_PATH=$libraries CPATH=$prefix/include:$prefix/include/$triplet
  options+=("-DCMAKE_PREFIX_PATH=$prefix" "-DCMAKE_BUILD_RPATH=${libraries//:/;}")
fi
# Tests use the GPU here instead of the host accelerator.
unset LOCKSTEP_TEST_CUDA
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
export build out gpus

results=()
step() {  # phase, name, limit in seconds, command...: writes the command's output to a log, its end to the screen
  local phase=$1 name=$2 limit=$3 start=$SECONDS code=0
  shift 3
  if [ -n "$dry" ]; then
    echo "$phase: $name, at most $limit s: $*"
    return
  fi
  echo "== $phase: $name"
  timeout -k 10 "$limit" "$@" >"$out/$name.log" 2>&1 || code=$?
  tail -n 15 "$out/$name.log"
  local result="failed($code)"
  case $code in
    0) result=passed ;;
    77) result=skipped ;;
    124 | 137) result="failed(over ${limit}s)" ;;
  esac
  results+=("$phase|$name|$result|$((SECONDS - start))")
}
call() { step "$1" "$2" "$3" bash -euo pipefail -c "$2"; }  # calls the function with the step's name

phase_build() {
  step build configure 120 cmake --preset cuda -B "$build" -DLOCKSTEP_BUILD_SAMPLES=OFF -DLOCKSTEP_BUILD_BENCH=ON "${options[@]}"
  step build compile 410 cmake --build "$build" -j "$(nproc)" --target lockstep_libraries test_cuda lockstep-run bench_gpu
}

phase_test() {
  local tests=(ctest --test-dir "$build" --output-on-failure --no-tests=error)
  step test gpu_tests 330 "${tests[@]}" -L '^cuda$' -E nccl_rank --timeout 150
  local file
  for file in nccl_ranks nccl_rank_ends; do
    step test $file 150 "$build/tools/lockstep-run" --nproc-per-node 2 \
      "$build/tests/test_cuda" --no-skip "--source-file=*/tests/cuda/$file.cpp"
  done
}

# --- the contract's programs: unchanged if there are enough GPUs; and changed so that one GPU is enough --------------
contract_build() {
  local library source folder=$out/contract changed
  library=$(readlink -f "$build/liblockstep.so")
  rm -rf "$folder"
  mkdir -p "$folder"
  cp tests/contract/0[34]*.cpp "$folder"
  sed 's/std::chrono::seconds(30)}/std::chrono::seconds(30), .backend_options = lockstep::parallel::NcclOptions{.allow_shared_gpu = true}}/' \
    tests/contract/03_ddp.cpp >"$folder/03_one_gpu.cpp"
  sed 's/"env:\/\/"}/"env:\/\/", .backend_options = backend == "nccl" ? ls::parallel::BackendOptions(ls::parallel::NcclOptions{.allow_shared_gpu = true}) : ls::parallel::BackendOptions()}/; s/2 \* group->rank()\( + 1\)\?/0/' \
    tests/contract/04_ddp_model_parallel.cpp >"$folder/04_one_gpu.cpp"
  for changed in 03_one_gpu 04_one_gpu; do
    grep -q allow_shared_gpu "$folder/$changed.cpp" || { echo "$changed: the contract program has changed; adapt the sed commands in gpu_check.sh"; return 1; }
  done
  for source in "$folder"/*.cpp; do
    c++ -std=c++20 -O1 -Iinclude "$source" "$library" -Wl,-rpath,"$build" \
      ${libraries:+"-Wl,-rpath-link,$libraries"} -o "${source%.cpp}" &
  done
  wait
  for source in "$folder"/*.cpp; do [ -x "${source%.cpp}" ]; done
}
ranks() {  # folder, program, arguments...: two ranks
  local folder=$out/contract/$1 program=$out/contract/$2
  mkdir -p "$folder"
  (cd "$folder" && "$build/tools/lockstep-run" --nproc-per-node 2 "$program" "${@:3}" >output.txt 2>&1 || { cat output.txt; exit 1; })
}
# 03 trains host tensors, which nccl copies to the GPU and back: the parameters equal shm's, except for rounding.
contract_03_nccl() {
  local program=03_ddp
  [ "$gpus" -ge 2 ] || program=03_one_gpu
  ranks 03_shm 03_ddp shm
  ranks 03_nccl "$program" nccl
  python3 - "$out"/contract/03_{shm,nccl}/model.safetensors <<'PYTHON'
import array, json, struct, sys
def values(path):
    data = open(path, "rb").read()
    size = struct.unpack("<Q", data[:8])[0]
    return array.array("f", data[8 + size:][:-4 if (len(data) - 8 - size) % 4 else None])
here, there = (values(path) for path in sys.argv[1:])
worst = max(abs(a - b) for a, b in zip(here, there))
print(f"{len(here)} parameters, at most {worst:.2e} apart")
sys.exit(len(here) != len(there) or not worst < 1e-5)
PYTHON
}
# 04 has its layers on two devices of a rank: its losses on GPUs equal those on CPU devices.
contract_04() {  # backend
  local program=04_ddp_model_parallel
  [ "$gpus" -ge 4 ] || program=04_one_gpu
  ranks 04_cpu 04_ddp_model_parallel shm cpu
  ranks "04_$1" "$program" "$1" cuda
  python3 - "$out"/contract/04_{cpu,"$1"}/output.txt <<'PYTHON'
import re, sys
def losses(path):
    return sorted((int(rank), i, float(loss)) for i, (rank, loss) in enumerate(re.findall(r"rank (\d+) loss (\S+)", open(path).read())))
here, there = ([(rank, loss) for rank, _, loss in losses(path)] for path in sys.argv[1:])
worst = max((abs(a[1] - b[1]) for a, b in zip(here, there)), default=1)
print(f"{len(here)} losses, at most {worst:.2e} apart")
sys.exit(len(here) != len(there) or len(here) == 0 or not worst < 1e-4)
PYTHON
}
contract_04_staged() { contract_04 shm; }
contract_04_nccl() { contract_04 nccl; }
phase_contract() {
  call contract contract_build 90
  call contract contract_03_nccl 150
  call contract contract_04_staged 60
  call contract contract_04_nccl 150
}

# Kernels run tens to hundreds of times slower: shapes are small. racecheck finds races in shared memory only, so it
# runs on our own kernels that use shared memory, without the libraries' kernels.
sanitized() {  # tool and its options..., test cases
  if ! command -v compute-sanitizer >/dev/null; then
    echo "compute-sanitizer is not installed here"
    exit 77
  fi
  cd "$build/tests"
  compute-sanitizer --error-exitcode 9 "${@:1:$#-1}" ./test_cuda --test-case="${!#}"
}
memcheck() {
  sanitized --tool memcheck --track-stream-ordered-races all \
    'pointwise operations*,*of two operands*,reductions*,operations along*,products*,convolution*,*sorting*,losses*,ten steps*,wrong values*,memory of a graph*,attention*other times*,attention*are needed'
}
racecheck() {
  sanitized --tool racecheck --racecheck-report all 'reductions*,operations along*,losses*,*sorting*,attention*are needed'
}
phase_sanitize() {
  call sanitize memcheck 290
  call sanitize racecheck 230
}

# Ours, then PyTorch's, on an otherwise idle GPU. First use: the second of two runs, with files in the page cache.
first_use() {  # command...
  local start
  "$@" --first-use
  start=$(date +%s.%N)
  "$@" --first-use
  python3 -c 'import json, sys, time
print(json.dumps({"name": "first_use", "seconds": round(time.time() - float(sys.argv[1]), 3)}))' "$start"
}
# Each writes to its own file, so that earlier results survive a failure.
bench_ours() {
  first_use "$build/bench/bench_gpu" >"$out/bench_ours.jsonl"
  "$build/bench/bench_gpu" | tee -a "$out/bench_ours.jsonl"
}
bench_torch() {
  : >"$out/bench_torch.jsonl"
  if ! python3 -c 'import torch' 2>/dev/null; then
    echo "python3 has no PyTorch here: our figures only"
    exit 77
  fi
  first_use python3 bench/peers/torch_gpu.py >"$out/bench_torch.jsonl"
  python3 bench/peers/torch_gpu.py | tee -a "$out/bench_torch.jsonl"
}
bench_table() { python3 bench/support/gpu_table.py "$out/bench_ours.jsonl" "$out/bench_torch.jsonl" "$out/bench"; }
phase_bench() {
  call bench bench_ours 220
  call bench bench_torch 260
  call bench bench_table 20
}

export -f contract_build ranks contract_03_nccl contract_04 contract_04_staged contract_04_nccl sanitized memcheck racecheck \
  first_use bench_ours bench_torch bench_table
for name in "${phases[@]}"; do "phase_$name"; done
[ -z "$dry" ] || exit 0

# The versions in use, from the build folder and python3: cuDNN 9.19.0, NCCL 2.28.3, PyTorch 2.9.1.
version() {  # name, header, the macros of major, minor and patch
  local folder header=$2
  folder=$(sed -n "s/^LOCKSTEP_${1}_INCLUDE:PATH=//p" "$build/CMakeCache.txt" 2>/dev/null || true)
  [ -f "$folder/$header" ] || { echo none; return; }
  awk -v a="$3" -v b="$4" -v c="$5" '$1 == "#define" {value[$2] = $3} END {print value[a] "." value[b] "." value[c]}' "$folder/$header"
}
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1)
cuda=$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p' || true)
cudnn=$(version CUDNN cudnn_version.h CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
nccl=$(version NCCL nccl.h NCCL_MAJOR NCCL_MINOR NCCL_PATCH)
torch=$(python3 -c 'import torch; print(torch.__version__)' 2>/dev/null || echo none)
commit=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
{
  printf '{"gpu": "%s", "cuda": "%s", "cudnn": "%s", "nccl": "%s", "torch": "%s", "commit": "%s", "steps": [' \
    "$gpu" "$cuda" "$cudnn" "$nccl" "$torch" "$commit"
  separator=
  for line in "${results[@]}"; do
    IFS='|' read -r phase name result seconds <<<"$line"
    printf '%s{"phase": "%s", "step": "%s", "result": "%s", "seconds": %s}' "$separator" "$phase" "$name" "$result" "$seconds"
    separator=', '
  done
  echo ']}'
} >"$out/gpu.json"
{
  echo "| phase | step | result | seconds |"
  echo "|---|---|---|---|"
  for line in "${results[@]}"; do echo "| ${line//|/ | } |"; done
  echo
  echo "GPU and driver: $gpu; CUDA $cuda; cuDNN $cudnn; NCCL $nccl; PyTorch $torch; commit $commit."
} | tee "$out/gpu.md"
! grep -q failed <<<"${results[*]}"
