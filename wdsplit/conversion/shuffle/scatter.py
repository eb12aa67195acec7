"""Scatters rows: reads the inputs once, and writes sorted runs; merges the runs of many tasks.

The place of a row comes from `order.permutation`. How runs are cut (`steps`) does not change the gathered rows
(`gather`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from wdsplit.conversion.job import ConvertJob
from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.shuffle.sorted_runs import OpenRun, RunWriter, SortedRun, parse_runs, read_runs
from wdsplit.conversion.shuffle.steps import ROW_BYTES, SPILL_FOLDER, Cuts
from wdsplit.engines.local import raise_if_cancelled
from wdsplit.jobs.notes import Notes
from wdsplit.order.permutation import RowPermutation
from wdsplit.storage.interface import Storage
from wdsplit.tables.read import read_rows

__all__ = ["NUMBER", "PLACE", "merge", "placed_rows", "region_runs", "scatter"]

PLACE, NUMBER = "place", "number"
"""Columns of a run besides those of the table, which are numbered c0, c1, ..."""


def scatter(job: ConvertJob, cuts: Cuts, storage: Storage, tasks: range) -> Iterator[list[SortedRun]]:
    """Write the rows of scatter tasks as runs; yield the runs of each."""
    for task in tasks:
        runs = _writer(job, cuts, storage, f"{task:08d}", cuts.scattered_rows)
        for table in placed_rows(job.plan, *cuts.places[task : task + 2]):
            raise_if_cancelled()
            runs.append(table, table.column(PLACE).to_numpy(), table.nbytes + len(table) * ROW_BYTES)
        yield runs.end()


def merge(job: ConvertJob, cuts: Cuts, storage: Storage, merges: range) -> Iterator[list[SortedRun]]:
    """Merge the runs of a chunk of scatter tasks in a region into one run; yield the runs of each merge.

    This reads and writes the table once more, but then no reader has to open the runs of all tasks.
    """
    for number in merges:
        chunk, region = divmod(number, cuts.num_regions)
        merged = _writer(job, cuts, storage, f"region-{region:06d}-{chunk:06d}", cuts.bucket_rows)

        def read_region(run: SortedRun, region: int = region) -> list[pa.RecordBatch]:
            return OpenRun(storage, run).read_buckets(region, region)

        for batch in read_runs(storage, chunk_runs(storage, cuts, chunk), read_region):
            raise_if_cancelled()
            merged.append(pa.Table.from_batches([batch]), batch.column(PLACE).to_numpy(), batch.nbytes)
        yield merged.end()


def _writer(job: ConvertJob, cuts: Cuts, storage: Storage, name: str, bucket_rows: int) -> RunWriter:
    prefix = f"{SPILL_FOLDER}/{cuts.prefix}-{name}-{job.buffer_bytes}"
    check: Callable[[], None] = partial(job.refuse_taken_over, storage) if job.shared else lambda: None
    return RunWriter(storage, prefix, job.buffer_bytes, bucket_rows, job.plan.num_samples, check)


def chunk_runs(storage: Storage, cuts: Cuts, chunk: int) -> list[SortedRun]:
    """Return the runs of the scatter tasks of a chunk."""
    return _collected(storage, f"{cuts.prefix}-chunk-{chunk:06d}", f"{cuts.prefix}-scatter", cuts.scattered(chunk))


def region_runs(storage: Storage, cuts: Cuts, region: int) -> list[SortedRun]:
    """Return the runs to gather the rows of a region from."""
    if not cuts.merges:
        return chunk_runs(storage, cuts, 0)
    return _collected(storage, f"{cuts.prefix}-region-{region:06d}", f"{cuts.prefix}-merge", cuts.merged(region))


def _collected(storage: Storage, title: str, name: str, tasks: range) -> list[SortedRun]:
    found = Notes(storage, SPILL_FOLDER).collect(title, name, tasks, parse_runs)
    return [run for runs in found for run in runs]


def placed_rows(plan: Plan, first: int, stop: int) -> Iterator[pa.Table]:
    """Yield rows of the table, batch by batch, with their places and numbers."""
    permutation = RowPermutation(plan.num_rows, plan.options.seed)
    for rows in read_rows(plan.table, first, stop, plan.columns):
        places = permutation.positions(np.arange(first, first + len(rows)))
        first += len(rows)
        arrays = {f"c{i}": rows.columns[name] for i, name in enumerate(plan.columns)}
        yield pa.table({PLACE: places, NUMBER: rows.numbers, **arrays})
