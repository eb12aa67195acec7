"""Reading ahead: ranges of remote shards, fetched by threads before they are wanted and in the order of their need.

What will be wanted is known, so nothing is guessed. Who wants a range that no thread has begun fetches it himself: a
reader never waits for room.
"""

from __future__ import annotations

import mmap
import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from wdsplit.openshard import OpenShard

__all__ = ["Ahead", "Fetch", "LazyShard", "Wanted"]

_REQUEST_BYTES = 12 * 1024**2
"""Ranges that lie side by side are fetched by one request, up to so many bytes."""
_LEAST_KEPT_BYTES = 1024**2
_PAGE_BYTES = 2 * 1024**2
"""A huge page: the system gives memory in pages of this size, if it can, a hundred times as fast as in small ones."""


class _Memory:
    """Memory that ranges are fetched into, one after another: new memory costs more than what is read into it.

    Args:
        num_bytes: How much may be in use; who is urgently waited for gets more.
    """

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._in_use = 0
        self._free: list[mmap.mmap] = []
        self._changed = threading.Condition()
        self.is_closed = False

    def of(self, num_bytes: int, is_urgent: threading.Event) -> memoryview:
        """Return memory of so many bytes, once there is room; it is free again when nobody refers to any part of it."""
        with self._changed:
            while self._in_use and self._in_use + num_bytes > self._num_bytes:
                if is_urgent.is_set() or self.is_closed:
                    break
                self._changed.wait()
            self._in_use += num_bytes
        if num_bytes < _LEAST_KEPT_BYTES:
            memory, array = None, np.empty(num_bytes, np.uint8)
        else:
            memory = self._pages(-(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES)
            array = np.frombuffer(memory, np.uint8, num_bytes)
        weakref.finalize(array, self._give_back, memory, num_bytes).atexit = False
        return array.data

    def _pages(self, num_bytes: int) -> mmap.mmap:
        """Return memory of at least so many bytes, that was used before if there is any."""
        with self._changed:
            fitting = [memory for memory in self._free if num_bytes <= len(memory) <= 2 * num_bytes]
            if fitting:
                memory = min(fitting, key=len)
                self._free.remove(memory)
                return memory
        memory = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory

    def _give_back(self, memory: mmap.mmap | None, num_bytes: int) -> None:
        with self._changed:
            self._in_use -= num_bytes
            if memory is not None:
                self._free.append(memory)
            while sum(map(len, self._free)) > self._num_bytes:
                del self._free[0]
            self._changed.notify_all()

    def look_again(self) -> None:
        """Let those that wait for room look whether they are urgent now."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody wait for room any more."""
        self.is_closed = True
        self.look_again()


class LazyShard:
    """A shard that is opened when it is first wanted, by whichever thread wants it.

    Args:
        opener: Opens it.
    """

    def __init__(self, opener: Callable[[], OpenShard]) -> None:
        self._opener = opener
        self._lock = threading.Lock()
        self._opened: OpenShard | None = None
        self._error: Exception | None = None

    def get(self) -> OpenShard:
        """Return the shard; raise what opening it raised, each time."""
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._opened is None:
                try:
                    self._opened = self._opener()
                except Exception as error:
                    self._error = error
                    raise
            return self._opened


class Wanted(NamedTuple):
    """The samples first, first + 1, ..., stop - 1 of a shard, which take about so many bytes."""

    shard: LazyShard
    first: int
    stop: int
    num_bytes: int


class Fetch:
    """Consecutive samples that are fetched by one request; of a shard on a disk there is nothing to fetch.

    Args:
        shard: Their shard.
        first: The first sample.
        stop: The sample after the last.
        memory: Where they are put.
    """

    def __init__(self, shard: LazyShard, first: int, stop: int, memory: _Memory) -> None:
        self._memory = memory
        self._shard = shard
        self._first = first
        self._stop = stop
        self._is_urgent = threading.Event()
        self._claim = threading.Lock()
        self._done = threading.Event()
        self._data: memoryview | None = None
        self._error: Exception | None = None

    def run(self) -> None:
        """Fetch them, unless someone else has begun to."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            shard = self._shard.get()
            if shard.file.is_remote:
                begin, end = int(shard.offsets[self._first]), int(shard.offsets[self._stop])
                data = self._memory.of(end - begin, self._is_urgent)
                shard.file.read_into(data, begin)
                self._data = data
        except Exception as error:
            self._error = error
        finally:
            self._done.set()

    def hurry(self) -> None:
        """Say that they are wanted now: they need not wait for room."""
        if not self._done.is_set() and not self._is_urgent.is_set():
            self._is_urgent.set()
            self._memory.look_again()

    def data(self, first: int, stop: int) -> memoryview | None:
        """Return the bytes of some of the samples, once they have come; None if they are to be read from a disk.

        Raises:
            WdsplitError: They could not be fetched.
        """
        self.hurry()
        if not self._done.is_set():
            self.run()
            self._done.wait()
        if self._error is not None:
            raise self._error
        if self._data is None:
            return None
        offsets = self._shard.get().offsets
        begin = int(offsets[self._first])
        return self._data[int(offsets[first]) - begin : int(offsets[stop]) - begin]


class Ahead:
    """Fetches in the background.

    Args:
        num_bytes: How many bytes may be under way or at hand, those that are wanted now included.
        planned_bytes: How far to plan ahead.
        num_connections: Requests at the same time.

    Attributes:
        num_planned: The bytes that are, about; counted by who wants them.
    """

    def __init__(self, num_bytes: int, planned_bytes: int, num_connections: int) -> None:
        self.num_planned = 0
        self._planned_bytes = planned_bytes
        self._num_connections = num_connections
        self._memory = _Memory(num_bytes)
        self._queue: queue.SimpleQueue[Fetch | None] = queue.SimpleQueue()  # its put may interrupt its get
        self._threads: list[threading.Thread] = []
        weakref.finalize(self, _end, self._queue, self._threads, self._memory).atexit = False

    @property
    def is_full(self) -> bool:
        """Whether no more shall be planned."""
        return self.num_planned >= self._planned_bytes

    @property
    def has_room(self) -> bool:
        """Whether more shall be planned again: not for each range, so that more of them lie side by side."""
        return self.num_planned <= self._planned_bytes * 3 // 4

    def fetch(self, wanted: Sequence[Wanted]) -> list[Fetch]:
        """Begin to fetch ranges, in their order; return for each the fetch that it is part of."""
        fetches: list[Fetch] = [None] * len(wanted)  # type: ignore[list-item]
        begun: list[tuple[int, Fetch]] = []
        for run in _side_by_side(wanted):
            fetch = Fetch(wanted[run[0]].shard, wanted[run[0]].first, wanted[run[-1]].stop, self._memory)
            begun.append((min(run), fetch))
            for place in run:
                fetches[place] = fetch
        for _, fetch in sorted(begun, key=lambda each: each[0]):
            self._queue.put(fetch)
            if len(self._threads) < self._num_connections:
                self._threads.append(threading.Thread(target=_work, args=(self._queue, self._memory), daemon=True))
                self._threads[-1].start()
        return fetches


def _side_by_side(wanted: Sequence[Wanted]) -> list[list[int]]:
    """Return the places of ranges that one request fetches, each run rising in its shard."""
    order = sorted(range(len(wanted)), key=lambda place: (id(wanted[place].shard), wanted[place].first))
    runs: list[list[int]] = []
    num_bytes = 0
    for place in order:
        each = wanted[place]
        before = wanted[runs[-1][-1]] if runs else None
        joins = before is not None and before.shard is each.shard and before.stop == each.first
        if joins and num_bytes + each.num_bytes <= _REQUEST_BYTES:
            runs[-1].append(place)
            num_bytes += each.num_bytes
        else:
            runs.append([place])
            num_bytes = each.num_bytes
    return runs


def _work(fetches: queue.SimpleQueue[Fetch | None], memory: _Memory) -> None:
    while (fetch := fetches.get()) is not None:
        if not memory.is_closed:
            fetch.run()
        del fetch


def _end(fetches: queue.SimpleQueue[Fetch | None], threads: list[threading.Thread], memory: _Memory) -> None:
    """Let the threads end: those that are at it, after that. The collector may call this in any of them."""
    memory.close()
    for _ in threads:
        fetches.put(None)
