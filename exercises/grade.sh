#!/usr/bin/env bash
# Grades the exercises and prints one table.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

usage() {
  cat <<'TEXT'
exercises/grade.sh [options] [number ...]
  number           only these exercises, with every check (0 to 21)
  --from DIR       grade the files of this folder (1_all_reduce/all_reduce.cpp, ...) instead of those here
  --lockstep DIR   the library: a build folder, or the prefix of an installation
                   (default: build/release or build/demo next to exercises/ if one exists, else the installed package)
  --build DIR      build folder (default: exercises/build)
  --seed N         grade the variant of this seed: other numbers in every exercise, whatever "seed" the answers name.
                   0 is the variant of the READMEs
  --strict         exit with 1 unless every graded exercise has passed
Exit codes: 0 graded, whatever the points; 1 with --strict; 2 the grading itself does not work.
TEXT
}
fail() { echo "grade.sh: $*" >&2; exit 2; }

from=$here build=$here/build library="" strict=0 numbers=()
while [ $# -gt 0 ]; do
  case $1 in
    --from|--lockstep|--build) [ $# -gt 1 ] || fail "$1 needs a folder" ;;&
    --from) from=$(cd "$2" 2>/dev/null && pwd) || fail "--from: there is no folder $2"; shift ;;
    --lockstep) library=$(cd "$2" 2>/dev/null && pwd) || fail "--lockstep: there is no folder $2"; shift ;;
    --build)
      mkdir -p "$2" || fail "--build: cannot make $2"
      build=$(cd "$2" && pwd); shift ;;
    --seed)
      [[ ${2:-} =~ ^[0-9]{1,15}$ ]] || fail "--seed needs a number"
      export LOCKSTEP_EXERCISES_SEED=$2; shift ;;
    --strict) strict=1 ;;
    --help|-h) usage; exit 0 ;;
    [0-9]|1[0-9]|2[01]) numbers+=("$1") ;;
    *) usage >&2; fail "there is no option $1" ;;
  esac
  shift
done
for folder in "$here/../build/release" "$here/../build/demo"; do
  if [ -z "$library" ] && [ -e "$folder/liblockstep.so" ]; then library=$(cd "$folder" && pwd); fi
done
names=(0_predict 1_all_reduce 2_broadcast 3_ddp 4_buckets 5_overlap 6_sampler 7_diagnose 8_scaling
  9_attention 10_zero 11_memory 12_ring_attention 13_tensor_parallel 14_schedule 15_deadlock
  16_mesh 17_fsdp 18_strides 19_backward 20_rendezvous 21_shard_norms)
files=(answer.json all_reduce.cpp broadcast.cpp ddp.cpp buckets.cpp overlap.cpp sampler.cpp answer.json answer.json
  attention.cpp zero.cpp answer.json ring_attention.cpp tensor_parallel.cpp schedule.csv answer.json
  answer.json fsdp.cpp strides.cpp backward.cpp rendezvous.cpp shard_norms.cpp)
checked=("bytes a link" "values, bytes, messages" "values, bytes" "bits, messages" "simulated time"
  "values, overlap by trace" "coverage" "rank, step, cause" "simulated time" "values, bytes allocated"
  "bits, bytes, memory" "closed forms" "values, bytes" "values, bytes, bits" "simulated time, memory" "simulated time"
  "closed forms, choice" "bits, bytes, memory, order" "addresses" "gradients, order" "outcomes, requests" "values, bytes")
details=1
[ ${#numbers[@]} -gt 0 ] || { details=0; numbers=("${!names[@]}"); }

# --- build ----------------------------------------------------------------------------------------------------------------
command -v cmake >/dev/null || fail "cmake is needed (Debian: apt install cmake g++ ninja-build)"
mkdir -p "$build"
where=(-DLOCKSTEP_BUILD= -DCMAKE_PREFIX_PATH="$library" -Ulockstep_DIR)
[ ! -e "$library/liblockstep.so" ] || where=(-DLOCKSTEP_BUILD="$library")
make=()
[ -e "$build/CMakeCache.txt" ] || ! command -v ninja >/dev/null || make=(-G Ninja)
if ! cmake -S "$here" -B "$build" "${make[@]}" "${where[@]}" -DSUBMISSION="$from" >"$build/configure.log" 2>&1; then
  ! grep -q -e lockstepConfig.cmake -e CMAKE_HOME_DIRECTORY "$build/configure.log" ||
    fail "the library was not found${library:+ in $library}; build it, install the package, or pass its folder: --lockstep DIR"
  fail "CMake failed; its output is in $build/configure.log:
$(grep -m 3 -A 4 'CMake Error' "$build/configure.log")"
fi
targets=()
for n in "${numbers[@]}"; do
  [[ ${files[n]} == *.cpp && ! -e $from/${names[n]}/${files[n]} ]] || targets+=("grade_$n")
done
go_on=-k
[ ! -e "$build/build.ninja" ] || go_on=-k0
cmake --build "$build" --target harness >"$build/build.log" 2>&1 || { cat "$build/build.log" >&2; fail "the graders do not build"; }
[ ${#targets[@]} -eq 0 ] ||
  cmake --build "$build" -j "$(nproc)" --target "${targets[@]}" -- $go_on >>"$build/build.log" 2>&1 || true

# --- grade ----------------------------------------------------------------------------------------------------------------
# The lines of a log that begin an error, by paths relative to the folder graded.
errors_of() { grep -E "error:|undefined reference|Error [0-9]" "$1" | sed "s|$from/||g" | awk '!seen[$0]++'; }
row() { printf '%-18s %-26s %6s  %-14s  %s\n' "$@" | sed 's/ *$//'; }
row exercise checked points state "what is missing"
all=0 passed=0 broken=0
for n in "${numbers[@]}"; do
  name=${names[n]} student=$from/${names[n]}/${files[n]} out=$build/$n.out code=0
  points=0 total=- todo=0 state="" missing="" running="" errors=""
  : >"$out"
  if [ ! -e "$student" ]; then
    state="not handed in" missing=$name/${files[n]}
  elif ! cmake --build "$build" --target "grade_$n" >"$build/$n.log" 2>&1; then
    state="does not build" missing="see $build/$n.log"
  else
    mkdir -p "$build/$name"
    # In braces, so that the shell's message about a crash goes into the log, too.
    { timeout -k 2 30 "$build/grade_$n" "$student" "$build/$name" >"$out"; } 2>"$build/$n.log" || code=$?
  fi
  while IFS=$'\t' read -r kind what seen; do
    case $kind in
      total) total=$what ;;
      run) running=$what ;;
      pass) points=$((points + 1)) ;;
      todo) todo=$((todo + 1)) ;;
      miss) [ -n "$missing" ] || missing="$what: $seen" ;;
    esac
  done <"$out"
  if [ -n "$state" ]; then :
  elif [ "$code" = 3 ]; then state="grader failed" broken=1 missing=$(head -n 1 "$build/$n.log")
  elif [ "$code" = 124 ] || [ "$code" = 137 ]; then state="timed out" missing="$running: it ran for more than 30 s"
  elif [ "$code" != 0 ]; then state="crashed" missing="$running: exit code $code, see $build/$n.log"
  elif [ "$points" = "$total" ]; then state=passed passed=$((passed + 1))
  elif [ "$todo" = "$total" ]; then state="not done" missing=-
  elif [ -z "$missing" ]; then state="in part" missing="$todo not done yet"
  else state="not passed"
  fi
  all=$((all + 1))
  [ "$state" != "does not build" ] || errors=$(errors_of "$build/$n.log" | head -n 20)
  row "${name/_/ }" "${checked[n]}" "$points/$total" "$state" "$missing"
  [ -z "$errors" ] || sed 's/^/    /' <<<"$errors"
  [ "$details" = 0 ] || sed -n -E 's/^(task|pass|miss|todo)\t([^\t]*)\t(.*)/    \1  \2: \3/p' "$out"
done
echo "passed: $passed of $all"
[ $broken = 0 ] || exit 2
[ $strict = 0 ] || [ $passed = $all ] || exit 1
