"""Rows of a table that fits in memory: all jobs of this machine read them once into shared memory.

Nothing is sorted or spilled: rows stay as they were read, and the writer of a shard copies the rows of its places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.record.job import Job
from wdsplit.conversion.shuffle.scatter import BATCH_BYTES, placed_rows
from wdsplit.conversion.shuffle.sorted_runs import NUMBER, PLACE, ArrowSink
from wdsplit.conversion.shuffle.steps import ROW_BYTES, ScatterTask, cut_table
from wdsplit.engines.local import raise_if_cancelled
from wdsplit.engines.private_memory import PrivateMemory
from wdsplit.engines.shared_memory import SharedMemory
from wdsplit.order.epoch import Int64
from wdsplit.tables.formats.common import MAX_BATCH_ROWS
from wdsplit.tables.read import Rows

__all__ = ["LoadedRows", "Loading", "Memory", "MemoryRows", "load", "loaded", "memory_bytes", "plan_loading"]

Memory = SharedMemory | PrivateMemory
"""Shared where other processes write shards, or private to this one, which costs less."""

_TASKS_PER_JOB = 4
_SPARE = 2
"""Tasks may fill more than their parts, as rows differ in size; all together may not fill more than is allowed."""
_LARGE_ROW_BYTES = 4096
"""From this size on, to copy rows one by one costs less than to copy them twice."""


@dataclass(frozen=True)
class Loading:
    """How a table is loaded.

    Attributes:
        tasks: The tasks, in the order of the table.
        memory: What the rows of all tasks are put into.
        begins: Where in the memory each task puts its rows.
        task_bytes: How many bytes a task may fill.
        max_bytes: How many bytes all of them may fill.
    """

    tasks: list[ScatterTask]
    memory: Memory
    begins: list[int]
    task_bytes: int
    max_bytes: int


@dataclass(frozen=True)
class LoadedRows:
    """A table in memory; it goes to worker processes that are started with it.

    Attributes:
        memory: The memory.
        regions: Where the rows of each task are: the first byte, and the number of bytes.
        order: Where in the memory the order is: int64 of shape (rows,), for each place the row, counted in the order of
            the table.
    """

    memory: Memory
    regions: list[tuple[int, int]]
    order: int


def memory_bytes(plan: Plan) -> int:
    """Return how many bytes all rows take in memory, as their files say."""
    return plan.table.data_bytes + plan.num_rows * ROW_BYTES


def plan_loading(plan: Plan, max_bytes: int, jobs: int, memory: Memory) -> Loading | None:
    """Decide how to load a table into memory, at most so many bytes; None if it does not fit."""
    num_bytes = memory_bytes(plan)
    if num_bytes > max_bytes:
        return None
    places = cut_table(plan.table, max(BATCH_BYTES, num_bytes // (_TASKS_PER_JOB * jobs)))
    tasks = [ScatterTask(number, *ends) for number, ends in enumerate(pairwise(places))]
    task_bytes = _SPARE * max_bytes // len(tasks)
    try:
        begins = [memory.allocate(task_bytes) for _ in tasks]
    except OSError:  # shared memory is a file, and RLIMIT_FSIZE may allow no larger ones
        return None
    return Loading(tasks, memory, begins, task_bytes, max_bytes)


def load(job: Job, loading: Loading, task: ScatterTask) -> tuple[ScatterTask, int]:
    """Put the rows of a task into memory; return the task, and the bytes of its rows, which may be more than fit."""
    region = _Region(loading.memory, loading.begins[task.number], loading.task_bytes)
    for number, table in enumerate(_joined(placed_rows(job.plan, task))):
        raise_if_cancelled()
        if number == 0:
            writer = pa.ipc.new_stream(ArrowSink(region), table.schema)
        writer.write_table(table)
    writer.close()
    return task, region.num_bytes


def _joined(tables: Iterator[tuple[pa.Table, int]]) -> Iterator[pa.Table]:
    """Join small tables up to a batch: rows are taken from each by itself."""
    pending: list[pa.Table] = []
    num_bytes = 0
    for table, table_bytes in tables:
        pending.append(table)
        num_bytes += table_bytes
        if num_bytes >= BATCH_BYTES:
            yield pa.concat_tables(pending).combine_chunks()
            pending, num_bytes = [], 0
    if pending:
        yield pa.concat_tables(pending).combine_chunks()


class _Region:
    """What a task may fill of the memory; what does not fit is counted only."""

    def __init__(self, memory: Memory, begin: int, max_bytes: int) -> None:
        self.num_bytes = 0
        self._memory, self._begin, self._max_bytes = memory, begin, max_bytes

    def write(self, pieces: Sequence[memoryview | bytes]) -> None:
        for piece in pieces:
            if self.num_bytes + len(piece) <= self._max_bytes:
                self._memory.write(self._begin + self.num_bytes, piece)
            self.num_bytes += len(piece)


def loaded(plan: Plan, loading: Loading, sizes: Sequence[int]) -> LoadedRows:
    """Put the rows that all tasks have loaded into their order, given the bytes of each task."""
    memory, regions = loading.memory, list(zip(loading.begins, sizes, strict=True))
    places = np.concatenate([batch.column(PLACE).to_numpy() for batch in _batches(memory, regions)])
    if plan.groups is None:
        order = np.empty_like(places)
        order[places] = np.arange(len(places))
    else:
        order = np.argsort(places, kind="stable")  # rows of a group have one place, and keep the table's order
    begin = memory.allocate(order.nbytes)
    memory.write(begin, order.tobytes())
    return LoadedRows(memory, regions, begin)


def _batches(memory: Memory, regions: Sequence[tuple[int, int]]) -> list[pa.RecordBatch]:
    """Return all rows, batch by batch, as they lie in memory."""
    views = [pa.py_buffer(memory.view(begin, num_bytes)) for begin, num_bytes in regions]
    return [batch for view in views for batch in pa.ipc.open_stream(view)]


class MemoryRows:
    """The shuffled table, read by places.

    Args:
        job: The input of all tasks of the conversion.
        rows: The table.
    """

    def __init__(self, job: Job, rows: LoadedRows) -> None:
        self._plan = job.plan
        self._batches = _batches(rows.memory, rows.regions)
        self._starts = np.cumsum([0, *map(len, self._batches)])
        num_bytes = sum(num_bytes for _, num_bytes in rows.regions)
        self._row_bytes = max(1, num_bytes // max(1, self._plan.num_rows))
        self._order: Int64 = np.frombuffer(rows.memory.view(rows.order, 8 * self._plan.num_rows), np.int64)

    def read(self, first: int, stop: int) -> Iterator[Rows]:
        """Read the rows at the places first, ..., stop - 1, batch by batch, in order."""
        each = max(1, BATCH_BYTES // self._row_bytes)
        for begin in range(first, stop, each):
            rows = self._gather(self._order[begin : min(stop, begin + each)])
            for low in range(0, len(rows), MAX_BATCH_ROWS):
                yield rows.slice(low, min(len(rows), low + MAX_BATCH_ROWS))

    def _gather(self, rows: Int64) -> Rows:
        """Return some rows, counted in the order of the table."""
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        inside = rows - self._starts[numbers]
        copied = self._one_by_one if self._row_bytes >= _LARGE_ROW_BYTES else self._batch_by_batch
        take = copied(numbers, inside)
        columns = {name: take(f"c{i}") for i, name in enumerate(self._plan.columns)}
        return Rows(columns, take(NUMBER).to_numpy(), self._plan.table)

    def _one_by_one(self, numbers: Int64, inside: Int64) -> Callable[[str], pa.Array]:
        """Return what gives a column of rows, each the batch of its number and its place in there."""
        found = list(zip([self._batches[number] for number in numbers], inside.tolist(), strict=True))
        return lambda name: pa.concat_arrays([batch.column(name).slice(row, 1) for batch, row in found])

    def _batch_by_batch(self, numbers: Int64, inside: Int64) -> Callable[[str], pa.Array]:
        """Return the same: a batch at a time, then all of them into their order."""
        order = np.argsort(numbers, kind="stable")
        which, starts = np.unique(numbers[order], return_index=True)
        parts = np.split(inside[order], starts[1:])
        found = [(self._batches[number], pa.array(part)) for number, part in zip(which, parts, strict=True)]
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        places = pa.array(back)
        return lambda name: pa.concat_arrays([batch.column(name).take(part) for batch, part in found]).take(places)
