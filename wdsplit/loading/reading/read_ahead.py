"""Reading ahead: threads fetch ranges of remote shards in the order in which they will be needed.

The order is known, so nothing is guessed. If no thread has started on a range, the reader fetches it itself: it never
waits for room.
"""

from __future__ import annotations

import contextvars
import mmap
import os
import queue
import threading
import weakref
from bisect import bisect
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.loading.reading.open_shard import OpenShard, explaining
from wdsplit.loading.reading.segments import MIN_GAP_BYTES, Range
from wdsplit.loading.reading.windows import WindowPlace
from wdsplit.shards.manifest import Shard
from wdsplit.storage.interface import ReadableFile
from wdsplit.storage.locks import ProcessLock, end_before_forks

__all__ = ["Ahead", "Fetch", "FetchRange", "LazyShard", "side_by_side"]

_REQUEST_BYTES = 12 * 1024**2
"""One request fetches neighbouring ranges of up to this size together."""
_REPLANNED = 1 / 4
"""More is planned once this part of the bytes planned ahead was used."""


class _Memory:
    """Memory that ranges are fetched into, one after another.

    It is a single mapping, so that what was used is used again, also by the next epoch: that is faster than new memory.
    Its pages are small: a virtual machine may have to get each huge page from its host. A range that fits into no gap
    gets memory of its own.

    Args:
        num_bytes: How much may be in use, unless more is urgent.
    """

    def __init__(self, num_bytes: int) -> None:
        self._num_bytes = num_bytes
        self._in_use = 0
        self._gaps = [(0, num_bytes)]
        self._mapping = _mapping_of(max(1, num_bytes))
        weakref.finalize(self, _keep, self._mapping, os.getpid()).atexit = False  # then nothing refers to its memory
        self._returned: deque[tuple[int | None, int]] = deque()
        self._changed = threading.Condition()
        self.closed = threading.Event()
        self._process = os.getpid()

    def filled(self, num_bytes: int, is_urgent: Callable[[], bool], fill: Callable[[memoryview], None]) -> memoryview:
        """Fill `num_bytes` bytes, once there is room or they are urgent; the last reference to them frees them."""
        start = self._take(num_bytes, is_urgent)
        try:
            if start is None:
                array = np.empty(num_bytes, np.uint8)
            else:
                array = np.frombuffer(self._mapping, np.uint8, num_bytes, start)
            fill(array.data)
        except BaseException:
            self._give_back(start, num_bytes)
            raise
        weakref.finalize(array, self._give_back, start, num_bytes).atexit = False
        return array.data

    def _take(self, num_bytes: int, is_urgent: Callable[[], bool]) -> int | None:
        """Wait for room; return where in the mapping it is, or None for memory of its own."""
        with self._changed:
            self._reclaim()
            while self._in_use and self._in_use + num_bytes > self._num_bytes:
                if is_urgent() or self.closed.is_set():
                    break
                self._changed.wait()
                self._reclaim()
            self._in_use += num_bytes
            if self._in_use < self._num_bytes:
                self._changed.notify()
            for place, (start, stop) in enumerate(self._gaps):
                if stop - start >= num_bytes:
                    self._gaps[place : place + 1] = [(start + num_bytes, stop)] if stop - start > num_bytes else []
                    return start
        return None

    def _reclaim(self) -> None:
        """Join returned memory with the gaps beside it."""
        while self._returned:
            start, num_bytes = self._returned.popleft()
            self._in_use -= num_bytes
            if start is None:
                continue
            stop = start + num_bytes
            place = bisect(self._gaps, (start, stop))
            if place < len(self._gaps) and self._gaps[place][0] == stop:
                stop = self._gaps.pop(place)[1]
            if place and self._gaps[place - 1][1] == start:
                place -= 1
                start = self._gaps.pop(place)[0]
            self._gaps.insert(place, (start, stop))

    def _give_back(self, start: int | None, num_bytes: int) -> None:
        """Return memory. The garbage collector may call this in any thread, at any point."""
        if os.getpid() != self._process:  # in a fork, where the lock may be held for ever
            return
        self._returned.append((start, num_bytes))
        with self._changed:
            self._changed.notify()  # one fetch, which wakes the next one if there is more room

    def wake(self) -> None:
        """Wake the fetches that wait for room."""
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        """End all waiting for room."""
        self.closed.set()
        self.wake()


_spare: deque[tuple[int, mmap.mmap]] = deque(maxlen=2)
"""The mappings that were used last, such as those of a training and of its evaluation, for their next epochs; each with
the process that may write to it without copying it."""


def _keep(mapping: mmap.mmap, pid: int) -> None:
    if pid == os.getpid() and hasattr(mmap, "MADV_FREE"):
        mapping.madvise(mmap.MADV_FREE)  # the system may take its pages until they are written to again
        _spare.append((pid, mapping))


def _mapping_of(num_bytes: int) -> mmap.mmap:
    for pid, mapping in list(_spare):
        if pid == os.getpid() and len(mapping) == num_bytes:
            with suppress(ValueError):  # another thread was faster
                _spare.remove((pid, mapping))
                return mapping
    return mmap.mmap(-1, num_bytes, mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0))


class LazyShard:
    """A shard that is opened when it is first needed, by whichever thread needs it.

    Args:
        listed: The shard in the manifest.
        opener: Opens it.
    """

    def __init__(self, listed: Shard, opener: Callable[[], OpenShard]) -> None:
        self.listed = listed
        self._opener = opener
        self._lock = ProcessLock()
        self._is_opening = False
        self._later: deque[Callable[[], object]] = deque()
        self._opened: OpenShard | None = None
        self._error: Exception | None = None

    def num_bytes(self, samples: Int64) -> int:
        """Return about how many bytes are read for some of its samples, given as in `FetchRange`, with small gaps."""
        num_bytes, count, gaps = self.listed.num_bytes, max(1, self.listed.num_samples), np.diff(samples) - 1
        return (len(samples) + int(gaps[gaps * num_bytes < MIN_GAP_BYTES * count].sum())) * num_bytes // count

    def get(self) -> OpenShard:
        """Return the shard; raise what opening it raised, each time."""
        try:
            with self._lock:
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
        finally:
            while self._later:
                with suppress(IndexError):  # another thread was faster
                    self._later.popleft()()

    def is_being_opened(self, later: Callable[[], object]) -> bool:
        """Tell whether another thread is opening the shard; if so, `later` is called when that has ended."""
        if self._is_opening:
            self._later.append(later)
        return self._is_opening


class FetchRange(NamedTuple):
    """Samples of a shard, by their places in it: int64 of shape (n,), rising."""

    shard: LazyShard
    samples: Int64


class Fetch:
    """Samples that are fetched together, by one request if there are no gaps. For a shard on a disk this does nothing.

    Args:
        ranges: Where they are: neighbouring ranges of one shard, rising.
        memory: The memory to put them in.
        is_first: Whether they are needed at once, as those of the first batches.
    """

    def __init__(self, ranges: Sequence[FetchRange], memory: _Memory, is_first: bool = False) -> None:
        self._memory = memory
        self._is_first = is_first
        self._shard = ranges[0].shard
        self._ranges = ranges
        self._places: dict[tuple[int, int], Range] = {}
        self._pid = os.getpid()
        self._is_urgent = False
        self._is_done = False
        self._lock = threading.Lock()  # the lightest: there are thousands of fetches
        self._data: memoryview | None = None
        self._error: Exception | None = None

    def run(self, is_waiting: bool = False) -> None:
        """Fetch the samples, unless that is done. If another thread fetches them, return, or wait for it."""
        if not self._lock.acquire(blocking=is_waiting):
            return
        try:
            if not self._is_done:
                self._fetch()
                self._is_done = True
        except Exception as error:
            self._error, self._is_done = error, True
        finally:
            self._lock.release()

    def _fetch(self) -> None:
        shard = self._shard.get()
        requests: list[tuple[ReadableFile, list[Range]]] = []
        num_bytes = 0
        for number, part in enumerate(shard.parts):
            if not part.file.is_remote:
                continue
            ranges = list[Range]()
            for _, samples in self._ranges:
                place = num_bytes
                for begin, end in part.ranges(samples):
                    num_bytes += end - begin
                    is_beside = ranges and ranges[-1][1] == begin
                    ranges.append((ranges.pop()[0] if is_beside else begin, end))
                self._places[int(samples[0]), number] = place, num_bytes
            requests.append((part.file, ranges))
        if requests:
            with explaining(shard.check_dataset):
                self._data = self._memory.filled(num_bytes, lambda: self._is_urgent, partial(_fill, requests))

    @property
    def has_failed(self) -> bool:
        """Whether the samples could not be fetched; False as long as that is not known."""
        return self._error is not None

    @property
    def is_late(self) -> bool:
        """Whether the reader, which needs the samples now, waits for them, though they were planned ahead."""
        return not self._is_done and not self._is_first

    def is_requeued(self, fetches: queue.SimpleQueue[Fetch | None]) -> bool:
        """Tell whether another thread is opening the shard; if so, this goes back into the queue after that."""
        return self._shard.is_being_opened(lambda: fetches.put(self))

    def mark_urgent(self) -> None:
        """Mark the samples as needed now, so that they do not wait for room."""
        if self._pid == os.getpid() and not self._is_done and not self._is_urgent:
            self._is_urgent = True
            self._memory.wake()

    def data(self, first: int, part: int = 0) -> memoryview | None:
        """Return the bytes of the range that begins with a sample, once they are fetched; None if they are on a disk.

        Also None in a process that was forked meanwhile, which has no such threads. `part` is 0 for
        the shard itself; then come those that are joined to it.

        Raises:
            WdsplitError: They could not be fetched.
        """
        if self._pid != os.getpid():
            return None
        self.mark_urgent()
        self.run(is_waiting=True)
        if self._error is not None:
            raise self._error
        place = self._places.get((first, part))
        return None if self._data is None or place is None else self._data[slice(*place)]

    def window(self, samples: Int64) -> WindowPlace:
        """Return where the range with these samples is, with its bytes; raises as `data` does."""
        data = self.data(int(samples[0]))
        shard = self._shard.get()
        joined = [self.data(int(samples[0]), part) for part in range(1, len(shard.parts))]
        return WindowPlace(shard, samples, data, joined)


def _fill(requests: Sequence[tuple[ReadableFile, Sequence[Range]]], buffer: memoryview) -> None:
    """Fill a buffer with ranges of files, one after another."""
    place = 0
    for file, ranges in requests:
        for begin, end in ranges:
            file.read_into(buffer[place : place + end - begin], begin)
            place += end - begin


class Ahead:
    """Fetches in the background.

    Args:
        num_bytes: Limit for the bytes that are requested or in memory, those that are needed now included.
        planned_bytes: How far to plan ahead at most.
        num_connections: Requests at the same time.
        is_downloading: Whether opening a shard downloads it: then a thread does not wait for another one's download,
            but takes the next shard.
        first_bytes: How far to plan ahead at first; twice as far whenever the reader waits for what was planned. None
            for `planned_bytes`.

    Attributes:
        num_planned: About how many bytes are planned; counted by the reader.
        is_downloading: Whether opening a shard downloads it.
    """

    def __init__(
        self,
        num_bytes: int,
        planned_bytes: int,
        num_connections: int,
        is_downloading: bool = False,
        first_bytes: int | None = None,
    ) -> None:
        self.num_planned = 0
        self.is_downloading = is_downloading
        self._most_bytes = planned_bytes
        self._planned_bytes = planned_bytes if first_bytes is None else min(first_bytes, planned_bytes)
        self._is_first = True
        self._num_bytes = num_bytes
        self._num_connections = num_connections
        self._begin()

    def _begin(self) -> None:
        """Start without threads and requests, as after a fork."""
        self._pid = os.getpid()
        self._memory = _Memory(self._num_bytes)
        self._queue: queue.SimpleQueue[Fetch | None] = queue.SimpleQueue()  # its put may interrupt its get
        self._threads: list[threading.Thread] = []
        weakref.finalize(self, _end, self._pid, self._queue, self._threads, self._memory).atexit = False

    @property
    def is_full(self) -> bool:
        """Whether enough is planned."""
        return self.num_planned >= self._planned_bytes

    @property
    def has_room(self) -> bool:
        """Whether to plan more: not after each range, so that more ranges are neighbours."""
        return self.num_planned <= self._planned_bytes * (1 - _REPLANNED)

    def use(self, fetch: Fetch, num_bytes: int) -> None:
        """Note that the reader needs a fetch now, which counts for so many planned bytes."""
        self.num_planned -= num_bytes
        self._is_first = False
        if fetch.is_late:
            self._planned_bytes = min(2 * self._planned_bytes, self._most_bytes)

    def fetch(self, ranges: Sequence[FetchRange]) -> list[Fetch]:
        """Begin to fetch ranges, in their order; return for each the fetch that it is part of."""
        if self._pid != os.getpid():
            self._begin()
        fetches: list[Fetch] = [None] * len(ranges)  # type: ignore[list-item]
        for run in sorted(side_by_side(ranges), key=min):
            fetch = Fetch([ranges[place] for place in run], self._memory, self._is_first)
            for place in run:
                fetches[place] = fetch
            self._queue.put(fetch)
            if len(self._threads) < self._num_connections:
                work = _work, self._queue, self._memory.closed, self.is_downloading
                context = contextvars.copy_context()  # what they fetch counts for the same reader
                self._threads.append(threading.Thread(target=context.run, args=work, daemon=True))
                self._threads[-1].start()
        return fetches


def side_by_side(ranges: Sequence[FetchRange]) -> list[list[int]]:
    """Return, for each request, the indices of the ranges that it fetches, rising in their shard."""
    order = sorted(range(len(ranges)), key=lambda place: (id(ranges[place].shard), ranges[place].samples[0]))
    runs: list[list[int]] = []
    num_bytes = 0
    for place in order:
        shard, samples = ranges[place]
        before = ranges[runs[-1][-1]] if runs else None
        joins = before is not None and before.shard is shard and before.samples[-1] + 1 == samples[0]
        more = shard.num_bytes(samples)
        if joins and num_bytes + more <= _REQUEST_BYTES:
            runs[-1].append(place)
            num_bytes += more
        else:
            runs.append([place])
            num_bytes = more
    return runs


def _work(fetches: queue.SimpleQueue[Fetch | None], closed: threading.Event, is_downloading: bool) -> None:
    end_before_forks()
    while (fetch := fetches.get()) is not None:
        if not closed.is_set() and not (is_downloading and fetch.is_requeued(fetches)):
            fetch.run()
        del fetch


def _end(pid: int, fetches: queue.SimpleQueue[Fetch | None], threads: list[threading.Thread], memory: _Memory) -> None:
    """End the threads, after their current fetch. The garbage collector may call this in any of them."""
    if pid != os.getpid():
        return
    memory.close()
    for _ in threads:
        fetches.put(None)
