"""Golden values of the optimizers, schedulers, losses, activations and layers that are less common."""
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import lr_scheduler

from golden_io import FLOATS, Values
from golden_ops import EDGES

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


def module_case(out, prefix, module, x, v):
    """Parameters by name, x, y (of recurrent layers also h and c), an upstream gradient, and all gradients."""
    module = module.to(x.dtype if x.is_floating_point() else torch.float64)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(0.5 * v.normal(*parameter.shape))
            out[f"{prefix}/{name}"] = parameter.detach().clone()
    leaf = x.clone().requires_grad_()
    y = module(leaf)
    if isinstance(y, tuple):
        states = y[1] if isinstance(y[1], tuple) else (y[1],)
        out.update({f"{prefix}/{key}": state.detach() for key, state in zip("hc", states)})
        y = y[0]
    grad_y = v.normal(*y.shape, dtype=y.dtype)
    y.backward(grad_y)
    out.update({f"{prefix}/x": x, f"{prefix}/y": y.detach(), f"{prefix}/grad_y": grad_y, f"{prefix}/grad_x": leaf.grad})
    out.update({f"{prefix}/grad_{name}": parameter.grad for name, parameter in module.named_parameters()})


def layers(out, tag, dtype):
    v = Values(33)
    n = lambda *shape: v.normal(*shape, dtype=dtype)
    special = n(3, 6) * 3
    special[0, 0], special[0, 1], special[0, 2] = 0, 30, -30
    images, odd, sequence = n(2, 4, 6, 5), n(2, 3, 7, 5), n(3, 2, 4)
    encoder = dict(dim_feedforward=7, dropout=0.0, batch_first=True)
    cases = {
        "elu": (nn.ELU(0.7), special), "mish": (nn.Mish(), special), "hardswish": (nn.Hardswish(), special),
        "hardtanh": (nn.Hardtanh(-2, 1.5), special), "log_sigmoid": (nn.LogSigmoid(), special),
        "glu": (nn.GLU(), special), "glu_dim1": (nn.GLU(1), images), "prelu": (nn.PReLU(), special),
        "prelu_channels": (nn.PReLU(4), images),
        "batch_norm1d": (nn.BatchNorm1d(6), n(5, 6)), "batch_norm1d_sequence": (nn.BatchNorm1d(3), n(4, 3, 5)),
        "group_norm": (nn.GroupNorm(2, 4), images), "group_norm_plain": (nn.GroupNorm(4, 4, 0.1, affine=False), images),
        "instance_norm1d": (nn.InstanceNorm1d(3, affine=True), n(4, 3, 5)),
        "instance_norm2d": (nn.InstanceNorm2d(4), images),
        "conv1d": (nn.Conv1d(3, 4, 3), n(2, 3, 8)),
        "conv1d_options": (nn.Conv1d(4, 6, 3, stride=2, padding=2, dilation=2, groups=2, bias=False), n(2, 4, 9)),
        "max_pool1d": (nn.MaxPool1d(3, 2, 1, ceil_mode=True), n(2, 3, 8)),
        "avg_pool1d": (nn.AvgPool1d(3, 2, 1, count_include_pad=False), n(2, 3, 8)),
        "conv_transpose2d": (nn.ConvTranspose2d(4, 3, 3), images),
        "conv_transpose2d_options": (nn.ConvTranspose2d(4, 6, (3, 2), (2, 3), (1, 0), (1, 2), 2, False, (1, 2)), images),
        "adaptive_avg_pool2d": (nn.AdaptiveAvgPool2d((3, 1)), images),
        "adaptive_avg_pool2d_odd": (nn.AdaptiveAvgPool2d((3, 4)), odd),
        "nearest": (nn.Upsample(scale_factor=2), odd), "nearest_size": (nn.Upsample((5, 9)), odd),
        "bilinear": (nn.Upsample(scale_factor=2, mode="bilinear"), odd),
        "bilinear_fraction": (nn.Upsample(scale_factor=1.7, mode="bilinear"), odd),
        "bilinear_corners": (nn.Upsample((9, 3), mode="bilinear", align_corners=True), odd),
        "unfold": (nn.Unfold((3, 2), dilation=(1, 2), padding=(1, 0), stride=2), odd),
        "lstm": (nn.LSTM(4, 3), sequence), "gru": (nn.GRU(4, 3), sequence),
        "lstm_all": (nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True), sequence),
        "gru_all": (nn.GRU(4, 3, 2, bias=False, bidirectional=True), sequence),
        "lstm_single": (nn.LSTM(4, 2), n(5, 4)),
        "encoder_layer": (nn.TransformerEncoderLayer(4, 2, **encoder), sequence),
        "encoder_layer_norm_first": (nn.TransformerEncoderLayer(4, 2, activation="gelu", norm_first=True, **encoder),
                                     sequence),
        "encoder": (nn.TransformerEncoder(nn.TransformerEncoderLayer(4, 2, **encoder), 2, nn.LayerNorm(4),
                                          enable_nested_tensor=False), sequence),
    }
    for name, (module, x) in cases.items():
        module_case(out, f"{name}.{tag}", module, x, v)


def losses(out, tag, dtype):
    """<case>.<dtype>/x0, x1 (and x2), none, mean, sum, and the gradients of the mean grad_x0, ..."""
    v = Values(34)
    n = lambda *shape: v.normal(*shape, dtype=dtype)
    signs = torch.tensor([1, -1, 1, -1, -1])
    probabilities = F.softmax(n(4, 3), 1)
    probabilities[0, 1] = 0
    cases = {
        "smooth_l1": (F.smooth_l1_loss, {}, n(4, 3), n(4, 3)),
        "smooth_l1_beta": (F.smooth_l1_loss, dict(beta=0.3), n(4, 3), n(4, 3)),
        "huber": (F.huber_loss, dict(delta=0.7), n(4, 3), n(4, 3)),
        "kl_div": (F.kl_div, {}, F.log_softmax(n(4, 3), 1), probabilities),
        "kl_div_log": (F.kl_div, dict(log_target=True), F.log_softmax(n(4, 3), 1), F.log_softmax(n(4, 3), 1)),
        "triplet": (F.triplet_margin_loss, {}, n(5, 3), n(5, 3), n(5, 3)),
        "triplet_swap": (F.triplet_margin_loss, dict(margin=2.0, p=1.0, swap=True), n(5, 3), n(5, 3), n(5, 3)),
        "cosine": (F.cosine_embedding_loss, dict(margin=0.2), n(5, 3), n(5, 3), signs),
    }
    for name, (function, options, *inputs) in cases.items():
        prefix = f"{name}.{tag}"
        out.update({f"{prefix}/x{i}": x for i, x in enumerate(inputs)})
        reductions = ["none", "mean", "sum"] + (["batchmean"] if name.startswith("kl_div") else [])
        for reduction in reductions:
            leaves = [x.clone().requires_grad_(x.is_floating_point() and (i == 0 or not name == "kl_div"))
                      for i, x in enumerate(inputs)]
            loss = function(*leaves, reduction=reduction, **options)
            out[f"{prefix}/{reduction}"] = loss.detach()
            if reduction == "mean":
                loss.backward()
                out.update({f"{prefix}/grad_x{i}": x.grad for i, x in enumerate(leaves) if x.requires_grad})


def pointwise(out):
    """As in ops.safetensors: edges.<dtype> and unary.f64, for an upstream gradient of ones."""
    inputs = {f"edges.{tag}": torch.tensor(EDGES, dtype=dtype) for tag, dtype in FLOATS.items()}
    inputs["unary.f64"] = Values(36).uniform(12, low=-4, high=4)
    for key, x in inputs.items():
        out[f"{key}/x"] = x
        for name, function in {"elu": F.elu, "mish": F.mish, "hardswish": F.hardswish}.items():
            leaf = x.clone().requires_grad_()
            y = function(leaf)
            y.backward(torch.ones_like(y))
            out[f"{key}/{name}/y"], out[f"{key}/{name}/grad_x"] = y.detach(), leaf.grad


def sampling(out):
    """weighted/<seed>: 40 indices of WeightedRandomSampler with replacement."""
    weights = Values(35).uniform(9)
    weights[4] = 0
    out["weighted/weights"] = weights
    for seed in (0, 7):
        generator = torch.Generator().manual_seed(seed)
        out[f"weighted/{seed}"] = torch.tensor(list(torch.utils.data.WeightedRandomSampler(weights, 40, True, generator)))


def breadth():
    out = {}
    for tag, dtype in FLOATS.items():
        optimizers(out, tag, dtype)
        layers(out, tag, dtype)
        losses(out, tag, dtype)
    pointwise(out)
    lbfgs(out)
    schedulers(out)
    sampling(out)
    return out, {}
