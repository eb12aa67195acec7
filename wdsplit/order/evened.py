"""Lanes of equal length, made from lanes of whole shards: long lanes fill up short ones.

Pure (no I/O). Each lane keeps its own samples up to the common length. The samples after that go to lanes that are too
short. There they are visited last, while their own lane visits its last window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter

import numpy as np

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
    num_lanes = len(lengths)
    surplus, missing = np.maximum(lengths - targets, 0).tolist(), np.maximum(targets - lengths, 0).tolist()
    following = (begins + targets).tolist()  # where the surplus of each lane begins
    # each stretch: the lane that gets it, where it begins in the sequence of whole shards, and its samples
    stretches = list(zip(range(num_lanes), begins.tolist(), np.minimum(lengths, targets).tolist(), strict=True))
    for divisor in _divisors(num_lanes):
        for first in range(divisor):
            lanes = range(first, num_lanes, divisor)
            givers = deque(lane for lane in lanes if surplus[lane])
            takers = deque(lane for lane in lanes if missing[lane])
            while givers and takers:
                giver, taker = givers[0], takers[0]
                size = min(surplus[giver], missing[taker])
                stretches.append((taker, following[giver], size))
                following[giver] += size
                surplus[giver] -= size
                missing[taker] -= size
                if not surplus[giver]:
                    givers.popleft()
                if not missing[taker]:
                    takers.popleft()
    by_lane = sorted((stretch for stretch in stretches if stretch[2]), key=itemgetter(0))
    _, sources, sizes = np.array(by_lane, np.int64).reshape(-1, 3).T
    return Stretches(np.cumsum(sizes) - sizes, sources)


def _divisors(lanes: int) -> Iterator[int]:
    """Give divisors of the number of lanes, falling to 1, each a divisor of the one before."""
    while lanes > 1:
        lanes //= next(prime for prime in range(2, lanes + 1) if lanes % prime == 0)
        yield lanes
