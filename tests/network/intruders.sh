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

# What scanners find, and what that does to the job. Gloo listens while a group is made and no longer, or, from 2023 on (which
# has a listener.h), at two ports as long as the group lives.
port_scan() {
  local rank listening others gloo_ports=0 scanned=$port
  command -v nmap >/dev/null || skip "needs nmap"
  [ ! -e /usr/include/gloo/transport/tcp/listener.h ] || gloo_ports=2
  train
  for rank in 0 1; do
    listening=$(on $rank ss -Hltn | awk '{ print $4 }')
    echo "host $rank listens at: ${listening:-nothing}"
    others=$(sed 's/.*://' <<<"$listening" | grep -vx "$port" || true)
    [ "$(grep -c "^10.77.$rank.2:" <<<"$listening")" = "$(grep -c . <<<"$listening")" ] || fail "open to other networks"
    [ "$(grep -cx "10.77.0.2:$port" <<<"$listening")" = $((1 - rank)) ] || fail "the store is not where it should be"
    [ "$(grep -c . <<<"$others")" = $gloo_ports ] || fail "more than the store and Gloo listens"
    scanned+=${others:+,${others//$'\n'/,}}
  done
  as_stranger nmap -n -Pn -sT -p "$scanned,$((port + 1))-$((port + 64)),32768-40000" -T5 10.77.0.2 10.77.1.2 | grep -E '^[0-9]+/|closed'
  as_stranger nmap -n -Pn -sT -sV --version-intensity 9 -T5 -p $port 10.77.0.2 | grep "^$port"
  train_on
}

"$1"
nothing_left
