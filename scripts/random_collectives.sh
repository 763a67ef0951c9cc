#!/usr/bin/env bash
# Runs random collectives on every backend: scripts/random_collectives.sh [operations, 100000]
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset release >/dev/null
cmake --build --preset release --target test_parallel test_parallel_threads | tail -1
export LOCKSTEP_RANDOM_COLLECTIVES=${1:-100000} LOCKSTEP_RANK_DEADLINE=1800
build/release/tests/test_parallel_threads --test-case='local: random*'
build/release/tests/test_parallel --test-case='shm: random*,gloo: random*'
if command -v mpirun >/dev/null; then
  mpirun --allow-run-as-root --oversubscribe -np 3 build/release/tests/test_parallel --test-case='mpi: random*'
fi
