"""Rows of a table that fits in memory: all jobs of this machine read them once, and keep them or share them.

Nothing is sorted or spilled: rows stay as they were read, and the writer of a shard copies the rows of its places.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.conversion.shuffle.needs import rows_bytes
from wdsplit.conversion.shuffle.steps import BATCH_BYTES, cut_table
from wdsplit.engines.local import Engine, LocalEngine, raise_if_cancelled
from wdsplit.engines.shared_memory import SharedMemory
from wdsplit.jobs.run import Work
from wdsplit.storage.interface import Storage
from wdsplit.tables.formats.common import grouped
from wdsplit.tables.read import check_files
from wdsplit.tables.table import Table

__all__ = ["MemoryRows", "load_table"]

_TASKS_PER_JOB, _MIN_TASKS = 4, 20
"""The minimum lets one job show its progress, too."""
_SPARE = 2
"""A task may use this many times its equal share, as rows differ in size; the limit for all tasks still holds."""
_LARGE_RUN_BYTES = 4096
"""From this mean size of runs of rows on, copying them one by one is faster than copying them twice."""


def _open_shared(memory: SharedMemory, regions: list[tuple[int, int]], order: tuple[int, int]) -> MemoryRows:
    """Open rows that all processes share, given offset and number of bytes of each task's rows, and of the order."""
    batches, rows = _batches(memory, regions), np.frombuffer(memory.view(*order), np.int64)
    return MemoryRows(batches[0].schema, batches, rows, (memory, regions, order))


class _TooLargeError(Exception):
    """The rows do not fit in memory, contrary to the estimate from their files."""


def load_table(
    table: Table,
    read: Callable[[int, int], Iterator[pa.Table]],
    order_of: Callable[[Sequence[pa.RecordBatch]], Int64],
    engine: Engine,
    threads: bool,
    max_bytes: int,
    run: Callable[[Work[int], Int64, Callable[[int, int], None]], object],
) -> MemoryRows | None:
    """Load a table into at most `max_bytes` of memory, where no notes are needed; None if it does not fit.

    The memory is shared unless all tasks run in this process. Then rows stay as they were read, without a copy.

    Args:
        table: The table.
        read: Reads the rows at the places first, ..., stop - 1 of the table; picklable.
        order_of: Returns the order, as for `MemoryRows`, given all rows in the table's order.
        engine: The engine; one that is not local has no memory to share.
        threads: Whether tasks may run as threads, as for `Engine.map`.
        max_bytes: The limit.
        run: Runs a transient pass, given its work, the rows of each task, and `collect` as for `jobs.run.run`.
    """
    num_bytes, sizes = rows_bytes(table), dict[int, int]()
    if num_bytes > max_bytes:
        return None
    places = cut_table(table, max(BATCH_BYTES, num_bytes // max(_MIN_TASKS, _TASKS_PER_JOB * engine.jobs)))
    task_bytes, kept = _SPARE * max_bytes // (len(places) - 1), dict[int, list[pa.RecordBatch]]()
    if isinstance(engine, LocalEngine) and engine.stays_in_process(threads):
        memory, work = None, partial(_keep, read, places, kept, task_bytes)
    else:
        memory = SharedMemory()
        try:
            begins = [memory.allocate(task_bytes) for _ in places[1:]]
        except OSError:  # it is a file, and RLIMIT_FSIZE may limit its size
            return None
        work = partial(_share, read, places, memory, begins, task_bytes)
    check_files(table, 0, table.num_rows)

    def collect(task: int, num_bytes: int) -> None:
        sizes[task] = num_bytes
        if num_bytes > task_bytes or sum(sizes.values()) > max_bytes:
            raise _TooLargeError

    try:
        run(work, np.diff(places), collect)
    except _TooLargeError:
        return None
    if memory is None:
        batches = [batch for task in sorted(kept) for batch in kept[task]]
        return MemoryRows(batches[0].schema, batches, order_of(batches))
    regions = [(begin, sizes[task]) for task, begin in enumerate(begins)]
    order = order_of(_batches(memory, regions))
    begin = memory.allocate(order.nbytes)
    memory.write(begin, order.tobytes())
    return _open_shared(memory, regions, (begin, order.nbytes))


def _keep(
    read: Callable[[int, int], Iterator[pa.Table]],
    places: list[int],
    kept: dict[int, list[pa.RecordBatch]],
    task_bytes: int,
    storage: Storage,
    tasks: range,
) -> Iterator[int]:
    """Keep the rows of tasks in this process; yield their bytes, of which those beyond `task_bytes` are not read."""
    for task in tasks:
        num_bytes, kept[task] = 0, []
        for table in _joined(read(*places[task : task + 2])):
            raise_if_cancelled()
            kept[task] += table.to_batches()
            num_bytes += table.nbytes
            if num_bytes > task_bytes:
                break
        yield num_bytes


def _share(
    read: Callable[[int, int], Iterator[pa.Table]],
    places: list[int],
    memory: SharedMemory,
    begins: list[int],
    task_bytes: int,
    storage: Storage,
    tasks: range,
) -> Iterator[int]:
    """Write the rows of tasks into memory; yield the bytes of each task's rows, which may be more than fit."""
    for task in tasks:
        region = _Region(memory, begins[task], task_bytes)
        for number, table in enumerate(_joined(read(*places[task : task + 2]))):
            raise_if_cancelled()
            if number == 0:
                writer = pa.ipc.new_stream(region, table.schema)
            writer.write_table(table)
        writer.close()
        yield region.num_bytes


def _joined(tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Join small tables into batches, because gathering rows costs time for each table."""
    groups = grouped(tables, lambda table: table.nbytes, BATCH_BYTES // 2)  # more would copy large rows
    return (pa.concat_tables(group).combine_chunks() for group in groups)


class _Region:
    """The part of the memory for a task, as a file for Arrow; bytes that do not fit are counted but not written."""

    closed = False

    def __init__(self, memory: SharedMemory, begin: int, max_bytes: int) -> None:
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


def _batches(memory: SharedMemory, regions: Sequence[tuple[int, int]]) -> list[pa.RecordBatch]:
    """Return all rows as batches, in the order of the memory."""
    views = [pa.py_buffer(memory.view(begin, num_bytes)) for begin, num_bytes in regions]
    return [batch for view in views for batch in pa.ipc.open_stream(view)]


class MemoryRows:
    """Rows of batches, read in any order; if their memory is shared, they go to worker processes that start with them.

    Args:
        schema: The columns.
        batches: The rows.
        order: int64: the row at each place, counted from 0 over all batches; -1 for none.
        shared: What `_open_shared` takes, which opens the rows in another process; None if they are this process's own.
    """

    def __init__(
        self, schema: pa.Schema, batches: Sequence[pa.RecordBatch], order: Int64, shared: tuple[Any, ...] | None = None
    ) -> None:
        self.shared = shared
        self._order, self._starts = order, np.cumsum([0, *map(len, batches)])
        self._batches = [*batches, pa.record_batch([pa.nulls(1, kind) for kind in schema.types], schema=schema)]
        self.row_bytes = max(1, sum(batch.nbytes for batch in batches) // max(1, self._starts[-1]))

    def __reduce__(self) -> tuple[Any, ...]:
        assert self.shared is not None, "the rows are in the memory of this process"
        return _open_shared, self.shared

    def take(self, names: Sequence[str], places: Int64) -> list[pa.Array]:
        """Return columns of the rows at some places; null at -1, and where there is no row."""
        rows, there = np.full(len(places), -1), places >= 0
        rows[there] = self._order[places[there]]
        rows[rows < 0] = self._starts[-1]  # the row of nulls
        numbers = np.searchsorted(self._starts, rows, side="right") - 1
        inside = rows - self._starts[numbers]
        firsts = np.flatnonzero((np.diff(rows, prepend=-2) != 1) | (np.diff(numbers, prepend=-1) != 0))
        if self.row_bytes * len(rows) >= _LARGE_RUN_BYTES * len(firsts):
            counts = np.diff(firsts, append=len(rows))
            runs = zip(numbers[firsts].tolist(), inside[firsts].tolist(), counts.tolist(), strict=True)
            found = list(runs) or [(-1, 0, 0)]

            def column(name: str) -> pa.Array:
                columns = [batch.column(name) for batch in self._batches]
                return pa.concat_arrays([columns[number].slice(row, count) for number, row, count in found])
        else:  # batch by batch, and then all rows into their order
            order = np.argsort(numbers, kind="stable")
            which, starts = np.unique(numbers[order], return_index=True)
            parts = [
                (self._batches[n], pa.array(rows))
                for n, rows in zip(which, np.split(inside[order], starts[1:]), strict=True)
            ]
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            indices = pa.array(back)

            def column(name: str) -> pa.Array:
                return pa.concat_arrays([batch.column(name).take(rows) for batch, rows in parts]).take(indices)

        return [column(name) for name in names]
