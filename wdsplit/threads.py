"""Workers that are threads: parts of batches made ahead in this process, with nothing sent through a pipe.

How far a worker gets ahead is bounded, in parts and in bytes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from wdsplit.collate import num_bytes

__all__ = ["Raised", "Threads"]


@dataclass(frozen=True)
class Raised:
    """An error on its way from a worker to the caller."""

    error: BaseException


class Threads:
    """The parts of some workers in turn: worker 0's, 1's, ..., then worker 0's again.

    Args:
        make: Returns the parts of a worker; called, and iterated, in the worker's thread.
        num_workers: Threads.
        parts_ahead: Parts that a worker may have made before they are taken.
        bytes_ahead: Bytes that they may hold; one part is always made.
    """

    def __init__(
        self, make: Callable[[int], Iterator[Any]], num_workers: int, parts_ahead: int, bytes_ahead: int
    ) -> None:
        self._queues = [_Queue(parts_ahead, bytes_ahead) for _ in range(num_workers)]
        self._threads = [
            threading.Thread(target=_work, args=(make, worker, queue), name=f"wdsplit-{worker}", daemon=True)
            for worker, queue in enumerate(self._queues)
        ]
        self._turn = 0
        for thread in self._threads:
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
        """End all workers, and wait for them."""
        for queue in self._queues:
            queue.close()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


def _work(make: Callable[[int], Iterator[Any]], worker: int, queue: _Queue) -> None:
    try:
        for part in make(worker):
            if not queue.put(part):
                return
    except BaseException as error:
        queue.put(Raised(error))
    finally:
        queue.end()


class _Queue:
    """Parts that were made and not taken yet."""

    def __init__(self, most_parts: int, most_bytes: int) -> None:
        self._most_parts = most_parts
        self._most_bytes = most_bytes
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
        return len(self._parts) < self._most_parts and self._num_bytes + size <= self._most_bytes

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
