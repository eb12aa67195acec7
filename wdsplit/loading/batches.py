"""The batches of one epoch, or of the rest of one, as a `Loader` gives them, and how far a loader has got.

Composition of the steps and the workers' sub-batches; the state is explicit, so that it can be named at any time.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from wdsplit.errors import PipelineError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.running import Running
from wdsplit.loading.transport.counters import Clock
from wdsplit.order.epoch import Int64
from wdsplit.order.split import Step, Steps, worker_of
from wdsplit.order.state import State

__all__ = ["Batches", "EpochProgress", "SubBatch"]

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
        clock: Measures how long the consumer waits, and how long it takes.
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


class EpochProgress:
    """How far a loader has got: what its state names, and where its next iteration begins.

    One iteration at a time counts: the last one, until another epoch or a state is chosen. A copy goes on
    from the same place, without the iteration under way.

    Args:
        dataset: Its dataset; if its epoch is set, the next iteration gives that one.
    """

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self._epochs_set = dataset.epochs_set
        self._next = State(dataset.epoch, 0)
        self._delivered: State | None = None
        self._batches: weakref.ref[Batches] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_batches": None}

    @property
    def start(self) -> State:
        """Where the next iteration begins."""
        self._follow_dataset()
        return self._next

    @property
    def state(self) -> State:
        """What has been delivered by the iteration that counts; else where the next one begins."""
        start = self.start
        return self._delivered or start

    @property
    def epoch(self) -> int:
        """The epoch of the iteration under way, else of the next one."""
        start = self.start
        batches = None if self._batches is None else self._batches()
        return start.epoch if batches is None or batches.ended else batches.epoch

    def choose_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; a position within that epoch is kept."""
        self._follow_dataset()
        self._go_to(epoch)

    def resume(self, state: State) -> None:
        """Go to a state: the next iteration gives the rest of its epoch."""
        self._follow_dataset()
        self._next, self._delivered, self._batches = state, None, None

    def begin(self, batches: Batches, start: State, is_empty: bool) -> None:
        """Count batches from `start` on; if they are left early, the next iteration begins their epoch anew."""
        self._batches = weakref.ref(batches)
        self._delivered, self._next = start, State(start.epoch, 0)
        if is_empty:
            self._delivered = self._next = State(start.epoch + 1, 0)

    def deliver(self, batches: Batches, state: State, is_last: bool) -> None:
        """Take note that batches were delivered up to a state, if they are those that count."""
        if self._batches is not None and self._batches() is batches:
            self._delivered = state
            self._next = state if is_last else self._next

    def _follow_dataset(self) -> None:
        """Choose the dataset's epoch if that was set since."""
        if self._dataset.epochs_set != self._epochs_set:
            self._epochs_set = self._dataset.epochs_set
            self._go_to(self._dataset.epoch)

    def _go_to(self, epoch: int) -> None:
        if self._next.epoch != epoch:
            self._next = State(epoch, 0)
        if self._delivered is not None and self._delivered.epoch != epoch:
            self._delivered, self._batches = None, None
