#!/usr/bin/env bash
# Slurm's srun starts the contract's programs, on a Slurm of this host alone that lives as long as the test.
set -euo pipefail
skip() { echo "skipped: $*"; exit 77; }
for program in munged slurmctld slurmd srun; do
  PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || skip "needs $program (munge, slurm-wlm)"
done
export PATH=$PATH:/usr/sbin
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"
library=$1
for source in 03_ddp 06_same_bits; do
  "$CXX" -std=c++20 -O1 -I"$SOURCE/include" "$SOURCE/tests/contract/$source.cpp" "$library" \
    -Wl,-rpath,"$(dirname "$library")" -o $source
done

# The cluster. Paths of sockets are short, so it has a folder of its own.
cluster=$(mktemp -d /tmp/lockstep-slurm.XXXXXX)
daemons=()
# Each daemon needs those that were started before it in order to end: a slurmstepd without munged tries again for
# 14 minutes. Those that have not ended after 10 s are killed, and with them what they started.
stop() {
  local i pid end
  for ((i = ${#daemons[@]} - 1; i >= 0; --i)); do
    pid=${daemons[i]} end=$((SECONDS + 10))
    kill "$pid" 2>/dev/null || continue
    while kill -0 "$pid" 2>/dev/null && [ "$SECONDS" -lt "$end" ]; do sleep 0.05; done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" || true
  done
  # A slurmstepd that is left has left its parent: it is found by its environment.
  for pid in $(grep -laF "SLURM_CONF=$SLURM_CONF" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3); do
    [ "$pid" = $$ ] || kill -KILL "$pid" 2>/dev/null || true
  done
  rm -rf "$cluster"
}
trap stop EXIT
chmod 711 "$cluster"  # others may connect to sockets in it
mkdir "$cluster/state" "$cluster/spool"
version=$(slurmd -V | grep -oE '[0-9.]+$')
if printf '%s\n' 23.11 "$version" | sort -CV; then  # from then on slurmd wants cgroups, unless told
  echo CgroupPlugin=disabled >"$cluster/cgroup.conf"
elif ! mountpoint -q /sys/fs/cgroup; then
  skip "slurmd $version needs /sys/fs/cgroup, which is not mounted"
fi
host=$(hostname -s)
port=$((12000 + $$ % 20000))  # below the ports of outgoing connections, of which other tests open many
export SLURM_CONF=$cluster/slurm.conf
cat >"$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$cluster/munge.socket
StateSaveLocation=$cluster/state
SlurmdSpoolDir=$cluster/spool
SlurmctldPidFile=$cluster/slurmctld.pid
SlurmdPidFile=$cluster/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=1
PartitionName=test Nodes=$host Default=YES State=UP
CONF
daemon() {  # a program in the foreground
  "$@" >"$cluster/$1.log" 2>&1 &
  daemons+=($!)
}
fail() {
  echo "FAILED: $*"
  tail -n 20 "$cluster"/*.log
  exit 1
}
head -c 128 /dev/urandom >"$cluster/munge.key"
chmod 400 "$cluster/munge.key"
daemon munged --foreground --force --key-file="$cluster/munge.key" --socket="$cluster/munge.socket" \
  --pid-file="$cluster/munge.pid" --log-file="$cluster/munge.log" --seed-file="$cluster/munge.seed"
daemon slurmctld -D
daemon slurmd -D -N "$host"
is_idle() { sinfo -h -o %t 2>/dev/null | grep -q idle; }
end=$((SECONDS + 60))
until is_idle; do
  [ "$SECONDS" -lt "$end" ] || fail "the cluster did not start within 60 s"
  for pid in "${daemons[@]}"; do kill -0 "$pid" 2>/dev/null || fail "a daemon of the cluster has ended"; done
  sleep 0.05
done

run_both() {  # backend program arguments...: under lockstep-run in a folder, and under srun in another
  local backend=$1 launcher
  shift
  for launcher in lockstep-run srun; do
    mkdir -p "$launcher.$backend"
    case $launcher in
      lockstep-run) start=("$BUILD/tools/lockstep-run" --nproc-per-node 2 --no-prefix) ;;
      srun) start=(srun --ntasks 2 --overcommit --time 5) ;;
    esac
    (cd "$launcher.$backend" && timeout -k 5 30 "${start[@]}" "$@" >output 2>&1) ||
      { cat "$launcher.$backend/output"; fail "$launcher $* failed"; }
    sort "$launcher.$backend/output"
  done
}

for backend in "${@:2}"; do
  run_both "$backend" ../03_ddp "$backend"
  cmp "lockstep-run.$backend/model.safetensors" "srun.$backend/model.safetensors" || fail "03_ddp $backend: other parameters"
  run_both "$backend" ../06_same_bits ddp 4 "$backend"
  cmp "lockstep-run.$backend/output" "srun.$backend/output" || fail "06_same_bits $backend: another hash"
done
