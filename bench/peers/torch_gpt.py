"""A training step of the GPT in PyTorch's eager mode, to compare with bench/gpt.cpp: the same work and rows."""
import pathlib
import sys

import torch

from torch_timing import THREADS, measure

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/golden"))
from gpt_model import Gpt, optimizer_of, step  # noqa: E402

LAYERS, VOCABULARY = 4, 65
SHAPES = {"gpt_step_128": (128, 4, 64, 12), "gpt_step_512": (512, 8, 256, 4)}  # width, heads, context, batch


def main():
    torch.set_num_threads(THREADS)
    for row, (width, heads, context, batch) in SHAPES.items():
        model = Gpt(VOCABULARY, LAYERS, heads, width, context)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.02)
        optimizer = optimizer_of(model, 1e-3)
        x, y = (torch.randint(0, VOCABULARY, (batch, context)) for _ in range(2))
        measure(row, lambda: step(model, optimizer, x, y), 4.0)


main()
