#!/usr/bin/env bash
# Every reference solution passes every check, those of code also with another seed; the table reports that, and nothing is
# built with a warning.
set -euo pipefail
rm -rf "$SCRATCH/build"
"$SOURCE/exercises/grade.sh" --strict --lockstep "$BUILD" --build "$SCRATCH/build" --from "$SOURCE/exercises/solutions" | tee "$SCRATCH/table"
[ "$(grep -c -E ' +([1-9][0-9]*)/\1 +passed$' "$SCRATCH/table")" = 12 ]
! grep -A 5 "warning:" "$SCRATCH/build/build.log"
"$SOURCE/exercises/grade.sh" --strict --lockstep "$BUILD" --build "$SCRATCH/build" --from "$SOURCE/exercises/solutions" --seed 5 1 2 3 4 5 6 9 10
