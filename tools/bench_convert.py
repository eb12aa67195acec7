"""Measure `wdsplit convert` side by side with other writers and with `cp` of the same bytes.

Two tables are made: *small* (rows of about 320 bytes of text and an integer label) and *image* (rows of 50 to 150 kB of
incompressible bytes and a label). In each round every contender converts them once, in a process of its own, to the
same kind of place; what is printed are medians over the rounds, ratios of medians, and the most memory that one process
had. A contender that is not installed is left out (pip install '.[bench]'). The clock starts when the
libraries are imported and stops when the last byte is handed to the system.

Example: python tools/bench_convert.py --output /dev/shm --rounds 5
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SHARD_BYTES = 128_000_000


def make_small(path: Path, num_rows: int) -> None:
    """Write rows of 256 to 384 characters and a label."""
    chance = np.random.default_rng(0)
    lengths = chance.integers(256, 385, num_rows)
    letters = chance.integers(97, 123, int(lengths.sum()), dtype=np.uint8)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    text = pa.StringArray.from_buffers(num_rows, pa.py_buffer(offsets), pa.py_buffer(letters))
    table = pa.table({"text": text, "label": chance.integers(0, 1000, num_rows)})
    pq.write_table(table, path, row_group_size=50_000)


def make_image(path: Path, num_rows: int) -> None:
    """Write rows of 50 to 150 kB that begin as JPEGs do, and a label."""
    chance = np.random.default_rng(1)
    schema = pa.schema([("image", pa.binary()), ("label", pa.int64())])
    with pq.ParquetWriter(path, schema, compression="none") as writer:
        for first in range(0, num_rows, 500):
            sizes = chance.integers(50_000, 150_001, min(500, num_rows - first))
            images = [b"\xff\xd8\xff" + chance.bytes(int(size)) for size in sizes]
            writer.write_table(pa.table([images, chance.integers(0, 1000, len(images))], schema=schema))


def wdsplit_jobs(jobs: int, **plan: Any) -> Callable[[str, str], None]:
    def run(source: str, output: str) -> None:
        from wdsplit.conversion.convert import convert
        from wdsplit.conversion.plan.options import ConvertOptions, PlanOptions

        convert(source, output, ConvertOptions(PlanOptions(shard_size=SHARD_BYTES, **plan), jobs=jobs))

    return run


def rows_of(source: str) -> Any:
    for batch in pq.ParquetFile(source).iter_batches(1000):
        yield from batch.to_pylist()


def shard_writer(source: str, output: str) -> None:
    """Write as the documentation of webdataset shows it."""
    import webdataset

    os.makedirs(output)
    with webdataset.ShardWriter(f"{output}/%06d.tar", maxsize=SHARD_BYTES, maxcount=10**9, verbose=0) as sink:
        for number, row in enumerate(rows_of(source)):
            payload = {"txt": row["text"]} if "text" in row else {"jpg": row["image"]}
            sink.write({"__key__": f"{number:08d}", **payload, "cls": row["label"]})


def mds_writer(source: str, output: str) -> None:
    from streaming import MDSWriter

    name, kind = ("text", "str") if "text" in pq.read_schema(source).names else ("image", "bytes")
    with MDSWriter(out=output, columns={name: kind, "label": "int"}, size_limit=SHARD_BYTES) as sink:
        for row in rows_of(source):
            sink.write(row)


def _row_groups(source: str, group: int) -> Any:
    yield from pq.ParquetFile(source).read_row_group(group).to_pylist()


def litdata_optimize(source: str, output: str) -> None:
    from functools import partial

    from litdata import optimize

    groups = list(range(pq.ParquetFile(source).num_row_groups))
    optimize(partial(_row_groups, source), groups, output, num_workers=2, chunk_bytes=SHARD_BYTES)


def cp(source: str, output: str) -> None:
    """Copy what wdsplit made of the same table; the driver has put it beside the output."""
    subprocess.run(["cp", "-r", f"{output}.reference", output], check=True)


CONTENDERS: dict[str, tuple[str, Callable[[str, str], None]]] = {
    "wdsplit, 1 job": ("wdsplit", wdsplit_jobs(1)),
    "wdsplit, 2 jobs": ("wdsplit", wdsplit_jobs(2)),
    "wdsplit --shuffle, 2 jobs": ("wdsplit", wdsplit_jobs(2, shuffle=True)),
    "webdataset ShardWriter": ("webdataset", shard_writer),
    "MosaicML MDSWriter": ("streaming", mds_writer),
    "LitData optimize, 2 workers": ("litdata", litdata_optimize),
    "cp of the same bytes": ("wdsplit", cp),
}


def run_one(name: str, source: str, output: str) -> None:
    """Run a contender in this process, and print its seconds and memory as JSON."""
    module, function = CONTENDERS[name]
    importlib.import_module(module)
    started = time.perf_counter()
    function(source, output)
    seconds = time.perf_counter() - started
    peak = max(own_peak_kib(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
    print(json.dumps({"seconds": seconds, "megabytes": peak / 1024}))


def own_peak_kib() -> int:
    """Return the most memory that this process had; getrusage would count the process that started it too."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s*(\d+)", status)[1])  # type: ignore[index]


def measure(name: str, source: Path, output: Path) -> dict[str, float]:
    """Run a contender in a process of its own; its output is removed."""
    command = [sys.executable, __file__, "--one", name, str(source), str(output)]
    ended = subprocess.run(command, capture_output=True, text=True)
    shutil.rmtree(output, ignore_errors=True)
    if ended.returncode:
        raise SystemExit(f"{name} failed:\n{ended.stderr}")
    result: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return result


def compare(what: str, source: Path, num_rows: int, folder: Path, rounds: int) -> None:
    """Measure all contenders on a table, round by round, and print the medians."""
    names = [name for name, (module, _) in CONTENDERS.items() if importlib.util.find_spec(module)]
    reference = folder / "out.reference"
    wdsplit_jobs(1)(str(source), str(reference))
    num_bytes = sum(path.stat().st_size for path in reference.iterdir())
    results: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            results[name].append(measure(name, source, folder / "out"))
    shutil.rmtree(reference)
    medians = {name: statistics.median(result["seconds"] for result in results[name]) for name in names}
    base = medians["webdataset ShardWriter"]
    print(f"\n{what}: {num_rows:,} rows, {num_bytes / 1e6:,.0f} MB of shards, medians of {rounds}")
    print(f"{'':30}{'seconds':>9}{'rows/s':>12}{'MB/s':>8}{'x ShardWriter':>15}{'x cp':>8}{'MB held':>9}")
    for name in names:
        seconds = medians[name]
        held = max(result["megabytes"] for result in results[name])
        copied = medians["cp of the same bytes"] / seconds
        print(
            f"{name:30}{seconds:9.2f}{num_rows / seconds:12,.0f}{num_bytes / seconds / 1e6:8,.0f}"
            f"{base / seconds:15.2f}{copied:8.2f}{held:9,.0f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder to write to; a RAM disk leaves the disk out of it")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small-rows", type=int, default=400_000)
    parser.add_argument("--image-rows", type=int, default=12_000)
    parser.add_argument("--one", nargs=3, metavar=("NAME", "SOURCE", "OUTPUT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        run_one(*arguments.one)
        return
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, pyarrow {pa.__version__}")
    with tempfile.TemporaryDirectory(dir=arguments.output) as name:
        folder = Path(name)
        for what, make, num_rows in (
            ("small", make_small, arguments.small_rows),
            ("image", make_image, arguments.image_rows),
        ):
            if num_rows:
                make(folder / "in.parquet", num_rows)
                compare(what, folder / "in.parquet", num_rows, folder, arguments.rounds)


if __name__ == "__main__":
    main()
