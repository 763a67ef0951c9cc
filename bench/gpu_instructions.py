#!/usr/bin/env python3
"""Analyses the kernels that nvcc compiled: registers, local memory, instructions. Needs no GPU, and measures no time.

    bench/gpu_instructions.py build/release/liblockstep_cuda.so             # or object files of kernels
    bench/gpu_instructions.py --before old.so --name 'Gelu|SumOf' new.so    # two builds side by side

cuobjdump and nvdisasm must be in PATH; they are part of the CUDA toolkit, or of
`pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm` (in site-packages/nvidia/cu13/bin).

per element   for dense pointwise kernels: instructions from the start to the second store of 16 bytes, divided by the
              elements of both stores (nvcc puts the path of most threads first). An H200 starts about 50 instructions
              in the time in which its memory moves 8 bytes.
to load       for the others: instructions before the first load
"""
import argparse
import re
import subprocess
import sys

SHOWN = (r"DenseLoop<(AddScaled<float>|(Value|Slope)<(Exp|Gelu|Relu|Sigmoid|Tanh)>, 4, float)|StridedLoop<AddScaled<float>"
         r"|Reduce(Block|Elements)<(SumOf|SumOfSquares|BatchMean|BatchVariance)<float>|RegisterRow<float>"
         r"|(BatchNormalize|BatchNormBackward|MaxPool|MaxPoolBackward|CrossEntropySlope)<float>")
ELEMENTS_OF_A_PACK = re.compile(r"DenseLoop<.*?, (\d+), ")


def output_of(*command, given=None):
    try:
        return subprocess.run(command, input=given, capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        sys.exit(f"gpu_instructions.py: {command[0]} is not in PATH; --help names the packages that have it")
    except subprocess.CalledProcessError as error:
        sys.exit(f"gpu_instructions.py: {' '.join(command)}: {error.stderr.strip()}")


def readable(names):
    """Kernel names as in the source: DenseLoop<Value<Exp>, 4, float, float>."""
    lines = output_of("c++filt", given="\n".join(names)).split("\n")
    without = [re.sub(r"lockstep::\w+::cuda::device::|\(anonymous namespace\)::|detail::", "", line) for line in lines]
    return [re.sub(r"^void run_(elements|block)<(.*?) ?>\(long.*$", r"\2", line) for line in without]


def kernels_of(files, architecture):
    """name -> (registers, bytes of stack, instructions)"""
    found = {}
    for file in files:
        usage = {name: (int(registers), int(stack)) for name, registers, stack in
                 re.findall(r"Function (\S+):\s+REG:(\d+) STACK:(\d+)",
                            output_of("cuobjdump", "-arch", architecture, "--dump-resource-usage", file))}
        texts = re.split(r"\n\s*Function : ", output_of("cuobjdump", "-arch", architecture, "--dump-sass", file))[1:]
        mangled = [text.split("\n", 1)[0].strip() for text in texts]
        for name, key, text in zip(readable(mangled), mangled, texts):
            instructions = re.findall(r"/\*[0-9a-f]{4,5}\*/\s+(.*?);", text)
            while name in found:  # from another file
                name += "'"
            found[name] = (*usage.get(key, ("?", "?")), instructions)
    if not found:
        sys.exit(f"gpu_instructions.py: no kernels for {architecture} in {', '.join(files)}; --arch selects another architecture")
    return found


def row_of(name, kernel):
    if kernel is None:
        return ["", "", "", "", ""]
    registers, stack, instructions = kernel

    def place_of(operation, nth):
        places = [i for i, text in enumerate(instructions) if operation in text]
        return places[nth] if len(places) > nth else None

    pack = ELEMENTS_OF_A_PACK.match(name)
    second_store = place_of("STG.E.128", 1)
    per_element = f"{second_store / (2 * int(pack[1])):.1f}" if pack and second_store else ""
    to_load = "" if pack else str(place_of("LDG", 0) or "")
    return [str(registers), str(stack), str(len(instructions)), per_element, to_load]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help="the module, or object files")
    parser.add_argument("--before", nargs="+", default=[], help="the same files of another build, shown to the left")
    parser.add_argument("--arch", default="sm_90", help="architecture of the code (sm_90)")
    parser.add_argument("--name", default=SHOWN, help="show the kernels whose name matches")
    options = parser.parse_args()
    builds = [kernels_of(files, options.arch) for files in (options.before, options.files) if files]
    columns = ["registers", "stack", "instructions", "per element", "to load"]
    print("| kernel | " + " | ".join(columns) + " |")
    print("|---" * (1 + len(columns)) + "|")
    for name in sorted({name for build in builds for name in build if re.search(options.name, name)}):
        cells = zip(*(row_of(name, build.get(name)) for build in builds))
        print(f"| `{name}` | " + " | ".join(" → ".join(cell) if any(cell) else "" for cell in cells) + " |")


if __name__ == "__main__":
    main()
