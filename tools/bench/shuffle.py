"""Measure how long a global shuffle takes, and how much memory: the whole first pass, and a sample of the second.

A table of one integer a row is made in files of a million rows. All rows are scattered; then a few shards, spread over
the dataset, are gathered and written, because the tar of 100 million samples would take 100 GB. Printed are seconds
and the most memory that the process had, mapped files included.

Example: python -m tools.bench.shuffle --rows 100000000 --jobs 2
"""

from __future__ import annotations

import argparse
import threading
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tools.bench import core
from wdsplit.conversion.driver import Driver
from wdsplit.conversion.job import ConvertJob
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.planning import plan_splits
from wdsplit.conversion.shuffle.needs import task_bytes
from wdsplit.conversion.shuffle.steps import write_cuts
from wdsplit.conversion.task import write_shards
from wdsplit.engines.local import LocalEngine
from wdsplit.storage.opening import open_storage

FILE_ROWS = 1_000_000


class Peak:
    """The most memory that this process had since it was last asked, looked at 50 times a second."""

    def __init__(self) -> None:
        self._kib = 0
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self._kib = max(self._kib, core.resident_kib())
            time.sleep(0.02)

    def megabytes(self) -> int:
        kib, self._kib = self._kib, 0
        return kib // 1024


def make_table(folder: Path, num_rows: int) -> None:
    folder.mkdir()
    for number, first in enumerate(range(0, num_rows, FILE_ROWS)):
        labels = np.arange(first, min(num_rows, first + FILE_ROWS))
        path = folder / f"{number:05d}.parquet"
        pq.write_table(pa.table({"label": labels}), path, row_group_size=FILE_ROWS // 4, use_dictionary=False)


def shuffle(plan: Plan, output: str, jobs: int, memory: int, num_shards: int) -> None:
    peak, held_bytes, storage = Peak(), task_bytes(memory, jobs), open_storage(output)
    started = time.perf_counter()
    job, engine = ConvertJob(output=output, plan=plan, buffer_bytes=held_bytes), LocalEngine(jobs)
    driver = Driver(job, engine, lambda _: None)
    cuts = write_cuts(storage, plan, held_bytes)
    runs = driver.spill(cuts, "scatter")
    report("scattered", plan.num_rows, time.perf_counter() - started, peak)
    if cuts.merges:
        started = time.perf_counter()
        driver.spill(cuts, "merge")
        report("merged", plan.num_samples, time.perf_counter() - started, peak)
        storage.remove(*(run.path for run in runs))
    shards = np.linspace(0, plan.num_shards - 1, min(num_shards, plan.num_shards)).astype(int).tolist()
    started = time.perf_counter()
    tasks = [range(shard, shard + 1) for shard in shards]
    written = list(engine.map(lambda task: list(write_shards(job, cuts, storage, task)), tasks, threads=True))
    rows = sum(shard.num_samples for shards_of_task in written for shard in shards_of_task)
    report(f"gathered and wrote {len(written)} of {plan.num_shards} shards", rows, time.perf_counter() - started, peak)


def report(what: str, rows: int, seconds: float, peak: Peak) -> None:
    print(
        f"{what}: {rows:,} rows in {seconds:.1f} s, {rows / seconds:,.0f} rows/s, at most {peak.megabytes()} MiB held"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--memory", type=int, default=1024**3, help="bytes")
    parser.add_argument("--shards", type=int, default=12, help="how many shards to write")
    parser.add_argument("--folder", type=Path, help="where to work; the default is the folder for temporary files")
    arguments = parser.parse_args()
    core.print_machine()
    with core.work_folder(arguments.folder) as name:
        make_table(name / "in", arguments.rows)
        started = time.perf_counter()
        plan = plan_splits(f"{name}/in", ConvertOptions(shuffle=True))[""]
        print(f"planned: {plan.num_rows:,} rows, {plan.num_shards:,} shards in {time.perf_counter() - started:.2f} s")
        shuffle(plan, f"{name}/out", arguments.jobs, arguments.memory, arguments.shards)


if __name__ == "__main__":
    main()
