#!/usr/bin/env bash
# Two torchrun agents stand for two hosts, of two ranks each. One of them is lost with its ranks; the job goes on with the two
# ranks that are left, from the last checkpoint, and ends with the parameters of a run in one process.
#   torchrun_elastic.sh logistic_regression
set -euo pipefail
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"
program=$1
steps=(--micro-batches 4 --lr 0.01 --save-every 10 --epochs "$EPOCHS")
LOCKSTEP_JOB_TOKEN=$("$BUILD/tools/lockstep-run" --new-token)
export LOCKSTEP_JOB_TOKEN
port=$((12000 + $$ % 20000))  # below the ports of outgoing connections, of which other tests open many

agents=()
stop() { for agent in "${agents[@]}"; do kill -KILL -- "-$agent" 2>/dev/null || true; done; }
trap stop EXIT
# start node: an agent in a process group of its own. last_call_timeout: how long agent 0 waits for a host to come back.
start() {
  setsid "$TORCHRUN" --nnodes 1:2 --nproc-per-node 2 --max-restarts 3 --rdzv-backend c10d --rdzv-id "job$port" \
    --rdzv-endpoint "127.0.0.1:$port" --rdzv-conf "is_host=$((1 - $1)),last_call_timeout=1,keep_alive_interval=1" \
    --no-python "$program" --mode ddp --backend gloo --quiet "${steps[@]}" --out elastic >"node_$1" 2>&1 &
  agents[$1]=$!
}
fail() {
  echo "FAILED: $*"
  tail -n 30 node_*
  exit 1
}
epochs_written() { cat elastic/metrics.jsonl 2>/dev/null | wc -l; }
until_true() {  # what command...
  local end=$((SECONDS + 120)) what=$1
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || fail "never came: $what"
    kill -0 "${agents[0]}" 2>/dev/null || fail "agent 0 has ended before: $what"
    sleep 0.02
  done
}
in_training() { [ "$(epochs_written)" -ge 30 ]; }

"$program" --mode accumulate --quiet "${steps[@]}" --out whole >whole.txt 2>&1 || { cat whole.txt; exit 1; }
start 0
start 1
until_true "30 epochs of four ranks" in_training
ranks=$(pgrep -P "${agents[1]}" -f -- --mode)
[ "$(wc -w <<<"$ranks")" = 2 ] || fail "agent 1 has the ranks '$ranks', expected two"
kill -KILL "${agents[1]}" $ranks
[ "$(epochs_written)" -lt "$EPOCHS" ] || fail "the job was over before a host was lost"
wait "${agents[0]}" || fail "agent 0 ended with $?"
grep -h "Resuming from elastic/checkpoint" node_0 || fail "nothing was resumed"
cmp elastic/model.safetensors whole/model.safetensors || fail "other parameters than in one process"
[ "$(epochs_written)" = "$EPOCHS" ] || fail "$(epochs_written) epochs are written, expected $EPOCHS"
