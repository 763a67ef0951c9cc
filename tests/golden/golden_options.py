"""Golden values of options of layers and losses, of norms for clipping, and of splits by fractions."""
import torch
import torch.nn.functional as F

from golden_io import FLOATS, Values, batch_norm_steps, run_with_gradients


def layers(out, tag, n, v):
    def case(name, function, **inputs):
        run_with_gradients(out, f"{name}.{tag}", function, inputs, v)

    x = n(3, 5) * 3
    x[0, 0], x[0, 1], x[0, 2] = 0, 30, -30
    case("gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), x=x)
    case("layer_norm_no_bias", lambda x, weight: F.layer_norm(x, (6,), weight, None, 1e-5), x=n(4, 6), weight=n(6))
    case("embedding_padding", lambda x, weight: F.embedding(x, weight, padding_idx=1),
         x=torch.tensor([[1, 0, 4], [1, 4, 2]]), weight=n(5, 3))
    for name, kernel, options in [("conv2d_same", (3, 3), {}), ("conv2d_same_even", (2, 4), {}),
                                  ("conv2d_same_dilation", (2, 3), dict(dilation=(3, 2)))]:
        case(name, lambda x, weight, bias: F.conv2d(x, weight, bias, padding="same", **options),
             x=n(2, 3, 6, 7), weight=n(4, 3, *kernel), bias=n(4))
    case("conv2d_valid", lambda x, weight, bias: F.conv2d(x, weight, bias, padding="valid"),
         x=n(2, 3, 6, 7), weight=n(4, 3, 3, 2), bias=n(4))


def batch_norms(out, tag, dtype, n):
    """Three steps of training, then eval mode: values, gradients and buffers."""
    for name, options in {"batch_norm_cumulative": dict(momentum=None),
                          "batch_norm_untracked": dict(track_running_stats=False)}.items():
        layer = torch.nn.BatchNorm2d(3, **options).to(dtype)
        parameters = {"weight": n(3), "bias": n(3)}
        layer.load_state_dict(parameters, strict=False)
        out.update({f"{name}.{tag}/{key}": t for key, t in parameters.items()})
        x = n(4, 3, 5, 6)
        batch_norm_steps(out, f"{name}.{tag}", layer, x, ["train"] * 3 + ["eval"], n)


def losses(out, tag, n, u):
    for name, function, extra in [("bce_weight", F.binary_cross_entropy, {}),
                                  ("bce_with_logits_weight", F.binary_cross_entropy_with_logits,
                                   dict(pos_weight=u(3) * 4))]:
        prefix = f"{name}.{tag}"
        x, target, weight = u(4, 3), (u(4, 3) > 0.5).to(u(1).dtype), u(4, 1) * 3
        out.update({f"{prefix}/x": x, f"{prefix}/target": target, f"{prefix}/weight": weight})
        out.update({f"{prefix}/{key}": t for key, t in extra.items()})
        for reduction in ("none", "mean", "sum"):
            leaf = x.clone().requires_grad_()
            loss = function(leaf, target, weight=weight, reduction=reduction, **extra)
            out[f"{prefix}/{reduction}"] = loss.detach()
            if reduction != "none":
                loss.backward()
                out[f"{prefix}/grad_x_{reduction}"] = leaf.grad


def clipping(out, tag, n):
    for name, p in {"clip_1": 1.0, "clip_3": 3.0, "clip_inf": float("inf")}.items():
        parameters = [n(3, 2).requires_grad_(), n(4).requires_grad_()]
        for i, parameter in enumerate(parameters):
            parameter.grad = n(*parameter.shape) * 2
            out[f"{name}.{tag}/before{i}"] = parameter.grad.clone()
        out[f"{name}.{tag}/norm"] = torch.nn.utils.clip_grad_norm_(parameters, 0.5, norm_type=p)
        out.update({f"{name}.{tag}/after{i}": parameter.grad for i, parameter in enumerate(parameters)})


def splits(out):
    """split/<n>/<seed>/<part>: random_split by fractions, with the seed of torch.manual_seed."""
    for size, fractions, seed in [(10, [0.7, 0.3], 42), (11, [0.5, 0.25, 0.25], 1), (7, [0.1] * 10, 3)]:
        torch.manual_seed(seed)
        parts = torch.utils.data.random_split(range(size), fractions)
        for i, part in enumerate(parts):
            out[f"split/{size}/{seed}/{i}"] = torch.tensor(part.indices, dtype=torch.int64)


def options():
    out = {}
    for tag, dtype in FLOATS.items():
        v = Values(21)
        n = lambda *shape: v.normal(*shape, dtype=dtype)
        u = lambda *shape: v.uniform(*shape, dtype=dtype)
        layers(out, tag, n, v)
        batch_norms(out, tag, dtype, n)
        losses(out, tag, n, u)
        clipping(out, tag, n)
    splits(out)
    return out, {}
