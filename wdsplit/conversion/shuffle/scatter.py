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
    "BATCH_BYTES",
    "NUMBER",
    "PLACE",
    "REMOTE_MEMORY",
    "chunk_runs",
    "loadable_bytes",
    "merge",
    "placed_rows",
    "region_runs",
    "scatter",
    "task_bytes",
    "task_memory",
]

PLACE, NUMBER = "place", "number"
"""Columns of a run besides those of the table, which are numbered c0, c1, ..."""

_BASE_BYTES = 256 * 1024**2
_JOB_BYTES = 128 * 1024**2
"""Memory besides rows, of all jobs together and of each job: libraries, pages being decoded."""
_COPIES = 6
"""Maximum copies of its rows that a task has in memory: as read, sorted, encoded, laid out and written."""
_FILE_BYTES, _ROW_GROUP_BYTES = 1024, 64
"""Approximate bytes of an input file, and of one of its row groups, in a plan."""
_LEAST_BYTES, _USUAL_BYTES, _MAX_BYTES = 8 * 1024**2, 32 * 1024**2, 1024**3
_USUAL_TASKS = 128
REMOTE_MEMORY = 1024**3
"""The default memory of a conversion on unknown machines."""
BATCH_BYTES = 16 * 1024**2
"""Maximum bytes of a batch of rows."""


def task_bytes(memory_bytes: int, jobs: int, local_bytes: int | None = None) -> int:
    """Return how many bytes of rows a task may buffer so that all jobs together stay within a memory limit.

    Args:
        memory_bytes: The limit.
        jobs: Number of jobs.
        local_bytes: The bytes of all rows, if they are spilled to a local disk. There, a task buffers little more than
            it must, because fresh memory costs a process more than small reads. None for a bucket.
    """
    free = (memory_bytes - _BASE_BYTES - _JOB_BYTES * jobs) // (jobs * _COPIES)
    enough = _MAX_BYTES if local_bytes is None else max(_USUAL_BYTES, local_bytes // _USUAL_TASKS)
    return min(_MAX_BYTES, enough, max(_LEAST_BYTES, free))


def loadable_bytes(memory_bytes: int, jobs: int) -> int:
    """Return how many bytes of rows may be in memory at once, while all jobs write shards from them."""
    return max(0, memory_bytes - _BASE_BYTES - jobs * (_JOB_BYTES + _COPIES * BATCH_BYTES))


def task_memory(plan: Plan, buffer_bytes: int) -> int:
    """Return the approximate memory of a task in bytes, libraries included; it may buffer `buffer_bytes` of rows."""
    if plan.scatters:
        return _JOB_BYTES + _COPIES * buffer_bytes + _plan_bytes(plan)
    row_group = max(max(file.row_groups, default=0) * file.row_bytes for file in plan.table.files)
    return _JOB_BYTES + _COPIES * BATCH_BYTES + int(row_group) + _plan_bytes(plan)


def _plan_bytes(plan: Plan) -> int:
    """Return the approximate bytes of a plan in each process."""
    return sum(_FILE_BYTES + _ROW_GROUP_BYTES * len(file.row_groups) for file in plan.table.files)


def scatter(job: ConvertJob, cuts: Cuts, storage: Storage, tasks: range) -> Iterator[list[SortedRun]]:
    """Write the rows of scatter tasks as runs; yield the runs of each."""
    for task in tasks:
        runs = _writer(job, cuts, storage, f"{task:08d}", cuts.scattered_rows)
        for table, num_bytes in placed_rows(job.plan, *cuts.places[task : task + 2]):
            raise_if_cancelled()
            runs.append(table, table.column(PLACE).to_numpy(), num_bytes)
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


def placed_rows(plan: Plan, first: int, stop: int) -> Iterator[tuple[pa.Table, int]]:
    """Yield rows of the table, batch by batch, with their places and numbers; and the bytes of each batch."""
    places_of = _places(plan, first)
    columns = [*plan.columns, *([plan.options.group_by] if plan.options.group_by is not None else [])]
    for rows in read_rows(plan.table, first, stop, list(dict.fromkeys(columns))):
        arrays = {f"c{i}": rows.columns[name] for i, name in enumerate(plan.columns)}
        table = pa.table({PLACE: places_of(rows), NUMBER: rows.numbers, **arrays})
        yield table, rows.nbytes + len(rows) * ROW_BYTES


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
