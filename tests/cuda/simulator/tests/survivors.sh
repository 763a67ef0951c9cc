#!/usr/bin/env bash
# A rank dies while others wait for it in an nccl operation: every other rank must name it.
#   survivors.sh lockstep-run logistic_regression
set -euo pipefail
mkdir -p "$SCRATCH" && cd "$SCRATCH"

for lost in 0 1; do  # rank 0 has the store, which goes with it
  "$1" --nproc-per-node 3 "$2" --epochs 3 --out run --resume no --device cuda --mode ddp --micro-batches 3 --batch 33 \
    --backend nccl --inject "kill:rank=$lost,step=5" >output.txt 2>&1 && { echo "rank $lost was to die"; exit 1; }
  for rank in 0 1 2; do
    [ "$rank" != "$lost" ] || continue
    grep -q "^\[$rank\] .*all_reduce.* on rank $rank .*: rank $lost is gone: its process has ended" output.txt || {
      echo "rank $rank did not say that rank $lost is gone:"
      cat output.txt
      exit 1
    }
  done
  echo "rank $lost: every other one names it"
done
