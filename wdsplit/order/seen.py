"""The positions of global batches by step: the samples that all ranks together see.

Pure (no I/O). Steps are counted from a state on, forwards and backwards, as the loader that resumes from it counts.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from wdsplit.errors import InputError
from wdsplit.order.epoch import Int64
from wdsplit.order.split import AnyOrder, Steps, World
from wdsplit.order.state import State

__all__ = ["SeenStep", "SeenSteps"]


@dataclass(frozen=True)
class SeenStep:
    """The positions that the ranks see in a step.

    Attributes:
        epoch: The epoch.
        number: The number of the step in the epoch, counted from 0.
        positions: int64 of shape (samples,), rising.
        ranks: int64 of shape (samples,): the rank that receives each.
        is_skipped: Whether the step is skipped (`Loader.skip`), so that no rank sees it.
    """

    epoch: int
    number: int
    positions: Int64
    ranks: Int64
    is_skipped: bool = False


class SeenSteps:
    """The steps of an epoch over all ranks.

    Args:
        order: The epoch's order.
        batch_size: Samples a batch and rank.
        world_size: Ranks.
        state: The state of a loader: steps are counted from its position, without those that it skips. None for the
            beginning of the epoch.
        rank: With tail `uneven` and a state: the rank of the state, the only one that is known. None for all.
    """

    def __init__(
        self, order: AnyOrder, batch_size: int, world_size: int, state: State | None = None, rank: int | None = None
    ) -> None:
        state = state or State(order.epoch, 0)
        self._order, self._state, self._world_size = order, state, world_size
        self._lines: list[_EvenLine | _UnevenLine] = []
        if order.options.tail != "uneven":
            self._lines.append(_EvenLine(Steps(order, World(), batch_size * world_size, state.position, state.skips)))
            return
        for each in range(world_size) if rank is None else [rank]:
            self._lines.append(_UnevenLine(Steps(order, World(each, world_size), batch_size, state.position)))

    def __len__(self) -> int:
        """Return the steps of the whole epoch, skipped ones too; with tail `uneven` those of the rank that has most."""
        return max(line.num_steps for line in self._lines)

    def step(self, number: int) -> SeenStep:
        """Return a step by its number.

        Raises:
            InputError: There is no such step.
        """
        if not 0 <= number < len(self):
            raise InputError(
                "no such step",
                place=f"epoch {self._order.epoch}",
                expected=f"a step from 0 to {len(self) - 1}" if len(self) else "none: the epoch has no steps",
                found=str(number),
            )
        return self._seen(number, [line.begin_of(number) for line in self._lines])

    def before(self) -> Iterator[SeenStep]:
        """Give the whole steps before the state, the last one first, without those that are skipped."""
        begins = [line.first for line in self._lines]
        while True:
            begins = [begin - line.size for begin, line in zip(begins, self._lines, strict=True)]
            if min(begins) < 0:
                return
            yield self._seen(self._lines[0].number_at(begins[0]), begins)

    def _seen(self, number: int, begins: list[int]) -> SeenStep:
        parts = [line.take(begin) for begin, line in zip(begins, self._lines, strict=True)]
        is_skipped = any(line.number_at(begin) != number for begin, line in zip(begins, self._lines, strict=True))
        if is_skipped:
            parts = [line.planned(number) for line in self._lines if isinstance(line, _EvenLine)]
        positions = np.sort(np.concatenate(parts))
        ranks = (positions if is_skipped else self._state.skips.numbers(positions)) % self._world_size
        return SeenStep(self._order.epoch, number, positions, ranks, is_skipped)


class _EvenLine:
    """The deliveries of all ranks, one after another, where ranks advance evenly; skipped positions do not count.

    Args:
        steps: The steps of a single rank with the same global batches.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps, self._skips, self._first_number = steps, steps.skips, steps.first_number
        self.size = steps.batch_size
        self.first = int(self._skips.numbers(steps.start))
        self._stop = self.first + len(steps) * self.size
        self.num_steps = len(Steps(steps.order, steps.world, steps.batch_size))

    def begin_of(self, number: int) -> int:
        """Return the delivery with which a step begins; if it is skipped, the next one."""
        before = int(self._skips.numbers(self._begin(number))) - self.first
        return self.first - -before // self.size * self.size

    def number_at(self, begin: int) -> int:
        """Return the number of the step that begins with a delivery; -1 if it would be dropped."""
        if begin >= self._stop:
            return -1
        return self._first_number + (int(self._skips.positions(begin)) - self._steps.start) // self.size

    def take(self, begin: int) -> Int64:
        """Return the positions of the step that begins with a delivery."""
        positions: Int64 = self._skips.positions(np.arange(max(0, begin), begin + self.size))
        return positions

    def planned(self, number: int) -> Int64:
        """Return the positions that a step would have if none were skipped."""
        begin = self._begin(number)
        return np.arange(max(0, begin), begin + self.size)

    def _begin(self, number: int) -> int:
        return self._steps.start + (number - self._first_number) * self.size


class _UnevenLine:
    """The samples of one rank, one after another, with tail `uneven`.

    Args:
        steps: The rank's steps.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps, self._first_number = steps, steps.first_number
        self.size = steps.batch_size
        self._total = self._left(0)
        self.first = self._before(steps.start)
        self.num_steps = -(-self._total // self.size)

    def begin_of(self, number: int) -> int:
        """Return the sample with which a step begins."""
        return self.first + (number - self._first_number) * self.size

    def number_at(self, begin: int) -> int:
        """Return the number of the step that begins with a sample."""
        return self._first_number + (begin - self.first) // self.size

    def take(self, begin: int) -> Int64:
        """Return the positions of the step that begins with a sample."""
        begin, count = max(0, begin), min(begin + self.size, self._total) - max(0, begin)
        if count <= 0:
            return np.zeros(0, np.int64)
        position = bisect.bisect_left(range(self._steps.order.num_positions), begin + 1, key=self._before) - 1
        return next(iter(Steps(self._steps.order, self._steps.world, count, position))).positions

    def _left(self, position: int) -> int:
        return len(Steps(self._steps.order, self._steps.world, 1, position))

    def _before(self, position: int) -> int:
        return self._total - self._left(position)
