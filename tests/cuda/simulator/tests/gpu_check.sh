#!/usr/bin/env bash
# Runs the contract programs with scripts/gpu_check.sh, on one simulated GPU, which two ranks share, and on four.
#   gpu_check.sh BUILD-FOLDER
set -euo pipefail
mkdir -p "$SCRATCH/bin"
cat >"$SCRATCH/bin/nvidia-smi" <<'SMI'
#!/bin/sh
case "$*" in
  -L) for gpu in $(seq "${LOCKSTEP_SIMULATED_CUDA#devices=}"); do echo "GPU $gpu: simulated"; done ;;
  *compute_cap*) echo 9.0 ;;
  *) echo "simulated GPU, no driver" ;;
esac
SMI
chmod +x "$SCRATCH/bin/nvidia-smi"
export PATH=$SCRATCH/bin:$PATH
for devices in 1 4; do
  LOCKSTEP_SIMULATED_CUDA=devices=$devices "$SOURCE/scripts/gpu_check.sh" --build "$1" --out "$SCRATCH/$devices" contract
  grep -q '"gpu": "simulated GPU, no driver"' "$SCRATCH/$devices/gpu.json"
done
