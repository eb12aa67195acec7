"""Workers that are threads: parts of batches made ahead in this process, with nothing sent through a pipe.

How far a worker gets ahead is bounded, in parts and in bytes.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wdsplit.loading.transport.collate import num_bytes

__all__ = ["Raised", "Threads"]

_PATIENCE_S = 2.0
"""How long the end of the threads is waited for. What blocks one for longer does not block the program."""


@dataclass(frozen=True)
class Raised:
    """An error on its way from a worker to the caller."""

    error: BaseException


class Threads:
    """The parts of some workers in turn: worker 0's, 1's, ..., then worker 0's again.

    They end when this is closed or collected, and at the end of the program; one that is busy then ends later, without
    its work being taken.

    Args:
        parts: The parts of each worker; iterated in the worker's thread.
        parts_ahead: Parts that a worker may have made before they are taken.
        bytes_ahead: Bytes that they may hold; one part is always made.
    """

    def __init__(self, parts: Sequence[Iterator[Any]], parts_ahead: int, bytes_ahead: int) -> None:
        self._queues = [_Queue(parts_ahead, bytes_ahead) for _ in parts]
        self._turn = 0
        threads = [
            threading.Thread(target=_work, args=work, name=f"wdsplit-{worker}", daemon=True)
            for worker, work in enumerate(zip(parts, self._queues, strict=True))
        ]
        self._end = weakref.finalize(self, _end, self._queues, threads)
        for thread in threads:
            thread.start()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Return the next part.

        Raises:
            StopIteration: The worker whose turn it is has ended.
        """
        queue = self._queues[self._turn]
        self._turn = (self._turn + 1) % len(self._queues)
        return queue.take()

    def close(self) -> None:
        """End all workers, and wait for them; not for long, though."""
        self._end()


def _end(queues: Sequence[_Queue], threads: Sequence[threading.Thread]) -> None:
    for queue in queues:
        queue.close()
    if threading.current_thread() in threads:  # the collector runs in any thread, in one with locks, too
        return
    deadline = time.monotonic() + _PATIENCE_S
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()))


def _work(parts: Iterator[Any], queue: _Queue) -> None:
    try:
        for part in parts:
            if not queue.put(part):
                return
    except BaseException as error:
        queue.put([Raised(error)])
    finally:
        queue.end()


class _Queue:
    """Parts that were made and not taken yet."""

    def __init__(self, max_parts: int, max_bytes: int) -> None:
        self._max_parts = max_parts
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._parts: deque[tuple[Any, int]] = deque()
        self._num_bytes = 0
        self._ended = False
        self._closed = False

    def put(self, part: Any) -> bool:
        """Add a part when there is room; return False if none are wanted any more."""
        size = num_bytes(part)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_room(size))
            if self._closed:
                return False
            self._parts.append((part, size))
            self._num_bytes += size
            self._changed.notify_all()
            return True

    def _has_room(self, size: int) -> bool:
        if not self._parts:
            return True
        return len(self._parts) < self._max_parts and self._num_bytes + size <= self._max_bytes

    def take(self) -> Any:
        """Return the oldest part, as soon as there is one."""
        with self._changed:
            self._changed.wait_for(lambda: self._parts or self._ended or self._closed)
            if not self._parts:
                raise StopIteration
            part, size = self._parts.popleft()
            self._num_bytes -= size
            self._changed.notify_all()
            return part

    def end(self) -> None:
        """Say that no part will follow."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def close(self) -> None:
        """Say that no part is wanted any more."""
        with self._changed:
            self._closed = True
            self._parts.clear()
            self._changed.notify_all()
