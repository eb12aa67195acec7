"""Measure what `wdsplit convert` costs on a Ray cluster of two processors, against two jobs of the same machine.

Two tables are made: *image* (rows of 50 to 150 kB of incompressible bytes and a label) and *small* (rows of about 320
bytes of text and a label). The cluster is up before the clock starts, and each engine has converted each table once;
then they take turns at going first. A conversion is timed whole, from the plan to the manifest; what it wrote is
removed before the next. Printed are medians over the rounds, and Ray's seconds divided by those of two jobs. While
those work the cluster idles beside them.

Example: python tools/bench_engines.py --output /dev/shm --rounds 5
"""

from __future__ import annotations

import argparse
import logging
import os
import platform
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray
from bench_convert import make_image, make_small

from wdsplit.conversion.convert import convert
from wdsplit.conversion.plan.options import ConvertOptions, PlanOptions
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.engines.ray import RayEngine
from wdsplit.sizes import parse_size

CPUS = 2
STORE_BYTES = 200_000_000
IMAGE_BYTES, SMALL_BYTES = 103_000, 2048
"""What a row takes in a shard, about."""


def measure(engine: Engine, source: Path, output: Path, shard_bytes: int) -> tuple[float, int]:
    """Convert a table; return the seconds and the bytes of the shards. The output is removed."""
    started = time.perf_counter()
    manifest = convert(source, output, ConvertOptions(PlanOptions(shard_size=shard_bytes)), engine=engine)
    seconds = time.perf_counter() - started
    shutil.rmtree(output)
    return seconds, manifest.num_bytes


def compare(what: str, source: Path, engines: dict[str, Engine], rounds: int, shard_bytes: int) -> None:
    """Measure all engines on a table, and print the medians."""
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    output, num_bytes = source.with_name("out"), 0
    for number in range(rounds + 1):
        names = list(engines) if number % 2 else list(engines)[::-1]
        for name in names:
            taken, num_bytes = measure(engines[name], source, output, shard_bytes)
            if number:
                seconds[name].append(taken)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    base = next(iter(medians.values()))
    print(f"\n{what}: {num_bytes / 1e6:,.0f} MB of shards, medians of {rounds}")
    print(f"{'':20}{'seconds':>9}{'least':>9}{'most':>9}{'MB/s':>9}{'x 2 jobs':>10}")
    for name, median in medians.items():
        least, most = min(seconds[name]), max(seconds[name])
        print(
            f"{name:20}{median:9.2f}{least:9.2f}{most:9.2f}{num_bytes / median / 1e6:9,.0f}{median / base:10.2f}",
            flush=True,
        )


def start_ray(folder: Path) -> None:
    """Start a cluster that ends with this process."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # else all that this machine does besides slows Ray alone
    options: dict[str, Any] = {"include_dashboard": False, "object_store_memory": STORE_BYTES, "log_to_driver": False}
    ray.init("local", num_cpus=CPUS, logging_level=logging.ERROR, _temp_dir=str(folder), **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder to write to; a RAM disk leaves the disk out of it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--image-size", type=parse_size, default="2GB", help="bytes of the shards")
    parser.add_argument("--small-size", type=parse_size, default="2GB", help="the same of the small rows")
    parser.add_argument("--shard-size", type=parse_size, default="64MB")
    arguments = parser.parse_args()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"pyarrow {pa.__version__}, Ray {ray.__version__}"
    )
    with (
        tempfile.TemporaryDirectory(dir=arguments.output) as name,
        tempfile.TemporaryDirectory(prefix="ray-") as short,  # the paths of its sockets must be
    ):
        start_ray(Path(short))
        engines: dict[str, Engine] = {f"{CPUS} jobs": LocalEngine(CPUS), f"Ray, {CPUS} processors": RayEngine()}
        for what, make, num_bytes, row_bytes in (
            ("image", make_image, arguments.image_size, IMAGE_BYTES),
            ("small", make_small, arguments.small_size, SMALL_BYTES),
        ):
            source = Path(name) / "in.parquet"
            make(source, num_bytes // row_bytes)
            compare(what, source, engines, arguments.rounds, arguments.shard_size)
        ray.shutdown()


if __name__ == "__main__":
    main()
