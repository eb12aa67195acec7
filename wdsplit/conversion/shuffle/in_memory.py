"""Rows of a table that fits in memory: all jobs of this machine read them once into shared memory.

Nothing is sorted or spilled: rows stay as they were read, and the writer of a shard copies the rows of its places.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.shuffle.needs import rows_bytes
from wdsplit.conversion.shuffle.scatter import NUMBER, PLACE, placed_rows
from wdsplit.conversion.shuffle.steps import BATCH_BYTES, cut_table
from wdsplit.engines.local import raise_if_cancelled
from wdsplit.engines.private_memory import PrivateMemory
from wdsplit.engines.shared_memory import SharedMemory
from wdsplit.storage.interface import Storage
from wdsplit.tables.formats.common import MAX_BATCH_ROWS
from wdsplit.tables.read import Rows

__all__ = ["LoadedRows", "Loading", "Memory", "MemoryRows", "load", "loaded", "plan_loading"]

Memory = SharedMemory | PrivateMemory
"""Shared where other processes write shards, or private to this one, which costs less."""

_TASKS_PER_JOB, _MIN_TASKS = 4, 20
"""The minimum lets one job show its progress, too."""
_SPARE = 2
"""A task may use this many times its equal share, as rows differ in size; the limit for all tasks still holds."""
_LARGE_ROW_BYTES = 4096
"""From this size on, copying rows one by one is faster than copying them twice."""


@dataclass(frozen=True)
class Loading:
    """How a table is loaded.

    Attributes:
        places: The places at which the table is cut into tasks.
        memory: The memory for the rows of all tasks.
        begins: The offset in the memory at which each task writes its rows.
        task_bytes: Maximum bytes of a task.
        max_bytes: Maximum bytes of all tasks.
    """

    places: list[int]
    memory: Memory
    begins: list[int]
    task_bytes: int
    max_bytes: int


@dataclass(frozen=True)
class LoadedRows:
    """A table in memory; it goes to worker processes that are started with it.

    Attributes:
        memory: The memory.
        regions: Offset and number of bytes of each task's rows.
        order: Offset of the order in the memory: int64 of shape (rows,), the row at each place, counted in the table's
            order.
    """

    memory: Memory
    regions: list[tuple[int, int]]
    order: int


def plan_loading(plan: Plan, max_bytes: int, jobs: int, memory: Memory) -> Loading | None:
    """Decide how to load a table into at most `max_bytes` of memory; None if it does not fit."""
    num_bytes = rows_bytes(plan)
    if num_bytes > max_bytes:
        return None
    places = cut_table(plan.table, max(BATCH_BYTES, num_bytes // max(_MIN_TASKS, _TASKS_PER_JOB * jobs)))
    task_bytes = _SPARE * max_bytes // (len(places) - 1)
    try:
        begins = [memory.allocate(task_bytes) for _ in places[1:]]
    except OSError:  # shared memory is a file, and RLIMIT_FSIZE may limit its size
        return None
    return Loading(places, memory, begins, task_bytes, max_bytes)


def load(plan: Plan, loading: Loading, storage: Storage, tasks: range) -> Iterator[int]:
    """Write the rows of tasks into memory; yield the bytes of each task's rows, which may be more than fit."""
    for task in tasks:
        region = _Region(loading.memory, loading.begins[task], loading.task_bytes)
        for number, table in enumerate(_joined(placed_rows(plan, *loading.places[task : task + 2]))):
            raise_if_cancelled()
            if number == 0:
                writer = pa.ipc.new_stream(region, table.schema)
            writer.write_table(table)
        writer.close()
        yield region.num_bytes


def _joined(tables: Iterator[tuple[pa.Table, int]]) -> Iterator[pa.Table]:
    """Join small tables into batches, because gathering rows costs time for each table."""
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
    """The part of the memory for a task, as a file for Arrow; bytes that do not fit are counted but not written."""

    closed = False

    def __init__(self, memory: Memory, begin: int, max_bytes: int) -> None:
        self.num_bytes = 0
        self._memory, self._begin, self._max_bytes = memory, begin, max_bytes

    def write(self, data: bytes) -> int:
        view = memoryview(data).cast("B")
        if self.num_bytes + len(view) <= self._max_bytes:
            self._memory.write(self._begin + self.num_bytes, view)
        self.num_bytes += len(view)
        return len(view)

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""

    def close(self) -> None:
        """Do nothing: the memory stays."""


def loaded(plan: Plan, loading: Loading, sizes: Sequence[int]) -> LoadedRows:
    """Compute the order of the rows that all tasks have loaded, given the bytes of each task."""
    memory, regions = loading.memory, list(zip(loading.begins, sizes, strict=True))
    places = np.concatenate([batch.column(PLACE).to_numpy() for batch in _batches(memory, regions)])
    if plan.groups is None:
        order = np.empty_like(places)
        order[places] = np.arange(len(places))
    else:
        order = np.argsort(places, kind="stable")  # rows of a group share a place, and keep the table's order
    begin = memory.allocate(order.nbytes)
    memory.write(begin, order.tobytes())
    return LoadedRows(memory, regions, begin)


def _batches(memory: Memory, regions: Sequence[tuple[int, int]]) -> list[pa.RecordBatch]:
    """Return all rows as batches, in the order of the memory."""
    views = [pa.py_buffer(memory.view(begin, num_bytes)) for begin, num_bytes in regions]
    return [batch for view in views for batch in pa.ipc.open_stream(view)]


class MemoryRows:
    """The shuffled table, read by places.

    Args:
        plan: The plan.
        rows: The table.
    """

    def __init__(self, plan: Plan, rows: LoadedRows) -> None:
        self._plan = plan
        self._batches = _batches(rows.memory, rows.regions)
        self._starts = np.cumsum([0, *map(len, self._batches)])
        num_bytes = sum(num_bytes for _, num_bytes in rows.regions)
        self._row_bytes = max(1, num_bytes // max(1, self._plan.num_rows))
        self._order: Int64 = np.frombuffer(rows.memory.view(rows.order, 8 * self._plan.num_rows), np.int64)

    def read(self, first: int, stop: int) -> Iterator[Rows]:
        """Read the rows at the places first, ..., stop - 1, batch by batch, in order."""
        batch_rows = max(1, BATCH_BYTES // self._row_bytes)
        for begin in range(first, stop, batch_rows):
            rows = self._gather(self._order[begin : min(stop, begin + batch_rows)])
            for low in range(0, len(rows), MAX_BATCH_ROWS):
                yield rows.slice(low, min(len(rows), low + MAX_BATCH_ROWS))

    def _gather(self, rows: Int64) -> Rows:
        """Return rows by their numbers in the order of the table: int64."""
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        inside = rows - self._starts[numbers]
        if self._row_bytes >= _LARGE_ROW_BYTES:
            found = list(zip([self._batches[number] for number in numbers], inside.tolist(), strict=True))

            def take(name: str) -> pa.Array:
                return pa.concat_arrays([batch.column(name).slice(row, 1) for batch, row in found])
        else:  # batch by batch, and then all rows into their order
            order = np.argsort(numbers, kind="stable")
            which, starts = np.unique(numbers[order], return_index=True)
            parts = [
                (self._batches[n], pa.array(rows))
                for n, rows in zip(which, np.split(inside[order], starts[1:]), strict=True)
            ]
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            places = pa.array(back)

            def take(name: str) -> pa.Array:
                return pa.concat_arrays([batch.column(name).take(rows) for batch, rows in parts]).take(places)

        columns = {name: take(f"c{i}") for i, name in enumerate(self._plan.columns)}
        return Rows(columns, take(NUMBER).to_numpy(), self._plan.table)
