"""Weights of a mixture that change over time, as whole numbers of samples.

Pure (no I/O). A schedule is a sequence of blocks, in each of which the sources keep their shares. What an epoch takes
of a source is the difference of two counts from the beginning, so earlier epochs need not be computed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise
from math import gcd, lcm
from typing import Any

import xxhash

from wdsplit.order.mixture import EpochShares
from wdsplit.order.shares import MAX_MIXED_SAMPLES, exact, in_proportion, numbered, refuse, rounded
from wdsplit.order.split import whole

__all__ = ["INTERPOLATIONS", "Schedule"]

INTERPOLATIONS = ("step", "linear")

_BLOCKS = 100
"""Blocks that a stretch of changing weights is cut into."""

Counts = tuple[int, ...]


class Schedule:
    """Weights at positions; positions count the mixture's samples over all epochs.

    A stretch goes from one point to the next. With `step`, it has the weights of its first point, and takes the exact
    share of each source, rounded. With `linear`, the weights change evenly to those of the next point, and the stretch
    takes their integral, rounded. Each of its blocks (hundredths of the stretch, unless these would be very short)
    takes its own integral, up to a few times as many samples as there are lanes. After the last point its weights stay:
    each epoch that begins there takes their exact shares, rounded.

    A block that lies in two epochs is divided so that both get its shares, up to about one sample.

    Args:
        points: Positions, rising from 0, each with a weight of at least 0 for each source.
        sizes: Samples of each source.
        num_samples: Samples of an epoch.
        interpolate: `step` or `linear`.
        lanes: Lanes of the mixture: blocks are multiples of them, so that readers continue in their open shards.
        names: Names of the sources in messages.

    Attributes:
        points: The points: a position, and weights as the least whole numbers in the same proportion.
        num_samples: Samples of an epoch.
        interpolate: As given.

    Raises:
        InputError: The arguments are invalid, a source with a weight has no samples, or a share rounds to 0.
    """

    def __init__(
        self,
        points: Sequence[tuple[int, Sequence[Any]]],
        sizes: Sequence[int],
        num_samples: int | None = None,
        interpolate: str = "step",
        lanes: int = 1,
        names: Sequence[str] = (),
    ) -> None:
        names = names or numbered(sizes)
        num_samples = sum(sizes) if num_samples is None else whole(num_samples)
        problems = []
        if type(num_samples) is not int or not 1 <= num_samples <= MAX_MIXED_SAMPLES:
            problems.append(f"num_samples = {num_samples!r}: expected an integer from 1 to 2**50")
        if interpolate not in INTERPOLATIONS:
            problems.append(f"interpolate = {interpolate!r}: expected one of {', '.join(INTERPOLATIONS)}")
        self.points = _checked(points, names, problems)
        refuse(problems)
        self.num_samples = num_samples
        self.interpolate = interpolate
        self._begins, self._counts, self._taken = [0], [], [(0,) * len(sizes)]
        for here, after in pairwise(self.points):
            self._add_stretch(here, after if interpolate == "linear" else (after[0], here[1]), lanes, names, problems)
        position, weights = self.points[-1]
        shares = in_proportion([Fraction(weight) for weight in weights], num_samples, problems)
        self._counts.append(_checked_shares(shares, f"each epoch from {position:,} on", names, problems))
        used = [any(weights[source] for _, weights in self.points) for source in range(len(sizes))]
        rows = zip(names, sizes, used, strict=True)
        problems += [f"{name}: has a weight, but no samples" for name, size, is_used in rows if is_used and not size]
        refuse(problems)

    def _add_stretch(
        self, here: tuple[int, Counts], after: tuple[int, Counts], lanes: int, names: Sequence[str], problems: list[str]
    ) -> None:
        """Add the blocks of a stretch."""
        (begin, first), (end, last) = here, after
        where = f"positions {begin:,} to {end - 1:,}"
        integral = _Integral(first, last, end - begin)
        counts = _checked_shares(integral.total(), where, names, problems)
        for block in _blocks(integral, counts, lanes):
            self._counts.append(block)
            self._begins.append(self._begins[-1] + sum(block))
            self._taken.append(_sum(self._taken[-1], block))

    def taken(self, position: int) -> Counts:
        """Return how many samples of each source all positions before this one take."""
        block = bisect_right(self._begins, position) - 1
        inside, counts, before = position - self._begins[block], self._counts[block], self._taken[block]
        if block == len(self._counts) - 1:
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
        text = repr((self.points, self.num_samples, self.interpolate))
        return (
            f"{len(self.points)} points ({self.interpolate}, epochs of {self.num_samples}) "
            f"{xxhash.xxh3_64_hexdigest(text.encode())}"
        )

    def described(self) -> str:
        """Return the positions of the points, for people."""
        shown = [f"{position:,}" for position, _ in self.points[:4]] + ["..."] * (len(self.points) > 4)
        return f"{self.interpolate}, weights at {', '.join(shown)}"


def _sum(one: Counts, other: Counts) -> Counts:
    return tuple(a + b for a, b in zip(one, other, strict=True))


# What was given


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


def _checked_shares(numbers: list[Fraction], where: str, names: Sequence[str], problems: list[str]) -> Counts:
    """Return whole numbers with the same sum; add a problem for each share that rounds to 0."""
    counts = tuple(rounded(numbers))
    problems += [
        f"{name}: its share of {where}, {float(number):.3g} of a sample, rounds to 0"
        for name, number, count in zip(names, numbers, counts, strict=True)
        if number and not count
    ]
    return counts


# Blocks


class _Integral:
    """What a stretch has taken of each source: an integral of weights that change evenly from `first` to `last`."""

    def __init__(self, first: Counts, last: Counts, length: int) -> None:
        one, other = sum(first), sum(last)
        self.is_constant = [a * other for a in first] == [b * one for b in last]
        self.length = length
        self._common = 2 * length * one * other
        self._linear = [2 * length * a * other for a in first]
        self._square = [b * one - a * other for a, b in zip(first, last, strict=True)]

    def total(self) -> list[Fraction]:
        """Return what the whole stretch takes of each source."""
        return [Fraction(value, self._common) for value in self._values(self.length)]

    def whole_units(self, position: int, size: int) -> list[int]:
        """Return how many whole units of `size` samples the positions before this one take of each source."""
        return [value // (self._common * size) for value in self._values(position)]

    def started_units(self, position: int, size: int) -> list[int]:
        """Return the same, counting also units of which only a part is taken."""
        return [-(-value // (self._common * size)) for value in self._values(position)]

    def _values(self, position: int) -> list[int]:
        pairs = zip(self._linear, self._square, strict=True)
        return [(linear + square * position) * position for linear, square in pairs]


def _blocks(integral: _Integral, counts: Counts, lanes: int) -> list[Counts]:
    """Cut a stretch, which takes `counts`, into blocks.

    All but the last take a multiple of `lanes` samples of each source, so that a lane continues in the same lanes of
    the sources. At the end of a block, a source is due its integral in whole units of `lanes` samples. So each unit has
    a deadline, the end of a block; taking the earliest deadline first meets them all. Units that the integral does not
    reach come last.
    """
    size = lanes * max(-(-integral.length // (_BLOCKS * lanes)), len(counts))
    ends = [] if integral.is_constant else [*range(size, integral.length - size + 1, size)]
    units = [count // lanes for count in counts]
    due = [[min(pair) for pair in zip(integral.whole_units(end, lanes), units, strict=True)] for end in ends]
    due_of = [[row[source] for row in due] for source in range(len(counts))]
    taken, ahead = [0] * len(counts), [[0] * len(counts)]
    for end, owed in zip(ends, due, strict=True):
        taken = [*map(max, taken, owed)]
        started = integral.started_units(end, lanes)
        for _ in range(end // lanes - sum(taken)):
            left = [
                (taken[source] >= started[source], bisect_left(due_of[source], taken[source] + 1), source)
                for source in range(len(counts))
                if taken[source] < units[source]
            ]
            taken[min(left)[-1]] += 1
        ahead.append([each * lanes for each in taken])
    ahead.append(list(counts))
    return [tuple(b - a for a, b in zip(*each, strict=True)) for each in pairwise(ahead)]


def _part(counts: Counts, position: int) -> Counts:
    """Return how many samples of each source the first positions of a block take; no count falls as the position rises.

    The sources are halved, and each half gets its rounded share of the positions, as in `MixedOrder`.
    """
    if len(counts) == 1:
        return (position,)
    middle, total = len(counts) // 2, max(1, sum(counts))
    left = (sum(counts[:middle]) * position + total // 2) // total
    return (*_part(counts[:middle], left), *_part(counts[middle:], position - left))
