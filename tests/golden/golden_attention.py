"""Golden values of scaled_dot_product_attention and MultiheadAttention."""
import torch
import torch.nn.functional as F

from golden_io import FLOATS, Values, run_with_gradients

INF, NAN = float("inf"), float("nan")


def masks(dtype, v):
    """Of 5 queries and 7 keys; query 2 attends to no key."""
    allowed = v.uniform(5, 7) > 0.4
    allowed[2] = False
    added = v.normal(2, 5, 7, dtype=dtype)
    added[1, 2] = -INF
    added[0, :, 3] = -INF
    return allowed, added


def operations(out, tag, dtype, v):
    n = lambda *shape: v.normal(*shape, dtype=dtype)

    def case(name, q, k, v_, mask=None, **options):
        inputs = dict(q=q, k=k, v=v_) | ({} if mask is None else dict(mask=mask))
        function = lambda q, k, v, mask=None: F.scaled_dot_product_attention(q, k, v, mask, **options)
        run_with_gradients(out, f"{name}.{tag}", function, inputs, v)

    def qkv(time, time_k, dim=4, dim_v=5, batch=(2, 2)):
        return n(*batch, time, dim), n(*batch, time_k, dim), n(*batch, time_k, dim_v)

    allowed, added = masks(dtype, v)
    case("plain", *qkv(5, 7))
    case("matrix", *qkv(5, 7, batch=()))
    case("broadcast", n(2, 1, 5, 4), n(3, 7, 4), n(1, 1, 7, 5))
    case("scale", *qkv(5, 7), scale=0.3)
    case("one", *qkv(1, 1, dim=1, dim_v=1))
    case("no_keys", *qkv(2, 0))
    case("no_dim", *qkv(2, 3, dim=0))
    for name, time, time_k in [("causal", 5, 5), ("causal_more_keys", 4, 7), ("causal_more_queries", 7, 4)]:
        case(name, *qkv(time, time_k), is_causal=True)
    case("bool_mask", *qkv(5, 7), mask=allowed)
    case("bool_mask_of_keys", *qkv(5, 7), mask=(v.uniform(2, 1, 1, 7) > 0.3))
    case("added_mask", *qkv(5, 7), mask=added)

    # Values only: what becomes of numbers that are not finite. With dim_v = dim PyTorch's CPU kernel runs.
    only_others = dict(attn_mask=torch.tensor([[True, False, True]]))
    for name, operand, number, options in [("nan_key", "k", NAN, {}), ("nan_value", "v", NAN, {}),
                                           ("nan_key_causal", "k", NAN, dict(is_causal=True)),
                                           ("nan_key_masked", "k", NAN, only_others), ("inf_key", "k", INF, {}),
                                           ("minus_inf_value", "v", -INF, {})]:
        inputs = dict(zip("qkv", qkv(3, 3, dim_v=4, batch=(1, 1))))
        inputs[operand][0, 0, 1] = number
        out.update({f"{name}.{tag}/{key}": t for key, t in inputs.items()})
        out[f"{name}.{tag}/y"] = F.scaled_dot_product_attention(*inputs.values(), **options)


def modules(out, tag, dtype, v):
    def case(name, query, key=None, value=None, module=None, **options):
        layer = torch.nn.MultiheadAttention(6, 3, batch_first=True, **(module or {})).to(dtype)
        prefix = f"{name}.{tag}"
        parameters = {key: v.normal(*p.shape, dtype=dtype) * 0.5 for key, p in layer.named_parameters()}
        layer.load_state_dict(parameters)
        leaves = [t.clone().requires_grad_() for t in (query, key, value) if t is not None]
        y, _ = layer(*(leaves * 3 if len(leaves) == 1 else leaves), need_weights=False, **options)
        grad_y = v.normal(*y.shape, dtype=dtype)
        y.backward(grad_y)
        out.update({f"{prefix}/{key}": p for key, p in parameters.items()})
        out.update({f"{prefix}/grad_{key}": p.grad for key, p in layer.named_parameters()})
        out.update({f"{prefix}/{key}": t for key, t in options.items() if torch.is_tensor(t)})
        for key, leaf in zip(("query", "key", "value"), leaves):
            out.update({f"{prefix}/{key}": leaf.detach(), f"{prefix}/grad_{key}": leaf.grad})
        out.update({f"{prefix}/y": y.detach(), f"{prefix}/grad_y": grad_y})

    n = lambda *shape: v.normal(*shape, dtype=dtype)
    padding = torch.tensor([[False, False, False, True], [False, True, False, True]])
    later = torch.ones(4, 4, dtype=torch.bool).triu(1)  # true: does not attend, the opposite of the function
    case("mha_self", n(2, 4, 6))
    case("mha_cross", n(2, 3, 6), n(2, 4, 6), n(2, 4, 6))
    case("mha_no_bias", n(2, 4, 6), module=dict(bias=False))
    case("mha_unbatched", n(4, 6))
    case("mha_causal", n(2, 4, 6), attn_mask=later, is_causal=True)
    case("mha_padding", n(2, 4, 6), key_padding_mask=padding)
    case("mha_padding_and_mask", n(2, 4, 6), key_padding_mask=padding, attn_mask=later)
    case("mha_added_mask", n(2, 4, 6), attn_mask=n(4, 4))
    case("mha_mask_of_heads", n(2, 4, 6), attn_mask=v.uniform(6, 4, 4) > 0.8)


def attention():
    out = {}
    for tag, dtype in FLOATS.items():
        v = Values(31)
        operations(out, tag, dtype, v)
        modules(out, tag, dtype, v)
    return out, {}
