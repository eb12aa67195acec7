"""The positions of global batches by step: the samples that all ranks together see.

Pure (no I/O). Steps are counted from a state on, forwards and backwards, as the loader that resumes from it counts.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.errors import InputError
from wdsplit.order.split import AnyOrder, Steps, World
from wdsplit.order.state import State

__all__ = ["SeenStep", "SeenSteps"]


@dataclass(frozen=True)
class SeenStep:
    """The positions that the ranks see in a step.

    Attributes:
        epoch: The epoch.
        number: The number of the step in the epoch, counted from 0.
        num_steps: The steps of the whole epoch, skipped ones too.
        positions: int64 of shape (samples,), rising.
        ranks: int64 of shape (samples,): the rank that receives each.
        is_skipped: Whether the step is skipped (`Loader.skip`), so that no rank sees it.
    """

    epoch: int
    number: int
    num_steps: int
    positions: Int64
    ranks: Int64
    is_skipped: bool = False


class SeenSteps:
    """The steps of an epoch over all ranks, as the loader delivers them that has a state or resumes from it.

    Args:
        order: The epoch's order.
        batch_size: Samples a batch and rank.
        world_size: Ranks.
        state: The state of a loader; None for the beginning of the epoch.
        rank: With tail `uneven` and a state: the rank of the state, the only one that is known. None for all.
    """

    def __init__(
        self, order: AnyOrder, batch_size: int, world_size: int, state: State | None = None, rank: int | None = None
    ) -> None:
        state = state or State(order.epoch, 0)
        if state.global_batch is not None:  # else that of the arguments is believed
            state = state.in_steps_of(batch_size * world_size)
        self._order, self._state, self._world_size = order, state, world_size
        worlds, size = [World()], batch_size * world_size
        if order.options.tail == "uneven":
            ranks, size = range(world_size) if rank is None else [rank], batch_size
            worlds = [World(each, world_size) for each in ranks]
        self._lines = [_Line(order, world, size, state) for world in worlds]

    def __len__(self) -> int:
        """Return the steps of the whole epoch, skipped ones too; with tail `uneven` those of the rank that has most."""
        return max(line.num_steps for line in self._lines)

    def step(self, number: int) -> SeenStep:
        """Return a step by its number.

        Raises:
            InputError: There is no such step.
        """
        if not 0 <= number < len(self):
            raise self._no_step(number, f"a step from 0 to {len(self) - 1}" if len(self) else "none: it has no steps")
        begins = [line.begin_of(number) for line in self._lines]
        if all(line.number_at(begin) <= number for begin, line in zip(begins, self._lines, strict=True)):
            return self._seen(number, begins)
        positions = self._lines[0].skipped(number)
        if not len(positions):
            since = self._state.since
            expected = f"a step after position {since}, where the global batch changed" if since else "another step"
            raise self._no_step(number, expected)
        ranks = positions % self._world_size
        return SeenStep(self._order.epoch, number, len(self), positions, ranks, is_skipped=True)

    def due(self, first: int, last: int) -> tuple[int, int] | None:
        """Return the first and the end of the positions of some steps; None if some were delivered before the state.

        Skipped steps have none. Ranks must advance evenly.
        """
        line = self._lines[0]
        begin, end = line.begin_of(first), line.begin_of(last + 1)
        if begin < min(end, line.first) or (first < line.number_at(line.oldest) and not len(line.skipped(first))):
            return None
        return (0, 0) if begin >= end else (int(line.take(begin)[0]), int(line.take(end - line.size)[-1]) + 1)

    def before(self) -> Iterator[SeenStep]:
        """Give the whole steps before the state, the last one first, without those that are skipped.

        They end where the epoch or its global batch began.
        """
        begins = [line.first for line in self._lines]
        while True:
            begins = [begin - line.size for begin, line in zip(begins, self._lines, strict=True)]
            if any(begin < line.oldest for begin, line in zip(begins, self._lines, strict=True)):
                return
            yield self._seen(self._lines[0].number_at(begins[0]), begins)

    def _seen(self, number: int, begins: list[int]) -> SeenStep:
        parts = [line.take(begin) for begin, line in zip(begins, self._lines, strict=True)]
        positions = np.sort(np.concatenate(parts))
        ranks = self._state.skips.numbers(positions) % self._world_size
        return SeenStep(self._order.epoch, number, len(self), positions, ranks)

    def _no_step(self, number: int, expected: str) -> InputError:
        return InputError("no such step", place=f"epoch {self._order.epoch}", expected=expected, found=str(number))


class _Line:
    """What is delivered of an epoch, one after another.

    With tail `uneven` the samples of one rank, else the positions of all ranks, which advance together. Skipped
    positions do not count.

    Attributes:
        size: Deliveries of a step.
        first: The delivery with which the next step begins.
        oldest: The delivery with which the first step of this size begins.
        num_steps: Steps of the whole epoch.
    """

    def __init__(self, order: AnyOrder, world: World, size: int, state: State) -> None:
        self._steps = Steps(order, world, size, state.position, state.skips)
        self._is_uneven = order.options.tail == "uneven"
        self._skips, self._since, self.size = state.skips, state.since, size
        self.num_steps = len(Steps(order, world, size))
        self.first, since = self._before(state.position), self._before(state.since)
        if self._is_uneven:  # the last step, which may be smaller, counts as a whole one
            self.first += (since - self.first) % size
        self.oldest = self.first - (self.first - since) // size * size
        self._stop = self.first + len(self._steps) * size

    def begin_of(self, number: int) -> int:
        """Return the delivery with which a step begins; if it is skipped, the next one; at most the end."""
        begins = range(self.oldest, self._stop + 1, self.size)
        return begins[min(bisect.bisect_left(begins, number, key=self.number_at), len(begins) - 1)]

    def number_at(self, begin: int) -> int:
        """Return the number of the step that begins with a delivery; behind the last one, that of all steps."""
        if self._is_uneven or begin >= self._stop:
            return self.num_steps - (self._stop - begin) // self.size
        return self._steps.number_at(int(self._skips.positions(begin)))

    def take(self, begin: int) -> Int64:
        """Return the positions of the step that begins with a delivery; none behind the last one."""
        if not self._is_uneven:
            positions: Int64 = self._skips.positions(np.arange(begin, begin + self.size))
            return positions
        if begin >= self._stop:
            return np.zeros(0, np.int64)
        order, world = self._steps.order, self._steps.world
        position = bisect.bisect_left(range(order.num_positions), begin + 1, key=self._before) - 1
        return next(iter(Steps(order, world, self.size, position))).positions

    def skipped(self, number: int) -> Int64:
        """Return which positions are skipped of those that a step would have after the deliveries before it."""
        if self._is_uneven:  # steps of unequal ranks cannot be skipped
            return np.zeros(0, np.int64)
        begin = self.begin_of(number)
        start = max(self._since, int(self._skips.positions(begin - 1)) + 1) if begin else self._since
        start += (number - self._steps.number_at(start)) * self.size
        positions = np.arange(max(start, self._since), start + self.size)
        is_fill = positions >= self._steps.order.num_positions
        return positions[self._skips.contains(positions) | is_fill]

    def _before(self, position: int) -> int:
        """Return how many deliveries come before a position."""
        if not self._is_uneven:
            return int(self._skips.numbers(position))
        order, world = self._steps.order, self._steps.world
        return len(Steps(order, world, 1)) - len(Steps(order, world, 1, position))
