"""The batches that a `Loader` delivers in an epoch, or in the rest of one, and the loader's progress.

They combine the steps with the workers' sub-batches. The state is explicit, so that it is known at any time.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.errors import PipelineError
from wdsplit.loading.ahead import Ahead
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.reading.source import AnySource
from wdsplit.loading.running import Running
from wdsplit.loading.transport.counters import Clock
from wdsplit.order.skips import Skips
from wdsplit.order.split import AnyOrder, Step, Steps, World, worker_of
from wdsplit.order.state import State, ViewMark

__all__ = ["Batches", "EpochProgress", "SubBatch"]

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
        progress: Records each delivered batch.
        clock: Measures the time that the consumer waits and computes.
        delivered: Called after each delivered batch, if given.
        ahead: Returns what makes the batches of some steps before they are requested; None to make each on request.

    Attributes:
        epoch: The epoch.
        start: Where it began.
        order: The order of the epoch.
        left: Batches that are still to come.
        skips: The positions of the epoch that are left out.
        step: The step of the last batch, after the first one.
        state: The state after it.
    """

    def __init__(
        self,
        source: AnySource,
        start: State,
        steps: Steps,
        running: Running,
        assemble: Callable[[Sequence[SubBatch], int], Any],
        progress: EpochProgress,
        clock: Clock,
        delivered: Callable[[], object] | None = None,
        ahead: Callable[[Steps], Ahead] | None = None,
    ) -> None:
        self.source = source
        self.start = self.state = start
        self.epoch = start.epoch
        self.running = running
        self.ended = False
        self._assemble = assemble
        self._progress = progress
        self._clock = clock
        self._delivered = delivered
        self._make_ahead = ahead
        self._view = source.view_at(start.epoch)
        self._world_size = steps.world.world_size
        self.step: Step
        self._set_steps(steps)
        clock.begin()

    def _set_steps(self, steps: Steps) -> None:
        self._steps, self.order = iter(steps), steps.order
        self.left, self.skips = len(steps), steps.skips
        self._ahead = None if self._make_ahead is None else self._make_ahead(steps)

    def go_on(self, steps: Steps, running: Running) -> None:
        """Continue with other steps; batches that were made ahead for the earlier ones are dropped."""
        self.running = running
        self._set_steps(steps)

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
            step, batch = self._made() if self._ahead is None else self._ahead.take(self._made, self.left)
            delivered = len(step.positions)
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
        self.step = step
        after = replace(self.start, position=step.end, view=self._view, skips=self.skips)
        self.state = after if self.left else after.ended()
        self._progress.deliver(self, self.state, is_last=not self.left)
        if self._delivered is not None:
            self._delivered()
        return batch

    def _made(self) -> tuple[Step, Any]:
        """Return the next step and its batch: each worker's sub-batch of it, put together."""
        step = next(self._steps)
        owner = worker_of(step.positions, self._world_size, self.running.num_workers)
        taken = []
        for worker in range(self.running.num_workers):
            sub_batch = self.running.take()
            places = np.flatnonzero(owner == worker)
            if len(places):
                taken.append((places, sub_batch))
        batch = self._assemble(taken, len(step.positions))
        self.running.delivered()
        return step, batch

    def close(self, failed: bool = False, at_once: bool = False) -> None:
        """End the iteration; workers end with it, unless they are persistent and nothing failed.

        Args:
            failed: Whether it ends because of an error.
            at_once: Do not wait for worker processes, because the program was interrupted.
        """
        self.ended = True
        self.running.close(failed, at_once)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():  # then modules are gone, and workers end with the program
            self.running.close()


class EpochProgress:
    """A loader's progress: the position of its state, and the start of its next iteration.

    One iteration at a time counts: the last one, until another epoch or a state is chosen. A copy continues from the
    same place, without the current iteration.

    Args:
        dataset: The loader's dataset; if its epoch is set, the next iteration has that epoch.
        batch_size: Samples per batch and rank.
    """

    def __init__(self, dataset: Dataset, batch_size: int) -> None:
        self._dataset = dataset
        self._batch_size = batch_size
        self._counts: dict[tuple[World, ViewMark | None, int, Skips], tuple[int, int]] = {}
        self._epochs_set = dataset.epochs_set
        self._next = State(dataset.epoch_set, 0)
        self._delivered: State | None = None
        self._num_delivered = 0
        self._is_chosen = True
        self._has_warned = False
        self._source = dataset.source
        self._batches: weakref.ref[Batches] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_batches": None}

    @property
    def start(self) -> State:
        """Where the next iteration begins."""
        self._follow_dataset()
        return self._next

    def start_in(self, epoch: int) -> State:
        """Return where the current iteration of an epoch began, with its skips; else where the next one begins."""
        start, batches = self.start, self.under_way
        if batches is not None and batches.epoch == epoch:
            return replace(batches.start, skips=batches.skips)
        return start if start.epoch == epoch else State(epoch, 0)

    @property
    def state(self) -> State:
        """The position that the current iteration has delivered up to; else where the next one begins."""
        start = self.start
        return self._delivered or start

    @property
    def epoch(self) -> int:
        """The epoch of the iteration under way, else of the next one."""
        start, batches = self.start, self.under_way
        return start.epoch if batches is None else batches.epoch

    @property
    def under_way(self) -> Batches | None:
        """The iteration that counts, unless it has ended."""
        batches = None if self._batches is None else self._batches()
        return None if batches is None or batches.ended else batches

    @property
    def source(self) -> AnySource:
        """The source of the current iteration, else of the next one."""
        epoch, batches = self.start.epoch, self.under_way
        if batches is None or batches.epoch != epoch:
            return self._dataset.source
        return batches.source

    def source_of(self, state: State) -> AnySource:
        """Return the source that the positions of a state refer to: the views may have been set again since."""
        batches = self.under_way
        if batches is not None and batches.epoch == state.epoch:
            return batches.source
        is_of_last = state.position > 0 and self._source.view_at(state.epoch) == state.view
        return self._source if is_of_last else self._dataset.source

    def order_of(self, state: State) -> AnyOrder:
        """Return the order that the position of a state refers to; that of the current iteration is not made again."""
        batches = self.under_way
        if batches is not None and batches.epoch == state.epoch:
            return batches.order
        return self.source_of(state).order(state.epoch)

    def step_at(self, state: State) -> int:
        """Return the number of the first step after a state."""
        order, world = self.order_of(state), self._dataset.world()
        return Steps(order, world, self._batch_size, state.position, state.skips).first_number

    def num_steps(self, epoch: int) -> int:
        """Return the steps of a whole epoch, without those that its iteration skips."""
        return sum(self.counts_of(epoch))

    def counts_of(self, epoch: int) -> tuple[int, int]:
        """Return how many steps of an epoch are behind where its iteration began, and how many it gives."""
        source, start, world = self.source, self.start_in(epoch), self._dataset.world()
        known = world, source.view_at(epoch), start.position, start.skips
        counts = self._counts.get(known)
        if counts is None:
            steps = Steps(source.order(epoch), world, self._batch_size, start.position, start.skips)
            counts = steps.number_at(start.position), len(steps)
            if self._dataset.options.tail != "uneven":  # the same in every epoch of a view
                self._counts[known] = counts
        return counts

    def choose_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; a position within that epoch is kept."""
        self._follow_dataset()
        self._go_to(epoch)

    def resume(self, state: State) -> None:
        """Go to a state: the next iteration gives the rest of its epoch."""
        self._follow_dataset()
        self._next, self._delivered, self._batches, self._is_chosen = state, None, None, True

    def begin(self, batches: Batches, start: State, is_empty: bool) -> None:
        """Track batches from `start` on; if the iteration is left early, the next one starts there again.

        Warn once if that repeats more than a first batch, which a program may take only to look at it.
        """
        done = self._delivered or start
        is_again = not self._is_chosen and done.epoch == start.epoch and done.position > start.position
        is_again = is_again and batches.source is self._source
        is_shuffled, is_first = self._dataset.options.shuffle, not self._dataset.world().rank
        if is_again and self._num_delivered > 1 and is_shuffled and is_first and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{batches.source.url}: epoch {start.epoch} begins again with the same batches, because the last loop "
                "left it early: call loader.set_epoch(epoch) before each epoch",
                stacklevel=3,
            )
        self._batches, self._source = weakref.ref(batches), batches.source
        self._delivered, self._next, self._num_delivered, self._is_chosen = start, start, 0, False
        if is_empty:
            self._delivered = self._next = start.ended()

    def skip(self, skips: Skips, view: ViewMark | None) -> None:
        """Leave positions of a view out of the current epoch, else of the next one.

        `skips` includes those left out before.
        """
        self._next = replace(self._next, skips=skips, view=view)
        if self._delivered is not None:
            self._delivered = replace(self._delivered, skips=skips, view=view)

    def deliver(self, batches: Batches, state: State, is_last: bool) -> None:
        """Record that batches were delivered up to a state, if they are the ones that count."""
        if self._batches is not None and self._batches() is batches:
            if is_last and self._is_chosen:  # the same epoch was chosen for the next iteration
                state = State(batches.epoch, 0, skips=batches.skips)
            self._num_delivered += 1
            self._delivered = state
            self._next = state if is_last else self._next

    def _follow_dataset(self) -> None:
        """Choose the dataset's epoch if it was set meanwhile."""
        if self._dataset.epochs_set != self._epochs_set:
            self._epochs_set = self._dataset.epochs_set
            self._go_to(self._dataset.epoch_set)

    def _go_to(self, epoch: int) -> None:
        self._is_chosen = True
        if self._next.epoch != epoch:
            self._next = State(epoch, 0)
        if self._delivered is not None and self._delivered.epoch != epoch:
            self._delivered, self._batches = None, None
