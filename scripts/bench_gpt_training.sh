#!/usr/bin/env bash
# Trains char_gpt's model and PyTorch's with the same initial weights and batches, and compares the loss on the validation part.
#   scripts/bench_gpt_training.sh [--steps N] [--file TEXT]     (2000, samples/data/shakespeare.txt)
# One thread each. Needs a PyTorch 2: PYTHON names the interpreter (/usr/bin/python3).
set -euo pipefail
cd "$(dirname "$0")/.."
steps=2000; file=$PWD/samples/data/shakespeare.txt
while [ $# -gt 0 ]; do
  case $1 in
    --steps) steps=$2; shift ;;
    --file) file=$(realpath "$2"); shift ;;
    *) sed -n '2,4s/^# //p' "$0"; exit 2 ;;
  esac
  shift
done
python=${PYTHON:-/usr/bin/python3}
"$python" -c 'from torch.nn.functional import scaled_dot_product_attention' 2>/dev/null ||
  { echo "$python has no PyTorch 2; PYTHON chooses another" >&2; exit 2; }

scripts/install_packages.sh all
build=build/bench out=build/bench/gpt_training
cmake --preset release -B $build -DLOCKSTEP_BUILD_BENCH=ON -DLOCKSTEP_BUILD_TESTS=OFF >/dev/null
cmake --build $build --target bench_gpt_training | tail -1
mkdir -p $out
$build/bench/bench_gpt_training --out $out --steps "$steps" --file "$file"
OMP_NUM_THREADS=1 "$python" bench/peers/torch_gpt_training.py $out "$file"
