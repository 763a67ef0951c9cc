"""PyTorch's pipeline (Schedule1F1B) with gloo, to compare with bench/pipeline.cpp: the same blocks and micro-batches with
accumulation on one process, and in two stages on two, with one thread each, on one core each."""
import json
import os
import statistics
import sys
import pathlib
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from torch_fsdp import free_port  # noqa: E402
from torch_tensor import VOCABULARY, Blocks  # noqa: E402

MICRO_BATCHES, SEQUENCES, TOKENS, WIDTH = 8, 16, 128, 512


def accumulation(model, x, y):
    def step():
        for one, target in zip(x.chunk(MICRO_BATCHES), y.chunk(MICRO_BATCHES)):
            (F.mse_loss(model(one), target) / MICRO_BATCHES).backward()

    return step


def pipeline(stage, rank, x, y):
    schedule = Schedule1F1B(PipelineStage(stage, rank, 2, torch.device("cpu")), MICRO_BATCHES, F.mse_loss)
    return lambda: schedule.step(x) if rank == 0 else schedule.step(target=y, losses=[])


def run_rank(rank, ranks, port):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if os.cpu_count() >= ranks:
        os.sched_setaffinity(0, {rank})
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    model = Blocks(4, WIDTH)
    x, y = torch.randint(0, VOCABULARY, (SEQUENCES, TOKENS)), torch.randn(SEQUENCES, TOKENS, WIDTH)
    if ranks == 2:
        half = torch.nn.Sequential(*model.blocks[2 * rank:2 * rank + 2])
        stage = half if rank == 1 else torch.nn.Sequential(model.tokens, *half)
        step = pipeline(stage, rank, x, y)
    else:
        step = accumulation(model, x, y)
    seconds = []
    for _ in range(7):
        model.zero_grad()
        dist.barrier()
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    figures = torch.tensor([statistics.median(seconds[2:]), min(seconds[2:])], dtype=torch.float64)
    dist.all_reduce(figures, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(json.dumps({"name": f"pipeline_512_torch_{ranks}", "seconds": figures[0].item(), "best": figures[1].item()}),
              flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    for ranks in [1, 2]:
        mp.spawn(run_rank, (ranks, free_port()), nprocs=ranks)
