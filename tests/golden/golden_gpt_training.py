"""200 training steps of a small GPT. Weights and text follow from formulas, which tests/samples/gpt_golden.cpp repeats."""
import numpy as np
import torch

from golden_io import FLOATS
from gpt_model import Gpt, next_character_loss, optimizer_of, step

VOCABULARY, LAYERS, HEADS, WIDTH, CONTEXT, BATCH, STEPS = 32, 2, 2, 32, 16, 4, 200
PHRASE = "the quick brown fox jumps over the lazy dog. "


def hashes(stream, count):
    """32 well-mixed bits for each of `count` elements of a stream (lowbias32 of Chris Wellons)."""
    h = np.arange(count, dtype=np.uint32) + np.uint32(stream * 0x9E3779B9 % 2**32)
    h = (h ^ (h >> np.uint32(16))) * np.uint32(0x7FEB352D)
    h = (h ^ (h >> np.uint32(15))) * np.uint32(0x846CA68B)
    return h ^ (h >> np.uint32(16))


def set_weights(model):
    """Matrices between -1/8 and 1/8, scales between 7/8 and 9/8: multiples of 2^-18, exact in f32."""
    for index, parameter in enumerate(model.parameters()):
        values = (hashes(index, parameter.numel()) >> np.uint32(16)).astype(np.float64) * 2.0**-18 - 0.125
        with torch.no_grad():
            parameter.copy_(torch.tensor(values).reshape(parameter.shape) + (parameter.dim() == 1))


def batch_of(number):
    """A phrase again and again, with every fourth character replaced by a random one."""
    bits = hashes(1000 + number, BATCH * (CONTEXT + 1)).astype(np.int64)
    phrase = np.array([ord(c) % VOCABULARY for c in PHRASE])
    ids = np.where(bits % 4 == 0, bits // 4 % VOCABULARY, phrase[(number * 7 + np.arange(bits.size)) % len(phrase)])
    ids = torch.tensor(ids).reshape(BATCH, CONTEXT + 1)
    return ids[:, :-1], ids[:, 1:]


def gpt_training():
    out = {}
    for tag, dtype in FLOATS.items():
        model = Gpt(VOCABULARY, LAYERS, HEADS, WIDTH, CONTEXT).to(dtype)
        set_weights(model)
        next_character_loss(model(batch_of(0)[0]), batch_of(0)[1]).backward()
        if tag == "f32":
            out |= {f"grad/{name}": p.grad.clone() for name, p in model.named_parameters()}
        optimizer = optimizer_of(model, 1e-3)
        out[f"losses.{tag}"] = torch.stack([step(model, optimizer, *batch_of(n)).detach() for n in range(STEPS)])
    return out, {"gpt": f"vocabulary={VOCABULARY} layers={LAYERS} heads={HEADS} width={WIDTH} context={CONTEXT} "
                        f"batch={BATCH} adamw lr=0.001 beta2=0.99 weight_decay=0.1 (matrices) clip=1"}
