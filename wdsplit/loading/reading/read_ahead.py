"""Reading ahead: threads fetch ranges of remote shards before they are needed, in the order of their need.

The order is known, so nothing is guessed. A reader fetches a range itself that no thread has begun to fetch: it never
waits for room.
"""

from __future__ import annotations

import mmap
import os
import queue
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from wdsplit.loading.reading.open_shard import OpenShard
from wdsplit.storage.locks import ProcessLock

__all__ = ["Ahead", "Fetch", "FetchRange", "LazyShard"]

_REQUEST_BYTES = 12 * 1024**2
"""Ranges that lie side by side are fetched by one request, up to so many bytes."""
_MIN_KEPT_BYTES = 1024**2
_PAGE_BYTES = 2 * 1024**2
"""A huge page: the system gives memory in pages of this size, if it can, a hundred times as fast as in small ones."""
_MIN_HUGE_BYTES, _SMALL_PAGE_BYTES = 4 * _PAGE_BYTES, 64 * 1024
"""Ranges below this are not rounded up to huge pages: up to half of the memory would be lost."""


class _Memory:
    """Memory that ranges are fetched into, one after another: new memory costs more than what is read into it."""

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._in_use = 0
        self._free: list[mmap.mmap] = []
        self._changed = threading.Condition()
        self.is_closed = False

    def filled(self, num_bytes: int, is_urgent: threading.Event, fill: Callable[[memoryview], None]) -> memoryview:
        """Fill so many bytes, once there is room or they are urgent; they are free with the last reference to them."""
        page = _PAGE_BYTES if num_bytes >= _MIN_HUGE_BYTES else _SMALL_PAGE_BYTES
        room = num_bytes if num_bytes < _MIN_KEPT_BYTES else -(-num_bytes // page) * page
        self._wait(room, is_urgent)
        memory = None
        try:
            if num_bytes >= _MIN_KEPT_BYTES:
                memory = self._pages(room)
                room = len(memory)
            array = np.empty(num_bytes, np.uint8) if memory is None else np.frombuffer(memory, np.uint8, num_bytes)
            fill(array.data)
        except BaseException:
            self._give_back(memory, room)
            raise
        weakref.finalize(array, self._give_back, memory, room).atexit = False
        return array.data

    def _wait(self, room: int, is_urgent: threading.Event) -> None:
        """Take so many bytes of what may be in use, as soon as they are free."""
        with self._changed:
            while self._in_use and self._in_use + room > self._num_bytes:
                if is_urgent.is_set() or self.is_closed:
                    break
                self._changed.wait()
            self._in_use += room
            self._trim()

    def _pages(self, num_bytes: int) -> mmap.mmap:
        """Return memory of at least so many bytes, used before if there is any; the room for them was taken."""
        with self._changed:
            fitting = [memory for memory in self._free if num_bytes <= len(memory) <= 2 * num_bytes]
            if fitting:
                memory = min(fitting, key=len)
                self._free.remove(memory)
                self._in_use += len(memory) - num_bytes
                return memory
        memory = mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        return memory

    def _give_back(self, memory: mmap.mmap | None, room: int) -> None:
        with self._changed:
            self._in_use -= room
            if memory is not None:
                self._free.append(memory)
            self._trim()
            self._changed.notify_all()

    def _trim(self) -> None:
        """Let go of memory that is kept, so that all together is no more than may be in use."""
        kept = sum(map(len, self._free))
        while self._free and kept + self._in_use > self._num_bytes:
            kept -= len(self._free.pop(0))

    def wake(self) -> None:
        """Wake the fetches that wait for room: they may be urgent now."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End all waiting for room."""
        self.is_closed = True
        self.wake()


class LazyShard:
    """A shard that is opened when it is first needed, by whichever thread needs it."""

    def __init__(self, opener: Callable[[], OpenShard]) -> None:
        self._opener = opener
        self._lock = ProcessLock()
        self._is_opening = False
        self._later: deque[Callable[[], object]] = deque()
        self._opened: OpenShard | None = None
        self._error: Exception | None = None

    def get(self) -> OpenShard:
        """Return the shard; raise what opening it raised, each time."""
        try:
            with self._lock:
                return self._get()
        finally:
            while self._later:
                with suppress(IndexError):  # another thread was faster
                    self._later.popleft()()

    def _get(self) -> OpenShard:
        if self._error is not None:
            raise self._error
        if self._opened is None:
            self._is_opening = True
            try:
                self._opened = self._opener()
            except Exception as error:
                self._error = error
                raise
            finally:
                self._is_opening = False
        return self._opened

    def is_being_opened(self, later: Callable[[], object]) -> bool:
        """Tell whether another thread is opening the shard; if so, `later` is called when that has ended."""
        if self._is_opening:
            self._later.append(later)
        return self._is_opening


class FetchRange(NamedTuple):
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
        self._pid = os.getpid()
        self._is_urgent = threading.Event()
        self._claim = threading.Lock()
        self._done = threading.Event()
        self._data: memoryview | None = None
        self._error: Exception | None = None

    def run(self) -> None:
        """Fetch them, unless another thread has begun to."""
        if not self._claim.acquire(blocking=False):
            return
        try:
            shard = self._shard.get()
            if shard.file.is_remote:
                begin, end = int(shard.offsets[self._first]), shard.end(self._stop)
                self._data = self._memory.filled(
                    end - begin, self._is_urgent, lambda buffer: shard.file.read_into(buffer, begin)
                )
        except Exception as error:
            self._error = error
        finally:
            self._done.set()

    def is_requeued(self, fetches: queue.SimpleQueue[Fetch | None]) -> bool:
        """Tell whether another thread is opening the shard; if so, this goes back into the queue after that."""
        return self._shard.is_being_opened(lambda: fetches.put(self))

    def hurry(self) -> None:
        """Say that they are needed now: they need not wait for room."""
        if self._pid == os.getpid() and not self._done.is_set() and not self._is_urgent.is_set():
            self._is_urgent.set()
            self._memory.wake()

    def data(self, first: int, stop: int) -> memoryview | None:
        """Return the bytes of some of the samples, once they have come; None if they are to be read from a disk.

        None, too, in a process that was forked meanwhile: no thread went with it.

        Raises:
            WdsplitError: They could not be fetched.
        """
        if self._pid != os.getpid():
            return None
        self.hurry()
        if not self._done.is_set():
            self.run()
            self._done.wait()
        if self._error is not None:
            raise self._error
        if self._data is None:
            return None
        shard = self._shard.get()
        begin = int(shard.offsets[self._first])
        return self._data[int(shard.offsets[first]) - begin : shard.end(stop) - begin]


class Ahead:
    """Fetches in the background.

    Args:
        num_bytes: How many bytes may be under way or at hand, those that are needed now included.
        planned_bytes: How far to plan ahead.
        num_connections: Requests at the same time.
        is_downloading: Whether a shard is downloaded when it is opened: a thread does not wait for another that does
            so, but goes on to the next shard.

    Attributes:
        num_planned: About how many bytes are planned; counted by the reader.
    """

    def __init__(self, num_bytes: int, planned_bytes: int, num_connections: int, is_downloading: bool = False) -> None:
        self.num_planned = 0
        self._is_downloading = is_downloading
        self._planned_bytes = planned_bytes
        self._num_bytes = num_bytes
        self._num_connections = num_connections
        self._begin()

    def _begin(self) -> None:
        """Begin without anything under way, as a process does that was forked."""
        self._pid = os.getpid()
        self._memory = _Memory(self._num_bytes)
        self._queue: queue.SimpleQueue[Fetch | None] = queue.SimpleQueue()  # its put may interrupt its get
        self._threads: list[threading.Thread] = []
        weakref.finalize(self, _end, self._pid, self._queue, self._threads, self._memory).atexit = False

    @property
    def is_full(self) -> bool:
        """Whether no more shall be planned."""
        return self.num_planned >= self._planned_bytes

    @property
    def has_room(self) -> bool:
        """Whether more shall be planned again: not for each range, so that more of them lie side by side."""
        return self.num_planned <= self._planned_bytes * 3 // 4

    def fetch(self, ranges: Sequence[FetchRange]) -> list[Fetch]:
        """Begin to fetch ranges, in their order; return for each the fetch that it is part of."""
        if self._pid != os.getpid():
            self._begin()
        fetches: list[Fetch] = [None] * len(ranges)  # type: ignore[list-item]
        queued: list[tuple[int, Fetch]] = []
        for run in _side_by_side(ranges):
            first, last = ranges[run[0]], ranges[run[-1]]
            fetch = Fetch(first.shard, first.first, last.stop, self._memory)
            queued.append((min(run), fetch))
            for place in run:
                fetches[place] = fetch
        for _, fetch in sorted(queued, key=lambda each: each[0]):
            self._queue.put(fetch)
            if len(self._threads) < self._num_connections:
                arguments = self._queue, self._memory, self._is_downloading
                self._threads.append(threading.Thread(target=_work, args=arguments, daemon=True))
                self._threads[-1].start()
        return fetches


def _side_by_side(ranges: Sequence[FetchRange]) -> list[list[int]]:
    """Return the places of ranges that one request fetches, each run rising in its shard."""
    order = sorted(range(len(ranges)), key=lambda place: (id(ranges[place].shard), ranges[place].first))
    runs: list[list[int]] = []
    num_bytes = 0
    for place in order:
        each = ranges[place]
        before = ranges[runs[-1][-1]] if runs else None
        joins = before is not None and before.shard is each.shard and before.stop == each.first
        if joins and num_bytes + each.num_bytes <= _REQUEST_BYTES:
            runs[-1].append(place)
            num_bytes += each.num_bytes
        else:
            runs.append([place])
            num_bytes = each.num_bytes
    return runs


def _work(fetches: queue.SimpleQueue[Fetch | None], memory: _Memory, is_downloading: bool) -> None:
    while (fetch := fetches.get()) is not None:
        if not memory.is_closed and not (is_downloading and fetch.is_requeued(fetches)):
            fetch.run()
        del fetch


def _end(pid: int, fetches: queue.SimpleQueue[Fetch | None], threads: list[threading.Thread], memory: _Memory) -> None:
    """Let the threads end: those that are at it, after that. The collector may call this in any of them."""
    if pid != os.getpid():
        return
    memory.close()
    for _ in threads:
        fetches.put(None)
