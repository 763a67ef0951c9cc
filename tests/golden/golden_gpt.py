"""Golden values of what a GPT needs besides attention: RMS normalisation, and warmup followed by a cosine."""
import torch
import torch.nn.functional as F
from torch.optim import lr_scheduler

from golden_io import FLOATS, Values, run_with_gradients


def rms_norms(out, tag, dtype):
    v = Values(31)
    n = lambda *shape: v.normal(*shape, dtype=dtype)

    def case(name, shape, eps=None, **inputs):
        run_with_gradients(out, f"{name}.{tag}", lambda x, weight=None: F.rms_norm(x, shape, weight, eps), inputs, v)

    case("rms_norm_1d", (6,), x=n(4, 6), weight=n(6))
    case("rms_norm_2d", (3, 4), x=n(2, 3, 4), weight=n(3, 4))
    case("rms_norm_plain_eps_0.1", (6,), 0.1, x=n(4, 6))
    case("rms_norm_tiny", (5,), x=n(3, 5) * 2**-12, weight=n(5))  # the default eps counts in f32


def schedules(out):
    """lr before any step, then after each of 25 steps."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    warmup = lr_scheduler.LambdaLR(optimizer, lambda s: min(1, (s + 1) / 4))
    cosine = lr_scheduler.CosineAnnealingLR(optimizer, 12, 0.01)
    decay = lr_scheduler.StepLR(optimizer, 3, 0.5)
    schedule = lr_scheduler.SequentialLR(optimizer, [warmup, cosine, decay], [4, 16])
    lrs = [optimizer.param_groups[0]["lr"]]
    for _ in range(25):
        optimizer.step()
        schedule.step()
        lrs.append(optimizer.param_groups[0]["lr"])
    out["sequential/lr"] = torch.tensor(lrs, dtype=torch.float64)


def gpt():
    out = {}
    for tag, dtype in FLOATS.items():
        rms_norms(out, tag, dtype)
    schedules(out)
    return out, {}
