"""What a conversion of a petabyte takes of its driver: a program, so that its memory is its own.

Footers and shards are made up; planning, cutting into tasks, taking results in and making the manifest are real.
"""

import json
import sys
import time
from pathlib import Path

import pyarrow as pa
import xxhash

from view_scale_checks import memory
from wdsplit.conversion import planning
from wdsplit.conversion.driver import Driver
from wdsplit.conversion.job import ConvertJob, ShardRow
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.shards.files import write_manifest
from wdsplit.shards.manifest import checksum_of, parse_manifest
from wdsplit.storage.local import LocalStorage
from wdsplit.tables import read
from wdsplit.tables.snapshots import Inputs
from wdsplit.tables.table import InputFile, Remote

NUM_FILES, ROW_GROUPS, GROUP_ROWS, ROW_BYTES = 100_000, 80, 1250, 100_000
NUM_SHARDS = 1_000_000
SCHEMA = pa.schema([("jpg", pa.binary()), ("label", pa.int64())])


def made_up_footer(path, storage_options):
    """Return what would be read of a file of 10 GB."""
    rows = ROW_GROUPS * GROUP_ROWS
    sizes = (("jpg", rows * ROW_BYTES), ("label", rows * 8))
    groups = tuple(GROUP_ROWS for _ in range(ROW_GROUPS))
    footer = xxhash.xxh3_128_hexdigest(path.encode())
    return InputFile(
        path, rows * ROW_BYTES, rows, groups, rows * ROW_BYTES, footer, column_bytes=sizes, remote=Remote(path)
    ), SCHEMA


class StubEngine:
    """Completes each task at once, and notes the driver's memory after each tenth of them."""

    is_local = False
    jobs, jobs_of_a_node = 10_000, 64

    def __init__(self, plan):
        self.plan, self.held, self.num_tasks = plan, [], 0

    def map(self, function, tasks, *, threads=False, memory_bytes=0, num_bytes=None, describe=str):
        self.num_tasks = len(tasks)
        for number, span in enumerate(tasks):
            if number % (len(tasks) // 10) == 0:
                self.held.append(memory("VmRSS"))
            yield span, [self.shard(shard) for shard in span]
        self.held.append(memory("VmRSS"))

    def shard(self, number):
        first, stop = self.plan.rows(number)
        pads = self.plan.num_pads_of(number)
        num_bytes = (stop - first + pads) * 101_376
        checksum = checksum_of(xxhash.xxh3_128(str(number).encode()))
        return ShardRow(stop - first + pads, pads, num_bytes, checksum)


def main(folder):
    read._open_file = made_up_footer
    planning.find_label = lambda *_: (None, {})  # it reads rows, a bounded number, and there are none
    paths = [f"s3://bucket/raw/part-{number:06d}.parquet" for number in range(NUM_FILES)]
    options = ConvertOptions(shards=NUM_SHARDS, world_size=1000, shuffle=False, mapping={"jpg": "jpg", "cls": "label"})
    started = time.monotonic()
    plan = planning.plan_files(Inputs(paths), options)[""]
    name = plan.hash
    plan_s = time.monotonic() - started

    engine = StubEngine(plan)
    job = ConvertJob(output="s3://bucket/train", plan=plan, buffer_bytes=1)
    published = Driver(job, engine, lambda progress: None).carry_out({})
    storage = LocalStorage(folder)
    write_manifest(storage, published.manifest(()))
    header, table = (Path(folder, name).read_bytes() for name in ("wdsplit.json", "shards.parquet"))
    manifest = parse_manifest(header, table)
    print(
        json.dumps(
            {
                "plan": name,
                "plan_s": plan_s,
                "tasks": engine.num_tasks,
                "held": engine.held,
                "peak_bytes": memory("VmHWM"),
                "shards": len(manifest.shards),
                "samples": manifest.num_samples,
                "bytes": manifest.num_bytes,
                "last": manifest.shards[NUM_SHARDS - 1].checksum,
                "all_s": time.monotonic() - started,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1])
