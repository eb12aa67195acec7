"""Measure how long the order of one epoch takes to build, and what memory it needs.

Prints a line a size: shards, samples, the median of the builds in milliseconds, the most memory that a build held at
once and what it keeps, and how long it takes to find the first 1,024 samples. Memory is measured by tracemalloc in a
build of its own, because tracing slows it down.

Example: python tools/bench_order.py --shards 1000000 --samples 1000000000
"""

from __future__ import annotations

import argparse
import platform
import statistics
import time
import tracemalloc

import numpy as np

from wdsplit.order.epoch import EpochOrder, Int64, OrderOptions


def shard_counts(num_shards: int, num_samples: int, uneven: bool) -> Int64:
    """Return samples of each shard: all equal but for one sample, or up to twice the mean."""
    if not uneven:
        each, rest = divmod(num_samples, num_shards)
        return each + (np.arange(num_shards) < rest).astype(np.int64)
    weights = 1 + np.arange(num_shards, dtype=np.int64) * 2_654_435_761 % 1000
    return weights * num_samples // int(weights.sum())


def milliseconds(seconds: list[float]) -> float:
    return statistics.median(seconds) * 1000


def measure(counts: Int64, options: OrderOptions, repeats: int) -> tuple[float, float, float, float]:
    """Return build and first-lookup times in ms (medians), and peak and kept memory in MB."""
    builds, lookups = [], []
    for epoch in range(repeats):
        started = time.perf_counter()
        order = EpochOrder(counts, options, epoch)
        built = time.perf_counter()
        order.locate(np.arange(1024))
        builds.append(built - started)
        lookups.append(time.perf_counter() - built)
    del order
    tracemalloc.start()
    order = EpochOrder(counts, options, repeats)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del order
    return milliseconds(builds), milliseconds(lookups), peak / 1e6, kept / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shards", type=int, default=1_000_000)
    parser.add_argument("--samples", type=int, default=1_000_000_000)
    parser.add_argument("--lanes", type=int, default=1024)
    parser.add_argument("--window", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    options = OrderOptions(0, True, arguments.lanes, arguments.window, "pad")
    print(f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}")
    print("shards      samples         sizes    build ms  first 1,024 ms  peak MB  kept MB")
    for uneven in (False, True):
        counts = shard_counts(arguments.shards, arguments.samples, uneven)
        build, lookup, peak, kept = measure(counts, options, arguments.repeats)
        sizes = "uneven" if uneven else "equal"
        print(
            f"{len(counts):<11,} {int(counts.sum()):<15,} {sizes:<8} {build:>8.1f}  {lookup:>14.1f}  "
            f"{peak:>7.1f}  {kept:>7.1f}"
        )


if __name__ == "__main__":
    main()
