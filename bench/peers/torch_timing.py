"""Measurement and rows of the peers of PyTorch 2, as bench/support/timing.h: BENCH_THREADS, BENCH_FILTER, medians."""
import json
import os
import statistics
import time

# malloc keeps the memory that this process frees after it has freed a large block once. Otherwise it may return memory to
# the kernel in each call, and the page faults take longer than a small convolution.
bytearray(30_000_000)

THREADS = int(os.environ.get("BENCH_THREADS", "1"))
now = time.process_time if THREADS == 1 else time.perf_counter


def seconds_of(work, total):
    """The median of the seconds of one call, after a warm-up."""
    samples, start = [], now()
    while now() - start < 0.2:
        work()
    while sum(samples) < total or len(samples) < (11 if sum(samples) < 10 else 3):
        start = now()
        work()
        samples.append(now() - start)
    return statistics.median(samples)


def wanted(name):
    return os.environ.get("BENCH_FILTER", "") in name


def measure(name, work, total=1.0):
    name += "" if THREADS == 1 else f"_threads_{THREADS}"
    if wanted(name):
        print(json.dumps({"name": name, "seconds": seconds_of(work, total)}), flush=True)
