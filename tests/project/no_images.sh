#!/usr/bin/env bash
# A library without the modules png and jpeg says which packages to install, and that it has to be built again.
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"
cp -L "$1" "$(basename "$(readlink -f "$1")")"
library=$(objdump -p "$1" | awk '$1 == "SONAME" {print $2}')
ln -sf "$(basename "$(readlink -f "$1")")" "$library"
cat >program.cpp <<'CODE'
#include <cstdio>

#include "lockstep/data/images.h"

int main() {
  for (const char* const file : {"\x89PNG\r\n\x1a\n", "\xff\xd8\xff"}) {
    try {
      lockstep::data::decode_image(std::as_bytes(std::span(file, 8)), {}, "file");
    } catch (const lockstep::NotBuilt& error) {
      std::puts(error.what());
    }
  }
}
CODE
"$CXX" -std=c++20 -O0 -I"$SOURCE/include" program.cpp "$library" -Wl,-rpath,"$SCRATCH" -o program
./program | tee output
for package in libpng-dev libjpeg-dev; do
  grep -q "^Install $package, then configure and build Lockstep again$" output
done
[ "$(grep -c "^file: a .* image; its decoder is the module $SCRATCH/lockstep/liblockstep_.*\.so, which does not exist$" output)" = 2 ]
