"""PyTorch's gloo and DistributedDataParallel, to compare with bench/all_reduce.cpp and bench/distributed.cpp: the same work in
two processes with one thread each. Gloo is slow, so there are fewer calls. With --first-step both processes only train one
step and print CLOCK_MONOTONIC at its end."""
import json
import os
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2
MLP_ROWS = (32, 128, 512)


def wanted(name):
    return os.environ.get("BENCH_FILTER", "") in name


def print_row(name, seconds):
    print(json.dumps({"name": name, "seconds": seconds}), flush=True)


def time_calls(call, batch, batches):
    for _ in range(20):
        call()
    samples = []
    for _ in range(batches):
        start = time.perf_counter()
        for _ in range(batch):
            call()
        samples.append((time.perf_counter() - start) / batch)
    return statistics.median(samples)


def all_reduce(size, batch, batches):
    data = torch.zeros(size // 4)
    return time_calls(lambda: dist.all_reduce(data), batch, batches)


def step_of(model, net, criterion, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        loss = criterion(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def logistic_step():
    model = nn.Sequential(nn.Linear(10, 1), nn.Sigmoid())
    x, y = torch.randn(10, 10), torch.randint(0, 2, (10, 1)).float()
    return time_calls(step_of(model, DistributedDataParallel(model), nn.BCELoss(), x, y), 50, 30)


def mlp_step(rows, distributed):
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
    x, y = torch.randn(rows, 784), torch.randint(0, 10, (rows,))
    return step_of(model, DistributedDataParallel(model) if distributed else model, nn.CrossEntropyLoss(), x, y)


def worst(seconds):
    """The figure of the slower rank."""
    figure = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(figure, op=dist.ReduceOp.MAX)
    return figure.item()


def rows_of_one_rank(rank):
    def row(name, measure):
        dist.barrier()
        seconds = worst(measure())
        if rank == 0:
            print_row(name, seconds)

    for size, text, batch, batches in ((4, "4b", 100, 30), (4000, "4kb", 100, 30), (4_000_000, "4mb", 1, 80),
                                       (100_000_000, "100mb", 1, 10)):
        if wanted(f"all_reduce_2_{text}"):
            row(f"all_reduce_2_{text}", lambda: all_reduce(size, batch, batches))
    if wanted("ddp_logreg_step"):
        row("ddp_logreg_step", logistic_step)
    for rows in MLP_ROWS:
        if not wanted(f"ddp_mlp_{rows}"):
            continue
        for kind in ("plain", "ddp"):
            row(f"{kind}_mlp_{rows}", lambda: time_calls(mlp_step(rows, kind == "ddp"), 1, 40 if rows >= 512 else 100))


def run_rank(rank, port, first_step):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    if first_step:
        mlp_step(32, True)()
        print(json.dumps({"name": "first_step", "monotonic": time.clock_gettime(time.CLOCK_MONOTONIC)}), flush=True)
    else:
        rows_of_one_rank(rank)
    dist.destroy_process_group()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    mp.spawn(run_rank, args=(free_port(), "--first-step" in sys.argv[1:]), nprocs=RANKS)
