#!/usr/bin/env bash
# A program compiled with another version's headers must fail to link, with a message that names the reason.
set -euo pipefail
library=$1
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH/lockstep" && cd "$SCRATCH"
guard=LOCKSTEP_PROGRAM_AND_LIBRARY_VERSIONS_DIFFER__program_was_compiled_with_headers
cat >program.cpp <<'CODE'
#include "lockstep/version.h"
int main() {}
CODE

sed -E "s/(#define LOCKSTEP_VERSION_[A-Z]+) .*/\1 9/" "$SOURCE/include/lockstep/version.h" >lockstep/version.h
for flags in -O0 -O2 "-O2 -Wl,--gc-sections -ffunction-sections -fdata-sections"; do
  if "$CXX" -std=c++20 -Wall -Wextra -Werror $flags -I. program.cpp "$library" -o program 2>message; then
    echo "headers 9.9.9 linked with library $VERSION ($flags)"; exit 1
  fi
  grep -q "${guard}_9_9_9" message || { echo "the message does not name the guard ($flags):"; cat message; exit 1; }
done
rm -r lockstep
"$CXX" -std=c++20 -Wall -Wextra -Wpedantic -Werror -O2 -I"$SOURCE/include" -c program.cpp -o program.o
[ "${library##*.}" = a ] || "$CXX" program.o "$library" -o program
