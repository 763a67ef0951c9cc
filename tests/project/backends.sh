#!/usr/bin/env bash
# The contract programs train over the given backends, and 06 prints the hash of four micro-batches in one process.
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"
library=$1
shift
for name in 03_ddp 06_same_bits; do
  "$CXX" -std=c++20 -O1 -I"$SOURCE/include" "$SOURCE/tests/contract/$name.cpp" "$library" -Wl,-rpath,"$(dirname "$library")" -o "$name"
done
want=$(./06_same_bits accumulate 4 | cut -d" " -f3)
for backend in "$@"; do
  case $backend in
    mpi) start=("${MPIRUN:?}" --allow-run-as-root --oversubscribe) method=mpi:// count=-np ;;
    *) start=("$BUILD/tools/lockstep-run" --no-prefix) method=env:// count=--nproc-per-node ;;
  esac
  "${start[@]}" $count 2 ./03_ddp "$backend" $method | grep -c 'of 2 done' | grep -qx 2
  for ranks in 2 4; do
    have=$("${start[@]}" $count $ranks ./06_same_bits ddp 4 "$backend" $method | cut -d" " -f3)
    echo "$backend, $ranks ranks: $have, accumulate: $want"
    [ "$have" = "$want" ]
  done
done
