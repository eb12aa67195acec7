"""The batches that a `Loader` delivers in an epoch, or in the rest of one: the steps with the workers' sub-batches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.errors import PipelineError
from wdsplit.loading.ahead import Ahead
from wdsplit.loading.reading.source import AnySource
from wdsplit.loading.running import Running
from wdsplit.loading.transport.collate import num_samples
from wdsplit.loading.transport.counters import Clock
from wdsplit.order.skips import Skips
from wdsplit.order.split import Step, Steps, worker_of
from wdsplit.order.state import State

__all__ = ["Batches", "SubBatch"]

SubBatch = tuple[Int64, Any]
"""The places of a worker's samples in the batch, and the samples: the result of `collate`, or a list."""


class Batches(Iterator[Any]):
    """The batches of one epoch, or of the rest of one.

    Args:
        source: The samples to read; `set_view` replaces the dataset's source for the next iteration.
        start: Where it begins.
        steps: The steps from there on.
        running: The workers' sub-batches of them.
        assemble: Makes a batch of a step's sub-batches and its number of samples.
        on_delivery: Called with this and the position after each delivered batch.
        clock: Measures the time that the consumer waits and computes.
        ahead: Returns an object that makes batches before they are requested; None to make each one on request.

    Attributes:
        start: Where it began, with all that is skipped.
        order: The order of the epoch.
        left: Batches that are still to come.
    """

    def __init__(
        self,
        source: AnySource,
        start: State,
        steps: Steps,
        running: Running,
        assemble: Callable[[Sequence[SubBatch], int], Any],
        on_delivery: Callable[[Batches, int], object],
        clock: Clock,
        ahead: Callable[[Steps], Ahead] | None = None,
    ) -> None:
        self.source = source
        self.start = start
        self.ended = False
        self._assemble = assemble
        self._on_delivery = on_delivery
        self._clock = clock
        self._is_formed = source.form_at(start.epoch) is not None
        self._make_ahead = ahead
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
