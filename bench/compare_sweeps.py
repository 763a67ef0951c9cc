"""Prints the rows of two sweeps, the slowest compared with its peer first: compare_sweeps.py OURS PEER, the outputs of
bench_sweep and libtorch_sweep."""

import json
import math
import sys


def rows(path):
    with open(path, encoding="utf-8") as file:
        return {row["name"]: row["seconds"] for row in map(json.loads, file)}


def main():
    ours, peer = rows(sys.argv[1]), rows(sys.argv[2])
    ratios = sorted((peer[name] / ours[name], name) for name in ours if name in peer)
    for ratio, name in ratios:
        print(f"{ratio:8.2f}  {name:36s} {1e6 * ours[name]:12.2f} us {1e6 * peer[name]:12.2f} us")
    mean = math.exp(sum(math.log(ratio) for ratio, _ in ratios) / len(ratios))
    behind = sum(ratio < 0.95 for ratio, _ in ratios)
    print(f"{len(ratios)} rows, {behind} below 0.95, geometric mean {mean:.2f}")


if __name__ == "__main__":
    main()
