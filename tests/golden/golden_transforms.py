"""Golden values of image transforms. torchvision resizes tensors by torch.nn.functional.interpolate."""
import torch
from torch.nn import functional as F

from golden_io import FLOATS


def transforms():
    out = {}
    for height, width, to_height, to_width in [(7, 5, 3, 3), (4, 6, 9, 8), (12, 12, 5, 7), (5, 5, 5, 2), (1, 3, 2, 1)]:
        for tag, dtype in FLOATS.items():
            x = (torch.arange(2 * height * width) * 37 % 101).reshape(2, height, width).to(dtype) / 64
            name = f"resize_{height}x{width}_to_{to_height}x{to_width}.{tag}"
            out[f"{name}/x"] = x
            for result, antialias in {"y": True, "plain": False}.items():
                out[f"{name}/{result}"] = F.interpolate(x[None], (to_height, to_width), mode="bilinear",
                                                        align_corners=False, antialias=antialias)[0]
    return out, {}
