"""PyTorch's figures for the rows of bench/gpu.cpp, measured in the same way: medians over CUDA events. With --first-use it
exits after the first result of the GPU. Without a GPU it exits with 77."""
import json
import os
import pathlib
import statistics
import sys

import torch
from torch import nn

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/golden"))
from gpt_model import Gpt, next_character_loss, optimizer_of  # noqa: E402

ROWS, COLUMNS, COUNT = 16384, 4096, 1 << 28


def measure(name, calls, work, size=0, operations=0):
    if os.environ.get("BENCH_FILTER", "") not in name:
        return

    def run(count):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(count):
            work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) * 1e-3 / count

    run(20)
    seconds = statistics.median(run(calls) for _ in range(21))
    print(json.dumps({"name": name, "seconds": seconds, "gb_per_s": round(size / seconds * 1e-9, 1),
                      "tflop_per_s": round(operations / seconds * 1e-12, 2)}), flush=True)


def measure_step(name, model, criterion, x, y):
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step():
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    measure(f"{name}_eager", 100, step)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad()
    with torch.cuda.graph(graph):
        criterion(model(x), y).backward()
        optimizer.step()
    measure(f"{name}_graph", 100, graph.replay)


def measure_steps():
    measure_step("logreg_step_10", nn.Sequential(nn.Linear(10, 1), nn.Sigmoid()), nn.BCELoss(),
                 torch.randn(10, 10, device="cuda"), torch.randint(0, 2, (10, 1), device="cuda").float())
    mlp = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))
    measure_step("mlp_step_128", mlp, nn.CrossEntropyLoss(), torch.randn(128, 784, device="cuda"),
                 torch.randint(0, 10, (128,), device="cuda"))
    cnn = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
                        nn.Conv2d(16, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
                        nn.Flatten(), nn.Linear(32 * 7 * 7, 10))
    measure_step("cnn_step_256", cnn, nn.CrossEntropyLoss(), torch.randn(256, 1, 28, 28, device="cuda"),
                 torch.randint(0, 10, (256,), device="cuda"))


def measure_gpt():
    model = Gpt(65, 6, 6, 384, 256).cuda()
    optimizer = optimizer_of(model, 1e-3)
    x, y = torch.randint(0, 65, (64, 256), device="cuda"), torch.randint(0, 65, (64, 256), device="cuda")
    for name, narrow in (("gpt_step_f32", False), ("gpt_step_bf16", True)):

        def step():
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.bfloat16, enabled=narrow):
                loss = next_character_loss(model(x), y)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()

        measure(name, 5, step)


def measure_attention():
    n = 2048
    pairs = 4 * 8 * n * n / 2
    for name, dtype in (("attention_f32", torch.float32), ("attention_bf16", torch.bfloat16)):
        q, k, v = (torch.randn(4, 8, n, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
        grad = torch.randn(4, 8, n, 64, device="cuda", dtype=dtype)

        def attend():
            return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

        def forward():
            with torch.no_grad():
                attend()

        measure(name, 5, forward, operations=4 * 64 * pairs)
        measure(f"{name}_with_gradients", 5, lambda: torch.autograd.grad(attend(), (q, k, v), grad),
                operations=14 * 64 * pairs)


def measure_products():
    for n in (4096, 8192):
        a, b = torch.randn(n, n, device="cuda"), torch.randn(n, n, device="cuda")
        measure(f"matmul_{n}_f32", 3, lambda: torch.matmul(a, b), operations=2.0 * n**3)
        torch.backends.cuda.matmul.allow_tf32 = True
        measure(f"matmul_{n}_tf32", 10, lambda: torch.matmul(a, b), operations=2.0 * n**3)
        torch.backends.cuda.matmul.allow_tf32 = False
        c, d = a.bfloat16(), b.bfloat16()
        measure(f"matmul_{n}_bf16", 10, lambda: torch.matmul(c, d), operations=2.0 * n**3)


def measure_memory():
    x, y = torch.randn(COUNT, device="cuda"), torch.randn(COUNT, device="cuda")
    one_way = 4 * COUNT
    measure("copy_256m", 10, lambda: y.copy_(x), 2 * one_way)
    measure("add_256m", 10, lambda: x + y, 3 * one_way)
    measure("relu_256m", 10, lambda: torch.relu(x), 2 * one_way)
    measure("exp_256m", 10, lambda: torch.exp(x), 2 * one_way)
    measure("gelu_256m", 10, lambda: nn.functional.gelu(x), 2 * one_way)
    measure("sum_256m", 10, lambda: torch.sum(x), one_way)
    leaf = x.detach().requires_grad_()
    out = nn.functional.gelu(leaf)
    measure("gelu_backward_256m", 10, lambda: torch.autograd.grad(out, leaf, y, retain_graph=True), 3 * one_way)


def measure_rows():
    x = torch.randn(ROWS, COLUMNS, device="cuda")
    weight, bias = torch.rand(COLUMNS, device="cuda"), torch.rand(COLUMNS, device="cuda")
    one_way = 4 * ROWS * COLUMNS
    measure("sum_rows", 20, lambda: torch.sum(x, 1), one_way)
    measure("sum_columns", 20, lambda: torch.sum(x, 0), one_way)
    measure("softmax_rows", 20, lambda: torch.softmax(x, 1), 2 * one_way)
    measure("layer_norm_rows", 20, lambda: nn.functional.layer_norm(x, (COLUMNS,), weight, bias), 2 * one_way)


if __name__ == "__main__":
    if not torch.cuda.is_available():
        print("skipped: no CUDA device here")
        sys.exit(77)
    if "--first-use" in sys.argv[1:]:
        sys.exit(0 if torch.ones(1, device="cuda").item() == 1 else 1)
    torch.manual_seed(0)
    measure_steps()
    measure_gpt()
    measure_attention()
    measure_products()
    measure_memory()
    measure_rows()
