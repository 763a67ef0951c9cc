"""Golden values of recurrent layers with lengths, and of recurrent cells."""
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from golden_io import FLOATS, Values

LENGTHS = [3, 5, 1, 4]  # of 6 steps
LAYERS = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn_tanh": nn.RNN,
          "rnn_relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k)}
OPTIONS = {"plain": {}, "both": dict(bidirectional=True), "layers": dict(num_layers=2, bidirectional=True, bias=False)}
CELLS = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn_tanh": nn.RNNCell,
         "rnn_relu": lambda *a, **k: nn.RNNCell(*a, nonlinearity="relu", **k)}


def set_parameters(out, prefix, module, v):
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(0.5 * v.normal(*parameter.shape))
            out[f"{prefix}/{name}"] = parameter.detach().clone()


def case(out, prefix, module, x, shape, run, v):
    """Parameters, x, start_h (start_c), y, h (c), an upstream gradient of each of these, and all gradients."""
    set_parameters(out, prefix, module, v)
    keys = ["h", "c"] if isinstance(module, (nn.LSTM, nn.LSTMCell)) else ["h"]
    leaves = {"x": x} | {f"start_{key}": v.normal(*shape, dtype=x.dtype) for key in keys}
    leaves = {key: t.clone().requires_grad_() for key, t in leaves.items()}
    results = run(*leaves.values())
    upstream = {key: v.normal(*t.shape, dtype=t.dtype) for key, t in results.items()}
    torch.autograd.backward(list(results.values()), list(upstream.values()))
    out.update({f"{prefix}/{key}": t.detach() for key, t in (leaves | results).items()})
    out.update({f"{prefix}/grad_{key}": t for key, t in upstream.items()})
    out.update({f"{prefix}/grad_{key}": t.grad for key, t in (leaves | dict(module.named_parameters())).items()})


def states_of(state):
    return dict(zip("hc", state if isinstance(state, tuple) else (state,)))


def layers(out, tag, dtype):
    v = Values(71)
    for name, make in LAYERS.items():
        for which, options in OPTIONS.items():
            module = make(3, 2, batch_first=which == "both", **options).to(dtype)
            x = v.normal(*((4, 6, 3) if module.batch_first else (6, 4, 3)), dtype=dtype)

            def run(x, *start):
                first = module.batch_first
                packed = pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=first, enforce_sorted=False)
                y, state = module(packed, start if len(start) == 2 else start[0])
                return {"y": pad_packed_sequence(y, batch_first=first, total_length=6)[0]} | states_of(state)

            directions = 2 if module.bidirectional else 1
            case(out, f"{name}_{which}.{tag}", module, x, (module.num_layers * directions, 4, 2), run, v)


def cells(out, tag, dtype):
    v = Values(72)
    for name, make in CELLS.items():
        for which, bias in {"cell": True, "cell_no_bias": False}.items():
            module = make(3, 2, bias=bias).to(dtype)
            run = lambda x, *start: states_of(module(x, start if len(start) == 2 else start[0]))
            case(out, f"{name}_{which}.{tag}", module, v.normal(4, 3, dtype=dtype), (4, 2), run, v)


def recurrent():
    out = {"lengths": torch.tensor(LENGTHS)}
    for tag, dtype in FLOATS.items():
        layers(out, tag, dtype)
        cells(out, tag, dtype)
    return out, {}
