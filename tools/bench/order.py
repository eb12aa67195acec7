"""Measure how long the order of one epoch takes to build, and how much memory it needs.

Prints for shards of equal and of uneven sizes: the median of the builds in milliseconds, how long it takes to find the
first 1,024 samples, the peak memory of a build and what it keeps. Memory is measured by tracemalloc in a build of its
own, because tracing slows it down.

Example: python -m tools.bench.order --shards 1000000 --samples 1000000000
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc

import numpy as np

from tools.bench import core
from wdsplit.arrays import Int64
from wdsplit.order.epoch import EpochOrder, OrderOptions


def shard_counts(num_shards: int, num_samples: int, uneven: bool) -> Int64:
    """Return samples of each shard: all equal but for one sample, or up to twice the mean."""
    if not uneven:
        each, rest = divmod(num_samples, num_shards)
        return each + (np.arange(num_shards) < rest).astype(np.int64)
    weights = 1 + np.arange(num_shards, dtype=np.int64) * 2_654_435_761 % 1000
    return weights * num_samples // int(weights.sum())


def measure(counts: Int64, options: OrderOptions, repeats: int) -> tuple[float, float, float, float]:
    """Return build and first-lookup times in ms (medians), and peak and kept memory in MB."""
    builds, lookups = [], []
    for epoch in range(repeats):
        started = time.perf_counter()
        order = EpochOrder(counts, options, epoch)
        built = time.perf_counter()
        order.locate(np.arange(1024))
        builds.append(1000 * (built - started))
        lookups.append(1000 * (time.perf_counter() - built))
    del order
    tracemalloc.start()
    order = EpochOrder(counts, options, repeats)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del order
    return statistics.median(builds), statistics.median(lookups), peak / 1e6, kept / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=1_000_000_000)
    parser.add_argument("--lanes", type=int, default=1024)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    options = OrderOptions(0, True, arguments.lanes, arguments.window, "pad")
    core.print_machine()
    rows = []
    for sizes in ("equal", "uneven"):
        counts = shard_counts(arguments.shards, arguments.samples, sizes == "uneven")
        measured = measure(counts, options, arguments.repeats)
        rows.append((sizes, f"{len(counts):,}", f"{int(counts.sum()):,}", *(f"{value:.1f}" for value in measured)))
    header = ("sizes", "shards", "samples", "build, ms", "first 1,024, ms", "peak, MB", "kept, MB")
    core.print_table(f"The order of an epoch (medians of {arguments.repeats})", header, rows)


if __name__ == "__main__":
    main()
