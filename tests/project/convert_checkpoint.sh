#!/usr/bin/env bash
# scripts/convert_checkpoint.py: what PyTorch saves in each of the usual forms is loaded with the same values.
#   convert_checkpoint.sh PYTHON LIBLOCKSTEP
set -euo pipefail
python=$1 library=$2
if ! "$python" -c 'import numpy, torch' 2>/dev/null; then
  echo "skipped: $python has no PyTorch or NumPy (-DPython3_EXECUTABLE=... names another one)"
  exit 77
fi
rm -rf "$SCRATCH" && mkdir -p "$SCRATCH" && cd "$SCRATCH"
cat >save.py <<'END'
import torch

torch.manual_seed(0)
state = {"tokens.weight": torch.randn(5, 3), "half": torch.randn(4).half(), "brain": torch.randn(2, 2).bfloat16(),
         "flag": torch.tensor([True, False]), "count": torch.tensor(7), "view": torch.randn(3, 4).t(),
         "empty": torch.zeros(0, 3), "bytes": torch.arange(3, dtype=torch.uint8), "wide": torch.randn(2).double()}
state["head.weight"] = state["tokens.weight"]
torch.save(state, "plain.pt")
torch.save(state, "old.pt", _use_new_zipfile_serialization=False)
torch.save({"epoch": 3, "model": state, "optimizer": {"lr": 0.1}}, "epoch.pt")
torch.save({"state_dict": {**state, "version": "1.2"}}, "lightning.pt")
torch.save({"model_state_dict": state, "loss": torch.tensor(0.5)}, "loss.pt")
torch.save({"ema": {"shadow": state}, "model": {}}, "nested.pt")
torch.save({"a": 1}, "nothing.pt")
torch.save(torch.nn.Linear(3, 2), "module.pt")
torch.save({"w": torch.ones(2, dtype=torch.complex64), "x": torch.ones(1)}, "complex.pt")
with open("want", "w") as file:
    for name in sorted(state):
        t = state[name]
        print(name, tuple(t.shape), str(t.dtype), *[float(v).hex() for v in t.reshape(-1)], file=file)
END
"$python" save.py
cat >show.cpp <<'END'
#include <lockstep/lockstep.h>

#include <algorithm>
#include <cstdio>
#include <map>

// The tensors of a file as save.py writes those that it saved; a tied tensor, which the file has once, under both names.
int main(int, char** argv) {
  namespace ls = lockstep;
  std::map<std::string, ls::Tensor> tensors;
  for (const auto& [name, tensor] : ls::load(argv[1])) tensors.emplace(name, tensor);
  if (tensors.contains("tokens.weight")) tensors.emplace("head.weight", tensors.at("tokens.weight"));
  for (const auto& [name, tensor] : tensors) {
    std::string shape;
    for (const std::int64_t size : tensor.shape()) shape += (shape.empty() ? "" : ", ") + std::to_string(size);
    if (tensor.dim() == 1) shape += ",";
    std::printf("%s (%s) %s", name.c_str(), shape.c_str(), ls::name(tensor.dtype()));
    for (const double value : tensor.to(ls::kFloat64).to_vector<double>()) std::printf(" %a", value);
    std::printf("\n");
  }
}
END
"$CXX" -std=c++20 -O0 -Wall -Wextra -Wpedantic -Werror -I"$SOURCE/include" show.cpp "$library" -Wl,-rpath,"$(dirname "$library")" -o show
cat >check.py <<'END'
import contextlib
import io
import os
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.environ["SOURCE"] + "/scripts")
import convert_checkpoint

DTYPES = {"torch.float32": "f32", "torch.float16": "f16", "torch.bfloat16": "bf16", "torch.float64": "f64",
          "torch.bool": "bool", "torch.int64": "i64", "torch.uint8": "u8"}


def convert(*arguments):  # the output
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        convert_checkpoint.main(list(arguments))
    return said.getvalue()


def refusal(*arguments):  # the error
    try:
        convert(*arguments)
    except SystemExit as error:
        return str(error.code)
    raise AssertionError(f"accepted: {arguments}")


def normal(text):  # lines of `want` and of `show` in one form
    lines = []
    for line in text.splitlines():
        head, _, rest = line.partition(")")
        dtype, *values = rest.split()
        lines.append((head, DTYPES.get(dtype, dtype), [float.fromhex(value) for value in values]))
    return sorted(lines)


def show(path):
    return subprocess.run(["./show", path], check=True, capture_output=True, text=True).stdout


def content(path):
    with open(path, "rb") as file:
        return file.read()


def check(text, part):
    assert part in text, f"{text}\nexpected: {part}"


with open("want") as file:
    want = normal(file.read())
outputs = {}
for form in ("plain", "old", "epoch", "lightning", "loss"):
    outputs[form] = convert(f"{form}.pt", f"{form}.safetensors")
    check(outputs[form], "tied: head.weight is tokens.weight, stored once\n")
    assert normal(show(f"{form}.safetensors")) == want, form
    assert content(f"{form}.safetensors") == content("plain.safetensors"), form
check(outputs["epoch"], "left out: epoch (int 3)\nleft out: optimizer (dict)\n")
check(outputs["lightning"], "left out: version (str '1.2')\n")
check(outputs["loss"], "left out: loss (Tensor)\n")
check(convert("--tied", "clone", "plain.pt", "clone.safetensors"), "head.weight is tokens.weight, stored as a copy\n")
assert normal(show("clone.safetensors")) == want
assert len(content("clone.safetensors")) > len(content("plain.safetensors"))
convert("--key", "ema/shadow", "nested.pt", "nested.safetensors")
assert content("nested.safetensors") == content("plain.safetensors")
for key in ([], ["--key", "b"]):
    check(refusal(*key, "nothing.pt", "out.safetensors"), "no entry with a state dict, among 'a'\nPass the right one with --key")
check(refusal("module.pt", "out.safetensors"), "loading them can run any code in the file\nIf you trust")
check(convert("--unsafe-pickle", "module.pt", "module.safetensors"), "warning: --unsafe-pickle: code in module.pt may run now\n")
assert [line[0] for line in normal(show("module.safetensors"))] == ["bias (2,", "weight (2, 3"]
check(convert("complex.pt", "complex.safetensors"), "left out: w (a tensor of dtype complex64")
check(refusal("text.pt", "out.safetensors"), "text.pt: cannot be loaded")
assert not [name for name in os.listdir() if name.endswith(".tmp") or name == "out.safetensors"]
END
echo text >text.pt
"$python" check.py
