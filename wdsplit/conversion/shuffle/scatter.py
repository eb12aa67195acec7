"""Scatters rows: reads the inputs once, and writes sorted runs; merges the runs of many tasks.

The place of a row comes from `order.permutation`, or from `plan.grouping` for its group. How runs are cut (`steps`)
does not change the gathered rows (`gather`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.conversion.job import ConvertJob
from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.shuffle.sorted_runs import OpenRun, RunWriter, SortedRun, parse_runs, read_runs
from wdsplit.conversion.shuffle.steps import ROW_BYTES, SPILL_FOLDER, Cuts
from wdsplit.engines.local import raise_if_cancelled
from wdsplit.jobs.notes import Notes
from wdsplit.order.permutation import RowPermutation
from wdsplit.storage.interface import Storage
from wdsplit.tables.read import Rows, read_rows
from wdsplit.tables.select import hash_groups

__all__ = [
    "NUMBER",
    "PLACE",
    "merge",
    "placed_rows",
    "region_runs",
    "scatter",
]

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

    def check() -> None:
        if job.shared:
            job.refuse_taken_over(storage)

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
    places_of = _places(plan, first)
    columns = [*plan.columns, *([plan.options.group_by] if plan.options.group_by is not None else [])]
    for rows in read_rows(plan.table, first, stop, list(dict.fromkeys(columns))):
        arrays = {f"c{i}": rows.columns[name] for i, name in enumerate(plan.columns)}
        yield pa.table({PLACE: places_of(rows), NUMBER: rows.numbers, **arrays})


def _places(plan: Plan, first: int) -> Callable[[Rows], Int64]:
    """Return a function from a batch of rows to their places; batches must be consecutive, from the place `first` on.

    All rows of a group go to the place of its first row, in the order of their numbers.
    """
    groups, group_by = plan.groups, plan.options.group_by
    if groups is not None and group_by is not None:

        def group_places(rows: Rows) -> Int64:
            return groups.starts_of(hash_groups(rows.columns[group_by], rows.numbers, plan.table, group_by))

        return group_places
    permutation = RowPermutation(plan.num_rows, plan.options.seed)
    read = 0

    def shuffled_places(rows: Rows) -> Int64:
        nonlocal read
        read += len(rows)
        return permutation.positions(np.arange(first + read - len(rows), first + read))

    return shuffled_places
