#!/usr/bin/env bash
# Strangers on the network while a job trains: intruders.sh case. LOCKSTEP_INTRUDERS: their connections (10,000).
source "$(dirname "$0")/hosts.sh"

connections=${LOCKSTEP_INTRUDERS:-10000}

# Ranks on hosts 0 and 1, the stranger on host 2.
train() {
  local rank
  hosts 3
  rm -f stop rank_*.log
  for rank in 0 1; do start $rank $rank 2 gloo 30000 1000000 "$PWD/stop"; done
  until_true 60 "training" has_steps 0 20
}
as_stranger() {
  RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=10.77.0.2 MASTER_PORT=$port LOCKSTEP_JOB_TOKEN=$token on 2 "$@"
}
train_on() {
  local steps
  steps=$(steps_of 0)
  until_true 60 "a step afterwards" has_steps 0 $((steps + 20))
  touch stop
  done_well 0 1
}

intruders() {
  train
  as_stranger "$INTRUDER" 10.77.0.2 $port "$connections" "${jobs[0]}" || fail "the store, under attack"
  train_on
}

# The server has fewer descriptors than strangers may hold connections.
few_descriptors() {
  descriptors=48
  train
  as_stranger "$INTRUDER" 10.77.0.2 $port $((connections / 5)) "${jobs[0]}" || fail "the store, under attack"
  train_on
}

# What scanners find, and what that does to the job. Gloo listens while a group is made, and no longer.
port_scan() {
  local rank listening
  command -v nmap >/dev/null || skip "needs nmap"
  train
  for rank in 0 1; do
    listening=$(on $rank ss -Hltn | awk '{ print $4 }' | tr '\n' ' ')
    echo "host $rank listens at: ${listening:-nothing}"
    [ "$rank $listening" = "0 10.77.0.2:$port " ] || [ "$rank $listening" = "1 " ] || fail "more than the store listens"
  done
  as_stranger nmap -n -Pn -sT -p "$port-$((port + 64)),32768-40000" -T5 10.77.0.2 10.77.1.2 | grep -E '^[0-9]+/|closed'
  as_stranger nmap -n -Pn -sT -sV --version-intensity 9 -T5 -p $port 10.77.0.2 | grep "^$port"
  train_on
}

"$1"
nothing_left
