"""Scatters rows: reads the inputs once, and writes sorted runs, Arrow files with rows sorted by their places.

`order.permutation` gives the place of each row, or `plan.grouping` that of its group. How runs are cut (`steps`) does
not change what is gathered (`gather`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.record.job import Job, open_output
from wdsplit.conversion.shuffle.sorted_runs import NUMBER, PLACE, SortedRunWriter
from wdsplit.conversion.shuffle.steps import ROW_BYTES, ScatterTask, Steps
from wdsplit.engines.local import raise_if_cancelled
from wdsplit.order.epoch import Int64
from wdsplit.order.permutation import RowPermutation
from wdsplit.tables.read import Rows, read_rows
from wdsplit.tables.select import hash_groups

__all__ = ["BATCH_BYTES", "REMOTE_MEMORY", "loadable_bytes", "placed_rows", "scatter", "task_bytes", "task_memory"]

_BASE_BYTES = 256 * 1024**2
_JOB_BYTES = 128 * 1024**2
"""What all jobs together, and each of them, need besides their rows: libraries, pages being decoded."""
_COPIES = 6
"""How often a task has its rows in memory, at most: as read, sorted, encoded, laid out and written."""
_FILE_BYTES, _ROW_GROUP_BYTES = 1024, 64
"""What a file of the input, and a row group of it, take in a plan, about."""
_LEAST_BYTES, _USUAL_BYTES, _MAX_BYTES = 8 * 1024**2, 32 * 1024**2, 1024**3
_USUAL_TASKS = 128
REMOTE_MEMORY = 1024**3
"""What conversions use on machines of which nothing is known, unless they are given more."""
BATCH_BYTES = 16 * 1024**2
"""What a batch may have of rows that stay in their order, or that are handed on."""


def task_bytes(memory_bytes: int, jobs: int, local_bytes: int | None = None) -> int:
    """Return how many bytes of rows a task may buffer so that all jobs together keep to a memory bound.

    Args:
        memory_bytes: The bound.
        jobs: Jobs.
        local_bytes: The bytes of all rows, if they are spilled to a local disk: no task buffers many more than it must,
            because memory that is new to a process costs more than small reads. None for a bucket.
    """
    free = (memory_bytes - _BASE_BYTES - _JOB_BYTES * jobs) // (jobs * _COPIES)
    enough = _MAX_BYTES if local_bytes is None else max(_USUAL_BYTES, local_bytes // _USUAL_TASKS)
    return min(_MAX_BYTES, enough, max(_LEAST_BYTES, free))


def loadable_bytes(memory_bytes: int, jobs: int) -> int:
    """Return how many bytes of rows may be in memory at once, while all jobs write shards of them."""
    return max(0, memory_bytes - _BASE_BYTES - jobs * (_JOB_BYTES + _COPIES * BATCH_BYTES))


def task_memory(plan: Plan, buffer_bytes: int) -> int:
    """Return how many bytes a task needs, about, libraries included; it may buffer `buffer_bytes` of rows."""
    if plan.scatters:
        return _JOB_BYTES + _COPIES * buffer_bytes + _plan_bytes(plan)
    row_group = max(max(file.row_groups, default=0) * file.row_bytes for file in plan.table.files)
    return _JOB_BYTES + _COPIES * BATCH_BYTES + int(row_group) + _plan_bytes(plan)


def _plan_bytes(plan: Plan) -> int:
    """Return what a plan takes in each process, about."""
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
    """Read the rows of a task, batch by batch, with their places and numbers; and the bytes that each batch takes."""
    places_of = _places(plan, task.first)
    columns = [*plan.columns, *([plan.options.group_by] if plan.options.group_by is not None else [])]
    for rows in read_rows(plan.table, task.first, task.stop, list(dict.fromkeys(columns))):
        arrays = {f"c{i}": rows.columns[name] for i, name in enumerate(plan.columns)}
        table = pa.table({PLACE: places_of(rows), NUMBER: rows.numbers, **arrays})
        yield table, rows.nbytes + len(rows) * ROW_BYTES


def _places(plan: Plan, first: int) -> Callable[[Rows], Int64]:
    """Return what says where the rows go that are read one batch after another from the place `first` on.

    Rows of one group all go to the place of its first row, and are there in the order of their numbers.
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
