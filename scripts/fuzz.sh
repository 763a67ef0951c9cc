#!/usr/bin/env bash
# Fuzzes every reader under ASan and UBSan: scripts/fuzz.sh [runs per reader, 100000] [reader ...]
# LOCKSTEP_FUZZ_SECONDS limits each reader's time (300). Every target fails if an input takes more memory
# than its size and 64 MiB; fuzz_growth tests large files, and time. New inputs are collected in
# build/fuzz/corpus; a failing input is kept in build/fuzz/found, and running its target with that
# file reproduces the failure.
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:-100000}
shift || true
readers=("$@")
build=${LOCKSTEP_FUZZ_BUILD:-}  # a folder configured with LOCKSTEP_BUILD_FUZZ=ON, instead of a new one

if [ -z "$build" ]; then
  build=build/fuzz
  compiler=$(command -v clang++ || command -v clang++-14 || true)
  [ -n "$compiler" ] || { echo "clang++ is needed: scripts/install_packages.sh all"; exit 1; }
  launcher=()
  if command -v ccache >/dev/null; then launcher=(-DLOCKSTEP_CCACHE=ON); fi
  CXX=$compiler cmake --preset asan -B $build -DLOCKSTEP_BUILD_FUZZ=ON -DLOCKSTEP_BUILD_TESTS=OFF \
    -DLOCKSTEP_BUILD_SAMPLES=OFF -DLOCKSTEP_INSTALL=OFF "${launcher[@]}" >/dev/null
fi
cmake --build "$build" --target fuzz_targets

[ ${#readers[@]} -gt 0 ] || readers=($(basename -s .cpp -a tests/fuzz/fuzz_*.cpp | sed 's/^fuzz_//'))
mkdir -p build/fuzz/found

# malloc_limit_mb: an input is a few KiB, and fuzz_growth expands it to at most 48 MiB, so a larger allocation
# comes from an unchecked length.
fuzz() {
  local reader=$1 log=build/fuzz/$1.log timeout=10
  [ -x "$build/tests/fuzz/fuzz_$reader" ] || { echo "fuzz_$reader: not built, its library is missing"; return 0; }
  [ "$reader" != growth ] || timeout=100
  mkdir -p "build/fuzz/corpus/$reader"
  if ! "$build/tests/fuzz/fuzz_$reader" "build/fuzz/corpus/$reader" "tests/fuzz/corpus/$reader" -runs="$runs" \
    -max_total_time="${LOCKSTEP_FUZZ_SECONDS:-300}" -max_len=4096 -timeout=$timeout -rss_limit_mb=1024 -malloc_limit_mb=64 -seed=1 \
    -print_final_stats=1 -artifact_prefix=build/fuzz/found/ >"$log" 2>&1; then
    tail -n 40 "$log"
    echo "fuzz_$reader failed; the input is in build/fuzz/found, the log in $log"
    return 1
  fi
  echo "fuzz_$reader: $(sed -n 's/^stat::number_of_executed_units: *//p' "$log") runs, nothing found"
}
export -f fuzz
export build runs
printf '%s\n' "${readers[@]}" | xargs -P "$(nproc)" -I{} bash -c 'fuzz {}'
