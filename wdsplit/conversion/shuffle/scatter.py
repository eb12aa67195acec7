"""Scatters rows: reads the inputs once, and writes sorted runs, Arrow files with rows sorted by their places.

The place of a row comes from `order.permutation`, or from `plan.grouping` for its group. How runs are cut (`steps`)
does not change the gathered rows (`gather`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.record.job import Job, open_output
from wdsplit.conversion.shuffle.sorted_runs import NUMBER, PLACE, SortedRunWriter
from wdsplit.conversion.shuffle.steps import ROW_BYTES, ScatterTask, Steps
from wdsplit.engines.local import raise_if_cancelled
from wdsplit.order.permutation import RowPermutation
from wdsplit.tables.read import Rows, read_rows
from wdsplit.tables.select import hash_groups

__all__ = ["BATCH_BYTES", "REMOTE_MEMORY", "loadable_bytes", "placed_rows", "scatter", "task_bytes", "task_memory"]

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


def scatter(job: Job, steps: Steps, task: ScatterTask) -> int:
    """Write the runs of a task; return its number of rows. Runs in a worker process; may run twice."""
    with open_output(job) as storage:
        runs = SortedRunWriter(storage, job, steps.prefix, task.name, steps.scattered_rows)
        for table, num_bytes in placed_rows(job.plan, task):
            raise_if_cancelled()
            runs.append(table, num_bytes)
        runs.end()
    return task.stop - task.first


def placed_rows(plan: Plan, task: ScatterTask) -> Iterator[tuple[pa.Table, int]]:
    """Yield the rows of a task, batch by batch, with their places and numbers; and the bytes of each batch."""
    places_of = _places(plan, task.first)
    columns = [*plan.columns, *([plan.options.group_by] if plan.options.group_by is not None else [])]
    for rows in read_rows(plan.table, task.first, task.stop, list(dict.fromkeys(columns))):
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
