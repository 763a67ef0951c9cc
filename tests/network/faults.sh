#!/usr/bin/env bash
# What happens to the links between hosts that train together: faults.sh case
source "$(dirname "$0")/hosts.sh"

timeout=3000
bound=$((timeout + 1000))
patient=30000
for_ever=1000000

# train size timeout [steps]: a rank on each host, until stop_training or the steps are done.
train() {
  local rank
  rm -f stop rank_*.log
  for ((rank = 0; rank < $1; ++rank)); do start "$rank" "$rank" "$1" gloo "$2" "${3:-$for_ever}" "$PWD/stop"; done
}
in_training() { until_true 60 "training" has_steps 0 20; }

undisturbed() {
  local rank hash
  hosts 3
  train 3 $patient 40
  done_well 0 1 2
  hash=$(grep -h '^done' rank_*.log | sort -u)
  [ "$(wc -l <<<"$hash")" = 1 ] || fail "ranks differ: $hash"
  one_host=yes
  for backend in shm gloo; do
    for rank in 0 1 2; do start 0 "$rank" 3 "$backend" $patient 40; done
    done_well 0 1 2
    [ "$hash" = "$(grep -h '^done' rank_*.log | sort -u)" ] || fail "$backend on one host differs: $hash"
  done
}

# Hosts that share a file and no more: gloo must find the address at which others reach it.
shared_file() {
  hosts 2
  rm -f meeting
  INIT_METHOD=file://$PWD/meeting train 2 $patient 20
  done_well 0 1
}

cable_pulled() {
  hosts 3
  train 3 $timeout
  in_training
  ip link set cable2 down
  fails 0 $bound 'rank [12] '
  fails 1 $bound 'rank [02] '
  fails 2 $bound 'rank [01] '
  # One of the survivors may wait for the other, which waits for rank 2.
  grep -hE '^failed' rank_0.log rank_1.log | grep -q 'rank 2 ' || fail "no survivor names rank 2"
}

# Host 1 hears host 0 and is not heard by it.
one_way() {
  hosts 2
  train 2 $timeout
  in_training
  ip rule add from 10.77.1.2 to 10.77.0.2 blackhole pref 10
  fails 0 $bound 'rank 1 '
  fails 1 $bound 'rank 0 '
}

healed() {
  local steps
  hosts 2
  train 2 $patient
  in_training
  ip link set cable1 down
  sleep 1
  ip link set cable1 up
  steps=$(steps_of 0)
  until_true 60 "a step after the cut" has_steps 0 $((steps + 20))
  touch stop
  done_well 0 1
}

slow_link() {
  hosts 2
  command -v tc >/dev/null || skip "needs tc (iproute2)"
  tc qdisc add dev cable0 root tbf rate 10mbit burst 32kbit latency 200ms || skip "this kernel has no tbf"
  on 0 tc qdisc add dev eth0 root netem delay 20ms 2>/dev/null || echo "this kernel has no netem: no delay"
  train 2 $patient 20
  done_well 0 1
}

cut_in_rendezvous() {
  hosts 3
  rm -f rank_*.log
  start 0 0 3 gloo $timeout 1
  start 1 1 3 gloo $timeout 1
  until_true 60 "rank 1 at rank 0" connected 0 1
  ip link set cable1 down
  # A connection is not yet an entry: rank 1 may be cut off before it has said that it is here.
  fails 0 $bound 'ranks? (1 and )?2 of 3 did not arrive'
  fails 1 $bound 'rank|store'
}
connected() { [ -n "$(on "$1" ss -Htn state established "dst 10.77.$2.2" 2>/dev/null)" ]; }

# Only the store's port is open between the hosts.
firewall() {
  hosts 2
  ip rule add ipproto 6 dport $port lookup main pref 5
  ip rule add ipproto 6 sport $port lookup main pref 5
  ip rule add from all iif cable0 blackhole pref 10
  ip rule add from all iif cable1 blackhole pref 10
  train 2 $timeout
  fails 0 $bound 'no connection with rank [01].*must be open'
  fails 1 $bound 'no connection with rank [01].*must be open'
}

# The store's host does not answer at all.
nobody() {
  hosts 2
  ip rule add iif cable1 blackhole pref 10
  start 1 1 2 gloo $timeout 1
  fails 1 $bound 'Connection timed out.*after 3000 ms'
}

# A host that dies: noticed after half a minute, not when the time-out ends. For scripts/chaos.sh, as it takes that long.
dead_host() {
  local long=150000
  hosts 3
  start 0 0 3 gloo $long 1
  start 1 1 3 gloo $long 1
  until_true 60 "rank 1 at rank 0" connected 0 1
  sleep 1 # until it waits for the others, of which nothing tells
  ip link set cable1 down
  start 2 2 3 gloo $long 1
  fails 0 40000 'rank 1 .*ended before the group was made'
  fails 1 40000 'rank 0, which holds the store'
  fails 2 40000 'rank 0, which holds the store'
}

"$1"
nothing_left
