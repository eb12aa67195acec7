"""The batches that a `Loader` delivers in an epoch, or in the rest of one: the steps with the workers' sub-batches."""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.errors import PipelineError, WdsplitError
from wdsplit.loading.transport.collate import num_samples
from wdsplit.loading.transport.counters import Clock
from wdsplit.loading.transport.thread_workers import Parcels, Raised
from wdsplit.loading.worker import SubBatches
from wdsplit.order.skips import Skips
from wdsplit.order.split import Step, Steps, worker_of
from wdsplit.order.state import State

__all__ = ["Batches", "MadeAhead", "Running", "SubBatch"]

SubBatch = tuple[Int64, Any]
"""The places of a worker's samples in the batch, and the samples: the result of `collate`, or a list."""


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
            parcel = self._parcels.take(self._parcel_turn)
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


class MadeAhead:
    """Makes the batches of an iteration ahead.

    Args:
        depth: Batches to make ahead of the requested one, at least 0.
        copied: Begins to copy a step's batch, and returns the copy.
        delivered: Called with each copy when it is requested, before the next batch is made.
    """

    def __init__(
        self, depth: int, copied: Callable[[Step, Any], Any], delivered: Callable[[Any], object] | None = None
    ) -> None:
        self._depth = depth
        self._copied = copied
        self._delivered = delivered
        self._made: deque[tuple[Step, Any, int]] = deque()
        self._error: Exception | None = None

    def take(self, make: Callable[[], tuple[Step, Any, int]], left: int) -> tuple[Step, Any, int]:
        """Return the next step, its copied batch and its number of samples.

        An error in a later batch is raised when that is requested.

        Args:
            make: Makes the next step that was not made yet: the step, its batch and its number of samples.
            left: Steps that were not delivered, the next one included; at least 1.
        """
        self._fill(make, 1)
        if not self._made:
            assert self._error is not None
            raise self._error
        taken = self._made.popleft()
        if self._delivered is not None:
            self._delivered(taken[1])
        self._fill(make, min(self._depth, left - 1))
        return taken

    def _fill(self, make: Callable[[], tuple[Step, Any, int]], count: int) -> None:
        while len(self._made) < count and self._error is None:
            try:
                step, batch, num_samples = make()
                self._made.append((step, self._copied(step, batch), num_samples))
            except Exception as error:
                self._error = error


class Batches(Iterator[Any]):
    """The batches of one epoch, or of the rest of one.

    Args:
        start: Where it begins.
        steps: The steps from there on.
        running: The workers' sub-batches of them.
        assemble: Makes a batch of a step's sub-batches and its number of samples.
        on_delivery: Called with this and the position after each delivered batch.
        clock: Measures the time that the consumer waits and computes.
        is_formed: Whether the positions are packs or groups.
        make_ahead: Returns an object that makes batches before they are requested; None to make each one on request.

    Attributes:
        start: Where it began, with all that is skipped.
        order: The order of the epoch.
        left: Batches that are still to come.
    """

    def __init__(
        self,
        start: State,
        steps: Steps,
        running: Running,
        assemble: Callable[[Sequence[SubBatch], int], Any],
        on_delivery: Callable[[Batches, int], object],
        clock: Clock,
        is_formed: bool,
        make_ahead: Callable[[Steps], MadeAhead] | None = None,
    ) -> None:
        self.start = start
        self.ended = False
        self._assemble = assemble
        self._on_delivery = on_delivery
        self._clock = clock
        self._is_formed = is_formed
        self._make_ahead = make_ahead
        self._world_size = steps.world.world_size
        self.go_on(steps, running)
        clock.begin()

    @property
    def epoch(self) -> int:
        """The epoch."""
        return self.start.epoch

    @property
    def skips(self) -> Skips:
        """The positions of the epoch that are left out."""
        return self.start.skips

    def go_on(self, steps: Steps, running: Running) -> None:
        """Continue with other steps; batches that were made ahead for the earlier ones are dropped."""
        self.running = running
        self.start = replace(self.start, skips=steps.skips)
        self._steps, self.order, self.left = iter(steps), steps.order, len(steps)
        self._ahead = None if self._make_ahead is None else self._make_ahead(steps)

    def __next__(self) -> Any:
        """Return the next batch."""
        if self.ended:
            raise StopIteration
        self._clock.enter()
        if not self.left:
            self._clock.leave(0)
            self.close()
            raise StopIteration
        delivered = 0
        try:
            step, batch, delivered = self._made() if self._ahead is None else self._ahead.take(self._made, self.left)
        except BaseException as error:
            self.close(failed=True, at_once=not isinstance(error, Exception))
            if isinstance(error, StopIteration):  # it would look like the end of the epoch
                raise PipelineError(
                    "the collate_fn raised StopIteration",
                    expected="a batch made of the given samples",
                    remedy="catch it in the collate_fn",
                ) from error
            raise
        finally:
            self._clock.leave(delivered)
        self.left -= 1
        self._on_delivery(self, step.end)
        return batch

    def _made(self) -> tuple[Step, Any, int]:
        """Return the next step, its batch (each worker's sub-batch of it, put together), and its number of samples."""
        step = next(self._steps)
        owner = worker_of(step.positions, self._world_size, self.running.num_workers)
        taken = []
        for worker in range(self.running.num_workers):
            sub_batch = self.running.take()
            places = np.flatnonzero(owner == worker)
            if len(places):
                taken.append((places, sub_batch))
        count = sum(num_samples(sub_batch) for _, sub_batch in taken) if self._is_formed else len(step.positions)
        batch = self._assemble(taken, len(step.positions))
        self.running.delivered()
        return step, batch, count

    def close(self, failed: bool = False, at_once: bool = False) -> None:
        """End the iteration; workers end with it, unless they are persistent and nothing failed."""
        self.ended = True
        self.running.close(failed, at_once)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # then modules are gone, and workers end with the program
            self.running.close()
