"""PyTorch's tensor parallelism (parallelize_module) with gloo, to compare with bench/gpt_tensor.cpp: the same blocks and step on
one process and on two, with one thread each, on one core each. With a folder as argument: repeats the losses that
`bench_gpt_tensor --losses FOLDER` has written, from the same weights and data, and exits with 1 if they differ by more than
1e-5."""
import json
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from torch_fsdp import free_port  # noqa: E402
from torch_gpt_training import load  # noqa: E402

HEADS, VOCABULARY = 8, 64


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.proj = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width)
        self.head_dim = width // HEADS

    def forward(self, x):
        def heads(t):
            return t.view(*t.shape[:2], -1, self.head_dim).transpose(1, 2)

        y = self.norm1(x)
        y = F.scaled_dot_product_attention(heads(self.query(y)), heads(self.key(y)), heads(self.value(y)), is_causal=True)
        x = x + self.proj(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Blocks(nn.Module):
    def __init__(self, layers, width):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, x):
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return x


def cut(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    column, row = ("query", "key", "value", "up"), ("proj", "down")
    for block in model.blocks:
        parallelize_module(block, mesh, {**{name: ColwiseParallel() for name in column},
                                         **{name: RowwiseParallel() for name in row}})


def step_of(model, x, y):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

    def step():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def print_time(rank, ranks):
    model = Blocks(2, 512)
    if ranks > 1:
        cut(model)
    step = step_of(model, torch.randint(0, VOCABULARY, (4, 256)), torch.randn(4, 256, 512))
    seconds = []
    for _ in range(12):
        dist.barrier()
        start = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - start)
    figure = torch.tensor([statistics.median(seconds[2:])], dtype=torch.float64)
    dist.all_reduce(figure, op=dist.ReduceOp.MAX)
    if rank == 0:
        print(json.dumps({"name": f"tensor_512_torch_{ranks}", "seconds": figure.item()}), flush=True)


def compare_losses(rank, folder):
    tensors, ours = load(folder / "start.safetensors"), json.loads((folder / "ours.json").read_text())
    model = Blocks(2, 128)
    model.load_state_dict({name: tensor for name, tensor in tensors.items() if name not in ("x", "y")})
    cut(model)
    step = step_of(model, tensors["x"], tensors["y"])
    largest = max(abs(step() - loss) / abs(loss) for loss in ours)
    if rank == 0:
        print(json.dumps({"name": "tensor_losses", "steps": len(ours), "largest_relative_difference": largest}), flush=True)
    return 0 if largest <= 1e-5 else 1


def run_rank(rank, ranks, port, folder):
    torch.manual_seed(0)
    torch.set_num_threads(1)
    if os.cpu_count() >= ranks:
        os.sched_setaffinity(0, {rank})
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    status = 0
    if folder:
        status = compare_losses(rank, pathlib.Path(folder))
    else:
        print_time(rank, ranks)
    dist.destroy_process_group()
    sys.exit(status)


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    folder = sys.argv[1] if len(sys.argv) > 1 else None
    for ranks in [2] if folder else [1, 2]:
        mp.spawn(run_rank, (ranks, free_port(), folder), nprocs=ranks)
