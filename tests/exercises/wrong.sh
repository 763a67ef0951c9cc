#!/usr/bin/env bash
# Each solution of wrong/ must be detected: its exercise does not pass, for the reason in its file `reason`. A folder has
# the student's file, or what is different in it from the solution: change.patch. A file `seed` names the variant, if that
# is not 0. Folders of different exercises are graded together, since most of the time is CMake's.
set -euo pipefail
cd "$(dirname "$0")/wrong"
rounds=$SCRATCH/rounds
rm -rf "$rounds" && mkdir -p "$rounds"
for folder in */; do
  folder=${folder%/} patch=${folder%/}/change.patch seed=0
  [ ! -e "$folder/seed" ] || seed=$(cat "$folder/seed")
  if [ -e "$patch" ]; then
    file=$(sed -n 's,^+++ b/,,p' "$patch")
    exercise=${file%%/*}
  else
    exercise=$(cd "$folder" && echo [0-9]*_*)
  fi
  n=0
  while [ -e "$rounds/$seed.$n/$exercise" ]; do n=$((n + 1)); done
  mkdir -p "$rounds/$seed.$n"
  if [ -e "$patch" ]; then
    mkdir "$rounds/$seed.$n/$exercise"
    patch --quiet --output="$rounds/$seed.$n/$file" "$SOURCE/exercises/solutions/$file" "$patch"
  else
    cp -r "$folder/$exercise" "$rounds/$seed.$n/$exercise"
  fi
  echo "$folder" >"$rounds/$seed.$n/$exercise.folder"
done

for round in "$rounds"/*; do
  seed=${round##*/}
  "$SOURCE/exercises/grade.sh" --lockstep "$BUILD" --build "$SCRATCH/build" --from "$round" --seed "${seed%.*}" \
    $(cd "$round" && ls -d ./*/ | sed -E 's,\./([0-9]+)_.*,\1,') >"$SCRATCH/table"
  for exercise in "$round"/*.folder; do
    folder=$(cat "$exercise")
    name=$(basename "$exercise" .folder)
    awk -v name="${name/_/ } " '/^[^ ]/ { is_own = index($0, name) == 1 } is_own' "$SCRATCH/table" >"$SCRATCH/section"
    echo "$folder (seed ${seed%.*})" && cat "$SCRATCH/section"
    ! grep -q -E '^[^ ].* passed( |$)' "$SCRATCH/section"
    grep -q -F -f "$folder/reason" "$SCRATCH/section"
  done
  grep -q "^passed: 0 of " "$SCRATCH/table"
done

# Each seed is another variant: answers for seed 0 are wrong for others.
"$SOURCE/exercises/grade.sh" --lockstep "$BUILD" --build "$SCRATCH/build" --from "$SOURCE/exercises/solutions" --seed 5 0 7 8 11 14 15 16 >"$SCRATCH/table"
cat "$SCRATCH/table"
grep -q "^passed: 0 of 7" "$SCRATCH/table"
