"""Training steps and inference of the GPT in PyTorch's eager mode, to compare with bench/gpt.cpp: the same work and rows."""
import pathlib
import sys

import torch

from torch_timing import THREADS, measure

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/golden"))
from gpt_model import Gpt, optimizer_of, step  # noqa: E402

LAYERS, VOCABULARY = 4, 65
SHAPES = {"gpt_step_128": (128, 4, 64, 12), "gpt_step_512": (512, 8, 256, 4)}  # width, heads, context, batch
INFERENCE_LAYERS, INFERENCE_SHAPE = 6, (384, 6, 64, 1)


def model_of(shape, layers):
    width, heads, context, _ = shape
    model = Gpt(VOCABULARY, layers, heads, width, context)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    return model


def ids_of(shape):
    *_, context, batch = shape
    return torch.randint(0, VOCABULARY, (batch, context))


def main():
    torch.set_num_threads(THREADS)
    for row, shape in SHAPES.items():
        model = model_of(shape, LAYERS)
        optimizer = optimizer_of(model, 1e-3)
        x, y = ids_of(shape), ids_of(shape)
        measure(row, lambda: step(model, optimizer, x, y), 4.0)

    model, x = model_of(INFERENCE_SHAPE, INFERENCE_LAYERS).eval(), ids_of(INFERENCE_SHAPE)
    with torch.inference_mode():
        measure("gpt_inference_384", lambda: model(x), 2.0)


main()
