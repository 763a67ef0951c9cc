#!/usr/bin/env python3
"""Writes the golden values of this folder from PyTorch: run it with Debian's python3-torch and python3-numpy.

    python3 tests/golden/make_golden.py [folder]

Deterministic: the same versions write the same bytes. README.md describes the files.
The algorithm of PyTorch's CPU randperm, on which its samplers rely, is in golden_samplers.py, randperm().
"""
import json
import pathlib
import sys
import warnings

import torch

import golden_attention
import golden_breadth
import golden_gpt
import golden_gpt_training
import golden_half
import golden_image_files
import golden_images
import golden_more
import golden_nn
import golden_ops
import golden_optim
import golden_options
import golden_recurrent
import golden_samplers
import golden_tensor_ops
import golden_transforms
from golden_io import save


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")

    themes = {"layers": golden_nn.layers, "images": golden_images.images, "losses": golden_nn.losses,
              "optim": golden_optim.optim, "training": golden_optim.training, "ops": golden_ops.ops,
              "samplers": golden_samplers.samplers, "options": golden_options.options,
              "attention": golden_attention.attention, "gpt": golden_gpt.gpt,
              "gpt_training": golden_gpt_training.gpt_training, "half": golden_half.half,
              "tensor_ops": golden_tensor_ops.tensor_ops,
              "breadth": golden_breadth.breadth, "transforms": golden_transforms.transforms, "more": golden_more.more,
              "recurrent": golden_recurrent.recurrent, "image_files": golden_image_files.image_files}
    for name, make in themes.items():
        tensors, notes = make()
        save(folder / f"{name}.safetensors", tensors, notes)

    state, expected = golden_optim.interchange()
    save(folder / "model_from_torch.safetensors", state, {"format": "pt"})
    save(folder / "model_from_torch_io.safetensors", expected, {})

    texts, tensors = golden_ops.printing()
    save(folder / "printing.safetensors", tensors, {})
    for name, content in {"printing": texts, "promotion": golden_ops.promotion()}.items():
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
