"""Golden values of layers, activations and losses."""
import torch
import torch.nn.functional as F

from golden_io import FLOATS, Values, run_with_gradients

ACTIVATIONS = {
    "relu": F.relu, "sigmoid": torch.sigmoid, "tanh": torch.tanh, "gelu": F.gelu, "silu": F.silu,
    "leaky_relu_0.01": lambda x: F.leaky_relu(x, 0.01), "leaky_relu_0.2": lambda x: F.leaky_relu(x, 0.2),
    "softplus": F.softplus, "erf": torch.erf,
    "softmax_dim0": lambda x: F.softmax(x, 0), "softmax_dim1": lambda x: F.softmax(x, 1),
    "log_softmax_dim0": lambda x: F.log_softmax(x, 0), "log_softmax_dim1": lambda x: F.log_softmax(x, 1),
}


def layers():
    out = {}
    for tag, dtype in FLOATS.items():
        v = Values(1)

        def case(name, function, **inputs):
            run_with_gradients(out, f"{name}.{tag}", function, inputs, v)

        n = lambda *shape: v.normal(*shape, dtype=dtype)
        case("linear", F.linear, x=n(5, 4), weight=n(3, 4), bias=n(3))
        case("linear_no_bias", F.linear, x=n(5, 4), weight=n(3, 4))
        case("linear_3d", F.linear, x=n(2, 3, 4), weight=n(5, 4), bias=n(5))
        case("linear_1d", F.linear, x=n(4), weight=n(5, 4), bias=n(5))
        case("layer_norm_1d", lambda x, weight, bias: F.layer_norm(x, (6,), weight, bias, 1e-5),
             x=n(4, 6), weight=n(6), bias=n(6))
        case("layer_norm_2d", lambda x, weight, bias: F.layer_norm(x, (3, 4), weight, bias, 1e-5),
             x=n(2, 3, 4), weight=n(3, 4), bias=n(3, 4))
        case("layer_norm_plain_eps_0.1", lambda x: F.layer_norm(x, (6,), None, None, 0.1), x=n(4, 6))
        case("layer_norm_offset", lambda x, weight, bias: F.layer_norm(x, (6,), weight, bias, 1e-5),
             x=n(4, 6) + 1000, weight=n(6), bias=n(6))  # a large mean, which reveals an inaccurate variance
        case("embedding", F.embedding,
             x=torch.tensor([[1, 0, 4], [4, 4, 2]]), weight=n(5, 3))  # row 4 three times: its gradients add up
        for name, function in ACTIVATIONS.items():
            x = n(3, 5) * 3
            x[0, 0], x[0, 1], x[0, 2] = 0, 30, -30
            case(name, function, x=x)
        case("softmax_large", lambda x: F.softmax(x, 1), x=torch.tensor([[1e4, 1e4 + 1, -1e4], [-1e4] * 3], dtype=dtype))
        case("softmax_minus_inf", lambda x: F.softmax(x, 1), x=torch.tensor([[0, -torch.inf, 1]], dtype=dtype))
    return out, {}


def losses():
    """Keys: <loss>.<dtype>/x, /target, tensor options, values /none /mean /sum, gradients /grad_x_mean /grad_x_sum."""
    out, options = {}, {}
    for tag, dtype in FLOATS.items():
        v = Values(2)
        n = lambda *shape: v.normal(*shape, dtype=dtype)
        u = lambda *shape: v.uniform(*shape, dtype=dtype)

        def case(name, function, x, target, note="", **extra):
            prefix = f"{name}.{tag}"
            options[name] = note
            out[f"{prefix}/x"], out[f"{prefix}/target"] = x, target
            out.update({f"{prefix}/{key}": t for key, t in extra.items()})
            for reduction in ("none", "mean", "sum"):
                leaf = x.clone().requires_grad_()
                loss = function(leaf, target, reduction=reduction, **extra)
                out[f"{prefix}/{reduction}"] = loss.detach()
                if reduction != "none":
                    loss.backward()
                    out[f"{prefix}/grad_x_{reduction}"] = leaf.grad

        def tensor(values):
            return torch.tensor(values, dtype=dtype)

        case("bce", F.binary_cross_entropy, u(4, 3), (u(4, 3) > 0.5).to(dtype))
        case("bce_soft_target", F.binary_cross_entropy, u(4, 3), u(4, 3))
        case("bce_edges", F.binary_cross_entropy, tensor([0, 0, 1, 1, 0.5, 1e-30]), tensor([0, 1, 0, 1, 0.5, 1]),
             "x exactly 0 and 1: logs are clamped at -100")
        logits = F.binary_cross_entropy_with_logits
        case("bce_with_logits", logits, 3 * n(4, 3), (u(4, 3) > 0.5).to(dtype))
        case("bce_with_logits_edges", logits, tensor([60, 60, -60, -60, 0, 0, 1000]), tensor([0, 1, 0, 1, 0, 1, 0]))
        case("bce_with_logits_pos_weight", logits, 3 * n(4, 3), (u(4, 3) > 0.5).to(dtype), "pos_weight of shape (3)",
             pos_weight=tensor([0.5, 2, 7]))
        case("bce_with_logits_pos_weight_edges", logits, tensor([[60], [60], [-60], [-60], [0]]),
             tensor([[0], [1], [0], [1], [1]]), "pos_weight of shape (1)", pos_weight=tensor([3]))
        case("mse", F.mse_loss, n(4, 3), n(4, 3))
        case("l1", F.l1_loss, n(4, 3), n(4, 3))
        case("l1_equal", F.l1_loss, tensor([1, 2, 3]), tensor([1, 2.5, 2.5]), "slope 0 where x equals the target")

        labels = torch.tensor([0, 3, 1, 1, 2])
        some_ignored = torch.tensor([0, -100, 1, 2, -100])
        weight = tensor([0.2, 1, 3, 0.7])
        probabilities = F.softmax(n(5, 4), 1)

        def cross_entropy(name, x, target, note="", weight=None, **fixed):
            extra = {} if weight is None else {"weight": weight}
            case(name, lambda *a, **k: F.cross_entropy(*a, **k, **fixed), x, target, note, **extra)

        cross_entropy("ce", 2 * n(5, 4), labels)
        cross_entropy("ce_edges", tensor([[60, -60, 0, 0], [-1000, 1000, 0, 0]]), torch.tensor([1, 0]))
        cross_entropy("ce_ignore_default", 2 * n(5, 4), some_ignored, "ignore_index -100")
        cross_entropy("ce_ignore_1", 2 * n(5, 4), labels, "ignore_index 1", ignore_index=1)
        cross_entropy("ce_all_ignored", n(2, 4), torch.tensor([-100, -100]), "mean is NaN")
        cross_entropy("ce_smoothing", 2 * n(5, 4), labels, "label_smoothing 0.1", label_smoothing=0.1)
        cross_entropy("ce_weight", 2 * n(5, 4), labels, "", weight)
        cross_entropy("ce_weight_ignore", 2 * n(5, 4), some_ignored, "ignore_index -100", weight)
        cross_entropy("ce_weight_smoothing", 2 * n(5, 4), labels, "label_smoothing 0.2", weight, label_smoothing=0.2)
        cross_entropy("ce_weight_smoothing_ignore", 2 * n(5, 4), some_ignored, "label_smoothing 0.2, ignore_index -100",
                      weight, label_smoothing=0.2)
        cross_entropy("ce_probabilities", 2 * n(5, 4), probabilities)
        cross_entropy("ce_probabilities_smoothing", 2 * n(5, 4), probabilities, "label_smoothing 0.1", label_smoothing=0.1)
        cross_entropy("ce_probabilities_weight", 2 * n(5, 4), probabilities, "", weight)
        cross_entropy("ce_probabilities_weight_smoothing", 2 * n(5, 4), probabilities, "label_smoothing 0.1", weight,
                      label_smoothing=0.1)
        cross_entropy("ce_2d", 2 * n(2, 4, 3), torch.tensor([[0, 3, -100], [1, 1, 2]]), "x is (batch, classes, d1)")
        cross_entropy("ce_single", 2 * n(4), torch.tensor(2), "x is (classes), target is 0-d")

        case("nll", F.nll_loss, F.log_softmax(n(5, 4), 1), labels)
        case("nll_weight", F.nll_loss, F.log_softmax(n(5, 4), 1), labels, weight=weight)
        case("nll_ignore", F.nll_loss, F.log_softmax(n(5, 4), 1), some_ignored, "ignore_index -100")
        case("nll_weight_ignore", F.nll_loss, F.log_softmax(n(5, 4), 1), some_ignored, "ignore_index -100", weight=weight)
    return out, {name: note for name, note in options.items() if note}
