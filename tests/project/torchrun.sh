#!/usr/bin/env bash
# PyTorch's launcher starts the contract's programs: on one host, and with two agents in place of two hosts.
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"
library=$1
"$CXX" -std=c++20 -O1 -I"$SOURCE/include" "$SOURCE/tests/contract/06_same_bits.cpp" "$library" \
  -Wl,-rpath,"$(dirname "$library")" -o 06_same_bits
want=$(./06_same_bits accumulate 4 | cut -d" " -f3)
# Without these two options torchrun 1.13 fails under Python 3.11.
run=(timeout -k 10 120 "$TORCHRUN" --redirects 1 --tee 1 --log_dir logs --no_python)

port=$((12000 + $$ % 20000))  # below the ports of outgoing connections, of which other tests open many

check() {  # the file with the output
  have=$(grep -o 'ddp 4 [0-9a-f]*' "$1" | cut -d" " -f3) || { cat "$1"; return 1; }
  echo "$1: $have, accumulate: $want"
  [ "$have" = "$want" ]
}

for backend in "${@:2}"; do
  "${run[@]}" --nproc_per_node 2 --master_port "$port" ./06_same_bits ddp 4 "$backend" >"static_$backend" 2>&1 ||
    { cat "static_$backend"; exit 1; }
  check "static_$backend"
  "${run[@]}" --nproc_per_node 2 --standalone ./06_same_bits ddp 4 "$backend" >"standalone_$backend" 2>&1 ||
    { cat "standalone_$backend"; exit 1; }
  check "standalone_$backend"
done
[[ " ${*:2} " == *" gloo "* ]] || exit 0
LOCKSTEP_JOB_TOKEN=$("$BUILD/tools/lockstep-run" --new-token)
export LOCKSTEP_JOB_TOKEN
nodes=("${run[@]}" --nnodes 2 --nproc_per_node 1 --master_addr 127.0.0.1 --master_port "$port")
"${nodes[@]}" --node_rank 1 ./06_same_bits ddp 4 gloo >node_1 2>&1 &
trap 'kill $! 2>/dev/null || true' EXIT
"${nodes[@]}" --node_rank 0 ./06_same_bits ddp 4 gloo >node_0 2>&1 || { cat node_0 node_1; exit 1; }
wait $!
check node_0
