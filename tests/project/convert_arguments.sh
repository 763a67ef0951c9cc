#!/usr/bin/env bash
# scripts/convert_checkpoint.py without PyTorch: its help, the errors of its arguments, and what it needs.
#   convert_arguments.sh PYTHON
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH/torch" && cd "$SCRATCH"
echo 'raise ImportError("no torch here")' >torch/__init__.py  # also where PyTorch is installed
export PYTHONPATH=$SCRATCH
convert() { "$1" "$SOURCE/scripts/convert_checkpoint.py" "${@:2}" 2>&1; }
refuses() {  # refuses TEXT ARGUMENTS...
  local output status=0
  output=$(convert "$python" "${@:2}") || status=$?
  [ "$status" != 0 ] && grep -qF -- "$1" <<<"$output" || { echo "$output (status $status), expected: $1"; exit 1; }
}
python=$1
convert "$python" --help | grep -q -- --unsafe-pickle
convert "$python" --help | grep -q 'WARNING: loading such a file can run'
: >in.pt
refuses 'the following arguments are required: IN, OUT'
refuses 'absent.pt: no such file' absent.pt out.safetensors
refuses 'out.pt: expected a name that ends in .safetensors' in.pt out.pt
refuses 'absent/out.safetensors: the folder does not exist' in.pt absent/out.safetensors
refuses "invalid choice: 'twice'" --tied twice in.pt out.safetensors
refuses 'PyTorch and NumPy are needed' in.pt out.safetensors
[ ! -e out.safetensors ]
