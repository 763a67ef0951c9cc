"""PyTorch's scaled_dot_product_attention, to compare with bench/attention.cpp: the same work and rows."""
import torch
from torch.nn.functional import scaled_dot_product_attention

from torch_timing import THREADS, measure


def main():
    torch.set_num_threads(THREADS)
    for length in (256, 2048, 4096):
        q, k, v = (torch.randn(1, 8, length, 64, requires_grad=True) for _ in range(3))
        grad = torch.randn(1, 8, length, 64)

        def step():
            scaled_dot_product_attention(q, k, v, is_causal=True).backward(grad)
            q.grad = k.grad = v.grad = None

        measure(f"attention_{length}", step)


main()
