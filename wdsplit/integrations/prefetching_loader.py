"""The state of a loader whose batches are prefetched: by a library, or to copy them to devices.

`wdsplit.Loader` counts the batches it has delivered. Here each batch comes with the state after it, and the state of
the last used batch is the loader's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from wdsplit.errors import InputError
from wdsplit.loading.loader import Loader
from wdsplit.loading.states import dumped_state
from wdsplit.order.split import Step
from wdsplit.order.state import State

__all__ = ["PrefetchingLoader", "StatefulBatches"]


class StatefulBatches(Iterator[tuple[Any, Step, State]]):
    """An iteration of a loader: each batch with its step, and the state after it.

    Attributes:
        begin: The state before the first batch.
        order: The order of the epoch.
    """

    def __init__(self, loader: Loader) -> None:
        self._batches = iter(loader)
        self.begin = loader.progress.state
        self.order = self._batches.source.order(self.begin.epoch)

    def __next__(self) -> tuple[Any, Step, State]:
        """Return the next batch, its step and the state after it."""
        batch = next(self._batches)
        return batch, self._batches.step, self._batches.state


class PrefetchingLoader:
    """A loader whose batches are prefetched; its state counts only those that were used.

    Args:
        loader: The loader; nothing else may iterate it.
    """

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self._reached: State | None = None
        self._begun = State(0, 0)
        self._is_used = False
        self._iteration = 0
        self._epochs_set = loader.dataset.epochs_set

    @property
    def epoch(self) -> int:
        """The epoch of the current iteration, else of the next one."""
        reached = self._state()
        return self.loader.epoch if reached is None else reached.epoch

    @property
    def step(self) -> int:
        """The number of the next step, as `wdsplit.Loader.step` counts."""
        reached = self._state()
        return self.loader.step if reached is None else self.loader.progress.step_at(reached)

    def enumerate(self) -> Iterator[tuple[int, Any]]:
        """Iterate this loader, and yield each batch with the number of its step, as `wdsplit.Loader.enumerate` does."""
        reached = self._state()
        start = self.loader.progress.start if reached is None else reached
        step = self.loader.progress.step_at(start.restarted() if self._is_used else start)
        for batch in self:
            yield step, batch
            step = self.step

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of the epoch; each library has its own way."""
        raise NotImplementedError

    def __len__(self) -> int:
        """Return the number of steps in a whole epoch."""
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. A position from `load_state_dict` is kept if it is in that epoch.

        Raises:
            InputError: The epoch is not an integer of at least 0.
        """
        reached = self._state()
        self.loader.set_epoch(epoch)
        if reached is not None and reached.epoch != epoch:
            self._forget()

    def skip(self, first: int, last: int) -> None:
        """Skip steps, as `wdsplit.Loader.skip` does, before an epoch begins or right after `load_state_dict`.

        Raises:
            InputError: An iteration has started, or as for `wdsplit.Loader.skip`.
        """
        if self._state() is not None:
            raise InputError(
                "cannot skip steps while batches are prefetched",
                expected="skip before the epoch begins, or right after load_state_dict",
                remedy="loader.load_state_dict(loader.state_dict()), then skip, then iterate",
            )
        self.loader.skip(first, last)

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the used batches as plain JSON values; prefetched batches do not count.

        It resumes on any number of ranks and with any batch size, here as in `wdsplit.Loader`.
        """
        reached = self._state()
        if reached is None:
            return self.loader.state_dict()
        return dumped_state(self.loader.dataset, reached, self.loader.batch_size)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where a state dict was taken: the next iteration yields the rest of its epoch.

        Raises:
            StateError: The state belongs to another dataset or other options.
        """
        self.loader.load_state_dict(state_dict)
        self._forget()

    def begin(self, goes_on: bool = False) -> tuple[StatefulBatches, int]:
        """Start an iteration; return it, and its number. Later reports on earlier iterations are ignored.

        An interrupted iteration starts again where it started before, as in `wdsplit.Loader`.

        Args:
            goes_on: Continue after the used batches, instead of starting their epoch again.
        """
        reached = self._state()
        if reached is not None and self._is_used and not goes_on:
            start = self._begun if self._begun.epoch == reached.epoch else reached.restarted()
            self.loader.progress.resume(replace(start, skips=reached.skips, view=reached.view))
        elif reached is not None:
            self.loader.load_state_dict(self.state_dict())
        progress = StatefulBatches(self.loader)
        self._forget()
        self._reached = self._begun = progress.begin
        return progress, self._iteration

    def used(self, iteration: int, state: State) -> None:
        """Record that a batch of an iteration was used, by the state after it."""
        if self._state() is not None and self._iteration == iteration:
            self._reached, self._is_used = state, True

    def ended(self, iteration: int) -> None:
        """Record that all batches of an epoch were taken: all count as used, unless `used` was called for some."""
        if self._iteration == iteration and not self._is_used:
            self._reached = None

    def _state(self) -> State | None:
        """Return the state after the used batches; None if that of the loader itself is right."""
        epochs_set = self.loader.dataset.epochs_set
        if self._epochs_set != epochs_set:
            self._epochs_set = epochs_set
            self._forget()
        return self._reached

    def _forget(self) -> None:
        """Ignore reports on the iterations that were started so far."""
        self._reached, self._is_used, self._iteration = None, False, self._iteration + 1
