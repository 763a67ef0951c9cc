#!/usr/bin/env bash
# lockstep.h stays cheap: at most 60,000 preprocessed lines, and no third-party or heavy standard header in it or in what
# it includes.
set -euo pipefail
mkdir -p "$SCRATCH" && cd "$SCRATCH"
limit=60000
heavy='functional|algorithm|future|thread|random|iostream|regex|filesystem'
failed=0
complain() { echo "$*"; failed=1; }

echo '#include "lockstep/lockstep.h"' >umbrella.cpp
lines=$("$CXX" -std=c++20 -I"$BUILD/include" -E -P umbrella.cpp | grep -c '[^[:space:]]')
echo "lockstep.h: $lines preprocessed lines of $limit"
[ "$lines" -le "$limit" ] || complain "lockstep.h is over its budget"

"$CXX" -std=c++20 -I"$BUILD/include" -M umbrella.cpp | tr -s ' \\' '\n' >seen.txt
foreign=$(grep -E '/(Eigen|nlohmann|fmt|CLI|oneapi)/|dnnl|/(iostream|regex|filesystem)$' seen.txt || true)
[ -z "$foreign" ] || complain "behind lockstep.h stand:"$'\n'"$foreign"

cd "$SOURCE"
for header in lockstep.h $(grep -oE '/lockstep/(tensor|autograd|nn|optim|data|parallel)/[^ ]*\.h$' "$SCRATCH/seen.txt" | sed 's|^/lockstep/||'); do
  direct=$(grep -nE "^[[:space:]]*#[[:space:]]*include[[:space:]]*<($heavy)>" "$header" || true)
  [ -z "$direct" ] || complain "$header:$direct"
done
exit $failed
