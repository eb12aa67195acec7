"""Weights of a mixture that change over time, as whole numbers of samples.

Pure (no I/O). A schedule is a sequence of stretches, in each of which the sources keep their shares. What an epoch
takes of a source is the difference of two counts from the beginning, so earlier epochs need not be computed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import gcd, lcm
from typing import Any

import xxhash

from wdsplit.integers import whole
from wdsplit.order.mixture import EpochShares
from wdsplit.order.shares import MAX_MIXED_SAMPLES, exact, in_proportion, refuse, rounded

__all__ = ["Schedule"]

Counts = tuple[int, ...]


class Schedule:
    """Weights at positions; positions count the mixture's samples over all epochs.

    A stretch goes from one point to the next. It has the weights of its first point, and takes the exact share of each
    source, rounded. After the last point its weights stay: each epoch that begins there takes their exact shares,
    rounded. A stretch that lies in two epochs is divided so that both get its shares, up to about one sample.

    Args:
        points: Positions, rising from 0, each with a weight of at least 0 for each source.
        sizes: Samples of each source.
        names: Names of the sources in messages.
        num_samples: Samples of an epoch.

    Attributes:
        points: The points: a position, and weights as the least whole numbers in the same proportion.
        num_samples: Samples of an epoch.

    Raises:
        InputError: The arguments are invalid, a source with a weight has no samples, or a share rounds to 0.
    """

    def __init__(
        self,
        points: Sequence[tuple[int, Sequence[Any]]],
        sizes: Sequence[int],
        names: Sequence[str],
        num_samples: int | None = None,
    ) -> None:
        num_samples = sum(sizes) if num_samples is None else whole(num_samples)
        problems = []
        if type(num_samples) is not int or not 1 <= num_samples <= MAX_MIXED_SAMPLES:
            problems.append(f"num_samples = {num_samples!r}: expected an integer from 1 to 2**50")
        self.points = _checked(points, names, problems)
        refuse(problems)
        self.num_samples = num_samples
        self._begins = [position for position, _ in self.points]
        self._counts, self._taken = list[Counts](), [(0,) * len(sizes)]
        for number, (begin, weights) in enumerate(self.points):
            is_last = number == len(self.points) - 1
            end = begin + num_samples if is_last else self._begins[number + 1]
            shares = in_proportion([Fraction(weight) for weight in weights], end - begin, problems)
            self._counts.append(tuple(rounded(shares)))
            self._taken.append(_sum(self._taken[-1], self._counts[-1]))
            where = f"each epoch from {begin:,} on" if is_last else f"positions {begin:,} to {end - 1:,}"
            problems += [
                f"{name}: its share of {where}, {float(share):.3g} of a sample, rounds to 0"
                for name, share, count in zip(names, shares, self._counts[-1], strict=True)
                if share and not count
            ]
        used = [any(weights[source] for _, weights in self.points) for source in range(len(sizes))]
        rows = zip(names, sizes, used, strict=True)
        problems += [f"{name}: has a weight, but no samples" for name, size, is_used in rows if is_used and not size]
        refuse(problems)

    def taken(self, position: int) -> Counts:
        """Return how many samples of each source all positions before this one take."""
        stretch = bisect_right(self._begins, position) - 1
        inside, counts, before = position - self._begins[stretch], self._counts[stretch], self._taken[stretch]
        if stretch == len(self._counts) - 1:
            rounds, inside = divmod(inside, self.num_samples)
            before = _sum(before, tuple(rounds * count for count in counts))
        return _sum(before, _part(counts, inside))

    def epoch(self, epoch: int) -> EpochShares:
        """Return the shares of an epoch."""
        begin, end = epoch * self.num_samples, (epoch + 1) * self.num_samples
        inside = self._begins[bisect_right(self._begins, begin) : bisect_left(self._begins, end)]
        ends = [self.taken(position) for position in (begin, *inside, end)]
        segments = [tuple(b - a for a, b in zip(*each, strict=True)) for each in pairwise(ends)]
        return EpochShares(tuple(segments), ends[0])

    @property
    def fingerprint(self) -> str:
        """Identifies the schedule in a state: a short text."""
        # "step" stays in it: fingerprints in saved states have it
        digest = xxhash.xxh3_64_hexdigest(repr((self.points, self.num_samples, "step")).encode())
        return f"{len(self.points)} points (step, epochs of {self.num_samples}) {digest}"

    def described(self) -> str:
        """Return the positions of the points, for people."""
        shown = [f"{position:,}" for position, _ in self.points[:4]] + ["..."] * (len(self.points) > 4)
        return f"weights at {', '.join(shown)}"


def _sum(one: Counts, other: Counts) -> Counts:
    return tuple(a + b for a, b in zip(one, other, strict=True))


def _checked(
    points: Sequence[tuple[int, Sequence[Any]]], names: Sequence[str], problems: list[str]
) -> tuple[tuple[int, Counts], ...]:
    """Return the points with plain integers; note what is wrong with them."""
    checked: list[tuple[int, Counts]] = []
    before = -1
    for number, (position, weights) in enumerate(points):
        position, low = whole(position), before
        is_position = type(position) is int and 0 <= position <= MAX_MIXED_SAMPLES
        before = position if is_position else before
        if not is_position or not low < position or (number == 0) != (position == 0):
            expected = "0, where the first epoch begins"
            if number:
                expected = f"an integer above {max(low, 0):,}, the position of the point before, at most 2**50"
            problems.append(f"point {number}: position = {position!r}: expected {expected}")
            continue
        if len(weights) != len(names):
            problems.append(f"point {number}: expected {len(names)} weights, one per source, found {len(weights)}")
            continue
        rows = zip(names, weights, strict=True)
        shares = [exact(weight, f"point {number}, {name}: weight", problems) for name, weight in rows]
        if sum(shares):  # the least whole numbers in the same proportion
            common = lcm(*(weight.denominator for weight in shares))
            numbers = [int(weight * common) for weight in shares]
            checked.append((position, tuple(number // gcd(*numbers) for number in numbers)))
        else:
            problems.append(f"point {number}: weights: expected at least one above 0")
    if not points:
        problems.append("schedule: expected at least one point")
    return tuple(checked)


def _part(counts: Counts, position: int) -> Counts:
    """Return how many samples of each source the first positions of a stretch take; no count falls with the position.

    The sources are halved, and each half gets its rounded share of the positions, as in `MixedOrder`.
    """
    if len(counts) == 1:
        return (position,)
    middle, total = len(counts) // 2, max(1, sum(counts))
    left = (sum(counts[:middle]) * position + total // 2) // total
    return (*_part(counts[:middle], left), *_part(counts[middle:], position - left))
