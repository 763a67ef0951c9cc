#!/usr/bin/env bash
# Checks a change within minutes: builds what it affects, and runs the tests of the changed modules and of those above
# them, the tests of texts, and the changed modules under AddressSanitizer. .ci/run checks everything.
#   scripts/check.sh [commit]     what changed since the commit; default: since the last one in common with main
#   scripts/check.sh --dry-run    prints what would be built and run
# Uses build/release and build/asan. The first run builds them, which takes 20 minutes; so does a change of a header that
# everything includes.
set -euo pipefail
cd "$(dirname "$0")/.."
dry_run= base=
for argument in "$@"; do
  case $argument in
    --dry-run) dry_run=yes ;;
    -*) sed -n '2,7s/^# //p' "$0"; exit 2 ;;
    *) base=$argument ;;
  esac
done
if [ -z "$base" ]; then
  base=$(git merge-base HEAD '@{upstream}' 2>/dev/null || git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main)
fi
mapfile -t changed < <({ git diff --name-only "$base"; git ls-files --others --exclude-standard; } | sort -u)
[ ${#changed[@]} -gt 0 ] || { echo "no file has changed since $(git rev-parse --short "$base")"; exit 0; }

# What the files affect. The modules above: those of tests/project/layers.txt that may include the module, without data
# and samples, which use few of its functions.
declare -A test=() sanitize=() text=()
affects() { local name; for name in "$@"; do test[$name]=yes; done; }
for file in "${changed[@]}"; do
  case $file in
    tensor/cuda/* | tests/cuda/*) affects cuda simulator ;;
    tests/support/* | *CMakeLists.txt | cmake/* | include/* | lockstep.h) affects base tensor autograd nn optim data parallel samples ;;
    base/*) affects base tensor autograd data; sanitize[base]=yes ;;
    tensor/*) affects tensor autograd nn optim; sanitize[tensor]=yes ;;
    autograd/*) affects autograd nn optim; sanitize[autograd]=yes ;;
    nn/* | optim/*) affects nn optim; sanitize[${file%%/*}]=yes ;;
    interop/* | tests/interop/*) affects interop; sanitize[interop]=yes ;;
    data/* | parallel/*) affects "${file%%/*}"; sanitize[${file%%/*}]=yes ;;
    tests/base/* | tests/tensor/* | tests/autograd/* | tests/nn/* | tests/optim/* | tests/data/* | tests/parallel/*)
      file=${file#tests/}
      affects "${file%%/*}"
      sanitize[${file%%/*}]=yes ;;
    samples/* | tools/* | tests/samples/* | docs/internals/* | README.md) affects samples ;;
    exercises/* | tests/exercises/*) affects exercises ;;
    tests/network/*) affects network ;;
    docs/from_libtorch*) text[from_libtorch]=yes ;;
    .ci/*) text[background]=yes ;;
  esac
done
texts=(layering circles header_budget doc_links words process_state object_layering definitions api_reference "${!text[@]}")

# Those of the programs that a build folder has.
programs() {  # folder module...
  local folder=$1 name
  for name in "${@:2}"; do
    case $name in
      simulator) echo test_cuda test_simulator simulated_cuda simulated_nccl simulated_folder lockstep-run logistic_regression ;;
      exercises) echo lockstep_libraries lockstep-run ;;
      network) echo network_job network_intruder ;;
      *) echo "test_$name test_${name}_threads" ;;
    esac
  done | tr ' ' '\n' | sort -u | grep -xFf <(ninja -C "$folder" -t targets all | sed -n 's/: phony$//p')
}
names() { (IFS='|'; echo "$*"); }
run() { [ -z "$dry_run" ] || { echo "$*"; return; }; "$@"; }
step() { printf '\n== %s (after %d s)\n' "$1" $SECONDS; }

step "${#changed[@]} files have changed since $(git rev-parse --short "$base"); tests of: texts ${!test[*]}"
mapfile -t sources < <(for file in "${changed[@]}"; do [ ! -f "$file" ] || echo "$file"; done | grep -E '\.(cpp|h|cu|cuh)$' || true)
[ ${#sources[@]} = 0 ] || run scripts/format.sh --check "${sources[@]}"
for file in "${changed[@]}"; do
  [[ $file != *.sh && $file != .ci/run || ! -f $file ]] || run bash -n "$file"
done

step "preset release"
[ -f build/release/build.ninja ] || run cmake --preset release -DLOCKSTEP_WERROR=ON
mapfile -t targets < <(programs build/release "${!test[@]}")
run cmake --build build/release --target lockstep_libraries lockstep_launch "${targets[@]}"
tests="^project\.($(names "${texts[@]}"))$"
[ ${#test[@]} = 0 ] || tests+="|^($(names "${!test[@]}"))\."
run ctest --preset release -j "$((2 * $(nproc)))" -R "$tests" -LE '^slow$' --no-tests=error

if [ ${#sanitize[@]} -gt 0 ]; then
  step "preset asan: ${!sanitize[*]}"
  [ -f build/asan/build.ninja ] ||
    CXX=clang++ run cmake --preset asan -DLOCKSTEP_BUILD_FUZZ=ON -DLOCKSTEP_QUICK_BUILD=ON -DLOCKSTEP_WERROR=ON
  mapfile -t targets < <(programs build/asan "${!sanitize[@]}")
  run cmake --build build/asan --target "${targets[@]}"
  run ctest --preset asan -j "$((2 * $(nproc)))" -R "^($(names "${!sanitize[@]}"))\." -LE '^slow$' --no-tests=error
fi
step "passed; .ci/run checks the rest"
