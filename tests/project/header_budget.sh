#!/usr/bin/env bash
# lockstep.h stays cheap: at most 31,000 preprocessed lines beyond <chrono>, which it needs and whose size the standard
# library decides (31,000 lines with GCC 12, 63,000 with GCC 14), and no third-party or heavy standard header, not even
# indirectly.
set -euo pipefail
mkdir -p "$SCRATCH" && cd "$SCRATCH"
limit=31000
heavy='functional|algorithm|future|thread|random|iostream|regex|filesystem'
failed=0
complain() { echo "$*"; failed=1; }

echo '#include "lockstep/lockstep.h"' >umbrella.cpp
echo '#include <chrono>' >chrono.cpp
preprocessed_lines() { "$CXX" -std=c++20 -I"$SOURCE/include" -E -P "$1" | grep -c '[^[:space:]]'; }
lines=$(($(preprocessed_lines umbrella.cpp) - $(preprocessed_lines chrono.cpp)))
echo "lockstep.h: $lines preprocessed lines beyond <chrono>, of $limit"
[ "$lines" -le "$limit" ] || complain "lockstep.h is over its budget"

"$CXX" -std=c++20 -I"$SOURCE/include" -M umbrella.cpp | tr -s ' \\' '\n' >seen.txt
foreign=$(grep -E '/(Eigen|nlohmann|fmt|CLI|oneapi)/|dnnl|/(iostream|regex|filesystem)$|lockstep/parallel/simulate/' seen.txt || true)
[ -z "$foreign" ] || complain "lockstep.h includes third-party headers or parallel/simulate:"$'\n'"$foreign"

cd "$SOURCE"
for header in lockstep.h parallel/launch/launch.h $(grep -oE '/lockstep/(base|tensor|autograd|nn|optim|data|parallel)/[^ ]*\.h$' "$SCRATCH/seen.txt" | sed 's|^/lockstep/||'); do
  direct=$(grep -nE "^[[:space:]]*#[[:space:]]*include[[:space:]]*<($heavy)>" "$header" || true)
  [ -z "$direct" ] || complain "$header:$direct"
done
exit $failed
