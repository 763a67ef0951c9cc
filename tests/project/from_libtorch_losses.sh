#!/usr/bin/env bash
# docs/from_libtorch.md with LibTorch (Debian's libtorch-dev, or another one in $LIBTORCH): its side of every row
# compiles, and the two programs have the same losses.
#   from_libtorch_losses.sh LIBLOCKSTEP
set -euo pipefail
library=$1
prefix=${LIBTORCH:-/usr}
api=$prefix/include/torch/csrc/api/include
if [ ! -e "$api/torch/torch.h" ]; then
  echo "skipped: LibTorch was not found (Debian: libtorch-dev; elsewhere: LIBTORCH=<folder>)"
  exit 77
fi
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"
docs=$SOURCE/docs
standard=17
grep -q "C++20 or later" "$api/torch/all.h" && standard=20  # LibTorch 2.15
torch=(-std=c++$standard -w -I"$prefix/include" -I"$api")
[ "$prefix" != /usr ] || torch=(-std=c++$standard -w -I"$api")

awk -v column=1 -v header=torch/torch.h -f "$SOURCE/tests/project/from_libtorch_rows.awk" "$docs/from_libtorch.md" >rows.cpp
"$CXX" "${torch[@]}" -fsyntax-only rows.cpp
"$CXX" "${torch[@]}" "$docs/from_libtorch/libtorch.cpp" -L"$prefix/lib" -Wl,-rpath,"$prefix/lib" -ltorch -ltorch_cpu -lc10 \
  -o libtorch
"$CXX" -std=c++20 -O2 -I"$SOURCE/include" "$docs/from_libtorch/lockstep.cpp" "$library" \
  -Wl,-rpath,"$(dirname "$library")" -o lockstep

# LibTorch's MNIST accepts only 60,000 and 10,000 images. These are the digits of 1, 2, 3, ... as shades of grey.
idx() { printf '%b' "\\x00\\x00\\x08\\x0$1"; shift; for size; do printf '%b' "$(printf '\\x%02x\\x%02x\\x%02x\\x%02x' \
  $((size >> 24)) $((size >> 16 & 255)) $((size >> 8 & 255)) $((size & 255)))"; done; }
pictures() { idx 3 "$1" 28 28; seq 1 10000000 | tr '0-9\n' '\0\34\70\124\160\214\250\304\340\374\377' | head -c $(($1 * 784)) || true; }
labels() { idx 1 "$1"; seq 1 10000000 | tr -d '\n' | tr 0-9 '\0-\11' | head -c "$1" || true; }
for part in train:60000 t10k:10000; do
  pictures "${part#*:}" >"${part%:*}-images-idx3-ubyte"
  labels "${part#*:}" >"${part%:*}-labels-idx1-ubyte"
done

# The first five lines: the losses of steps 10 to 50. The script does not wait for the rest of the epoch.
first_losses() { stdbuf -oL "./$1" . 1 2>"$1.errors" | head -n 5 | cut -d, -f2- >"$1.losses" || true; cat "$1.errors"; }
first_losses libtorch
first_losses lockstep
paste -d, libtorch.losses lockstep.losses | tee both.losses
awk -F'[ ,]+' '{ if ($2 $3 != $6 $7) bad = 1; d = $5 - $9; if (d < -1e-5 || d > 1e-5) bad = 1 } END { exit bad || NR != 5 }' both.losses ||
  { echo "the losses differ"; exit 1; }

for program in libtorch lockstep; do "./$program" . 0; done
ls -l net.pt net.safetensors
