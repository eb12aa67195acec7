"""The remaining sub-batches of an iteration: taken from workers of any kind, in turn, and released."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from wdsplit.errors import PipelineError, WdsplitError
from wdsplit.loading.transport.thread_workers import Raised
from wdsplit.loading.worker import SubBatches

__all__ = ["NoWorkers", "Parcels", "Running"]


class Parcels(Iterator[list[Any]], Protocol):
    """The parcels of all workers in turn, of equally many steps; the last before an error may be shorter.

    Attributes:
        lends: Whether the memory of sub-batches will be reused once `delivered` was called.
    """

    lends: bool

    def delivered(self, worker: int) -> None:
        """Record that all parcels of a worker that were taken so far have been copied."""

    def step_delivered(self) -> None:
        """Record that the batch of one more step was made."""

    def close(self, at_once: bool = False) -> None:
        """End the workers; `at_once`, without waiting for what they do."""


class NoWorkers:
    """The parcels that a generator makes in the loader's own thread."""

    lends = False

    def __init__(self, parcels: Any) -> None:
        self._parcels = parcels
        # Ends at exit, before the modules that it needs are gone; and once, though it may hold the last reference.
        self._end = weakref.finalize(self, parcels.close)

    def __iter__(self) -> Iterator[list[Any]]:
        return self

    def __next__(self) -> list[Any]:
        return next(self._parcels)

    def delivered(self, worker: int) -> None:
        """Do nothing."""

    def step_delivered(self) -> None:
        """Do nothing."""

    def close(self, at_once: bool = False) -> None:
        """Close what the parcels have open."""
        self._end()


class Running:
    """The remaining sub-batches of an iteration."""

    def __init__(self, parcels: Parcels, source: SubBatches, persistent: bool, num_workers: int) -> None:
        self.num_workers = num_workers
        self.lends = parcels.lends
        self._parcels: Parcels | None = parcels
        self._source = source
        self._persistent = persistent
        self._opened: list[deque[Any]] = [deque() for _ in range(num_workers)]
        self._turn = self._parcel_turn = 0

    def take(self) -> Any:
        """Return the next sub-batch."""
        if self._parcels is None:
            raise PipelineError(
                "another iteration of this Loader is under way",
                expected="one iteration at a time, because its workers are persistent",
                remedy="finish the first one, or make a Loader for each",
            )
        while not self._opened[self._turn]:  # after a short parcel, this may have to wait for another worker
            parcel = next(self._parcels, None)
            if parcel is None:
                raise PipelineError("a worker exited before its work was done", remedy="check its log")
            self._opened[self._parcel_turn].extend(parcel)
            self._parcel_turn = (self._parcel_turn + 1) % self.num_workers
        sub_batch = self._opened[self._turn].popleft()
        if isinstance(sub_batch, Raised):
            error = sub_batch.error  # our own says more than the frames of a worker in this process
            raise error.with_traceback(None) if isinstance(error, WdsplitError) else error
        self._turn = (self._turn + 1) % self.num_workers
        return sub_batch

    def delivered(self) -> None:
        """Record that the sub-batches of a step were copied."""
        for worker, opened in enumerate(self._opened):
            if self._parcels is not None and not opened:
                self._parcels.delivered(worker)
        if self._parcels is not None:
            self._parcels.step_delivered()

    def supersede(self) -> None:
        """Give no more sub-batches: the workers serve another iteration."""
        self._parcels = None
        self._source.end()

    def close(self, failed: bool = False, at_once: bool = False) -> None:
        """Release the sub-batches, and end the workers, unless they are persistent and nothing failed."""
        parcels, self._parcels = self._parcels, None
        if parcels is None:
            return
        self._source.end()
        if failed or not self._persistent:
            parcels.close(at_once)
