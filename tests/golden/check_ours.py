#!/usr/bin/env python3
"""Checks a safetensors file written by Lockstep against the format's rules and, if given, against another file.

    python3 tests/golden/check_ours.py ours.safetensors [expected.safetensors] [relative tolerance, 0 by default]

Needs NumPy only. Exit status 0 and one line where all is well; 1 and the reason otherwise.
"""
import json
import struct
import sys

import numpy as np

DTYPES = {"BOOL": "?", "U8": "<u1", "I8": "<i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "BF16": "<u2", "I32": "<i4",
          "U32": "<u4", "F32": "<f4", "I64": "<i8", "U64": "<u8", "F64": "<f8"}


def require(condition, message):
    if not condition:
        sys.exit(message)


def no_duplicates(pairs):
    require(len(dict(pairs)) == len(pairs), f"a key appears twice: {[key for key, _ in pairs]}")
    return dict(pairs)


def load(path):
    """name -> array; BF16 as its bits."""
    raw = open(path, "rb").read()
    require(len(raw) >= 8, f"{path}: shorter than 8 bytes")
    (length,) = struct.unpack("<Q", raw[:8])
    require(length <= min(100_000_000, len(raw) - 8), f"{path}: header length {length} is past the file or the limit")
    require(raw[8:9] == b"{", f"{path}: the header does not begin with a brace")
    require(length % 8 == 0, f"{path}: header length {length} is not a multiple of 8")  # a rule for writers
    header = json.loads(raw[8:8 + length].decode("utf-8"), object_pairs_hook=no_duplicates)
    metadata = header.pop("__metadata__", {})
    require(all(isinstance(value, str) for value in metadata.values()), f"{path}: metadata that is not text")
    data, end, tensors = raw[8 + length:], 0, {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, stop = entry["data_offsets"]
        dtype = np.dtype(DTYPES[entry["dtype"]])
        require(begin == end, f"{path}: {name}: begins at {begin}, the tensor before it ends at {end}")
        size = int(np.prod(entry["shape"], dtype=object)) * dtype.itemsize
        require(stop - begin == size, f"{path}: {name}: {stop - begin} bytes, but dtype and shape need {size}")
        require(stop <= len(data), f"{path}: {name}: ends past the file")
        require(begin % dtype.itemsize == 0, f"{path}: {name}: begins at {begin}, not aligned")  # a rule for writers
        tensors[name] = np.frombuffer(data[begin:stop], dtype).reshape(entry["shape"])
        end = stop
    require(end == len(data), f"{path}: {len(data) - end} bytes after the last tensor")
    return tensors


def compare(ours, expected, tolerance):
    require(ours.keys() == expected.keys(), f"names differ: {sorted(ours.keys() ^ expected.keys())}")
    for name, want in expected.items():
        have = ours[name]
        require(have.dtype == want.dtype and have.shape == want.shape,
                f"{name}: ours is {have.dtype} {have.shape}, expected {want.dtype} {want.shape}")
        same = have.tobytes() == want.tobytes() if tolerance == 0 else np.allclose(have, want, tolerance, 0, equal_nan=True)
        require(same, f"{name}: values differ: ours {have.ravel()[:4]}, expected {want.ravel()[:4]}")


if __name__ == "__main__":
    require(len(sys.argv) > 1, __doc__)
    tensors = load(sys.argv[1])
    if len(sys.argv) > 2:
        compare(tensors, load(sys.argv[2]), float(sys.argv[3]) if len(sys.argv) > 3 else 0)
    print(f"{sys.argv[1]}: {len(tensors)} tensors, valid")
