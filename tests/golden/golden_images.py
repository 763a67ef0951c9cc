"""Golden values of convolution, pooling and batch normalisation."""
import torch
import torch.nn.functional as F

from golden_io import FLOATS, Values, batch_norm_steps, run_with_gradients


def images():
    out = {}
    for tag, dtype in FLOATS.items():
        v = Values(11)

        def case(name, function, **inputs):
            run_with_gradients(out, f"{name}.{tag}", function, inputs, v)

        n = lambda *shape: v.normal(*shape, dtype=dtype)

        def conv(name, x, weight, bias=True, **options):
            inputs = {"x": n(*x), "weight": n(*weight)}
            if bias:
                inputs["bias"] = n(weight[0])
            case(name, lambda x, weight, bias=None: F.conv2d(x, weight, bias, **options), **inputs)

        conv("conv2d", (2, 3, 6, 5), (4, 3, 3, 3))
        conv("conv2d_no_bias", (2, 3, 5, 5), (2, 3, 2, 2), bias=False)
        conv("conv2d_stride_padding", (2, 3, 7, 6), (4, 3, 3, 3), stride=2, padding=1)
        conv("conv2d_pairs", (2, 2, 8, 7), (3, 2, 3, 2), stride=(2, 1), padding=(2, 1))
        conv("conv2d_dilation", (1, 2, 9, 8), (3, 2, 3, 3), padding=(2, 1), dilation=(2, 3))
        conv("conv2d_groups", (2, 4, 5, 5), (6, 2, 3, 3), padding=1, groups=2)
        conv("conv2d_depthwise", (2, 3, 6, 6), (3, 1, 3, 3), stride=2, padding=1, groups=3)
        conv("conv2d_1x1", (2, 5, 4, 3), (3, 5, 1, 1))
        conv("conv2d_whole", (3, 2, 4, 4), (5, 2, 4, 4))
        conv("conv2d_many_tiles", (1, 24, 14, 13), (2, 24, 5, 5), padding=2)

        case("max_pool2d", lambda x: F.max_pool2d(x, 2), x=n(2, 3, 6, 5))
        case("max_pool2d_overlap", lambda x: F.max_pool2d(x, 3, 2, 1), x=n(2, 2, 7, 6))
        case("max_pool2d_pairs", lambda x: F.max_pool2d(x, (3, 2), (1, 2), (1, 0)), x=n(2, 2, 5, 6))
        case("max_pool2d_ties", lambda x: F.max_pool2d(x, 2, 1), x=v.integers(0, 3, 2, 1, 6, 6).to(dtype))
        special = n(1, 1, 4, 6)
        special[0, 0, 1, 1] = torch.nan
        special[0, 0, :2, 4:] = -torch.inf
        case("max_pool2d_nan_and_minus_inf", lambda x: F.max_pool2d(x, 2), x=special)
        case("avg_pool2d", lambda x: F.avg_pool2d(x, 2), x=n(2, 3, 6, 5))
        case("avg_pool2d_overlap", lambda x: F.avg_pool2d(x, 3, 2, 1), x=n(2, 2, 7, 6))
        case("avg_pool2d_without_pad", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), x=n(2, 2, 7, 6))
        case("avg_pool2d_pairs", lambda x: F.avg_pool2d(x, (3, 2), (1, 2), (1, 0)), x=n(2, 2, 5, 6))

        def batch_norm(name, x, affine=True, **options):
            """Two steps of training, then eval mode; the parameters and buffers after each."""
            layer = torch.nn.BatchNorm2d(x.shape[1], affine=affine, **options).to(dtype)
            parameters = {}
            if affine:
                parameters = {"weight": n(x.shape[1]), "bias": n(x.shape[1])}
                layer.load_state_dict(parameters, strict=False)
                out.update({f"{name}.{tag}/{key}": t for key, t in parameters.items()})
            batch_norm_steps(out, f"{name}.{tag}", layer, x, ["train", "train", "eval"], n)

        batch_norm("batch_norm", n(4, 3, 5, 6))
        batch_norm("batch_norm_plain", n(3, 2, 4, 4), affine=False)
        batch_norm("batch_norm_options", n(2, 3, 3, 3), eps=0.1, momentum=0.3)
        batch_norm("batch_norm_points", n(5, 4, 1, 1))

        # Sizes at which the last window is truncated (by one or two elements), omitted, or the only one.
        ceil = dict(ceil_mode=True)
        case("max_pool2d_ceil", lambda x: F.max_pool2d(x, 3, 2, **ceil), x=n(2, 2, 6, 8))
        case("max_pool2d_ceil_padding", lambda x: F.max_pool2d(x, 3, 2, 1, **ceil), x=n(2, 2, 6, 7))
        case("max_pool2d_ceil_left_out", lambda x: F.max_pool2d(x, 2, 3, 1, **ceil), x=n(1, 2, 5, 8))
        case("max_pool2d_ceil_small", lambda x: F.max_pool2d(x, 4, 3, **ceil), x=n(1, 2, 3, 2))
        case("max_pool2d_dilation", lambda x: F.max_pool2d(x, (3, 2), (2, 1), 1, (2, 3)), x=n(2, 2, 8, 7))
        case("max_pool2d_dilation_ceil", lambda x: F.max_pool2d(x, 3, 2, 1, 2, **ceil), x=n(1, 2, 8, 9))
        low = n(1, 1, 7, 7)
        low[0, 0, :5, :5] = -torch.inf
        case("max_pool2d_dilation_minus_inf", lambda x: F.max_pool2d(x, 2, 1, 1, 3), x=low)
        case("avg_pool2d_ceil", lambda x: F.avg_pool2d(x, 3, 2, 1, **ceil), x=n(2, 2, 6, 7))
        case("avg_pool2d_ceil_without_pad", lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False, **ceil),
             x=n(2, 2, 6, 7))
        case("avg_pool2d_ceil_pairs", lambda x: F.avg_pool2d(x, (4, 2), (3, 2), (2, 0), **ceil), x=n(1, 2, 9, 5))
    return out, {}
