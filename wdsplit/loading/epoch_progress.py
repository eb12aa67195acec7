"""Where a loader is in its epochs: what its state names, and where its next iteration begins.

Pure (no I/O). One iteration at a time counts: the last that was begun, until another epoch or a state is chosen.
"""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from wdsplit.order.state import State

__all__ = ["EpochProgress"]


class _Epochs(Protocol):
    """A dataset, as far as it matters here: somebody may choose its epoch, too."""

    @property
    def epoch(self) -> int: ...

    @property
    def epochs_set(self) -> int: ...


class _Iteration(Protocol):
    """The batches of one epoch, or of the rest of one."""

    @property
    def epoch(self) -> int: ...

    @property
    def ended(self) -> bool: ...


class EpochProgress:
    """How far a loader has got.

    A copy goes on from the same place, without the iteration under way.

    Args:
        dataset: Its dataset; if its epoch is set, the next iteration gives that one.
    """

    def __init__(self, dataset: _Epochs) -> None:
        self._dataset = dataset
        self._epochs_set = dataset.epochs_set
        self._next = State(dataset.epoch, 0)
        self._delivered: State | None = None
        self._counting: weakref.ref[_Iteration] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_counting": None}

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
        iteration = None if self._counting is None else self._counting()
        return start.epoch if iteration is None or iteration.ended else iteration.epoch

    def choose_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; a position within that epoch is kept."""
        self._follow_dataset()
        self._go_to(epoch)

    def resume(self, state: State) -> None:
        """Go to a state: the next iteration gives the rest of its epoch."""
        self._follow_dataset()
        self._next, self._delivered, self._counting = state, None, None

    def begin(self, iteration: _Iteration, start: State, is_empty: bool) -> None:
        """An iteration has begun at `start`; if it is left early, the next one begins its epoch anew."""
        self._counting = weakref.ref(iteration)
        self._delivered, self._next = start, State(start.epoch, 0)
        if is_empty:
            self._delivered = self._next = State(start.epoch + 1, 0)

    def deliver(self, iteration: _Iteration, state: State, is_last: bool) -> None:
        """An iteration has delivered its batches up to a state; one that does not count changes nothing."""
        if self._counting is None or self._counting() is not iteration:
            return
        self._delivered = state
        if is_last:
            self._next = state

    def _follow_dataset(self) -> None:
        """Choose the dataset's epoch if that was set since."""
        if self._dataset.epochs_set != self._epochs_set:
            self._epochs_set = self._dataset.epochs_set
            self._go_to(self._dataset.epoch)

    def _go_to(self, epoch: int) -> None:
        if self._next.epoch != epoch:
            self._next = State(epoch, 0)
        if self._delivered is not None and self._delivered.epoch != epoch:
            self._delivered, self._counting = None, None
