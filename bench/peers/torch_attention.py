"""PyTorch's scaled_dot_product_attention on one thread, to compare with bench/attention.cpp: the same work and rows."""
import json
import os
import statistics
import time

import torch
from torch.nn.functional import scaled_dot_product_attention


def seconds_of(work, total=1.0):
    """The median of the processor seconds of one call, after a warm-up."""
    samples, warm_up = [], 0.2
    start = time.process_time()
    while time.process_time() - start < warm_up:
        work()
    while sum(samples) < total or len(samples) < 11:
        start = time.process_time()
        work()
        samples.append(time.process_time() - start)
    return statistics.median(samples)


def main():
    torch.set_num_threads(1)
    for length in (256, 2048):
        name = f"attention_{length}"
        if os.environ.get("BENCH_FILTER", "") not in name:
            continue
        q, k, v = (torch.randn(1, 8, length, 64, requires_grad=True) for _ in range(3))
        grad = torch.randn(1, 8, length, 64)

        def step():
            scaled_dot_product_attention(q, k, v, is_causal=True).backward(grad)
            q.grad = k.grad = v.grad = None

        print(json.dumps({"name": name, "seconds": seconds_of(step)}), flush=True)


main()
