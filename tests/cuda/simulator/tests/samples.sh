#!/usr/bin/env bash
# Checks that a sample on simulated GPUs gives the same bits with and without replays, and in all modes with the same
# micro-batches.
#   samples.sh logistic_regression
set -euo pipefail
mkdir -p "$SCRATCH" && cd "$SCRATCH"

hash_of() {  # options...
  rm -rf run
  "$program" --epochs 2 --out run --device cuda "$@" >output.txt 2>&1 || { cat output.txt >&2; exit 1; }
  sed -n 's/^hash *//p' output.txt
}
same() {  # what, hash, hash
  [ -n "$2" ] && [ "$2" = "$3" ] || { echo "$1: hash '$3', expected '$2'"; exit 1; }
  echo "$1: $3"
}

program=$1
single=$(hash_of)
same "--cuda-graph" "$single" "$(hash_of --cuda-graph)"
accumulate=$(hash_of --mode accumulate)
same "--mode dp" "$accumulate" "$(hash_of --mode dp)"
for backend in shm nccl; do  # with two ranks the order of sums makes no difference
  same "--mode ddp --backend $backend" "$accumulate" "$(hash_of --mode ddp --backend "$backend")"
done
