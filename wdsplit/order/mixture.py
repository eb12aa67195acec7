"""The order of a mixture: a pure function from position to source, source epoch and position there.

Pure (no I/O). No shard is known here: a source is a number of samples, and its own `EpochOrder` knows the rest.
`MixedOrder` says how the sources are woven.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import floor
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.errors import InputError
from wdsplit.order.epoch import Int64, OrderOptions, groups, hash_numbers, hash_stream
from wdsplit.order.split import whole

__all__ = ["BLOCK_OFFSETS", "MAX_MIXED_SAMPLES", "MixedOrder", "Quota", "epoch_counts", "source_seed"]

MAX_MIXED_SAMPLES = 2**50
"""Samples of a source, and of an epoch of a mixture: quotients of 64-bit floats are exact to within one up to here."""

BLOCK_OFFSETS = 32
"""Offsets of a lane whose sources are permuted among each other: shares are exact again after so many."""

_SEEDS, _PHASES, _LABELS = 8, 9, 10
"""Domains of the hash, beside those of `order`."""

_LAST = np.uint64(2**64 - 1)


def source_seed(seed: int, source: int) -> int:
    """Return the seed of a source's own order, so that two sources of the same data do not walk in step.

    Args:
        seed: The mixture's, 0 <= seed < 2**63.
        source: The source's number.

    Returns:
        An integer from 0 to 2**63 - 1.
    """
    return hash_stream(seed, source, _SEEDS) >> 1


def epoch_counts(
    sizes: Sequence[int],
    weights: Sequence[Any] | None = None,
    repeats: Sequence[Any] | None = None,
    chosen: Sequence[Any] | None = None,
    num_samples: int | None = None,
    names: Sequence[str] = (),
) -> list[int]:
    """Return how many samples of each source an epoch of the mixture has.

    Either `weights` are given, and the counts are in proportion to them: exactly, but for the rounding to whole
    samples, where the largest remainders are rounded up. Or `repeats` and `chosen` say it of each source alone. A float
    counts as the decimal number that it prints as: 0.1 is one tenth.

    Args:
        sizes: Samples of each source.
        weights: A number of at least 0 for each source.
        repeats: For each source, how often an epoch has each of its samples (0.5: half of them, rounded to even), or
            None for once.
        chosen: For each source, how many of its samples an epoch has, or None where `repeats` decides.
        num_samples: Samples of an epoch; with weights only. By default as many as the sources have.
        names: What errors call the sources.

    Raises:
        InputError: The arguments are invalid, a source is to give samples and has none, or a share comes to nothing.
    """
    sizes = [int(size) for size in sizes]
    names = names or _numbered(sizes)
    _refuse(_contradictions(sizes, weights, repeats, chosen, num_samples))
    problems: list[str] = []
    if weights is not None:
        shares = [_exact(weight, f"{name}: weight", problems) for name, weight in zip(names, weights, strict=True)]
        exact_counts = _in_proportion(shares, sum(sizes) if num_samples is None else whole(num_samples), problems)
    else:
        nothing = [None] * len(sizes)
        rows = zip(names, sizes, repeats or nothing, chosen or nothing, strict=True)
        exact_counts = [_own_count(*row, problems) for row in rows]
    _refuse(problems)
    counts = [round(count) for count in exact_counts] if weights is None else _rounded(exact_counts)
    vanished = [
        f"{name}: its share, {float(share):.3g} of a sample, comes to none in an epoch"
        for name, size, share, count in zip(names, sizes, exact_counts, counts, strict=True)
        if size and share and not count
    ]
    _refuse(vanished + _impossible(sizes, counts, names))
    return counts


def _refuse(problems: list[str]) -> None:
    if problems:
        raise InputError("invalid mixture", found="; ".join(problems))


def _numbered(sizes: Sequence[int]) -> list[str]:
    return [f"source {number}" for number in range(len(sizes))]


def _contradictions(
    sizes: Sequence[int],
    weights: Sequence[Any] | None,
    repeats: Sequence[Any] | None,
    chosen: Sequence[Any] | None,
    num_samples: int | None,
) -> list[str]:
    """Return what is wrong with the arguments as a whole."""
    problems = [
        f"{name}: expected {len(sizes)} values, one a source, found {len(values)}"
        for name, values in (("weights", weights), ("repeats", repeats), ("chosen", chosen))
        if values is not None and len(values) != len(sizes)
    ]
    if weights is not None and (repeats is not None or chosen is not None):
        problems.append("weights do not go with repeats or chosen")
    if num_samples is not None and weights is None:
        problems.append("num_samples goes with weights only")
    if num_samples is not None and (type(whole(num_samples)) is not int or num_samples < 1):
        problems.append(f"num_samples = {num_samples!r}: expected an integer of at least 1")
    return problems


def _exact(value: Any, place: str, problems: list[str]) -> Fraction:
    """Return a number as its decimal text has it, or note why it is none."""
    if isinstance(value, Real) and not isinstance(value, bool):
        try:
            number = Fraction(str(value))
        except ValueError:  # nan and the infinities
            number = Fraction(-1)
        if number >= 0:
            return number
    problems.append(f"{place} = {value!r}: expected a finite number of at least 0")
    return Fraction(0)


def _own_count(name: str, size: int, repeat: Any, chosen: Any, problems: list[str]) -> Fraction:
    """Return how many samples a source gives by its own rule, not yet rounded, or note why there is no such number."""
    if chosen is None:
        return size * _exact(1 if repeat is None else repeat, f"{name}: repeat", problems)
    if repeat is not None:
        problems.append(f"{name}: repeat = {repeat!r} and choose = {chosen!r}: expected one of them")
    elif type(whole(chosen)) is int and chosen >= 0:
        return Fraction(whole(chosen))
    else:
        problems.append(f"{name}: choose = {chosen!r}: expected an integer of at least 0")
    return Fraction(0)


def _in_proportion(shares: list[Fraction], num_samples: int, problems: list[str]) -> list[Fraction]:
    """Return numbers in proportion to the shares, with the given sum, or note why there are none."""
    total = sum(shares)
    if not total:
        problems.append("weights: expected at least one above 0")
        return shares
    return [num_samples * share / total for share in shares]


def _rounded(numbers: list[Fraction]) -> list[int]:
    """Return whole numbers of the same sum: the largest remainders are rounded up, of equal ones the first."""
    counts = [floor(number) for number in numbers]
    by_remainder = sorted(range(len(numbers)), key=lambda source: counts[source] - numbers[source])
    for source in by_remainder[: int(sum(numbers)) - sum(counts)]:
        counts[source] += 1
    return counts


def _impossible(sizes: Sequence[int], counts: Sequence[int], names: Sequence[str]) -> list[str]:
    """Return what is wrong with the counts of an epoch."""
    problems = [
        f"{name}: {count} samples an epoch, but the dataset has none"
        for name, size, count in zip(names, sizes, counts, strict=True)
        if count and not size
    ]
    if not sum(counts):
        problems.append("an epoch would have no samples")
    if max(sum(counts), *sizes, 0) > MAX_MIXED_SAMPLES:
        problems.append("expected at most 2**50 samples an epoch, and of each source")
    return problems


@dataclass(frozen=True)
class Quota:
    """A source's share of some positions: those that lead to one epoch of the source.

    Attributes:
        source: The source's number.
        source_epoch: The epoch of the source's own order.
        rows: int64, rising: which of the positions asked for these are.
        positions: int64 of the same shape: where they lead, as positions of the source's own order.
    """

    source: int
    source_epoch: int
    rows: Int64
    positions: Int64


class MixedOrder:
    """The order of one epoch of a mixture.

    An epoch of the mixture takes k_i samples of source i, which has n_i. A source is a stream without end, its own
    epochs one after another: number J is position J mod n_i of its epoch J div n_i, and epoch E of the mixture
    takes the numbers from E k_i up to (E + 1) k_i. So each sample of a source appears once an epoch of that source,
    whatever the shares.

    The mixture has C lanes, and position g is offset g div C of lane g mod C, as in an `EpochOrder`. The numbers
    are dealt to the lanes in turn, source after source: lanes differ by one at most, the longer ones first. Since
    the sources have C lanes too, cut at equal counts, a lane of the mixture takes whole lanes of each source, each
    from front to back.

    Which source is at which offset of a lane is decided by halves: a group of sources is split into two, and of
    the first x offsets of the group floor((l x + phase) / t) are the left half's, where l of the lane's t samples
    are in it. So the shares hold in each stretch of a lane, up to about one sample, and exactly in the whole. The
    phases are random, so that not all lanes come to a rare source at the same time. A shuffled epoch also permutes
    the sources within blocks of offsets, so that the pattern does not align with the ranks.

    Built in O(sources + lanes); a position costs a division for each doubling of the number of sources. Immutable once
    built. `Steps`, `reader_positions` and `assigned_lanes` take it as they take an `EpochOrder`.

    The sources' own orders must have as many lanes, cut at equal counts (`EpochOrder(..., equal_lanes=True)`), and had
    better have seeds of their own (`source_seed`).

    Args:
        sizes: Samples of each source, tar pads left out.
        counts: Samples that an epoch has of each source (`epoch_counts`).
        options: Seed, shuffle, lanes and tail; the windows are the sources' own matter.
        epoch: The epoch, at least 0.

    Attributes:
        num_samples: Samples of an epoch: the sum of the counts.
        num_positions: The same, because the lanes have no pads; those that fill the last step lie past the end.
        lane_length: int64 of shape (lanes,): samples of each lane.

    Raises:
        InputError: The counts, the epoch or the tail are invalid.
    """

    def __init__(self, sizes: Sequence[int], counts: Sequence[int], options: OrderOptions, epoch: int) -> None:
        sizes, counts = [int(size) for size in sizes], [int(count) for count in counts]
        problems = _impossible(sizes, counts, _numbered(sizes))
        if min([*sizes, *counts, epoch]) < 0:
            problems.append("sizes, counts and epoch: expected at least 0")
        if options.tail == "uneven":
            problems.append("tail = 'uneven': expected pad or drop, because a mixture cuts its lanes evenly")
        _refuse(problems)
        self.options = options
        self.epoch = epoch
        self.num_samples = self.num_positions = sum(counts)
        self.lane_length = _in_lane(self.num_samples, np.arange(options.lanes), options.lanes)
        self._sizes = np.array(sizes, np.int64)
        self._starts = np.array([0, *accumulate(counts)], np.int64)
        begins = [divmod(epoch * count, max(size, 1)) for size, count in zip(sizes, counts, strict=True)]
        self._first_epochs = [first_epoch for first_epoch, _ in begins]
        self._first_positions = np.array([position for _, position in begins], np.int64)
        named = (options.seed, epoch) if options.shuffle else (0, 0)
        self._phases, self._labels = (hash_stream(*named, domain) for domain in (_PHASES, _LABELS))

    def is_real(self, positions: Int64) -> npt.NDArray[np.bool_]:
        """Tell which positions hold a sample that is not a pad."""
        return positions < self.num_samples

    def pads(self, positions: Int64) -> npt.NDArray[np.bool_]:
        """Tell which positions lie past the end: they repeat samples of their lane, from its last on."""
        return ~self.is_real(positions)

    def quotas(self, positions: Int64) -> Iterator[Quota]:
        """Give the quota of each source, epoch by epoch of the source.

        Args:
            positions: int64 of any length, each at least 0; past the end they lead to pads.

        Returns:
            Quotas with rising sources and source epochs; each row is in exactly one of them.
        """
        lanes = self.options.lanes
        lane, offset = positions % lanes, positions // lanes
        # A lane without samples has none to repeat: there are fewer samples than lanes, so each is a lane's first.
        lane = np.where(self.lane_length[lane] > 0, lane, positions % self.num_samples)
        length = self.lane_length[lane]
        offset = np.where(offset < length, offset, length - 1 - (offset - length) % length)
        source, number = (self._shuffled if self.options.shuffle else self._woven)(lane, offset)
        turn, place = np.divmod(self._first_positions[source] + number, self._sizes[source])
        for each, rows in groups(source):
            for later, members in groups(turn[rows]):
                chosen = rows[members]
                yield Quota(each, self._first_epochs[each] + later, chosen, place[chosen])

    def _woven(self, lane: Int64, offset: Int64) -> tuple[Int64, Int64]:
        """Return source and number, counted from the epoch's first of that source, of each offset of a lane.

        The group of sources from `low` up to `high` holds the offset; it is halved until it is one source. All the
        while, `place` is the number of the group's earlier offsets, and `total` that of all its offsets in the lane.
        """
        num_sources, lanes = len(self._sizes), self.options.lanes
        low, high = np.zeros_like(lane), np.full_like(lane, num_sources)
        place, total = offset, self.lane_length[lane]
        for _ in range((num_sources - 1).bit_length()):
            middle = (low + high) // 2
            left = _in_lane(self._starts[middle], lane, lanes) - _in_lane(self._starts[low], lane, lanes)
            phase = (hash_numbers(self._phases, lane * num_sources + middle) >> np.uint64(1)).astype(np.int64) % total
            earlier, over = _divided(left, place, phase, total)
            is_left = over + left >= total
            place = np.where(is_left, earlier, place - earlier)
            total = np.where(is_left, left, total - left)
            low, high = np.where(is_left, low, middle), np.where(is_left, middle, high)
        return low, (lane - self._starts[low]) % lanes + lanes * place

    def _shuffled(self, lane: Int64, offset: Int64) -> tuple[Int64, Int64]:
        """Return the same with the sources permuted in each block of offsets; a source's numbers still rise."""
        lanes = self.options.lanes
        blocks, row = np.unique(offset // BLOCK_OFFSETS * lanes + lane, return_inverse=True)
        lane_of, begin = (blocks % lanes)[:, None], (blocks // lanes * BLOCK_OFFSETS)[:, None]
        offsets = begin + np.arange(BLOCK_OFFSETS)
        lane_of = np.broadcast_to(lane_of, offsets.shape)
        is_past = offsets >= self.lane_length[lane_of]
        source, number = self._woven(lane_of, np.minimum(offsets, self.lane_length[lane_of] - 1))
        rank = hash_numbers(self._labels, offsets * lanes + lane_of)
        rank[is_past] = _LAST
        dealt = np.take_along_axis(source, np.argsort(rank, axis=1, kind="stable"), 1)
        numbers = np.empty_like(number)
        rising = np.take_along_axis(number, np.argsort(source, axis=1, kind="stable"), 1)
        np.put_along_axis(numbers, np.argsort(dealt, axis=1, kind="stable"), rising, 1)
        slot = offset % BLOCK_OFFSETS
        return dealt[row, slot], numbers[row, slot]


def _in_lane(count: Any, lane: Int64, lanes: int) -> Int64:
    """Return how many of the first `count` things that are dealt out in turn a lane gets."""
    dealt: Int64 = (count - lane + lanes - 1) // lanes
    return dealt


def _divided(factor: Int64, times: Int64, plus: Int64, divisor: Int64) -> tuple[Int64, Int64]:
    """Return quotient and remainder of factor * times + plus, exactly, though the product has up to 100 bits.

    The float quotient is off by less than two. The remainder that goes with it is therefore small, and right in 64-bit
    arithmetic, where both of its terms wrap around; it tells how far off the quotient was.
    """
    quotient = (factor.astype(np.float64) * times / divisor).astype(np.int64)
    remainder = factor * times + plus - quotient * divisor
    off = remainder // divisor
    return quotient + off, remainder - off * divisor
