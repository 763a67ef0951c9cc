#!/usr/bin/env bash
# Random faults, as many as asked for: scripts/chaos.sh [trials, 200] [first seed, 1]. A failure prints its seed.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset release >/dev/null
cmake --build --preset release --target test_parallel test_parallel_threads | tail -1
export LOCKSTEP_CHAOS_TRIALS=${1:-200} LOCKSTEP_CHAOS_SEED=${2:-1}
build/release/tests/test_parallel --source-file='*chaos.cpp'
