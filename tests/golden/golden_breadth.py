"""Golden values of the optimizers, schedulers, losses, activations and layers that are less common."""
import torch
from torch.optim import lr_scheduler

from golden_io import FLOATS, Values

STEPS = 10
OPTIMIZERS = {
    "adam_amsgrad": (torch.optim.Adam, dict(lr=0.01, weight_decay=0.1, amsgrad=True)),
    "adamw_amsgrad": (torch.optim.AdamW, dict(lr=0.02, betas=(0.8, 0.5), amsgrad=True)),
    "rmsprop": (torch.optim.RMSprop, dict(lr=0.01)),
    "rmsprop_momentum": (torch.optim.RMSprop, dict(lr=0.01, alpha=0.9, momentum=0.8, weight_decay=0.1)),
    "rmsprop_centered": (torch.optim.RMSprop, dict(lr=0.01, alpha=0.9, eps=1e-3, centered=True)),
    "rmsprop_all": (torch.optim.RMSprop, dict(lr=0.01, weight_decay=0.1, eps=1e-3, momentum=0.9, centered=True)),
    "adagrad": (torch.optim.Adagrad, dict(lr=0.1)),
    "adagrad_all": (torch.optim.Adagrad, dict(lr=0.1, lr_decay=0.2, weight_decay=0.1, initial_accumulator_value=0.5,
                                              eps=1e-3)),
}


def optimizers(out, tag, dtype):
    """optim.<dtype>/start, /gradients, and per case after (10, 2, 3): the parameter after each step."""
    v = Values(31)
    start, gradients = v.normal(2, 3, dtype=dtype), v.normal(STEPS, 2, 3, dtype=dtype)
    out[f"optim.{tag}/start"], out[f"optim.{tag}/gradients"] = start, gradients
    for name, (make, options) in OPTIMIZERS.items():
        parameter = start.clone().requires_grad_()
        optimizer, after = make([parameter], **options), []
        for step in range(STEPS):
            parameter.grad = gradients[step].clone()
            optimizer.step()
            after.append(parameter.detach().clone())
        out[f"{name}.{tag}/after"] = torch.stack(after)
    # Lion is not in torch.optim: algorithm 2 of the paper.
    p, m, after = start.clone(), torch.zeros_like(start), []
    for g in gradients:
        p = p - 0.01 * (torch.sign(0.9 * m + 0.1 * g) + 0.1 * p)
        m = 0.7 * m + 0.3 * g
        after.append(p)
    out[f"lion.{tag}/after"] = torch.stack(after)


def lbfgs(out):
    """Rosenbrock's function of two parameters: both after each of 6 steps, and the losses that step returns."""
    for name, options in {"lbfgs": dict(lr=0.002, max_iter=5, history_size=3),
                          "lbfgs_wolfe": dict(max_iter=4, line_search_fn="strong_wolfe"),
                          "lbfgs_wolfe_few": dict(lr=5.0, max_iter=3, max_eval=4, line_search_fn="strong_wolfe")}.items():
        a = torch.tensor([-1.2, 1.0, 0.3], dtype=torch.float64, requires_grad=True)
        b = torch.tensor([[0.5, -0.7], [1.5, 0.1]], dtype=torch.float64, requires_grad=True)
        optimizer, after, losses = torch.optim.LBFGS([a, b], **options), [], []

        def closure():
            optimizer.zero_grad()
            x = torch.cat([a, b.reshape(-1)])
            loss = (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
            loss.backward()
            return loss

        for _ in range(6):
            losses.append(optimizer.step(closure).detach())
            after.append(torch.cat([a, b.reshape(-1)]).detach())
        out[f"{name}/after"], out[f"{name}/losses"] = torch.stack(after), torch.stack(losses)


def schedulers(out):
    """lr before any step, then after each of 25 scheduler steps; for one_cycle also momentum."""
    cases = {
        "multi_step": lambda o: lr_scheduler.MultiStepLR(o, [3, 8, 8, 20], 0.5),
        "exponential": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
        "polynomial": lambda o: lr_scheduler.PolynomialLR(o, 20, 2.0),
        "warm_restarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4, 2, 0.001),
        "warm_restarts_equal": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 7),
        "one_cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.3, 25),
        "one_cycle_three": lambda o: lr_scheduler.OneCycleLR(
            o, 0.3, 25, pct_start=0.4, anneal_strategy="linear", base_momentum=0.5, max_momentum=0.75, div_factor=10,
            final_div_factor=100, three_phase=True),
    }
    for name, make in cases.items():
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
        scheduler, group = make(optimizer), optimizer.param_groups[0]
        values = [(group["lr"], group["momentum"])]
        for _ in range(25):
            optimizer.step()
            scheduler.step()
            values.append((group["lr"], group["momentum"]))
        out[f"{name}/lr"], momentum = torch.tensor(values, dtype=torch.float64).T.contiguous()
        if name.startswith("one_cycle"):
            out[f"{name}/momentum"] = momentum
    metrics = Values(32).uniform(25, dtype=torch.float64)
    out["plateau/metrics"] = metrics
    for name, options in {"plateau": dict(patience=2, factor=0.5),
                          "plateau_max": dict(mode="max", patience=1, threshold=0.1, threshold_mode="abs", cooldown=2,
                                              min_lr=0.02, factor=0.3)}.items():
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
        scheduler, lrs = lr_scheduler.ReduceLROnPlateau(optimizer, **options), []
        for metric in metrics:
            scheduler.step(metric.item())
            lrs.append(optimizer.param_groups[0]["lr"])
        out[f"{name}/lr"] = torch.tensor(lrs, dtype=torch.float64)


def breadth():
    out = {}
    for tag, dtype in FLOATS.items():
        optimizers(out, tag, dtype)
    lbfgs(out)
    schedulers(out)
    return out, {}
