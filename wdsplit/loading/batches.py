"""The batches of one epoch, or of the rest of one, as a `Loader` gives them.

Composition of the steps and the workers' sub-batches; the state is explicit, so that it can be named at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from wdsplit.errors import PipelineError
from wdsplit.loading.epoch_progress import EpochProgress
from wdsplit.loading.running import Running
from wdsplit.loading.transport.counters import Clock
from wdsplit.order.epoch import Int64
from wdsplit.order.split import Step, Steps, worker_of
from wdsplit.order.state import State

__all__ = ["Batches", "SubBatch"]

SubBatch = tuple[Int64, Any]
"""The places in the batch of a worker's samples, and the samples: what `collate` made of them, or a list."""


class Batches(Iterator[Any]):
    """The batches of one epoch, or of the rest of one.

    Args:
        epoch: The epoch.
        steps: Its steps, from where it begins.
        running: The workers' sub-batches of them.
        assemble: Makes a batch of a step's sub-batches and its number of samples.
        progress: Takes note of each batch that is delivered.
        clock: Measures who waits for whom.
    """

    def __init__(
        self,
        epoch: int,
        steps: Steps,
        running: Running,
        assemble: Callable[[Sequence[SubBatch], int], Any],
        progress: EpochProgress,
        clock: Clock,
    ) -> None:
        self.epoch = epoch
        self.running = running
        self.ended = False
        self._assemble = assemble
        self._progress = progress
        self._clock = clock
        self._world_size = steps.world.world_size
        self._steps = iter(steps)
        self._left = len(steps)
        clock.begin()

    def __next__(self) -> Any:
        """Return the next batch."""
        if self.ended:
            raise StopIteration
        self._clock.enter()
        if not self._left:
            self._clock.leave(0)
            self.close()
            raise StopIteration
        delivered = 0
        try:
            step = next(self._steps)
            batch = self._batch(step)
            delivered = len(step.positions)
        except BaseException as error:
            self.close(failed=True, at_once=not isinstance(error, Exception))
            if isinstance(error, StopIteration):  # it would pass for the end of the epoch
                raise PipelineError(
                    "the collate_fn raised StopIteration",
                    expected="a batch of the samples that it is given",
                    remedy="catch it in the collate_fn",
                ) from error
            raise
        finally:
            self._clock.leave(delivered)
        self._left -= 1
        state = State(self.epoch, step.end) if self._left else State(self.epoch + 1, 0)
        self._progress.deliver(self, state, is_last=not self._left)
        return batch

    def _batch(self, step: Step) -> Any:
        """Take each worker's sub-batch of a step and put them together."""
        owner = worker_of(step.positions, self._world_size, self.running.num_workers)
        taken = []
        for worker in range(self.running.num_workers):
            sub_batch = self.running.take()
            places = np.flatnonzero(owner == worker)
            if len(places):
                taken.append((places, sub_batch))
        batch = self._assemble(taken, len(step.positions))
        self.running.delivered()
        return batch

    def close(self, failed: bool = False, at_once: bool = False) -> None:
        """End the iteration; workers end with it, unless they are persistent and all is well.

        Args:
            failed: Whether it ends because of an error.
            at_once: Whether worker processes shall not be waited for, because the program was interrupted.
        """
        self.ended = True
        self.running.close(failed, at_once)

    def __del__(self) -> None:
        self.running.close()
