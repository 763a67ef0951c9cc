"""Golden values of optimizers, schedulers, gradient clipping, and whole training runs."""
import torch
from torch import nn
from torch.optim import lr_scheduler

from golden_io import FLOATS, Values

STEPS = 10
OPTIMIZERS = {
    "sgd": (torch.optim.SGD, dict(lr=0.1)),
    "sgd_momentum": (torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    "sgd_dampening": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, dampening=0.3)),
    "sgd_nesterov": (torch.optim.SGD, dict(lr=0.1, momentum=0.9, nesterov=True)),
    "sgd_weight_decay": (torch.optim.SGD, dict(lr=0.1, weight_decay=0.05)),
    "sgd_maximize": (torch.optim.SGD, dict(lr=0.1, maximize=True)),
    "sgd_nesterov_decay": (torch.optim.SGD, dict(lr=0.05, momentum=0.8, weight_decay=0.1, nesterov=True)),
    "sgd_all": (torch.optim.SGD, dict(lr=0.05, momentum=0.8, dampening=0.2, weight_decay=0.1, maximize=True)),
    "adam": (torch.optim.Adam, dict(lr=0.01)),
    "adam_weight_decay": (torch.optim.Adam, dict(lr=0.01, weight_decay=0.1)),
    "adam_betas_eps": (torch.optim.Adam, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-3)),
    "adamw": (torch.optim.AdamW, dict(lr=0.01)),
    "adamw_no_decay": (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.0)),
    "adamw_betas_eps": (torch.optim.AdamW, dict(lr=0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3)),
}
SKIPPED = (3, 4)  # in the *_skip runs the parameter has no gradient in these steps (counted from 0)


def optimizers(out, notes):
    for tag, dtype in FLOATS.items():
        v = Values(3)
        start, gradients = v.normal(2, 3, dtype=dtype), v.normal(STEPS, 2, 3, dtype=dtype)
        out[f"optim.{tag}/start"], out[f"optim.{tag}/gradients"] = start, gradients

        def run(name, make, options, skipped=()):
            notes[name] = " ".join(f"{key}={value}" for key, value in options.items())
            parameter = start.clone().requires_grad_()
            optimizer, after = make([parameter], **options), []
            for step in range(STEPS):
                parameter.grad = None if step in skipped else gradients[step].clone()
                optimizer.step()
                after.append(parameter.detach().clone())
            out[f"{name}.{tag}/after"] = torch.stack(after)

        for name, (make, options) in OPTIMIZERS.items():
            run(name, make, options)
        for name in ("sgd_momentum", "adam", "adamw"):
            run(name + "_skip", *OPTIMIZERS[name], SKIPPED)


def schedulers(out, notes):
    """lr before any step, then after each of 25 scheduler steps: 26 values, f64."""
    cases = {
        "step_lr": (dict(lr=0.1, step_size=7, gamma=0.5), lambda o: lr_scheduler.StepLR(o, 7, 0.5)),
        "cosine": (dict(lr=0.1, t_max=25, eta_min=0.001), lambda o: lr_scheduler.CosineAnnealingLR(o, 25, 0.001)),
        "cosine_past_t_max": (dict(lr=0.1, t_max=10, eta_min=0), lambda o: lr_scheduler.CosineAnnealingLR(o, 10)),
        # Not PyTorch's LinearLR: lr * min(1, (step + 1) / steps)
        "linear_warmup": (dict(lr=0.1, steps=10), lambda o: lr_scheduler.LambdaLR(o, lambda s: min(1, (s + 1) / 10))),
    }
    for name, (options, make) in cases.items():
        notes[name] = " ".join(f"{key}={value}" for key, value in options.items())
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=options["lr"])
        scheduler = make(optimizer)
        lrs = [optimizer.param_groups[0]["lr"]]
        for _ in range(25):
            optimizer.step()
            scheduler.step()
            lrs.append(optimizer.param_groups[0]["lr"])
        out[f"{name}/lr"] = torch.tensor(lrs, dtype=torch.float64)


def clipping(out, notes):
    for tag, dtype in FLOATS.items():
        for name, max_norm in {"clip": 1.5, "clip_not_needed": 100.0}.items():
            v = Values(4)
            notes[name] = f"max_norm={max_norm}"
            parameters = [v.normal(3, 2, dtype=dtype).requires_grad_(), v.normal(4, dtype=dtype).requires_grad_()]
            for i, parameter in enumerate(parameters):
                parameter.grad = v.normal(*parameter.shape, dtype=dtype) * 2
                out[f"{name}.{tag}/before{i}"] = parameter.grad.clone()
            out[f"{name}.{tag}/norm"] = nn.utils.clip_grad_norm_(parameters, max_norm)
            out.update({f"{name}.{tag}/after{i}": parameter.grad for i, parameter in enumerate(parameters)})


def optim():
    """Keys: <case>.<dtype>/after (steps, 2, 3); optim.<dtype>/start, /gradients; <scheduler>/lr; clip*.<dtype>/..."""
    out, notes = {}, {}
    optimizers(out, notes)
    schedulers(out, notes)
    clipping(out, notes)
    return out, notes


class Mixed(nn.Module):
    """Linear, LayerNorm, GELU, Linear."""

    def __init__(self):
        super().__init__()
        self.fc1, self.norm, self.fc2 = nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x):
        return self.fc2(nn.functional.gelu(self.norm(self.fc1(x))))


class Tied(nn.Module):
    """Embedding (12, 5), mean over the sequence, LayerNorm, and a head that uses the embedding's weight."""

    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(12, 5), nn.LayerNorm(5), nn.Linear(5, 12)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.norm(self.embedding(x).mean(1)))


TRAINING = {
    "sgd": (torch.optim.SGD, dict(lr=0.1, momentum=0.9)),
    "adamw": (torch.optim.AdamW, dict(lr=0.01, weight_decay=0.1)),
    "sgd_clip": (torch.optim.SGD, dict(lr=0.1, momentum=0.9)),  # with clip_grad_norm_(parameters, 0.5) before each step
}


def training():
    """Keys: <model>.<dtype>/x (steps, batch, ...), /target (steps, batch), /init/<parameter>,
    and per optimizer /<optimizer>/losses (steps) and /<optimizer>/final/<parameter>."""
    out, notes = {}, {"sgd_clip": "clip_grad_norm_(parameters, 0.5) before each step"}
    for name, (_, options) in TRAINING.items():
        notes[name] = (" ".join(f"{key}={value}" for key, value in options.items()) + "; " + notes.get(name, "")).strip("; ")
    for tag, dtype in FLOATS.items():
        for name, make in {"mixed": Mixed, "tied": Tied}.items():
            v, prefix = Values(5), f"{name}.{tag}"
            tied = make is Tied
            x = v.integers(0, 12, STEPS, 6, 3) if tied else v.normal(STEPS, 6, 6, dtype=dtype)
            target = v.integers(0, 12 if tied else 4, STEPS, 6)
            out[f"{prefix}/x"], out[f"{prefix}/target"] = x, target
            # state_dict() names a tied weight twice; fill it once
            init = {key: 0.5 * v.normal(*p.shape, dtype=dtype) for key, p in make().named_parameters()}
            out.update({f"{prefix}/init/{key}": p for key, p in init.items()})
            for run, (make_optimizer, options) in TRAINING.items():
                model = make().to(dtype)
                with torch.no_grad():
                    for key, p in model.named_parameters():
                        p.copy_(init[key])
                optimizer, losses = make_optimizer(model.parameters(), **options), []
                for step in range(STEPS):
                    loss = nn.functional.cross_entropy(model(x[step]), target[step])
                    optimizer.zero_grad()
                    loss.backward()
                    if run == "sgd_clip":
                        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                    optimizer.step()
                    losses.append(loss.detach())
                out[f"{prefix}/{run}/losses"] = torch.stack(losses)
                out.update({f"{prefix}/{run}/final/{key}": p.detach() for key, p in model.named_parameters()})
    return out, notes


def interchange():
    """A state dict with PyTorch's names, and the output of the model; two files."""
    v = Values(6)
    model = nn.Sequential()
    model.add_module("fc1", nn.Linear(4, 8))
    model.add_module("act", nn.ReLU())
    model.add_module("fc2", nn.Linear(8, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(v.normal(*parameter.shape))
    x = v.normal(5, 4, dtype=torch.float32)
    return dict(model.state_dict()), {"x": x, "y": model(x).detach()}
