#!/usr/bin/env bash
# Injects random faults: scripts/chaos.sh [trials, 200] [first seed, 1]. A failure prints its seed.
# Ranks die, stop or leave, at any time and at every system call; connections delay, split, alter or break data;
# 100,000 intruders connect; hosts are cut off.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset release >/dev/null
cmake --build --preset release --target test_parallel test_parallel_threads network_job network_intruder | tail -1
export LOCKSTEP_CHAOS_TRIALS=${1:-200} LOCKSTEP_CHAOS_SEED=${2:-1} LOCKSTEP_INTRUDERS=100000
export LOCKSTEP_KILL_TRIALS=$LOCKSTEP_CHAOS_TRIALS LOCKSTEP_KILL_STRIDE=1 LOCKSTEP_STOP_STRIDE=5 LOCKSTEP_KILL_QUIET=1
build/release/tests/test_parallel --source-file='*chaos.cpp'
build/release/tests/test_parallel --success --source-file='*kills.cpp' | grep -v '^ *$'
build/release/tests/test_parallel_threads --source-file='*/store_proxy_threads.cpp'
ctest --preset release -L network
(cd build/release/tests/network && JOB=./network_job bash ../../../../tests/network/faults.sh dead_host)
