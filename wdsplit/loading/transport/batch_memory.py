"""The memory of batches: workers decode into it, and it is used again once nothing refers to the batch any more.

New memory costs more than a copy: the system clears it page by page. Threads fill the same array, which is the batch
then. Worker processes fill shared memory, which the loader's process hands out without a copy.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.context import BaseContext
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.engines.shared_memory import SharedMemory
from wdsplit.loading.transport.collate import Column, address_of, in_place
from wdsplit.loading.transport.shared_integers import SharedIntegers

__all__ = ["InSlot", "Pool", "Room", "Rooms", "Slots", "mapped"]

Memory = npt.NDArray[np.uint8]

_MOST_FREE = 4
"""Blocks to keep for the next batches; a loop that has held more at a time gives the others back."""


class Pool:
    """Blocks of memory of one size. Each is used again when no array of it is left, whoever has it.

    Args:
        make: Returns a new block.
        release: Called with a block that is not kept.
    """

    def __init__(self, make: Callable[[], Memory], release: Callable[[Memory], object]) -> None:
        self._make, self._release = make, release
        self._free: list[Memory] = []  # its methods are atomic: arrays are deleted in any thread
        self._most_free = _MOST_FREE
        self._process = os.getpid()

    def take(self) -> Memory:
        """Return the memory of a block. All views of it refer to this very array, which therefore shows their end."""
        try:
            block = self._free.pop()
        except IndexError:
            block = self._make()
        memory = np.frombuffer(block.data, np.uint8)  # numpy would let views of a view refer to `block` itself
        weakref.finalize(memory, self._give_back, block).atexit = False
        return memory

    def _give_back(self, block: Memory) -> None:
        if os.getpid() != self._process:  # a copy in a forked process has ended, while this process may use the block
            return
        if len(self._free) < self._most_free:
            self._free.append(block)
        else:
            self._release(block)

    def close(self) -> None:
        """Keep no blocks any more; those in use stay valid."""
        self._most_free = 0
        while self._free:
            self._release(self._free.pop())


class Room:
    """The rows of one step's batch that a worker fills.

    Args:
        places: Which rows they are.
        size: Rows of the batch.
        opened: Given the worker's n-th column and its bytes in the batch, returns their memory, and as a mark of the
            column this memory, or the step of a slot; or None.
    """

    def __init__(self, places: slice, size: int, opened: Callable[[int, int], tuple[Memory, Any] | None]) -> None:
        self._places, self._size, self._opened = places, size, opened
        self._rows: list[tuple[npt.NDArray[Any], Any]] = []

    def memory(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any] | None:
        """Return this worker's rows for one more column, given shape and dtype of a row; None for memory of its own."""
        num_bytes = self._size * int(np.prod(shape)) * dtype.itemsize
        found = self._opened(len(self._rows), num_bytes)
        if found is None:
            return None
        rows: npt.NDArray[Any] = found[0][:num_bytes].view(dtype).reshape(self._size, *shape)[self._places]
        self._rows.append((rows, found[1]))
        return rows

    def marked(self, sub_batch: Any) -> Any:
        """Return a sub-batch whose columns say which batch's memory they lie in."""
        marks = {address_of(rows): mark for rows, mark in self._rows}

        def marked(column: Column) -> Column:
            mark = marks.get(address_of(column.data))
            if isinstance(mark, int):
                mark = InSlot(mark, self._places, (self._size, *column.data.shape[1:]), column.data.dtype)
            return replace(column, batch=mark)

        return mapped(marked, sub_batch) if marks else sub_batch


def mapped(change: Callable[[Column], Any], sub_batch: Any) -> Any:
    """Return a sub-batch with each of its columns changed; anything else as it is."""
    if isinstance(sub_batch, Column):
        return change(sub_batch)
    if isinstance(sub_batch, dict):
        return {name: mapped(change, column) for name, column in sub_batch.items()}
    return tuple(mapped(change, column) for column in sub_batch) if isinstance(sub_batch, tuple) else sub_batch


class Rooms:
    """The batches of an iteration that threads of this process fill; `pools` by the size of blocks outlive it."""

    def __init__(self, pools: dict[int, Pool]) -> None:
        self._pools, self._lock = pools, threading.Lock()
        # By step and column. Each lives as long as a sub-batch of it, or the batch.
        self._batches: weakref.WeakValueDictionary[tuple[int, int], Memory] = weakref.WeakValueDictionary()

    def opened(self, step: int, column: int, num_bytes: int) -> tuple[Memory, Memory]:
        """Return the memory of a step's column, which marks the column too: the first thread takes it from a pool."""
        new_pool = Pool(lambda: np.empty(num_bytes, np.uint8), lambda block: None)
        with self._lock:
            batch = self._batches.get((step, column))
            if batch is None:
                batch = self._batches[step, column] = self._pools.setdefault(num_bytes, new_pool).take()
            return batch, batch


@dataclass(frozen=True)
class InSlot:
    """Where a column of a worker process lies: rows of the step's slot, seen as an array of a shape and dtype."""

    step: int
    rows: slice
    shape: tuple[int, ...]
    dtype: Any


class Slots:
    """The batches that worker processes fill: slots of a shared memory, one a step.

    The loader's process announces the slots of the next steps, as far as workers may get ahead. It always finds one: if
    the loop keeps batches, it allocates more.

    Args:
        context: How the workers are started.
        num_workers: Their number.
        slot_bytes: The size of a slot.
        ahead: Steps to announce ahead.
    """

    def __init__(self, context: BaseContext, num_workers: int, slot_bytes: int, ahead: int) -> None:
        self._memory = SharedMemory()
        self._slot_bytes, self._ahead = slot_bytes, ahead
        self._shared = SharedIntegers(2 + ahead)  # how many steps are announced, then where the last ones' slots begin
        self._announced = [context.Semaphore(0) for _ in range(num_workers)]
        self._views: dict[int, Memory] = {}
        self._begins: dict[int | None, int] = {}
        self._begun: dict[int, Memory] = {}
        self._pool = Pool(self._made, self._released)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only the loader's process has."""
        return {**self.__dict__, "_views": {}, "_begins": {}, "_begun": {}, "_pool": None}

    # The loader's side

    def restart(self) -> Callable[[], None]:
        """Take all slots back; return what announces the first ones of the next iteration, once no worker fills any."""
        self._shared.array[0] = 0
        unused, self._begun = [self._begun], {}

        def begin() -> None:
            unused.clear()
            for _ in range(self._ahead):
                self._announce()

        return begin

    def _announce(self) -> None:
        step = int(self._shared.array[0])
        memory = self._begun[step] = self._pool.take()
        self._shared.array[1 + step % (self._ahead + 1)] = self._begins[address_of(memory)]
        self._shared.array[0] = step + 1
        self.wake()

    def _made(self) -> Memory:
        return self._view(self._memory.allocate(self._slot_bytes))

    def _released(self, block: Memory) -> None:
        begin = self._begins.pop(address_of(block))
        self._memory.free(begin, self._slot_bytes)
        del self._views[begin]

    def column(self, column: Column) -> Column:
        """Return a column of a worker with its values, in the memory that becomes the batch."""
        if not isinstance(column.batch, InSlot):
            return column
        where, batch = column.batch, self._begun[column.batch.step]
        return replace(column, data=in_place(batch, where.shape, where.dtype)[where.rows], batch=batch)

    def delivered(self) -> None:
        """Let go of the oldest step's slot, which the batch may have, and announce one more."""
        del self._begun[min(self._begun)]
        self._announce()

    def wake(self) -> None:
        """Let all workers that wait look whether they are needed."""
        for announced in self._announced:
            announced.release()

    def close(self) -> None:
        """Keep no memory for more batches."""
        self._pool.close()

    # A worker's side

    def opened(
        self, worker: int, is_needed: Callable[[], bool], step: int, column: int, num_bytes: int
    ) -> tuple[Memory, int] | None:
        """Return a step's memory and the step, once it is announced; None if the column has no slot, or at the end."""
        if column or num_bytes > self._slot_bytes:
            return None
        while is_needed() and self._shared.array[0] <= step:
            self._announced[worker].acquire()
        if not is_needed():
            return None
        return self._view(int(self._shared.array[1 + step % (self._ahead + 1)])), step

    def _view(self, begin: int) -> Memory:
        """Return a slot, always by the same map: another one would have to find its pages again."""
        if begin not in self._views:
            view = self._views[begin] = np.frombuffer(self._memory.view(begin, self._slot_bytes), np.uint8)
            self._begins[address_of(view)] = begin
        return self._views[begin]
