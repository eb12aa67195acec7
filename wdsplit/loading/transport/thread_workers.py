"""Workers of this process: none, or threads, which make sub-batches ahead; nothing is sent through a pipe.

How far a worker gets ahead is bounded, in sub-batches and in bytes.
"""

from __future__ import annotations

import threading
import time
import weakref
from abc import abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from wdsplit.loading.transport.collate import num_bytes
from wdsplit.storage.locks import end_before_forks

__all__ = ["NoWorkers", "Parcels", "Raised", "Threads"]

_PATIENCE_S = 2.0
"""How long to wait for the threads to end; one that blocks for longer does not block the program."""


@dataclass(frozen=True)
class Raised:
    """An error on its way from a worker to the caller."""

    error: BaseException


class Parcels:
    """The parcels of workers, of equally many steps; the last before an error may be shorter.

    Attributes:
        lends: Whether the memory of sub-batches will be reused once `delivered` was called.
    """

    lends = False
    _end: Callable[[], object]

    @abstractmethod
    def take(self, worker: int) -> list[Any] | None:
        """Return the next parcel of a worker, of all workers in turn; None if no more follows."""

    def delivered(self, worker: int) -> None:
        """Record that all parcels of a worker that were taken so far have been copied."""

    def step_delivered(self) -> None:
        """Record that the batch of one more step was made."""

    def close(self, at_once: bool = False) -> None:
        """End the workers; `at_once`, without waiting for what they do."""
        self._end()


class NoWorkers(Parcels):
    """The parcels that a generator makes in the loader's own thread."""

    def __init__(self, parcels: Any) -> None:
        self._parcels = parcels
        # Ends at exit, before the modules that it needs are gone; and once, though it may hold the last reference.
        self._end = weakref.finalize(self, parcels.close)

    def take(self, worker: int) -> list[Any] | None:
        """Make the next parcel."""
        return next(self._parcels, None)


class Threads(Parcels):
    """The parcels that threads make ahead.

    The threads end when this is closed or garbage-collected, and at the end of the program. One that is busy then ends
    later, and its work is dropped.

    Args:
        parcels: The parcels of each worker; iterated in the worker's thread.
        max_ahead: Parcels that a worker may have made before they are taken.
        max_bytes: Limit for their bytes; one parcel is always made.
    """

    def __init__(self, parcels: Sequence[Iterator[list[Any]]], max_ahead: int, max_bytes: int) -> None:
        self._queues = [_Queue(max_ahead, max_bytes) for _ in parcels]
        threads = [
            threading.Thread(target=_work, args=work, name=f"wdsplit-{worker}", daemon=True)
            for worker, work in enumerate(zip(parcels, self._queues, strict=True))
        ]
        self._end = weakref.finalize(self, _end, self._queues, threads)
        for thread in threads:
            thread.start()

    def take(self, worker: int) -> list[Any] | None:
        """Wait for the next parcel of a worker."""
        return self._queues[worker].take()


def _end(queues: Sequence[_Queue], threads: Sequence[threading.Thread]) -> None:
    for queue in queues:
        queue.end(drop=True)
    if threading.current_thread() in threads:  # the garbage collector runs in any thread, also with locks
        return
    deadline = time.monotonic() + _PATIENCE_S
    for thread in threads:
        if thread.ident is not None:
            thread.join(max(0.0, deadline - time.monotonic()))


def _work(parcels: Iterator[list[Any]], queue: _Queue) -> None:
    end_before_forks()
    try:
        for parcel in parcels:
            if not queue.put(parcel):
                return
    except BaseException as error:
        queue.put([Raised(error)])
    finally:
        queue.end()


class _Queue:
    """Parcels that were made and not taken yet."""

    def __init__(self, max_parcels: int, max_bytes: int) -> None:
        self._max_parcels = max_parcels
        self._max_bytes = max_bytes
        self._changed = threading.Condition()
        self._parcels: deque[tuple[list[Any], int]] = deque()
        self._num_bytes = 0
        self._ended = False

    def put(self, parcel: list[Any]) -> bool:
        """Add a parcel when there is room; return False if none are needed any more."""
        size = num_bytes(parcel)
        count, limit = self._max_parcels, self._max_bytes
        made = self._parcels
        with self._changed:  # one always has room
            self._changed.wait_for(
                lambda: self._ended or not made or (len(made) < count and self._num_bytes + size <= limit)
            )
            if self._ended:
                return False
            self._parcels.append((parcel, size))
            self._num_bytes += size
            self._changed.notify_all()
            return True

    def take(self) -> list[Any] | None:
        """Return the oldest parcel, as soon as there is one; None if none follows."""
        with self._changed:
            self._changed.wait_for(lambda: self._parcels or self._ended)
            if not self._parcels:
                return None
            parcel, size = self._parcels.popleft()
            self._num_bytes -= size
            self._changed.notify_all()
            return parcel

    def end(self, drop: bool = False) -> None:
        """Say that no parcel will follow, or, with `drop`, that none is needed any more."""
        with self._changed:
            self._ended = True
            if drop:
                self._parcels.clear()
            self._changed.notify_all()
