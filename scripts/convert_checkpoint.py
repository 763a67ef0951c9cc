#!/usr/bin/env python3
"""Converts a PyTorch checkpoint (.pt, .pth, .bin: a pickle) to safetensors, which Lockstep's load_weights reads.

The model's tensors are those of a state dict: of the file itself, of one of its entries "state_dict",
"model_state_dict" or "model", or of a whole module. Everything else is listed and left out. Needs PyTorch and NumPy.
"""
import argparse
import json
import os
import struct
import sys

WRAPPERS = ("state_dict", "model_state_dict", "model")
# In the order of a file: largest alignment first. The last ones are of the format, but Lockstep does not have them.
DTYPES = {"int64": "I64", "float64": "F64", "float32": "F32", "int32": "I32", "bfloat16": "BF16", "float16": "F16",
          "uint8": "U8", "bool": "BOOL", "int16": "I16", "int8": "I8"}
NOT_IN_LOCKSTEP = ("int16", "int8")


def parse_arguments(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("input", metavar="IN", help="the file that torch.save wrote")
    parser.add_argument("output", metavar="OUT", help="the safetensors file to write; an existing one is replaced")
    parser.add_argument("--key", help="the entry that has the state dict; '/' separates the levels: ema/model")
    parser.add_argument("--tied", choices=("once", "clone"), default="once",
                        help="write a tensor with several names under the first one (once, the default: enough for a "
                             "model that ties them, too), or a copy under each name (clone)")
    parser.add_argument("--unsafe-pickle", action="store_true",
                        help="also read whole modules and other Python objects. WARNING: loading such a file can run "
                             "any code that is in it; use this only for files whose origin you trust")
    options = parser.parse_args(arguments)
    if not os.path.isfile(options.input):
        parser.error(f"{options.input}: no such file")
    if not options.output.endswith(".safetensors"):
        parser.error(f"{options.output}: expected a name that ends in .safetensors")
    if not os.path.isdir(os.path.dirname(options.output) or "."):
        parser.error(f"{options.output}: the folder does not exist")
    return options


def load(torch, options):
    arguments = {"map_location": "cpu", "weights_only": not options.unsafe_pickle}
    try:
        try:
            return torch.load(options.input, mmap=True, **arguments)
        except RuntimeError:  # a file from before PyTorch 1.6, which cannot be mapped
            return torch.load(options.input, **arguments)
    except Exception as error:
        text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if options.unsafe_pickle or "weights_only" not in str(error) and "Unsupported" not in str(error):
            sys.exit(f"{options.input}: cannot be loaded: {text}")
        sys.exit(f"{options.input}: has Python objects, such as a whole module: loading them can run any code in the "
                 f"file\nIf you trust the file's origin, pass --unsafe-pickle ({text})")


def kind(value):
    return type(value).__name__ + (f" {value!r}" if isinstance(value, (int, float, str)) and len(repr(value)) < 40 else "")


def find_state(torch, loaded, options):
    """The state dict, and what the file has besides."""
    path, rest = [], []
    keys = options.key.split("/") if options.key else None
    while True:
        if isinstance(loaded, torch.nn.Module):
            loaded = loaded.state_dict()
        if not isinstance(loaded, dict):
            sys.exit(f"{options.input}: {'/'.join(path) or 'the file'} is a {kind(loaded)}, not a state dict")
        if keys is None:
            found = [key for key in WRAPPERS if isinstance(loaded.get(key), (dict, torch.nn.Module))]
            if not found and any(isinstance(value, torch.Tensor) for value in loaded.values()):
                return loaded, rest
        elif not keys:
            return loaded, rest
        else:
            found = [keys.pop(0)]
        if len(found) != 1 or found[0] not in loaded:
            names = ", ".join(map(repr, loaded))
            sys.exit(f"{options.input}: {'several entries' if len(found) > 1 else 'no entry'} with a state dict, among "
                     f"{names}\nPass the right one with --key")
        path.append(found[0])
        rest += [("/".join(path[:-1] + [str(key)]), value) for key, value in loaded.items() if key != found[0]]
        loaded = loaded[found[0]]


def select(torch, state, rest, options):
    """The tensors to write, by name; reports everything that is left out."""
    tensors, first_name = {}, {}
    for name, value in rest:
        print(f"left out: {name} ({kind(value)})")
    for name, value in state.items():
        dtype = str(value.dtype).removeprefix("torch.") if isinstance(value, torch.Tensor) else None
        if not isinstance(name, str) or dtype is None:
            print(f"left out: {name} ({kind(value)})")
            continue
        if dtype not in DTYPES or value.layout != torch.strided or value.is_quantized:
            print(f"left out: {name} (a tensor of dtype {dtype}, layout {value.layout})")
            continue
        if dtype in NOT_IN_LOCKSTEP:
            print(f"note: {name} is {dtype}, which Lockstep does not have")
        identity = (value.data_ptr(), value.shape, value.stride(), dtype)
        if value.numel() > 0 and identity in first_name:
            print(f"tied: {name} is {first_name[identity]}, "
                  f"{'stored once' if options.tied == 'once' else 'stored as a copy'}")
            if options.tied == "once":
                continue
        first_name.setdefault(identity, name)
        tensors[name] = value.detach()
    if not tensors:
        sys.exit(f"{options.input}: no tensors to convert")
    return tensors


def write(torch, tensors, path):
    order = list(DTYPES)
    names = sorted(tensors, key=lambda name: (order.index(str(tensors[name].dtype).removeprefix("torch.")), name))
    header, end = {"__metadata__": {"format": "pt"}}, 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[str(tensor.dtype).removeprefix("torch.")], "shape": list(tensor.shape),
                        "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the payload starts aligned
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for name in names:
                file.write(tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data)
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.remove(temporary)
        raise
    print(f"{path}: {len(names)} tensors, {end} bytes")


def main(arguments):
    options = parse_arguments(arguments)
    try:
        import numpy  # noqa: F401: Tensor.numpy needs it
        import torch
    except ImportError as error:
        sys.exit(f"PyTorch and NumPy are needed ({error}): pip install torch numpy")
    if options.unsafe_pickle:
        print(f"warning: --unsafe-pickle: code in {options.input} may run now", file=sys.stderr)
    state, rest = find_state(torch, load(torch, options), options)
    write(torch, select(torch, state, rest, options), options.output)


if __name__ == "__main__":
    main(sys.argv[1:])
