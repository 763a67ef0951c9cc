"""Repeats the training of bench_gpt_training in PyTorch and compares the losses:

    torch_gpt_training.py FOLDER TEXT [TOLERANCE]

FOLDER has start.safetensors and ours.json, which also names the device and the type of products. Exits with 1 if the validation losses differ by more than TOLERANCE (0.01)."""
import json
import pathlib
import struct
import sys

import numpy as np
import torch
from torch.optim import lr_scheduler

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tests/golden"))
from gpt_model import Gpt, next_character_loss, optimizer_of, step  # noqa: E402

LAYERS, HEADS, WIDTH, CONTEXT, RATE = 4, 4, 128, 64, 1e-3
DTYPES = {"F32": np.float32, "I64": np.int64}


def load(path):
    """The tensors of a safetensors file by name."""
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        values = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]])
        tensors[name] = torch.tensor(values.reshape(entry["shape"]))
    return tensors


def schedule_of(optimizer, steps):
    warm = min(max(steps // 10, 1), 100)
    warmup = lr_scheduler.LambdaLR(optimizer, lambda s: min(1, (s + 1) / warm))
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, max(steps - warm, 1), RATE / 10)
    return lr_scheduler.SequentialLR(optimizer, [warmup, cosine], [warm])


def windows(ids, starts, device):
    rows = torch.stack([ids[start:start + CONTEXT + 1] for start in starts]).to(device)
    return rows[:, :-1], rows[:, 1:]


def validate(model, ids, device):
    total, count = 0.0, (len(ids) - 1) // CONTEXT
    with torch.no_grad():
        for first in range(0, count, 64):
            starts = [i * CONTEXT for i in range(first, min(first + 64, count))]
            x, y = windows(ids, starts, device)
            total += next_character_loss(model(x), y).item() * len(starts)
    return total / count


def main():
    folder, text, tolerance = pathlib.Path(sys.argv[1]), sys.argv[2], float((sys.argv[3:] or ["0.01"])[0])
    torch.set_num_threads(1)
    characters = np.frombuffer(pathlib.Path(text).read_bytes(), np.uint8)
    vocabulary, ids = np.unique(characters, return_inverse=True)
    ids = torch.tensor(ids.astype(np.int64))
    rest = len(ids) - len(ids) // 10
    start = load(folder / "start.safetensors")
    batches = start.pop("batches").tolist()
    ours = json.loads((folder / "ours.json").read_text())

    device = ours["device"]
    model = Gpt(len(vocabulary), LAYERS, HEADS, WIDTH, CONTEXT)
    if ours["bf16"]:  # in forward and loss, not in backward and the optimizer
        forward = model.forward
        model.forward = lambda ids: torch.autocast(device, torch.bfloat16)(forward)(ids).float()
    parameters = dict(model.named_parameters())
    assert parameters.keys() == start.keys(), "the models have other parameters"
    with torch.no_grad():
        for name, value in start.items():
            parameters[name].copy_(value)
    model.to(device)
    optimizer = optimizer_of(model, RATE)
    schedule = schedule_of(optimizer, len(batches))
    losses = []
    for starts in batches:
        losses.append(step(model, optimizer, *windows(ids[:rest], starts, device)).item())
        schedule.step()

    worst = max(abs(a - b) / b for a, b in zip(ours["losses"][:20], losses))
    validation = validate(model, ids[rest:], device)
    difference = abs(validation - ours["validation"])
    print(f"PyTorch {torch.__version__}, {device}{', bf16' if ours['bf16'] else ''}: validation loss {validation:.5f}")
    print(f"first 20 losses: within {worst:.1e}; validation losses: {difference:.5f} apart, "
          f"{'within' if difference <= tolerance else 'NOT within'} {tolerance}")
    sys.exit(difference > tolerance)


if __name__ == "__main__":
    main()
