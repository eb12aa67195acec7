"""Measure what `wdsplit convert` costs on a Ray cluster of two processors, against two jobs of the same machine.

Two tables are made: *image* (rows of 50 to 150 kB of incompressible bytes and a label) and *small* (rows of about 320
bytes of text and a label). The cluster is up before the clock starts, and each engine has converted each table once;
then they alternate. A conversion is timed whole, from the plan to the manifest; its output is removed before the next.
Printed are medians over the rounds, and Ray's seconds divided by those of two jobs. While those work the cluster idles
beside them. Needs Ray (pip install '.[ray]').

Example: python -m tools.bench.engines --output /dev/shm --rounds 5
"""

from __future__ import annotations

import logging
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from tools.bench import core, data
from wdsplit import ConvertOptions, convert
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.sizes import parse_size

CPUS = 2
STORE_BYTES = 200_000_000
ROW_BYTES = {"image": 103_000, "small": 2048}
"""What a row takes in a shard, about."""


def measure(engine: Engine, source: Path, shard_bytes: int) -> tuple[float, int]:
    """Convert a table; return the seconds and the bytes of the shards. The output is removed."""
    output = source.with_name("out")
    started = time.perf_counter()
    manifest = convert(source, output, ConvertOptions(shard_size=shard_bytes, shuffle=False), engine=engine)
    seconds = time.perf_counter() - started
    shutil.rmtree(output)
    return seconds, manifest.num_bytes


def compare(table: str, source: Path, engines: dict[str, Engine], rounds: int, shard_bytes: int) -> None:
    """Measure all engines on a table, and print the medians."""
    for engine in engines.values():
        measure(engine, source, shard_bytes)
    results = core.run_rounds(engines, rounds, lambda name: measure(engines[name], source, shard_bytes))
    num_bytes = results[next(iter(engines))][0][1]
    seconds = {name: [taken for taken, _ in runs] for name, runs in results.items()}
    base = statistics.median(next(iter(seconds.values())))
    rows = []
    for name, taken in seconds.items():
        median = statistics.median(taken)
        times = (f"{value:.2f}" for value in (median, min(taken), max(taken)))
        rows.append((name, *times, f"{num_bytes / median / 1e6:,.0f}", f"{median / base:.2f}"))
    title = f"{table}: {num_bytes / 1e6:,.0f} MB of shards, medians of {rounds}"
    core.print_table(title, ("", "seconds", "least", "most", "MB/s", f"x {CPUS} jobs"), rows)


def start_ray(folder: str) -> Engine:
    """Start a cluster that ends with this process."""
    import ray

    from wdsplit.engines.ray import RayEngine

    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # else whatever else this machine does slows Ray alone
    options: dict[str, Any] = {"include_dashboard": False, "object_store_memory": STORE_BYTES, "log_to_driver": False}
    ray.init("local", num_cpus=CPUS, logging_level=logging.ERROR, _temp_dir=folder, **options)
    print(f"Ray {ray.__version__}")
    return RayEngine()


def main() -> None:
    parser = core.parser_of(__doc__)
    parser.add_argument("--image-size", type=parse_size, default="2GB", help="Size of the image shards. Default: 2GB.")
    parser.add_argument("--small-size", type=parse_size, default="2GB", help="Size of the small shards. Default: 2GB.")
    parser.add_argument("--shard-size", type=parse_size, default="64MB", help="Size of a shard. Default: 64MB.")
    arguments = parser.parse_args()
    core.print_machine()
    if not core.is_installed("Ray", "ray"):
        return
    # Ray makes sockets in its folder, whose paths must be short.
    with core.work_folder(arguments.output) as folder, tempfile.TemporaryDirectory(prefix="ray-") as short:
        engines = {f"{CPUS} jobs": LocalEngine(CPUS), f"Ray, {CPUS} processors": start_ray(short)}
        for table, num_bytes in (("image", arguments.image_size), ("small", arguments.small_size)):
            source = folder / data.SOURCE
            data.MAKERS[table](source, num_bytes // ROW_BYTES[table])
            compare(table, source, engines, arguments.rounds, arguments.shard_size)
        import ray

        ray.shutdown()


if __name__ == "__main__":
    main()
