#!/usr/bin/env bash
# docs/from_libtorch.md: the Lockstep side of every row compiles, and the page's figures about the two programs are
# right.
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH"
page=$SOURCE/docs/from_libtorch.md
cd "$SOURCE/docs/from_libtorch"
failed=0
complain() { echo "$*"; failed=1; }

awk -v column=2 -v header=lockstep/lockstep.h -f "$SOURCE/tests/project/from_libtorch_rows.awk" "$page" >"$SCRATCH/rows.cpp"
rows=$(grep -c '^void row_' "$SCRATCH/rows.cpp")
[ "$rows" -ge 60 ] || complain "$rows rows"
"$CXX" -std=c++20 -w -I"$SOURCE/include" -fsyntax-only "$SCRATCH/rows.cpp" || complain "a row does not compile"
"$CXX" -std=c++20 -Wall -Wextra -Wpedantic -Werror -I"$SOURCE/include" -fsyntax-only lockstep.cpp || complain "lockstep.cpp"

theirs=$(wc -l <libtorch.cpp) ours=$(wc -l <lockstep.cpp)
diff libtorch.cpp lockstep.cpp >"$SCRATCH/changes" || true
gone=$(grep -c '^<' "$SCRATCH/changes") new=$(grep -c '^>' "$SCRATCH/changes")
echo "$rows rows; programs of $theirs and $ours lines: $gone changed or removed, $new changed or new"
[ "$ours" -lt "$theirs" ] || complain "lockstep.cpp is not shorter"
[ $((4 * gone)) -le "$theirs" ] && [ $((4 * new)) -le "$ours" ] || complain "more than a quarter of the lines differ"
for said in "# $theirs and $ours" "# $gone: lines of the first" "# $new: lines of the second"; do
  grep -qF "$said" "$page" || complain "the page does not say \"$said\""
done
exit $failed
