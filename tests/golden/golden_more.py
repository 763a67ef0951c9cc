"""Golden values of further layers, statistics, matrices and optimizers."""
import torch
from torch import nn

from golden_breadth import module_case
from golden_io import FLOATS, Values, run_with_gradients


class Decoder(nn.Module):
    """A decoder of one input, whose second half along the time is the memory; masks as keyword arguments."""

    def __init__(self, decoder, **masks):
        super().__init__()
        self.decoder, self.masks = decoder, masks

    def forward(self, x):
        return self.decoder(x[:, :3], x[:, 3:], **self.masks)


def layers(out, tag, dtype):
    v = Values(41)
    n = lambda *shape: v.normal(*shape, dtype=dtype)
    options = dict(dim_feedforward=7, dropout=0.0, batch_first=True)
    padded = torch.tensor([[False, False, False, True], [False, True, False, False]])
    causal = dict(tgt_mask=nn.Transformer.generate_square_subsequent_mask(3, dtype=dtype), tgt_is_causal=True)
    volume, both = n(2, 4, 5, 4, 6), n(2, 7, 4)
    cases = {
        "conv_transpose1d": (nn.ConvTranspose1d(3, 4, 3), n(2, 3, 8)),
        "conv_transpose1d_options": (nn.ConvTranspose1d(4, 6, 3, 2, 1, 1, 2, False, 2), n(2, 4, 9)),
        "conv3d": (nn.Conv3d(4, 3, 3), volume),
        "conv3d_options": (nn.Conv3d(4, 6, (2, 3, 2), (2, 1, 3), (2, 1, 0), (3, 1, 2), 2, False), volume),
        "decoder_layer": (Decoder(nn.TransformerDecoderLayer(4, 2, **options)), both),
        "decoder_layer_norm_first": (Decoder(nn.TransformerDecoderLayer(4, 2, activation="gelu", norm_first=True,
                                                                        **options)), both),
        "decoder": (Decoder(nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, **options), 2, nn.LayerNorm(4))),
                    both),
        "decoder_masked": (Decoder(nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, **options), 2),
                                   memory_key_padding_mask=padded, **causal), both),
    }
    for name, (module, x) in cases.items():
        module_case(out, f"{name}.{tag}", module, x, v)


def bags(out, tag, dtype):
    """embedding_bag_<mode>[_padding][_rows|_weighted].<dtype>: index, offsets, weight, per_sample_weights, y, gradients."""
    index, offsets = torch.tensor([1, 3, 3, 0, 5, 2, 2, 1, 4]), torch.tensor([0, 3, 3, 4, 8])
    for mode in ("sum", "mean", "max"):
        for padding in (None, 2):
            for kind in ("offsets", "rows") + (("weighted",) if mode == "sum" else ()):
                v = Values(42)
                key = f"embedding_bag_{mode}{'_padding' if padding else ''}_{kind}.{tag}"
                weight = v.normal(6, 3, dtype=dtype).requires_grad_()
                weights = v.normal(9, dtype=dtype).requires_grad_() if kind == "weighted" else None
                rows = kind == "rows"
                y = nn.functional.embedding_bag(index.view(3, 3) if rows else index, weight, None if rows else offsets,
                                                mode=mode, per_sample_weights=weights, padding_idx=padding)
                grad_y = v.normal(*y.shape, dtype=dtype)
                y.backward(grad_y)
                out.update({f"{key}/weight": weight, f"{key}/y": y, f"{key}/grad_y": grad_y,
                            f"{key}/grad_weight": weight.grad})
                if weights is not None:
                    out.update({f"{key}/per_sample_weights": weights, f"{key}/grad_per_sample_weights": weights.grad})


MODES = ("linear", "lower", "higher", "nearest", "midpoint")


def statistics(out, tag, dtype):
    """Cases with gradients, <name>.<dtype>/x, y, grad_y, grad_x; and counts of integers and of x's elements."""
    v = Values(43)
    x, ties = v.normal(3, 4, 5, dtype=dtype), v.integers(0, 4, 3, 6).to(dtype)
    zeros = x.clone()
    zeros[0, 1, 2] = zeros[0, 3, 2] = zeros[1, 0, 0] = zeros[2, 3, 4] = 0
    cases = {f"cumprod_{dim}": (lambda t, dim=dim: torch.cumprod(t, dim), zeros) for dim in (0, 1, -1)}
    cases |= {"median": (torch.median, ties), "median_even": (torch.median, x)}
    cases |= {f"median_{dim}": (lambda t, dim=dim: torch.median(t, dim, keepdim=dim == 1)[0], x) for dim in (0, 1, -1)}
    for mode in MODES:
        q = torch.tensor([0, 0.1, 0.5, 0.83, 1], dtype=dtype)
        cases[f"quantile_{mode}"] = (lambda t, mode=mode: torch.quantile(t, 0.3, interpolation=mode), x)
        cases[f"quantile_dim_{mode}"] = (
            lambda t, mode=mode: torch.quantile(t, q, dim=1, keepdim=True, interpolation=mode), x)
    cases["quantile_keep"] = (lambda t: torch.quantile(t, q, keepdim=True), x)
    cases["quantile_last"] = (lambda t: torch.quantile(t, 0.25, dim=-1), x)
    for name, (function, tensor) in cases.items():
        run_with_gradients(out, f"{name}.{tag}", function, {"x": tensor}, v)
    out[f"median_indices.{tag}/y"] = torch.median(x, 1)[1]
    special = torch.tensor([[1, float("nan"), 2], [3, 1, 2]], dtype=dtype)
    out[f"median_nan.{tag}/x"] = special
    out[f"median_nan.{tag}/y"], out[f"median_nan.{tag}/at"] = torch.median(special, 1)
    out[f"quantile_nan.{tag}/y"] = torch.quantile(special, torch.tensor([0.0, 0.6], dtype=dtype), dim=1)
    out[f"histc.{tag}/own"], out[f"histc.{tag}/range"] = torch.histc(x, 7), torch.histc(x, 6, -1, 0.5)
    out[f"histc.{tag}/edges"] = torch.histc(torch.tensor([0, 0.25, 0.5, 0.75, 1, 1.5, -1], dtype=dtype), 4, 0, 1)
    out[f"histc.{tag}/equal"] = torch.histc(torch.full((3,), 2.0, dtype=dtype), 4)


def counts(out):
    """unique/<dtype>/x values inverse counts, bincount/x weights and results."""
    v = Values(44)
    x = v.integers(-2, 3, 3, 4)
    for key, tensor in {"i64": x, "f32": x.to(torch.float32) / 2, "bool": x > 0}.items():
        values, inverse, number = torch.unique(tensor, return_inverse=True, return_counts=True)
        out.update({f"unique/{key}/x": tensor, f"unique/{key}/values": values, f"unique/{key}/inverse": inverse,
                    f"unique/{key}/counts": number})
    index, weights = v.integers(0, 6, 20), v.normal(20)
    out.update({"bincount/x": index, "bincount/weights": weights, "bincount/y": torch.bincount(index, minlength=9),
                "bincount/weighted": torch.bincount(index, weights),
                "bincount/weighted_f32": torch.bincount(index, weights.to(torch.float32))})


def matrices(out, tag, dtype):
    """Cases with gradients: inputs a (and b), y, grad_y, gradients. Matrices of which one is singular: det_singular."""
    v = Values(45)
    square, tall = v.normal(2, 3, 4, 4, dtype=dtype), v.normal(2, 5, 3, dtype=dtype)
    positive = square[0] @ square[0].mT + torch.eye(4, dtype=dtype)
    singular = square[0].clone()
    singular[1, 2] = 2 * singular[1, 0]
    singular[2] = torch.outer(singular[2, 0], singular[2, 1])
    la = torch.linalg
    cases = {
        "inv": (la.inv, {"a": square}), "det": (la.det, {"a": square}), "det_singular": (la.det, {"a": singular}),
        "slogdet": (lambda a: la.slogdet(a)[1], {"a": square}), "cholesky": (la.cholesky, {"a": positive}),
        "solve": (la.solve, {"a": square, "b": v.normal(3, 4, 2, dtype=dtype)}),
        "solve_vector": (la.solve, {"a": square[0, 0], "b": v.normal(4, dtype=dtype)}),
        "solve_vectors": (la.solve, {"a": square, "b": v.normal(2, 3, 4, dtype=dtype)}),
        "qr_q": (lambda a: la.qr(a)[0], {"a": tall}), "qr_r": (lambda a: la.qr(a)[1], {"a": tall}),
        "qr_square": (lambda a: torch.cat(la.qr(a)), {"a": square[0, 0]}),
        "svd": (lambda a: la.svd(a)[1], {"a": tall}), "svd_wide": (lambda a: la.svd(a)[1], {"a": tall.mT.contiguous()}),
    }
    for name, (function, inputs) in cases.items():
        run_with_gradients(out, f"{name}.{tag}", function, inputs, v)
    out[f"slogdet.{tag}/sign"] = la.slogdet(square)[0]
    out[f"qr_wide.{tag}/q"], out[f"qr_wide.{tag}/r"] = la.qr(tall.mT)
    out[f"qr_complete.{tag}/q"], out[f"qr_complete.{tag}/r"] = la.qr(tall, "complete")


OPTIMIZERS = {
    "nadam": (torch.optim.NAdam, dict()),
    "nadam_all": (torch.optim.NAdam, dict(lr=0.01, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1, momentum_decay=0.1)),
    "nadam_decoupled": (torch.optim.NAdam, dict(weight_decay=0.1, decoupled_weight_decay=True)),
    "radam": (torch.optim.RAdam, dict(lr=0.02)),
    "radam_all": (torch.optim.RAdam, dict(lr=0.01, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.1)),
    "radam_decoupled": (torch.optim.RAdam, dict(lr=0.01, weight_decay=0.1, decoupled_weight_decay=True)),
    "adafactor": (torch.optim.Adafactor, dict()),
    "adafactor_all": (torch.optim.Adafactor, dict(lr=0.2, beta2_decay=-0.5, eps=(1e-4, 1e-2), d=1.5, weight_decay=0.1)),
    "muon": (torch.optim.Muon, dict()),
    "muon_plain": (torch.optim.Muon, dict(lr=0.05, weight_decay=0.0, momentum=0.8, nesterov=False, ns_steps=3,
                                          ns_coefficients=(3.0, -3.2, 1.2), adjust_lr_fn="match_rms_adamw")),
    "muon_spectral": (torch.optim.Muon, dict(lr=0.02, adjust_lr_fn="spectral_unclamped")),
}
STEPS = 20


def optimizers(out, tag, dtype):
    """optimizers.<dtype>/start and gradients (20 steps) of a matrix, a tall one and a vector; <case>/after0, 1, 2."""
    torch.set_default_dtype(torch.float64)  # also the dtype of NAdam's mu_product
    v = Values(46)
    shapes = ((3, 4), (5, 2), (4,))
    starts = [v.normal(*shape, dtype=dtype) for shape in shapes]
    gradients = [v.normal(STEPS, *shape, dtype=dtype) for shape in shapes]
    for i, (start, gradient) in enumerate(zip(starts, gradients)):
        out[f"optimizers.{tag}/start{i}"], out[f"optimizers.{tag}/gradients{i}"] = start, gradient
    for name, (make, options) in OPTIMIZERS.items():
        parameters = [start.clone().requires_grad_() for start in starts[:2 if "muon" in name else 3]]
        optimizer, after = make(parameters, **options), []
        for step in range(STEPS):
            for parameter, gradient in zip(parameters, gradients):
                parameter.grad = gradient[step].clone()
            optimizer.step()
            after.append([parameter.detach().clone() for parameter in parameters])
        for i in range(len(parameters)):
            out[f"{name}.{tag}/after{i}"] = torch.stack([each[i] for each in after])
    torch.set_default_dtype(torch.float32)


def more():
    out = {}
    for tag, dtype in FLOATS.items():
        layers(out, tag, dtype)
        bags(out, tag, dtype)
        statistics(out, tag, dtype)
        matrices(out, tag, dtype)
        optimizers(out, tag, dtype)
    counts(out)
    return out, {}
