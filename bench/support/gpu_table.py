"""Joins rows of bench/gpu.cpp and bench/peers/torch_gpu.py: gpu_table.py OURS.jsonl TORCH.jsonl OUT writes OUT.json and
OUT.md. Memory rates are also given in percent of a copy on the device (our row copy_256m). Errors
are ours, relative to f64."""
import json
import sys


def read(path):
    with open(path) as lines:
        rows = [json.loads(line) for line in lines if line.startswith("{")]  # not "skipped: ..."
    return {row["name"]: row for row in rows}


def time_of(row):
    if row is None:
        return ""
    seconds = row["seconds"]
    return f"{seconds * 1e6:.1f} us" if seconds < 1e-3 else f"{seconds * 1e3:.3f} ms" if seconds < 1 else f"{seconds:.2f} s"


def rate_of(row, copy):
    if row.get("tflop_per_s"):
        return f"{row['tflop_per_s']:.1f} TFLOP/s"
    if row.get("gb_per_s"):
        part = f" ({row['gb_per_s'] / copy['gb_per_s']:.0%} of a copy)" if copy else ""
        return f"{row['gb_per_s']:.0f} GB/s{part}"
    return ""


def main(ours_path, torch_path, out):
    ours, torch = read(ours_path), read(torch_path)
    lines = ["| row | ours | rate | PyTorch | ours / PyTorch | error |", "|---|---|---|---|---|---|"]
    rows = []
    for name, row in ours.items():
        peer = torch.get(name)
        ratio = row["seconds"] / peer["seconds"] if peer else None
        rows.append({"name": name, "ours": row, "torch": peer, "ratio": ratio})
        lines.append(f"| {name} | {time_of(row)} | {rate_of(row, ours.get('copy_256m'))} | {time_of(peer)} | "
                     f"{'' if ratio is None else f'{ratio:.2f}'} | {row.get('error', '')} |")
    with open(out + ".json", "w") as file:
        json.dump(rows, file, indent=1)
    with open(out + ".md", "w") as file:
        file.write("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main(*sys.argv[1:])
