#!/usr/bin/env bash
# A class needs the folder and the package: a copy of exercises/ is graded with an installed library.
set -euo pipefail
rm -rf "$SCRATCH/installed" && mkdir -p "$SCRATCH/installed" && cd "$SCRATCH/installed"
"$CMAKE" --install "$BUILD" --prefix "$PWD/prefix" >install.log || { cat install.log; exit 1; }
cp -r "$SOURCE/exercises" . && rm -rf exercises/build
exercises/grade.sh --strict --lockstep "$PWD/prefix" --from exercises/solutions 1 6
