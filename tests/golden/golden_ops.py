"""Golden values of tensor ops, type promotion and printing."""
import itertools

import torch

from golden_io import DTYPES, FLOATS, Values, run_with_gradients

UNARY = {
    "exp": torch.exp, "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "abs": torch.abs, "neg": torch.neg,
    "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "relu": torch.relu,
    "erf": torch.erf, "log1p": torch.log1p, "expm1": torch.expm1, "log2": torch.log2, "log10": torch.log10,
    "tan": torch.tan, "asin": torch.asin, "acos": torch.acos, "atan": torch.atan, "softplus": torch.nn.functional.softplus, "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"), "silu": torch.nn.functional.silu,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "clamp": lambda x: torch.clamp(x, -1, 1), "pow_2": lambda x: torch.pow(x, 2), "pow_3": lambda x: torch.pow(x, 3),
    "pow_0": lambda x: torch.pow(x, 0), "pow_0.5": lambda x: torch.pow(x, 0.5), "pow_-1": lambda x: torch.pow(x, -1),
    "pow_2.5": lambda x: torch.pow(x, 2.5),
}
EDGES = [0.0, -0.0, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 1e-38, 1e-30, -1e-30, 20.0, -20.0, 20.5, 88.0, 89.0,
         -87.0, -104.0, 710.0, -746.0, 1e30, -1e30, 3.5, -3.5, 100.0, 10000.0]
MATMUL = ["3@3", "3@3x2", "2x3@3", "2x3@3x4", "1x1@1x1", "5x2x3@3", "3@5x3x2", "5x2x3@3x4", "2x3@5x3x4", "5x2x3@5x3x4",
          "1x2x3@5x3x4", "2x1x2x3@5x3x4", "2x5x2x3@2x5x3x4", "0x3@3x2", "2x0@0x3"]
BINARY = {"add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "pow": torch.pow}
COMPARE = {"eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge}
BROADCAST = [((2, 3, 4), (3, 1)), ((4,), (2, 3, 1)), ((), (2, 2)), ((2, 1, 3), (1, 4, 1)), ((0, 3), (1, 3))]


def shape_of(text):
    return [int(size) for size in text.split("x")]


def name_of(shape):
    return "x".join(map(str, shape)) or "scalar"


def float_ops(out, tag, dtype):
    v = Values(7)
    n = lambda *shape: v.normal(*shape, dtype=dtype)

    def case(name, function, **inputs):
        run_with_gradients(out, f"{name}.{tag}", function, inputs, v)

    edges = torch.tensor(EDGES, dtype=dtype)
    out[f"edges.{tag}/x"] = edges
    for name, function in UNARY.items():  # one shared input; upstream gradient of ones
        x = edges.clone().requires_grad_()
        y = function(x)
        y.backward(torch.ones_like(y))
        out[f"edges.{tag}/{name}/y"], out[f"edges.{tag}/{name}/grad_x"] = y.detach(), x.grad
    for shapes in MATMUL:
        a, b = (n(*shape_of(side)) for side in shapes.split("@"))
        case(f"matmul/{shapes}", torch.matmul, a=a, b=b)
    special = torch.tensor([-1, 0, 1, torch.nan, torch.inf], dtype=dtype)
    out[f"compare.{tag}/a"], out[f"compare.{tag}/b"] = special.unsqueeze(1), special
    out.update({f"compare.{tag}/{name}": f(special.unsqueeze(1), special) for name, f in COMPARE.items()})
    reductions(out, case, n, tag)
    if dtype == torch.float64:  # operations without a separate f32 kernel: only f64, to keep the file small
        unary(out, v)
        broadcasting(case, v)
        indexing(out, case, n, tag, dtype)
        more_reductions(case, n)


def unary(out, v):
    x = v.uniform(12, low=0.1, high=4)
    out["unary.f64/x"] = x
    for name, function in UNARY.items():
        leaf = x.clone().requires_grad_()
        y = function(leaf)
        y.backward(torch.ones_like(y))
        out[f"unary.f64/{name}/y"], out[f"unary.f64/{name}/grad_x"] = y.detach(), leaf.grad


def broadcasting(case, v):
    for (sa, sb), (name, function) in itertools.product(BROADCAST, BINARY.items()):
        case(f"{name}/{name_of(sa)},{name_of(sb)}", function, a=v.uniform(*sa, low=0.5, high=2), b=v.normal(*sb))


def reductions(out, case, n, tag):
    x = n(2, 3, 4)
    out[f"reduce.{tag}/x"] = x

    def reduce(name, function):  # all use the same x, which is stored once
        case(name, function, x=x)
        del out[f"{name}.{tag}/x"]

    for dims in ([1], [-1], [0, 2], [0, 1, 2]) if x.dtype == torch.float64 else ([1], [0, 2]):
        where = ",".join(map(str, dims))
        reduce(f"sum/{where}", lambda x: x.sum(dims))
        reduce(f"mean/{where}", lambda x: x.mean(dims))
        reduce(f"var/{where}", lambda x: x.var(dims))  # unbiased
        reduce(f"var_biased/{where}", lambda x: x.var(dims, unbiased=False))
        reduce(f"norm/{where}", lambda x: x.norm(2, dims))
        reduce(f"max/{where}", lambda x: x.amax(dims))
        reduce(f"min/{where}", lambda x: x.amin(dims))
        reduce(f"logsumexp/{where}", lambda x: x.logsumexp(dims))
    reduce("var_keepdim/0,2", lambda x: x.var([0, 2], keepdim=True))
    for dim in (0, 1, -1):
        reduce(f"cumsum/{dim}", lambda x: x.cumsum(dim))
        out[f"argmax/{dim}.{tag}/y"], out[f"argmin/{dim}.{tag}/y"] = x.argmax(dim), x.argmin(dim)
    out[f"argmax/all.{tag}/y"], out[f"argmin/all.{tag}/y"] = x.argmax(), x.argmin()
    ties = torch.tensor([[1, 3, 3, 2], [5, 5, 5, 5.0]], dtype=x.dtype)
    case("max_ties/amax", lambda x: x.amax(1), x=ties)  # shared evenly among equals
    case("max_ties/all", lambda x: x.max(), x=ties)  # shared evenly among equals
    case("max_ties/max_dim", lambda x: x.max(1).values, x=ties)  # to one index
    out[f"max_ties/argmax.{tag}/y"] = ties.argmax(1)
    case("norm_zero", lambda x: x.norm(2, 1), x=torch.zeros(2, 3, dtype=x.dtype))  # derivative 0, not NaN
    case("logsumexp_large", lambda x: x.logsumexp(1), x=torch.tensor([[1e4, 1e4], [-1e4, -1e4]], dtype=x.dtype))
    case("logsumexp_minus_inf", lambda x: x.logsumexp(1), x=torch.tensor([[-torch.inf, 0]], dtype=x.dtype))
    nan = torch.tensor([[1, torch.nan, 3], [1, 2, 3]], dtype=x.dtype)
    out[f"nan.{tag}/x"] = nan
    out.update({f"nan.{tag}/max": nan.amax(1), f"nan.{tag}/min": nan.amin(1), f"nan.{tag}/argmax": nan.argmax(1),
                f"nan.{tag}/argmin": nan.argmin(1)})
    empty = torch.zeros(2, 0, dtype=x.dtype)
    out.update({f"empty.{tag}/sum": empty.sum(1), f"empty.{tag}/mean": empty.mean(1), f"empty.{tag}/var": empty.var(1)})


def more_reductions(case, n):
    for p in ("1", "3", "1.5", "0.5", "-1", "inf", "-inf"):
        case(f"norm_{p}/1", lambda x: x.norm(float(p), 1), x=n(2, 3, 2))
        case(f"norm_{p}/all", lambda x: x.norm(float(p)), x=n(2, 3))
    for name in ("max", "min"):
        case(f"{name}_dim/1", lambda x: getattr(x, name)(1).values, x=n(2, 3, 2))
    case("std/1", lambda x: x.std(1), x=n(2, 3, 2))
    case("std/all", lambda x: x.std(), x=n(2, 3))
    case("std_biased/0,2", lambda x: x.std([0, 2], unbiased=False), x=n(2, 3, 2))


def indexing(out, case, n, tag, dtype):
    for dim, index in ((0, [2, 0, 2]), (1, [3, 3]), (-1, [0])):
        case(f"index_select/{dim}", lambda x, index: x.index_select(dim, index), x=n(3, 4), index=torch.tensor(index))
    case("gather/0", lambda x, index: x.gather(0, index), x=n(3, 4), index=torch.tensor([[0, 2, 2, 0], [1, 1, 0, 2]]))
    case("gather/1", lambda x, index: x.gather(1, index), x=n(3, 4), index=torch.tensor([[3, 3], [0, 1], [2, 2]]))
    case("scatter_add/0", lambda x, index, src: x.scatter_add(0, index, src), x=n(3, 4),
         index=torch.tensor([[0, 2, 2, 0], [1, 1, 2, 2]]), src=n(2, 4))
    case("scatter_add/1", lambda x, index, src: x.scatter_add(1, index, src), x=n(3, 4),
         index=torch.tensor([[3, 3], [0, 1], [2, 2]]), src=n(3, 2))
    case("masked_fill", lambda x, mask: x.masked_fill(mask, -7), x=n(2, 3), mask=torch.tensor([True, False, True]))
    case("where", torch.where, mask=torch.tensor([[True], [False]]), a=n(2, 3), b=n(3))
    case("sort/1", lambda x: x.sort(1).values, x=n(3, 5))
    case("sort/0", lambda x: x.sort(0).values, x=n(3, 5))
    x = n(3, 6)
    case("topk/2", lambda x: x.topk(2, 1).values, x=x)
    out[f"topk/2.{tag}/indices"], out[f"sort_of_topk.{tag}/indices"] = x.topk(2, 1).indices, x.sort(1).indices
    ties = torch.tensor([3, 1, torch.nan, 1, 3, -torch.inf, torch.inf, 1], dtype=dtype)
    out[f"sort_ties.{tag}/x"] = ties
    for name, descending in {"ascending": False, "descending": True}.items():  # stable; NaN counts as the largest
        order = ties.sort(stable=True, descending=descending)
        out[f"sort_ties.{tag}/{name}/values"], out[f"sort_ties.{tag}/{name}/indices"] = order.values, order.indices


def casts(out):
    """f32 -> f16, bf16 (round to nearest, ties to even) and the integers (towards zero)."""
    x = torch.tensor([0, -0.0, 1, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1 + 3 * 2**-11, 65504, 65519, 65520, 3.4e38, 1e-7,
                      2**-24, 2**-25, 3 * 2**-26, 2**-133, 1e-40, torch.inf, -torch.inf, torch.nan])
    out["cast/x"], out["cast/f16"], out["cast/bf16"] = x, x.half(), x.bfloat16()
    out["cast/f16_f32"], out["cast/bf16_f32"] = x.half().float(), x.bfloat16().float()
    small = torch.tensor([0, 0.9, -0.9, 1.5, -1.5, 2.5, 100.7, -0.0])
    out["cast/small"] = small
    out.update({f"cast/small_{name}": small.to(DTYPES[name]) for name in ("i64", "i32", "bool", "f64")})
    integers = torch.tensor([[7, -7, 7, -7], [2, 2, -2, -2]])
    out["integer/x"], out["integer/div"] = integers, integers[0] / integers[1]
    out["integer/sum"], out["integer/sum_i32"] = integers.sum(1), integers.int().sum(1)  # both i64
    out["integer/sum_bool"], out["integer/sum_u8"] = (integers > 0).sum(1), integers.abs().byte().sum(1)
    out["integer/cumsum"] = integers.cumsum(1)


def ops():
    """Keys: <op>/<variant>.<dtype>/<tensor>; see README.md."""
    out = {}
    for tag, dtype in FLOATS.items():
        float_ops(out, tag, dtype)
    casts(out)
    return out, {}


def promotion():
    """Result dtypes of a + b: tensor with tensor, with a 0-d tensor, with a C++ scalar; and of a / b."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    scalars = {"bool": True, "int": 1, "float": 1.5}
    pair = lambda f: {f"{a},{b}": names[f(DTYPES[a], DTYPES[b])] for a in DTYPES for b in DTYPES}
    one = lambda dtype: torch.ones(1, dtype=dtype)
    return {
        "torch": torch.__version__,
        "tensor,tensor": pair(lambda a, b: (one(a) + one(b)).dtype),
        "tensor,0-d tensor": pair(lambda a, b: (one(a) + one(b)[0]).dtype),
        "tensor,scalar": {f"{a},{s}": names[(one(DTYPES[a]) + value).dtype] for a in DTYPES for s, value in scalars.items()},
        "tensor/tensor": pair(lambda a, b: (one(a) / one(b)).dtype),
        "sum": {a: names[one(DTYPES[a]).sum().dtype] for a in DTYPES},
    }


def printing():
    """(texts, tensors): name -> print(tensor), and the tensors themselves for printing.safetensors."""
    v, t = Values(8), torch.tensor
    tensors = {
        "int_1d": t([1, -20, 300]),
        "int_2d": torch.arange(6).reshape(2, 3),
        "i32": t([1, 2], dtype=torch.int32),
        "u8": t([0, 255], dtype=torch.uint8),
        "bool": t([[True, False], [False, True]]),
        "float_1d": t([1.0, 2.5, -3.25]),
        "float_whole": t([1.0, 2.0, 3.0]),
        "float_2d": v.normal(2, 3, dtype=torch.float32),
        "float_3d": v.normal(2, 2, 3, dtype=torch.float32),
        "float_4d": torch.arange(8.0).reshape(2, 1, 2, 2),
        "f64": t([0.1, 1 / 3], dtype=torch.float64),
        "f16": t([1.5, 2.0], dtype=torch.float16),
        "bf16": t([1.5, 2.0], dtype=torch.bfloat16),
        "sci_small": t([1e-5, 1.0]),
        "sci_large": t([1e9, 1.5]),
        "sci_range": t([0.001, 2000.0, 3.5]),
        "sci_whole": t([1e10, 1.0]),
        "zero": t([0.0, -0.0]),
        "nan_inf": t([torch.nan, torch.inf, -torch.inf, 1.0]),
        "nan_inf_fraction": t([torch.nan, torch.inf, 1.25]),
        "only_nan": t([torch.nan, torch.nan]),
        "scalar": t(3.14159),
        "scalar_whole": t(3.0),
        "scalar_small": t(1e-6),
        "scalar_int": t(7),
        "scalar_bool": t(True),
        "empty": t([]),
        "empty_int": torch.zeros(0, dtype=torch.int64),
        "empty_2d": torch.zeros(2, 0),
        "long_line": torch.arange(30.0) * 1.25,
        "long_line_int": torch.arange(60),
        "at_threshold": torch.arange(1000).to(torch.uint8),
        "truncated_1d": torch.arange(1001).to(torch.uint8),
        "truncated_2d": torch.arange(1200.0).reshape(30, 40),
        "truncated_3d": torch.arange(1792).to(torch.uint8).reshape(7, 16, 16),
        "truncated_few_rows": torch.arange(1400).to(torch.uint8).reshape(4, 350),
    }
    texts = {name: str(tensor) for name, tensor in tensors.items()}
    leaf = t([1.0, 2.0], requires_grad=True)
    texts["requires_grad"], tensors["requires_grad"] = str(leaf), leaf.detach()
    return texts, tensors
