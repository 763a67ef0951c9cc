"""Golden values of rounding, shaping, indexing, reducing and contracting tensors."""
import torch

from golden_io import DTYPES, Values, run_with_gradients

STEPS = [torch.floor, torch.ceil, torch.round, torch.trunc, torch.sign]
DIVISIONS = [torch.remainder, torch.fmod, torch.floor_divide]
BITS = [torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor]
LOGIC = [torch.logical_and, torch.logical_or, torch.logical_xor]
EDGES = [0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -3.0, 7.25, -7.25, 0.1, 1e30, -1e30, torch.inf, -torch.inf, torch.nan]


def rounding(out):
    """Keys: rounding/<dtype>/<function>: of x, or of every pair, a = x as a column, b = x as a row."""
    for tag in ("f32", "f64", "f16", "bf16"):
        x = torch.tensor(EDGES).clamp(-6e4, 6e4).to(DTYPES[tag]) if tag == "f16" else torch.tensor(EDGES).to(DTYPES[tag])
        column = x.unsqueeze(1)
        results = {f.__name__: f(x) for f in STEPS + [torch.isnan, torch.isinf, torch.isfinite]}
        results |= {f.__name__: f(column, x) for f in DIVISIONS + [torch.atan2] + LOGIC}
        out.update({f"rounding/{tag}/{name}": y for name, y in {"x": x, **results}.items()})
    for tag in ("i64", "i32", "u8"):
        values = [7, 5, 3, 2, 1, 255, 128] if tag == "u8" else [7, -7, 5, -5, 3, -3, 1, -1, 2**31 - 1, -(2**31)]
        x = torch.tensor(values).to(DTYPES[tag])
        results = {f.__name__: f(x.unsqueeze(1), x) for f in DIVISIONS + [torch.atan2] + BITS + LOGIC}
        results |= {f.__name__: f(x) for f in STEPS + [torch.bitwise_not, torch.square, torch.reciprocal]}
        out.update({f"rounding/{tag}/{name}": y for name, y in {"x": x, **results}.items()})


class Cases:
    """Adds cases with gradients, in f64, and cases of values alone."""

    def __init__(self, out, seed):
        self.out, self.values = out, Values(seed)

    def normal(self, *shape):
        return self.values.normal(*shape)

    def case(self, name, function, **inputs):
        run_with_gradients(self.out, name, function, inputs, self.values)

    def value(self, name, y):
        self.out[name] = y


def divisions(cases):
    a, b = cases.values.uniform(3, 4, low=-5, high=5), cases.values.uniform(4, low=0.5, high=2)
    for function in (torch.remainder, torch.fmod, torch.atan2):
        cases.case(function.__name__, function, a=a, b=b * torch.tensor([1, -1, 1, -1]))
    for function in (torch.floor, torch.round, torch.sign, torch.square, torch.reciprocal):
        cases.case(function.__name__, function, x=a)


def shaping(cases):
    n = cases.normal
    one = lambda name, function, *shape: cases.case(name, function, x=n(*shape))
    one("flip", lambda x: x.flip(0, 2), 2, 3, 4)
    one("roll", lambda x: x.roll((1, -2), (0, 1)), 3, 4)
    one("roll_flat", lambda x: x.roll(5), 3, 4)
    one("tile", lambda x: x.tile(2, 1, 3), 2, 3)
    one("repeat_interleave", lambda x: x.repeat_interleave(2, 1), 2, 3)
    one("repeat_interleave_flat", lambda x: x.repeat_interleave(3), 2, 2)
    one("repeat_interleave_counts", lambda x: x.repeat_interleave(torch.tensor([2, 0, 3]), 1), 2, 3)
    one("movedim", lambda x: x.movedim((0, 1), (2, 0)), 2, 3, 4)
    one("diagonal", lambda x: x.diagonal(1, 0, 2), 3, 2, 4)
    one("diagonal_below", lambda x: x.diagonal(-1), 4, 3)
    one("diag", lambda x: x.diag(-1), 3)
    one("diag_of_matrix", lambda x: x.diag(1), 3, 4)
    pad = torch.nn.functional.pad
    one("pad", lambda x: pad(x, (1, 2, 0, 1), value=1.5), 2, 3)
    one("pad_negative", lambda x: pad(x, (-1, 2)), 2, 3)
    for mode in ("reflect", "replicate", "circular"):
        one(f"pad_{mode}", lambda x: pad(x, (2, 1, 1, 2), mode=mode), 1, 2, 3, 4)
    cases.case("addmm", lambda x, a, b: torch.addmm(x, a, b, beta=0.5, alpha=2), x=n(4), a=n(2, 3), b=n(3, 4))
    cases.case("baddbmm", lambda x, a, b: torch.baddbmm(x, a, b, beta=2), x=n(2, 4), a=n(2, 2, 3), b=n(2, 3, 4))
    cases.case("outer", torch.outer, a=n(3), b=n(2))
    for indexing in ("ij", "xy"):
        cases.case(f"meshgrid_{indexing}", lambda a, b, c: torch.stack(torch.meshgrid(a, b, c, indexing=indexing)),
                   a=n(2), b=n(3), c=n(2))


def reducing(cases):
    n = cases.normal
    for name, zeros in {"prod": [], "prod_zero": [(0, 1)], "prod_zeros": [(0, 1), (0, 3), (1, 0)]}.items():
        x = n(3, 5)
        for place in zeros:
            x[place] = 0
        cases.case(name, lambda x: x.prod(1), x=x)
        cases.case(f"{name}_all", lambda x: x.prod(), x=x)
        cases.case(f"{name}_keepdim", lambda x: x.prod(0, keepdim=True), x=x)
    cases.value("prod_empty", torch.zeros(2, 0).prod(1))
    cases.case("var_mean", lambda x: torch.stack(torch.var_mean(x, 1)), x=n(3, 4))
    cases.case("std_mean", lambda x: torch.stack(torch.std_mean(x, (0, 1), correction=0)), x=n(3, 4))
    cases.case("normalize", lambda x: torch.nn.functional.normalize(x), x=n(3, 4))
    cases.case("normalize_3", lambda x: torch.nn.functional.normalize(x, p=3.0, dim=0), x=n(3, 4))
    cases.case("cosine_similarity", torch.cosine_similarity, a=n(3, 4), b=n(4))


def scattering(cases):
    n, t = cases.normal, torch.tensor
    index = t([[0, 2, 2, 0], [1, 1, 2, 2]])
    cases.case("scatter", lambda x, src: x.scatter(0, t([[0, 2, 1], [1, 0, 2]]), src), x=n(3, 4), src=n(2, 3))
    cases.case("scatter_value", lambda x: x.scatter(1, t([[3, 1], [0, 0]]), -7), x=n(3, 4))
    for reduce in ("sum", "mean", "prod", "amax", "amin"):
        for own in (True, False):
            cases.case(f"scatter_reduce_{reduce}_{own}",
                       lambda x, src: x.scatter_reduce(0, index, src, reduce, include_self=own), x=n(3, 4), src=n(2, 4))
    zeros_x, zeros_src = n(3, 4), n(3, 4)
    zeros_x[0, 0] = zeros_x[2, 1] = zeros_src[0, 1] = zeros_src[1, 2] = zeros_src[2, 2] = 0
    rows = t([[0, 2, 2, 0], [0, 2, 2, 1], [0, 2, 2, 1]])
    cases.case("scatter_reduce_prod_zeros", lambda x, src: x.scatter_reduce(0, rows, src, "prod"), x=zeros_x,
               src=zeros_src)
    cases.case("scatter_reduce_amax_ties", lambda x, src: x.scatter_reduce(0, rows, src, "amax"), x=torch.ones(3, 4).double(),
               src=torch.ones(3, 4).double())
    integers = t([[9, -7, 5]])
    for reduce in ("sum", "mean", "prod", "amax", "amin"):
        cases.value(f"scatter_reduce_integers/{reduce}",
                    t([1, 2, 3]).scatter_reduce(0, t([0, 0, 2]), integers[0], reduce, include_self=reduce != "amin"))
    cases.case("index_add", lambda x, src: x.index_add(1, t([2, 0, 2]), src, alpha=0.5), x=n(2, 4), src=n(2, 3))
    cases.case("masked_select", lambda x: x.masked_select(t([True, False, True])), x=n(2, 3))
    cases.value("nonzero", t([[0, 3, 0], [1, 0, 2]]).nonzero())
    cases.value("argsort", t([[3.0, 1.0, 2.0], [1.0, 3.0, 2.0]]).argsort(1, descending=True))


# The C++ side has the same indices under the same names.
T, N = torch.tensor, None
INDICES = {
    "integer": (1,), "slice": (slice(1, 3), slice(None, None, 2)), "negative": (-1, slice(-3, -1)), "ellipsis": (..., 0),
    "none": (N, slice(None), N, 1), "rows": (T([2, 0, 2]),), "columns": (slice(None), T([3, -1])),
    "pairs": (T([0, 2]), T([1, -4])), "grid": (T([[0], [2]]), T([1, 3, 3])), "apart": (T([0, 2]), slice(None), T([1, 4])),
    "apart_first": (slice(1, 3), T([1, -1]), 2), "last_two": (slice(None), T([[0, 1]]), T([[3], [2]])),
    "mask": (T([True, False, True]),),
    "mask_2d": (T([[True, False, False, True], [False, False, False, False], [False, True, False, False]]),),
    "mask_columns": (0, slice(None), T([True, False, False, True, True])), "ellipsis_rows": (..., T([4, 0])),
    "none_rows": (N, T([1, 1]), N), "empty": (T([], dtype=torch.int64),), "scalar": (T(1), slice(None), T([0, 2])),
}


def indexing(cases):
    """index/<name> of index/x (3, 4, 5), and x after index_put of index_put/<name>/values."""
    x = cases.normal(3, 4, 5)
    cases.value("index/x", x)
    for name, index in INDICES.items():
        cases.case(f"index/{name}", lambda x: x[index], x=x)
        del cases.out[f"index/{name}/x"]
        values = cases.normal(*x[index].shape)
        for accumulate in (False, True):
            if not accumulate and name in ("rows", "columns", "grid", "none_rows"):
                continue  # several values for one element
            def function(x, values):
                out = x.clone()
                if accumulate and all(not isinstance(i, torch.Tensor) for i in index):
                    out[index] += values
                    return out
                if accumulate:
                    view = out.new_zeros(x.shape)
                    flat = torch.arange(x.numel()).view(x.shape)[index]
                    return out + view.flatten().index_add(0, flat.flatten(), values.flatten()).view(x.shape)
                out[index] = values
                return out
            key = f"index_put/{name}/{accumulate}"
            cases.case(key, function, x=x, values=values)
            del cases.out[f"{key}/x"], cases.out[f"{key}/y"]  # the gradients and the sum of y are enough
            cases.value(f"{key}/sum", function(x, values) @ torch.arange(5.0).double().exp())


EINSUM = {
    "matmul": ("ij,jk->ik", (2, 3), (3, 4)), "implicit": ("ij,jk", (2, 3), (3, 4)), "transposed": ("ji", (2, 3)),
    "batch": ("bij, bjk -> bik", (2, 3, 4), (2, 4, 2)), "trace": ("ii", (3, 3)), "diagonal": ("ii->i", (3, 3)),
    "outer": ("i,j->ij", (2,), (3,)), "sum": ("ij->", (2, 3)), "elementwise": ("ij,ij->ij", (2, 3), (2, 3)),
    "bilinear": ("bi,oij,bj->bo", (2, 3), (4, 3, 5), (2, 5)), "ellipsis": ("...ij,...jk->...ik", (2, 1, 2, 3), (4, 3, 2)),
    "ellipsis_implicit": ("...i,i", (2, 3, 4), (4,)), "ellipsis_summed": ("...i->i", (2, 3, 4)),
    "attention": ("bthd,bshd->bhts", (2, 3, 2, 4), (2, 5, 2, 4)), "capital": ("aB,Bc", (2, 3), (3, 2)),
    "ones": ("ij,jk->ik", (2, 1), (3, 4)), "alone": ("ij,kl->i", (2, 3), (2, 2)), "permuted": ("abc->cab", (2, 3, 4)),
    "diagonals": ("iij,jkk->ik", (2, 2, 3), (3, 4, 4)), "dot": ("i,i", (4,), (4,)), "four": ("i,j,k,l->", (2,), (3,), (2,), (2,)),
}


def contracting(cases):
    for name, (equation, *shapes) in EINSUM.items():
        inputs = {f"x{i}": cases.normal(*shape) for i, shape in enumerate(shapes)}
        cases.case(f"einsum/{name}", lambda *x: torch.einsum(equation, *x), **inputs)


def tensor_ops():
    """Keys: <function>/<variant>/<tensor>; the calls are above. The equations of einsum are in the metadata."""
    out = {}
    rounding(out)
    cases = Cases(out, 47)
    for add in (divisions, shaping, reducing, scattering, indexing, contracting):
        add(cases)
    return out, {f"einsum/{name}": equation for name, (equation, *_) in EINSUM.items()}
