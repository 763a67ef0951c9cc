"""Golden values of operations on f16 and bf16 tensors, and of autocast."""
import torch
import torch.nn.functional as F

from golden_io import Values


def elementwise(out, tag, dtype, v):
    """PyTorch computes these in f32 and rounds once: in vectors, which is why the sizes are multiples of 32."""
    a, b = v.normal(4, 32, dtype=dtype) * 2, v.normal(4, 32, dtype=dtype)
    row, positive = v.normal(32, dtype=dtype), v.uniform(4, 32, low=0.2, high=8).to(dtype)
    wide, integers = v.normal(4, 32, dtype=torch.float32), v.integers(200, 3000, 4, 32)
    zero_d = v.normal(dtype=dtype)
    out.update({f"{tag}/{name}": t for name, t in dict(a=a, b=b, row=row, positive=positive, wide=wide,
                                                       integers=integers, zero_d=zero_d).items()})
    results = dict(
        add=a + b, add_row=a + row, add_alpha=torch.add(a, b, alpha=0.3), add_number=a + 0.1, add_integers=a + integers,
        add_in_place=a.clone().add_(b, alpha=-0.7), add_wide_in_place=a.clone().add_(wide),
        sub=a - b, sub_number=a - 0.1, number_sub=0.1 - a, mul=a * b, mul_number=a * 0.1, mul_zero_d=zero_d * 0.1,
        mul_in_place=a.clone().mul_(0.3), div=a / b, div_number=a / 0.3, div_in_place=a.clone().div_(0.3),
        maximum=torch.maximum(a, b), minimum=torch.minimum(a, b), pow=positive ** b, pow_number=positive ** 1.75,
        clamp=a.clamp(-0.7, 0.3), leaky_relu=F.leaky_relu(a, 0.1), softplus=F.softplus(a), gelu=F.gelu(a),
        gelu_tanh=F.gelu(a, approximate="tanh"), silu=F.silu(a),
        where=torch.where(a > b, a, 0.1), masked_fill=a.masked_fill(a > 0, 0.1),
        less=a < b, equal_number=torch.full_like(a, 0.1) == 0.1)
    for name in ["neg", "abs", "exp", "sin", "cos", "tanh", "sigmoid", "relu", "erf"]:
        results[name] = getattr(torch, name)(a)
    for name in ["log", "sqrt", "rsqrt"]:
        results[name] = getattr(torch, name)(positive)
    out.update({f"{tag}/{name}": t for name, t in results.items()})


def structured(out, tag, dtype, v):
    """Sums in another order: equal but for the last bit of the rounded result."""
    x, w, bias = v.normal(6, 10, dtype=dtype), v.normal(4, 10, dtype=dtype), v.normal(4, dtype=dtype)
    image, kernel = v.normal(2, 3, 6, 5, dtype=dtype), v.normal(4, 3, 3, 3, dtype=dtype) * 0.2
    q = v.normal(3, 2, 5, 4, dtype=dtype)  # queries, keys and values
    scale, labels = v.normal(10, dtype=dtype), v.integers(0, 10, 6)
    out.update({f"{tag}/{name}": t for name, t in dict(x=x, w=w, bias=bias, image=image, kernel=kernel, q=q,
                                                       scale=scale, labels=labels).items()})
    cases = dict(
        sum=lambda x: x.sum(1), mean=lambda x: x.mean(0), var=lambda x: x.var(1), std=lambda x: x.std(1),
        norm=lambda x: x.norm(dim=1), logsumexp=lambda x: x.logsumexp(1), cumsum=lambda x: x.cumsum(1),
        amax=lambda x: x.amax(1), softmax=lambda x: x.softmax(1), log_softmax=lambda x: x.log_softmax(1),
        layer_norm=lambda x: F.layer_norm(x, (10,), scale, scale),
        rms_norm=lambda x: F.rms_norm(x, (10,), scale, 1e-3), linear=lambda x: F.linear(x, w, bias),
        matmul=lambda x: x @ w.t(), conv2d=lambda x: F.conv2d(x, kernel, bias, padding=1),
        max_pool2d=lambda x: F.max_pool2d(x, 2), avg_pool2d=lambda x: F.avg_pool2d(x, 2),
        attention=lambda x: F.scaled_dot_product_attention(x[0], x[1], x[2], is_causal=True),
        cross_entropy=lambda x: F.cross_entropy(x, labels), mse_loss=lambda x: F.mse_loss(x, x.detach() * 0.5),
        bce_with_logits_loss=lambda x: F.binary_cross_entropy_with_logits(x, x.detach() * 0.5),
        embedding=lambda x: F.embedding(labels % 6, x), sort=lambda x: x.sort(1).values)
    operands = dict(conv2d=image, max_pool2d=image, avg_pool2d=image, attention=q)
    for name, function in cases.items():
        leaf = operands.get(name, x).clone().requires_grad_()
        y = function(leaf)
        grad_y = v.normal(*y.shape, dtype=dtype)
        y.backward(grad_y)
        out.update({f"{tag}/{name}": y.detach(), f"{tag}/{name}/grad_y": grad_y, f"{tag}/{name}/grad": leaf.grad})


def half():
    out = {}
    for tag, dtype in {"f16": torch.float16, "bf16": torch.bfloat16}.items():
        elementwise(out, tag, dtype, Values(41))
        structured(out, tag, dtype, Values(43))
    return out, {}
