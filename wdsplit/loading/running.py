"""The remaining sub-batches of an iteration: taken from workers of any kind, in turn, and released."""

from __future__ import annotations

from collections import deque
from typing import Any

from wdsplit.errors import PipelineError, WdsplitError
from wdsplit.loading.transport.thread_workers import Parcels, Raised
from wdsplit.loading.worker import SubBatches

__all__ = ["Running"]


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
