#!/usr/bin/env bash
# A class needs only the package: the exercises in it are graded with its library.
set -euo pipefail
rm -rf "$SCRATCH/installed" && mkdir -p "$SCRATCH/installed" && cd "$SCRATCH/installed"
"$CMAKE" --install "$BUILD" --prefix "$PWD/prefix" >install.log || { cat install.log; exit 1; }
cp -r prefix/share/lockstep/exercises .
exercises/grade.sh --strict --lockstep "$PWD/prefix" --from "$SOURCE/exercises/solutions" 1 6
exercises/grade.sh --lockstep "$PWD/prefix" 1 >table
grep -q ' 0/9  not done' table
[ ! -e exercises/solutions ]
