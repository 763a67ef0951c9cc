#!/usr/bin/env bash
# Trains random models in every mode on every backend, with 2, 3 and 4 ranks, and compares all bits with those of one
# process: scripts/random_models.sh [cases per backend and number of ranks, 300] [number of the first case, 100000]
# A failure prints the case's number; LOCKSTEP_TEST_BACKENDS="gloo mpi" chooses backends.
set -euo pipefail
cd "$(dirname "$0")/.."
cmake --preset release >/dev/null
cmake --build --preset release --target lockstep_libraries test_parallel test_parallel_threads delayed_folder delayed_gloo delayed_mpi | tail -1
export LOCKSTEP_TEST_CASES=${1:-300} LOCKSTEP_TEST_FIRST=${2:-100000} LOCKSTEP_RANK_DEADLINE=7200
tests=$PWD/build/release/tests
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"

run() {
  echo "== $1"
  shift
  "$@" --no-colors=true | tail -n 30
}
late() { LOCKSTEP_TEST_LATE=$1 LD_LIBRARY_PATH=$tests/parallel/delayed/modules "$tests/test_parallel_threads" --test-case='*are?late' "${@:2}"; }
for backend in ${LOCKSTEP_TEST_BACKENDS:-local shm late_mpi mpi late_gloo gloo}; do
  case $backend in
    local) run "threads" "$tests/test_parallel_threads" --test-case='random models*on threads' ;;
    shm | gloo) run "$backend" "$tests/test_parallel" --test-case="random models*over $backend" ;;
    late_*) run "$backend: threads, late messages" late "${backend#late_}" ;;
    mpi)
      for ranks in 2 3 4; do
        run "mpi, $ranks ranks" mpirun --allow-run-as-root --oversubscribe -np $ranks "$tests/test_parallel" --test-case='mpi: random models*'
      done
      ;;
  esac
done
