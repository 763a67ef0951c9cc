"""PyTorch's FSDP2 (fully_shard) with gloo, to compare with bench/gpt_sharded.cpp: the same models and rows in two processes
with one thread each, on one core each. With a folder as argument: repeats the losses that `bench_gpt_sharded --losses FOLDER`
has written, from the same weights and data, and exits with 1 if they differ by more than 1e-5."""
import json
import os
import pathlib
import socket
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/golden"))
from gpt_model import Gpt, next_character_loss  # noqa: E402
from torch_gpt_training import load  # noqa: E402

RANKS, LAYERS, HEADS, VOCABULARY, CONTEXT = 2, 4, 8, 65, 128
WIDTH_OF_LOSSES = 128


def sharded(model, units):
    mesh = init_device_mesh("cpu", (RANKS,))
    for unit in units(model):
        fully_shard(unit, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def step_of(model, criterion, x, y, lr=1e-3):
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)

    def step():
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def gpt_step():
    model = Gpt(VOCABULARY, LAYERS, HEADS, 512, CONTEXT)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.02)
    x, y = (torch.randint(0, VOCABULARY, (8, CONTEXT)) for _ in range(2))
    return step_of(sharded(model, lambda model: model.blocks), next_character_loss, x, y)


def mlp_step():
    model = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
    x, y = torch.randn(128, 784), torch.randint(0, 10, (128,))
    return step_of(sharded(model, lambda model: [model[0]]), nn.CrossEntropyLoss(), x, y)


def worst(value):
    """The figure of the slower rank."""
    figure = torch.tensor([value], dtype=torch.float64)
    dist.all_reduce(figure, op=dist.ReduceOp.MAX)
    return figure.item()


def row(name, step, steps, rounds):
    if os.environ.get("BENCH_FILTER", "") not in name:
        return
    seconds = []
    for _ in range(rounds + 1):  # the first one is not counted
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            step()
        seconds.append((time.perf_counter() - start) / steps)
    figure = worst(statistics.median(seconds[1:]))
    if dist.get_rank() == 0:
        print(json.dumps({"name": name, "seconds": figure}), flush=True)


def compare_losses(folder):
    rank, tensors = dist.get_rank(), load(folder / "start.safetensors")
    ours = json.loads((folder / "ours.json").read_text())
    model = Gpt(VOCABULARY, LAYERS, HEADS, WIDTH_OF_LOSSES, CONTEXT)
    model.load_state_dict({name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")})
    rows = slice(8 * rank, 8 * (rank + 1))
    step = step_of(sharded(model, lambda model: model.blocks), next_character_loss, tensors["x"][rows], tensors["y"][rows])
    largest = 0.0
    for loss in ours:
        own = step().detach()
        dist.all_reduce(own)
        largest = max(largest, abs(own.item() / RANKS - loss) / abs(loss))
    if rank == 0:
        print(json.dumps({"name": "fsdp_losses", "steps": len(ours), "largest_relative_difference": largest}), flush=True)
    return 0 if largest <= 1e-5 else 1


def run_rank(rank, port, arguments):
    torch.set_num_threads(1)
    if os.cpu_count() >= RANKS:
        os.sched_setaffinity(0, {rank})
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    status = 0
    if arguments:
        status = compare_losses(pathlib.Path(arguments[0]))
    else:
        row("sharded_gpt_512_fsdp2", gpt_step(), 1, 11)
        row("sharded_mlp_128_fsdp2", mlp_step(), 20, 11)
    dist.destroy_process_group()
    sys.exit(status)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


if __name__ == "__main__":
    mp.spawn(run_rank, args=(free_port(), sys.argv[1:]), nprocs=RANKS)
