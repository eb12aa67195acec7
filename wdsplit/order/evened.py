"""Lanes of equal length, made from lanes of whole shards: long lanes fill up short ones.

Pure (no I/O). Each lane keeps its own samples up to the common length. The samples after that go to lanes that are too
short. There they are visited last, while their own lane visits its last window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64

__all__ = ["Stretches", "evened"]


@dataclass(frozen=True)
class Stretches:
    """A sequence made of stretches of another sequence. Immutable.

    Attributes:
        begins: int64 of shape (stretches,), rising: where each stretch begins in this sequence.
        sources: int64 of shape (stretches,): where it begins in the other sequence.
    """

    begins: Int64
    sources: Int64

    @cached_property
    def _by_source(self) -> Int64:
        return np.argsort(self.sources)

    def sources_of(self, places: Int64) -> Int64:
        """Return where places of this sequence are in the other one."""
        stretch = np.searchsorted(self.begins, places, side="right") - 1
        sources: Int64 = self.sources[stretch] + (places - self.begins[stretch])
        return sources

    def places_of(self, sources: Int64) -> Int64:
        """Return where places of the other sequence are in this one."""
        rising = self._by_source
        stretch = rising[np.searchsorted(self.sources[rising], sources, side="right") - 1]
        places: Int64 = self.begins[stretch] + (sources - self.sources[stretch])
        return places


def evened(begins: Int64, lengths: Int64, targets: Int64) -> Stretches:
    """Return lanes of the target lengths, made from lanes of whole shards.

    Lanes of the same reader fill up each other first, for as many numbers of readers as possible: lanes whose numbers
    are equal modulo a large divisor of the number of lanes. So a reader visits a window that two of its lanes share
    only once.

    Args:
        begins: int64 of shape (lanes,): where each lane begins in the lane-major sequence of whole shards.
        lengths: int64 of shape (lanes,): their samples.
        targets: int64 of shape (lanes,): the samples that they get, with the same sum.
    """
    lanes = np.arange(len(lengths))
    surplus, missing = np.maximum(lengths - targets, 0), np.maximum(targets - lengths, 0)
    following = begins + targets
    filled, sources, sizes = [lanes], [begins], [np.minimum(lengths, targets)]
    for divisor in _divisors(len(lengths)):
        by_class = np.argsort(lanes % divisor, kind="stable")
        is_last = np.append(np.diff(by_class % divisor) != 0, True)
        given = _firsts(surplus[by_class], missing[by_class], is_last)
        taken = _firsts(missing[by_class], surplus[by_class], is_last)
        given_ends, taken_ends = np.cumsum(given), np.cumsum(taken)
        cuts = np.unique(np.concatenate([np.zeros(1, np.int64), given_ends, taken_ends]))
        giver = np.searchsorted(given_ends, cuts[:-1], side="right")
        filled.append(by_class[np.searchsorted(taken_ends, cuts[:-1], side="right")])
        sources.append(following[by_class[giver]] + cuts[:-1] - (given_ends[giver] - given[giver]))
        sizes.append(np.diff(cuts))
        following[by_class] += given
        surplus[by_class] -= given
        missing[by_class] -= taken
    size = np.concatenate(sizes)
    by_lane = np.argsort(np.concatenate(filled), kind="stable")
    by_lane = by_lane[size[by_lane] > 0]
    return Stretches(np.cumsum(size[by_lane]) - size[by_lane], np.concatenate(sources)[by_lane])


def _firsts(amounts: Int64, others: Int64, is_last: npt.NDArray[np.bool_]) -> Int64:
    """Return how much of each amount to take, first ones first: in each class at most the sum of its `others`."""
    last = np.flatnonzero(is_last)
    sizes = np.diff(last, prepend=-1)
    ends, total = np.cumsum(amounts), np.diff(np.cumsum(others)[last], prepend=0)
    begin = np.repeat(np.append(0, ends[last[:-1]]), sizes)
    allowed = np.minimum(ends - begin, np.repeat(total, sizes))
    firsts: Int64 = np.diff(allowed, prepend=0)
    firsts[last[:-1] + 1] = allowed[last[:-1] + 1]
    return firsts


def _divisors(lanes: int) -> Iterator[int]:
    """Give divisors of the number of lanes, falling to 1, each a divisor of the one before."""
    while lanes > 1:
        lanes //= next(prime for prime in range(2, lanes + 1) if lanes % prime == 0)
        yield lanes
