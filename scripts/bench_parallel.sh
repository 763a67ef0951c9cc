#!/usr/bin/env bash
# Compares data parallelism with its limits, peers and goals; also as JSON in build/bench/parallel.json.
#   scripts/bench_parallel.sh [--repeats N] [filter]  the filter is part of a row's name: all_reduce_2, ddp_mlp, launch
# Peers, if installed (bench/README.md): OpenMPI (mpicc and mpirun), and PyTorch for PYTHON (/usr/bin/python3).
set -euo pipefail
cd "$(dirname "$0")/.."
filter=; repeats=3
while [ $# -gt 0 ]; do
  case $1 in
    --repeats) repeats=$2; shift ;;
    -*) sed -n '2,4s/^# //p' "$0"; exit 2 ;;
    *) filter=$1 ;;
  esac
  shift
done

scripts/install_packages.sh all
build=build/bench
cmake --preset release -B $build -DLOCKSTEP_BUILD_BENCH=ON -DLOCKSTEP_BUILD_TESTS=OFF >/dev/null
read -r load _ </proc/loadavg  # before the benchmark adds to the load
cmake --build $build | tail -1

arguments=(--bin $build/bench --launcher $build/tools/lockstep-run --result $build/parallel.json --repeats "$repeats"
  --filter "$filter" --load "$load")
if ! command -v mpicc >/dev/null || ! command -v mpirun >/dev/null; then
  arguments+=(--skipped "OpenMPI: mpicc or mpirun not found")
elif mpicc -O3 -march=native -o $build/mpi_all_reduce bench/peers/mpi_all_reduce.c; then
  arguments+=(--mpi $build/mpi_all_reduce)
else
  arguments+=(--skipped "OpenMPI: its peer does not build")
fi
python=${PYTHON:-/usr/bin/python3}
if "$python" -c 'import torch.distributed as d; assert d.is_available()' 2>/dev/null; then
  arguments+=(--python "$python" --torch bench/peers/torch_ddp.py)
else
  arguments+=(--skipped "PyTorch: $python has no torch.distributed")
fi

echo "load average $load; $(nproc) cores. Other work on the machine makes all figures worse, and not equally."
$build/bench/bench_parallel_run "${arguments[@]}"
