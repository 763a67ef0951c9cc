"""Writes safetensors with NumPy alone, and gathers named tensors. Shared by the make_golden scripts."""
import json
import struct

import numpy as np
import torch

# From the largest alignment down, as in the reference writer of the format; then by name.
_ORDER = ["I64", "F64", "F32", "I32", "BF16", "F16", "U8", "BOOL"]
_NAMES = {torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32",
          torch.bfloat16: "BF16", torch.float16: "F16", torch.uint8: "U8", torch.bool: "BOOL"}

FLOATS = {"f32": torch.float32, "f64": torch.float64}
DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16,
          "i64": torch.int64, "i32": torch.int32, "u8": torch.uint8, "bool": torch.bool}


def to_bytes(tensor):
    tensor = tensor.detach().contiguous()
    if tensor.dtype == torch.bfloat16:  # NumPy has no bfloat16: take the bits
        tensor = tensor.view(torch.int16)
    return tensor.numpy().tobytes()


def save(path, tensors, metadata):
    """tensors: name -> torch.Tensor; metadata: str -> str."""
    header = {"__metadata__": {**metadata, "torch": torch.__version__, "numpy": np.__version__}}
    chunks, end = [], 0
    for name, tensor in sorted(tensors.items(), key=lambda item: (_ORDER.index(_NAMES[item[1].dtype]), item[0])):
        data = to_bytes(tensor)
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape),
                        "data_offsets": [end, end + len(data)]}
        chunks.append(data)
        end += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(chunks))


class Values:
    """Random inputs that f32 holds exactly, so that the f32 and f64 cases start from the same numbers."""

    def __init__(self, seed):
        self._rng = np.random.RandomState(seed)  # frozen by NumPy: the same numbers in every version

    def normal(self, *shape, dtype=torch.float64):
        return torch.tensor(self._rng.standard_normal(shape).astype(np.float32)).to(dtype)

    def uniform(self, *shape, dtype=torch.float64, low=0.0, high=1.0):
        return torch.tensor(self._rng.uniform(low, high, shape).astype(np.float32)).to(dtype)

    def integers(self, low, high, *shape):
        return torch.tensor(self._rng.randint(low, high, shape))


def batch_norm_steps(out, prefix, layer, x, modes, normal):
    """One step for each of `modes`, "train" or "eval": inputs, outputs, gradients and buffers below prefix/<step>."""
    for step, mode in enumerate(modes):
        layer.train(mode == "train")
        layer.zero_grad()
        leaf = (x * (1 + step) + step).requires_grad_()
        y = layer(leaf)
        grad_y = normal(*y.shape)
        y.backward(grad_y)
        values = {"x": leaf.detach(), "y": y.detach(), "grad_y": grad_y, "grad_x": leaf.grad}
        values |= {f"grad_{key}": p.grad.clone() for key, p in layer.named_parameters()}
        values |= {key: b.clone() for key, b in layer.named_buffers()}
        out.update({f"{prefix}/{step}/{key}": value for key, value in values.items()})


def run_with_gradients(out, prefix, function, inputs, values):
    """Stores inputs, y, an upstream gradient grad_y, and grad_<input> of every floating input.

    inputs: name -> tensor, in the order of the function's parameters.
    """
    leaves = {name: t.clone().requires_grad_() if t.is_floating_point() else t for name, t in inputs.items()}
    y = function(*leaves.values())
    grad_y = values.normal(*y.shape, dtype=y.dtype)
    y.backward(grad_y)
    out.update({f"{prefix}/{name}": t.detach() for name, t in leaves.items()})
    out[f"{prefix}/y"] = y.detach()
    out[f"{prefix}/grad_y"] = grad_y
    for name, t in leaves.items():
        if t.is_floating_point():
            out[f"{prefix}/grad_{name}"] = t.grad
