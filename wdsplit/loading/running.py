"""The remaining sub-batches of an iteration: taken from workers of any kind, and released.

The workers' parcels of sub-batches come in turn; those of processes stay in shared memory until they are delivered.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator
from typing import Any

from wdsplit.errors import PipelineError, WdsplitError
from wdsplit.loading.transport.shared_segments import Placed, Segments
from wdsplit.loading.transport.thread_workers import Raised
from wdsplit.loading.worker import SubBatches

__all__ = ["Running"]


class Running:
    """The remaining sub-batches of an iteration.

    Args:
        parcels: The parcels of all workers in turn, of equally many steps; the last before an error may be shorter.
        source: Makes them.
        persistent: Whether worker processes stay when it ends.
        num_workers: Workers, at least 1: the loader's own thread counts as one.
        on_failure: Called after the workers were ended because of an error.
    """

    def __init__(
        self,
        parcels: Iterator[Any],
        source: SubBatches,
        persistent: bool,
        num_workers: int,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        self.num_workers = num_workers
        self._on_failure = on_failure
        self._parcels: Iterator[Any] | None = parcels
        self._source = source
        self._persistent = persistent
        self._segments: Segments | None = Segments([] if source.bound is None else source.bound.memories)
        self._opened: list[deque[Any]] = [deque() for _ in range(num_workers)]
        self._placed = [0] * num_workers
        self._turn = self._parcel_turn = 0
        self._superseded = False
        end = getattr(parcels, "_shutdown_workers", None) or getattr(parcels, "close", None)
        self._end: Callable[[], object] | None = end
        if isinstance(parcels, Generator):  # without workers: ends at exit, before the modules that it needs are gone,
            self._end = weakref.finalize(self, parcels.close)  # and once, though it may hold the last reference to this

    @property
    def lends(self) -> bool:
        """Whether the memory of sub-batches will be reused."""
        return self._source.bound is not None

    def take(self) -> Any:
        """Return the next sub-batch."""
        if self._superseded or self._parcels is None or self._segments is None:
            raise PipelineError(
                "another iteration of this Loader is under way",
                expected="one iteration at a time, because its workers are persistent",
                remedy="finish the first one, or make a Loader for each",
            )
        opened = self._opened[self._turn]
        while not opened:
            self._open(self._parcels, self._segments)
        sub_batch = opened.popleft()
        if isinstance(sub_batch, Raised):
            error = sub_batch.error  # our own says more than the frames of a worker in this process
            raise error.with_traceback(None) if isinstance(error, WdsplitError) else error
        self._turn = (self._turn + 1) % self.num_workers
        return sub_batch

    def _open(self, parcels: Iterator[Any], segments: Segments) -> None:
        """Open the next worker's parcel; after a short one, `take` may wait for another worker."""
        try:
            parcel = next(parcels)
        except StopIteration as error:
            raise PipelineError("a worker exited before its work was done", remedy="check its log") from error
        worker, self._parcel_turn = self._parcel_turn, (self._parcel_turn + 1) % self.num_workers
        self._placed[worker] += isinstance(parcel, Placed)
        self._opened[worker].extend(segments.parcel(parcel) if isinstance(parcel, Placed) else parcel)

    def delivered(self) -> None:
        """Record that the sub-batches of a step were copied, so that the memory of empty parcels may be reused."""
        bound = self._source.bound
        for worker, opened in enumerate(self._opened):
            while bound is not None and self._placed[worker] and not opened:
                self._placed[worker] -= 1
                bound.deliver(worker)

    def supersede(self) -> None:
        """Yield no more sub-batches: the workers serve another iteration."""
        self._superseded = True
        self._segments = None
        self._source.end()

    def close(self, failed: bool = False, at_once: bool = False) -> None:
        """Release the sub-batches, and end the workers, unless they are persistent and nothing failed."""
        parcels, end = self._parcels, self._end
        self._parcels = self._segments = self._end = None
        if parcels is None or self._superseded:
            return
        self._source.end()
        if failed or not self._persistent:
            for process in getattr(parcels, "_workers", ()) if at_once else ():
                process.terminate()
            if end is not None:
                end()
            if self._source.bound is not None:
                self._source.bound.close()
        if failed:
            self._on_failure()
