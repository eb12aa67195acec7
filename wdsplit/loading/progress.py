"""A loader's progress: the only place that holds its position, from which its state, step, length and skips follow."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from wdsplit.errors import InputError, StateError
from wdsplit.integers import whole
from wdsplit.loading.batches import Batches, Running
from wdsplit.loading.dataset import Dataset
from wdsplit.order.seen import SeenSteps
from wdsplit.order.skips import Skips
from wdsplit.order.split import Steps, World
from wdsplit.order.state import State, ViewMark, dump_state, parse_state, refuse_other_view

__all__ = ["Progress"]


@dataclass(frozen=True)
class _Reached:
    """How far a loader has got.

    Attributes:
        start: Where the next iteration begins.
        state: The position that the current iteration has delivered up to; without one, where the next one begins.
        epochs_set: How often the dataset's epoch had been set.
        is_chosen: Whether the next iteration's epoch was chosen since the last one began.
        iteration: The iteration that counts, if there is one.
        num_delivered: Batches that it has delivered.
    """

    start: State
    state: State
    epochs_set: int
    is_chosen: bool
    iteration: weakref.ref[Batches] | None = None
    num_delivered: int = 0

    def at_epoch(self, epoch: int) -> _Reached:
        """Return this with another epoch for the next iteration; a position within that epoch is kept."""
        start = self.start if self.start.epoch == epoch else State(epoch, 0)
        if self.state.epoch == epoch:
            return replace(self, start=start, is_chosen=True)
        return replace(self, start=start, state=start, is_chosen=True, iteration=None)

    def under_way(self, epoch: int | None = None) -> Batches | None:
        """Return the iteration that counts unless it has ended, or is of another epoch than a given one."""
        batches = None if self.iteration is None else self.iteration()
        if batches is None or batches.ended or epoch not in (None, batches.epoch):
            return None
        return batches


class Progress:
    """Where a loader's epoch has got to, and where its next iteration begins.

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
        start = State(dataset.shared.epoch, 0)
        self._last = _Reached(start, start, dataset.shared.epochs_set, is_chosen=True)
        self._has_warned = self._has_begun = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": replace(self._last, iteration=None)}

    def _now(self) -> _Reached:
        """Return how far the loader has got, in the dataset's epoch if that was set since."""
        shared = self._dataset.shared
        if shared.epochs_set == self._last.epochs_set:
            return self._last
        return replace(self._last.at_epoch(shared.epoch), epochs_set=shared.epochs_set)

    @property
    def start(self) -> State:
        """Where the next iteration begins."""
        return self._now().start

    @property
    def state(self) -> State:
        """The position that the current iteration has delivered up to; else where the next one begins."""
        return self._now().state

    @property
    def epoch(self) -> int:
        """The epoch of the iteration under way, else of the next one."""
        now = self._now()
        batches = now.under_way()
        return now.start.epoch if batches is None else batches.epoch

    # Steps

    def step_at(self, state: State) -> int:
        """Return the number of the first step after a state."""
        batches = self._now().under_way(state.epoch)
        order = self._dataset.order(state.epoch) if batches is None else batches.order  # that is not made again
        return Steps(order, self._dataset.world(), self._batch_size, state.position, state.skips).first_number

    def num_steps(self, epoch: int) -> int:
        """Return the steps of a whole epoch, without those that its iteration skips."""
        return sum(self.counts_of(epoch))

    def counts_of(self, epoch: int) -> tuple[int, int]:
        """Return how many steps of an epoch are behind where its iteration began, and how many it gives."""
        now, world, source = self._now(), self._dataset.world(), self._dataset.source
        batches = now.under_way(epoch)
        start = now.start if now.start.epoch == epoch else State(epoch, 0)
        if batches is not None:
            start = batches.start
        known = world, source.view_at(epoch), start.position, start.skips
        counts = self._counts.get(known)
        if counts is None:
            steps = Steps(source.order(epoch), world, self._batch_size, start.position, start.skips)
            counts = steps.number_at(start.position), len(steps)
            if self._dataset.options.tail != "uneven":  # the same in every epoch of a view
                self._counts[known] = counts
        return counts

    # What moves the position

    def begin(self, batches: Batches) -> None:
        """Track batches; if the iteration is left early, the next one starts there again.

        Warn once if that repeats more than a first batch, which a program may take only to look at it.
        """
        self._has_begun = True
        now, start = self._now(), batches.start
        done = now.state
        is_again = not now.is_chosen and done.epoch == start.epoch and done.position > start.position
        is_shuffled, is_first = self._dataset.options.shuffle, not self._dataset.world().rank
        if is_again and now.num_delivered > 1 and is_shuffled and is_first and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self._dataset.source.url}: epoch {start.epoch} begins again with the same batches, because the last "
                "loop left it early: call loader.set_epoch(epoch) before each epoch",
                stacklevel=3,
            )
        begin = start if batches.left else start.ended()
        self._last = _Reached(begin, begin, now.epochs_set, is_chosen=False, iteration=weakref.ref(batches))

    def deliver(self, batches: Batches, position: int) -> None:
        """Record that batches were delivered up to a position, if they are the ones that count."""
        now = self._now()
        if now.iteration is None or now.iteration() is not batches:
            return
        start, view = now.start, self._dataset.source.view_at(batches.epoch)
        state = replace(batches.start, position=position, view=view)
        if not batches.left:  # unless the same epoch was chosen for the next iteration, that has the next one
            start = state = State(batches.epoch, 0, skips=state.skips) if now.is_chosen else state.ended()
        self._last = replace(now, start=start, state=state, num_delivered=now.num_delivered + 1)

    def choose_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration; a position within that epoch is kept."""
        self._last = self._now().at_epoch(epoch)

    def skip(self, first: int, last: int, begin: Callable[[Steps], Running]) -> None:
        """Leave steps out of the current epoch, else of the next one; see `Loader.skip`."""
        now, world, source = self._now(), self._dataset.world(), self._dataset.source
        state = now.state.in_steps_of(self._batch_size * world.world_size)
        order = source.order(state.epoch)
        if self._dataset.options.tail == "uneven":
            raise InputError(
                "steps cannot be skipped with tail='uneven'",
                place=source.url,
                expected="tail='pad' or 'drop', with which a step is the same on all ranks",
                remedy="open the dataset with another tail",
            )
        seen, numbers = SeenSteps(order, self._batch_size, world.world_size, state), [whole(first), whole(last)]
        are_steps = all(type(number) is int for number in numbers) and 0 <= numbers[0] <= numbers[1] < len(seen)
        due = seen.due(*numbers) if are_steps else None
        if due is None:
            expected = f"0 <= first <= last < {len(seen)}" if len(seen) else "none: the epoch has no steps"
            if are_steps:
                due_from = Steps(order, world, self._batch_size, state.position, state.skips).first_number
                expected = f"steps from {due_from} on: earlier ones are already delivered"
            raise InputError(
                "cannot skip these steps",
                place=f"{source.url}, epoch {state.epoch}",
                expected=expected,
                found=f"{first!r} to {last!r}",
            )
        skips = state.skips.added(due[0], min(due[1], order.num_positions))
        if skips == state.skips:
            return
        view = source.view_at(state.epoch)
        start, state = (replace(each, skips=skips, view=view) for each in (now.start, now.state))
        self._last = replace(now, start=start, state=state)
        batches = now.under_way()
        if batches is not None:
            batches.running.close(failed=True)  # even persistent workers: other batches are needed
            rest = Steps(order, world, self._batch_size, state.position, skips)
            batches.go_on(rest, begin(rest))
            if not batches.left:
                self.deliver(batches, state.position)

    # State dicts

    def dumped(self) -> dict[str, Any]:
        """Return the state as plain JSON values; before the first position the epoch's view is that of the dataset."""
        now, source, world = self._now(), self._dataset.source, self._dataset.world()
        state = now.state
        if not state.position:
            state = replace(state, view=source.view_at(state.epoch))
        if now.is_chosen:  # else an iteration has its own global batch, and the process group may be another by now
            state = state.in_steps_of(self._batch_size * world.world_size)
        return dump_state(state, source.fingerprint, self._dataset.options, world)

    def load(self, values: Mapping[str, Any]) -> None:
        """Go to a state: the next iteration gives the rest of its epoch.

        Raises:
            StateError: It is of another dataset, another view or other options, or it is damaged. Before its first
                sample, an epoch without skips may have any view.
        """
        dataset = self._dataset
        self._follow_version(values)
        try:
            state = parse_state(values, dataset.source.fingerprint, dataset.options, dataset.world())
        except StateError as error:
            number = dataset.shared.version_with(values.get("fingerprint")) if isinstance(values, Mapping) else None
            if number is not None:
                error.remedy = f"it is of version {number}: open that with version={number}; or {error.remedy}"
            raise
        if state.position or state.skips:
            source = dataset.source
            refuse_other_view(state.view, source.view_at(state.epoch), state.epoch, source.url)
        num_positions = dataset.order(state.epoch).num_positions
        if state.position >= max(1, num_positions):
            raise StateError(
                "the state is past the end of its epoch",
                expected=f"a position below {num_positions}",
                found=str(state.position),
                remedy="the state is damaged: use an earlier checkpoint",
            )
        self._last = _Reached(state, state, dataset.shared.epochs_set, is_chosen=True)

    def _follow_version(self, values: Mapping[str, Any]) -> None:
        """Go to the older version of the dataset that a state is of, before the first batch."""
        found, newest = values.get("fingerprint") if isinstance(values, Mapping) else None, self._dataset.source
        if self._has_begun or not isinstance(found, str) or found == newest.fingerprint:
            return
        manifest = self._dataset.shared.reopen(found)
        if manifest is not None:
            self._counts.clear()
            if not self._dataset.world().rank:
                units = self._dataset.source.units_text(0)
                warnings.warn(
                    f"{newest.url}: the state is of version {manifest.version}, so its {units} are read; the latest "
                    f"version has {newest.units_text(0)}",
                    stacklevel=4,
                )
