#!/usr/bin/env bash
# The skeletons build and are graded as not done, or as not passed with what is wrong with the given table; with --strict
# that fails. The skeletons and their pages stay below their
# length limits.
set -euo pipefail
code=0
"$SOURCE/exercises/grade.sh" --strict --lockstep "$BUILD" --build "$SCRATCH/build" >"$SCRATCH/table" || code=$?
cat "$SCRATCH/table"
[ $code = 1 ]
[ "$(grep -c -E ' 0/[1-9][0-9]* +not done ' "$SCRATCH/table")" = 20 ]
grep -q -E '^14 schedule .* 0/4 +not passed +in flight: rank 0 holds 5 micro-batches from 0F4 on, allowed are 4; ' "$SCRATCH/table"
grep -q -E '^15 deadlock .* 0/5 +not passed +no deadlock: .* 0B1: needs 1B1 of rank 1, .*: no rank can go on$' "$SCRATCH/table"
"$SOURCE/exercises/grade.sh" --lockstep "$BUILD" --build "$SCRATCH/build" 6 >"$SCRATCH/table"
code=0
"$SOURCE/exercises/grade.sh" --lockstep "$SCRATCH" --build "$SCRATCH/no_library" 6 >"$SCRATCH/table" 2>&1 || code=$?
[ $code = 2 ] && grep -q "the library was not found" "$SCRATCH/table" && [ "$(wc -l <"$SCRATCH/table")" = 1 ]

too_long() { [ "$(wc -l <"$1")" -le "$2" ] || { echo "$1: more than $2 lines"; exit 1; }; }
for folder in "$SOURCE"/exercises/[0-9]*_*; do
  too_long "$folder/README.md" 40
  for file in "$folder"/*.cpp "$folder"/*.csv "$folder"/answer.json; do
    [ ! -e "$file" ] || too_long "$file" 80
  done
done
