#!/usr/bin/env bash
# A sample loads few libraries: at most 12 lines of ldd.
set -euo pipefail
mkdir -p "$SCRATCH" && cd "$SCRATCH"
limit=12
ldd "$1" | sed 's/ (0x[0-9a-f]*)$//' | tee lines.txt
! grep 'not found' lines.txt || exit 1
lines=$(wc -l <lines.txt)
echo "$lines lines of $limit"
[ "$lines" -le $limit ]
