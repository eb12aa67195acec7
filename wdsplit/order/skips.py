"""Positions of an epoch that are left out, as ranges; the others are numbered through without gaps.

Pure (no I/O).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64

__all__ = ["NO_SKIPS", "Skips"]


@dataclass(frozen=True)
class Skips:
    """Ranges of positions that are left out. Immutable.

    Attributes:
        ranges: Begin and end of each range, rising; ranges neither overlap nor touch.
    """

    ranges: tuple[tuple[int, int], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ranges)

    @cached_property
    def _begins(self) -> Int64:
        return np.array([begin for begin, _ in self.ranges], np.int64)

    @cached_property
    def _totals(self) -> Int64:
        """Positions left out in the first 0, 1, 2, ... ranges."""
        return np.cumsum([0, *(end - begin for begin, end in self.ranges)], dtype=np.int64)

    def added(self, begin: int, end: int) -> Skips:
        """Return these ranges and another."""
        ranges: list[tuple[int, int]] = []
        for first, stop in sorted([*self.ranges, (begin, end)] if begin < end else self.ranges):
            if ranges and first <= ranges[-1][1]:
                first, stop = ranges[-1][0], max(stop, ranges.pop()[1])
            ranges.append((first, stop))
        return Skips(tuple(ranges))

    def contains(self, positions: Int64) -> npt.NDArray[np.bool_]:
        """Tell which positions are left out."""
        found = np.zeros(len(positions), np.bool_)
        for begin, end in self.ranges:
            found |= (begin <= positions) & (positions < end)
        return found

    def numbers(self, positions: Any) -> Any:
        """Return how many positions below each one are not left out: int64 of the shape of `positions`."""
        return positions - sum(np.clip(positions - begin, 0, end - begin) for begin, end in self.ranges)

    def positions(self, numbers: Any) -> Any:
        """Return the positions that are not left out, by their numbers: int64 of any shape, or an integer."""
        if not self.ranges:
            return numbers
        return numbers + self._totals[np.searchsorted(self._begins - self._totals[:-1], numbers, side="right")]


NO_SKIPS = Skips()
