#!/usr/bin/env bash
# Each solution of wrong/ must be detected: its exercise does not pass, for the reason in its file `reason`. A folder has
# the student's file, or what is different in it from the solution: change.patch. A file `seed` names the variant, if that
# is not 0.
set -euo pipefail
cd "$(dirname "$0")/wrong"
for folder in */; do
  from=$folder
  if [ -e "$folder/change.patch" ]; then
    file=$(sed -n 's,^+++ b/,,p' "$folder/change.patch")
    from=$SCRATCH/changed
    rm -rf "$from" && mkdir -p "$from/${file%/*}"
    patch --quiet --output="$from/$file" "$SOURCE/exercises/solutions/$file" "$folder/change.patch"
  fi
  exercise=$(cd "$from" && echo [0-9]*_*)
  seed=()
  [ ! -e "$folder/seed" ] || seed=(--seed "$(cat "$folder/seed")")
  "$SOURCE/exercises/grade.sh" --lockstep "$BUILD" --build "$SCRATCH/build" --from "$from" "${seed[@]}" "${exercise%%_*}" >"$SCRATCH/table"
  echo "$folder" && cat "$SCRATCH/table"
  grep -q "^passed: 0 of 1" "$SCRATCH/table"
  grep -q -F -f "$folder/reason" "$SCRATCH/table"
done

# Each seed is another variant: answers for seed 0 are wrong for others.
"$SOURCE/exercises/grade.sh" --lockstep "$BUILD" --build "$SCRATCH/build" --from "$SOURCE/exercises/solutions" --seed 5 0 7 8 11 14 15 16 >"$SCRATCH/table"
cat "$SCRATCH/table"
grep -q "^passed: 0 of 7" "$SCRATCH/table"
