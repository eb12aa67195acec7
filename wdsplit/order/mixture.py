"""The order of a mixture: a pure function from position to source, source epoch and position there.

Pure (no I/O). A source is only a number of samples here; its own `EpochOrder` knows the shards. `MixedOrder` explains
how the sources are interleaved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64
from wdsplit.order.epoch import EpochOrder, Located, OrderOptions, groups, in_rows
from wdsplit.order.hashing import hash_numbers, hash_stream
from wdsplit.order.shares import refuse

__all__ = ["BLOCK_OFFSETS", "EpochShares", "MixedOrder", "Quota", "source_seed"]

BLOCK_OFFSETS = 32
"""Sources are permuted within blocks of this many offsets of a lane; shares are exact again after each block."""

_SEEDS, _PHASES, _LABELS = 8, 9, 10
"""Domains of the hash, beside those of `order`."""

_LAST = np.uint64(2**64 - 1)


def source_seed(seed: int, source: int) -> int:
    """Return the seed of a source's own order, so that two sources of the same data have different orders.

    Args:
        seed: The mixture's seed, 0 <= seed < 2**63.
        source: The source's number.

    Returns:
        An integer from 0 to 2**63 - 1.
    """
    return hash_stream(seed, source, _SEEDS) >> 1


@dataclass(frozen=True)
class Quota:
    """The positions, among some, that take samples from one epoch of one source.

    Attributes:
        source: The source's number.
        source_epoch: The epoch of the source's own order.
        rows: int64 of shape (n,), rising: indices into the requested positions.
        positions: int64 of shape (n,): their positions in the source's own order.
    """

    source: int
    source_epoch: int
    rows: Int64
    positions: Int64


@dataclass(frozen=True)
class EpochShares:
    """The samples of each source in one epoch of a mixture, if epochs differ.

    Attributes:
        segments: For each stretch of the epoch, the samples of each source, not all of them 0. Within a stretch the
            sources are evenly spread.
        taken: Samples of each source in all earlier epochs together.
    """

    segments: tuple[tuple[int, ...], ...]
    taken: tuple[int, ...]

    @property
    def counts(self) -> tuple[int, ...]:
        """Samples of each source."""
        return tuple(sum(column) for column in zip(*self.segments, strict=True))


class MixedOrder:
    """The order of one epoch of a mixture.

    An epoch of the mixture takes k_i samples of source i, which has n_i. A source is a stream without end, its own
    epochs one after another: number J is position J mod n_i of its epoch J div n_i. Epoch E of the mixture takes the
    numbers from E k_i up to (E + 1) k_i. So each sample of a source appears once in each epoch of that source, whatever
    the shares. Where the shares change over time, each epoch and segment continues from the numbers that were taken
    before it.

    The mixture has C lanes, and position g is offset g div C of lane g mod C, as in an `EpochOrder`. The numbers
    are dealt to the lanes in turn, source after source: lanes differ by at most one sample, the longer ones first. The
    sources have C lanes too, cut at equal counts. So a lane of the mixture takes whole lanes of each source, each from
    front to back.

    The source at an offset of a lane is found by halving. A group of sources, with t samples in the lane, is split into
    two; l of the samples are in the left half. Of the first x offsets of the group, floor((l x + phase) / t) belong to
    the left half. So each stretch of a lane has the right shares up to about one sample, and the whole lane has them
    exactly. The phases are random, so that not all lanes reach a rare source at the same time. A shuffled epoch also
    permutes the sources within blocks of offsets, so that the pattern does not align with the ranks. A segment is
    interleaved like an epoch, with positions counted from its first.

    Built in O(segments x sources + lanes); a position costs a division for each doubling of the number of sources.
    Immutable once built. `Steps`, `reader_positions` and `assigned_lanes` take it as they take an `EpochOrder`.

    The sources' own orders must have the same number of lanes, cut at equal counts (`EpochOrder(...,
    equal_lanes=True)`), and should have seeds of their own (`source_seed`).

    Args:
        sizes: Samples of each source, tar pads left out.
        counts: Samples of each source in every epoch (`epoch_counts`); or the shares of this epoch.
        options: Seed, shuffle, lanes and tail; each source has its own window.
        epoch: The epoch, at least 0.
        order_of: Returns a source's own order, by the numbers of the source and of its epoch; only `locate` needs it.

    Attributes:
        num_samples: Samples of an epoch: the sum of the counts.
        num_positions: The same number: lanes have no pads, and those that fill the last step lie past the end.
        lane_length: int64 of shape (lanes,): samples of each lane.

    Raises:
        InputError: The tail is `uneven`.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        counts: Sequence[int] | EpochShares,
        options: OrderOptions,
        epoch: int,
        order_of: Callable[[int, int], EpochOrder] | None = None,
    ) -> None:
        self._order_of = order_of
        sizes = [int(size) for size in sizes]
        if isinstance(counts, EpochShares):
            segments, taken = counts.segments, counts.taken
        else:
            segments = (tuple(int(count) for count in counts),)
            taken = tuple(epoch * count for count in segments[0])
        counts = [sum(column) for column in zip(*segments, strict=True)]
        if options.tail == "uneven":
            refuse(["tail = 'uneven': expected pad or drop, because a mixture cuts its lanes evenly"])
        self.options = options
        self.epoch = epoch
        self.num_samples = self.num_positions = sum(counts)
        self.lane_length = _in_lane(self.num_samples, np.arange(options.lanes), options.lanes)
        self._sizes = np.array(sizes, np.int64)
        begins = [divmod(number, max(size, 1)) for size, number in zip(sizes, taken, strict=True)]
        self._first_epochs = [first_epoch for first_epoch, _ in begins]
        self._first_positions = np.array([position for _, position in begins], np.int64)
        self._segments = [_Segment(segment, options, epoch, number) for number, segment in enumerate(segments)]
        self._begins = np.array([0, *accumulate(sum(segment) for segment in segments[:-1])], np.int64)
        self._before = np.cumsum([[0] * len(sizes), *segments[:-1]], axis=0, dtype=np.int64)

    def is_real(self, positions: Int64) -> npt.NDArray[np.bool_]:
        """Tell which positions hold a sample; those past the end repeat samples of their lane, from its last on."""
        return positions < self.num_samples

    def locate(self, positions: Int64) -> Located:
        """Return the source, the shard and the sample of each position."""
        found = []
        for quota in self.quotas(positions):
            assert self._order_of is not None
            each = self._order_of(quota.source, quota.source_epoch).locate(quota.positions)
            rows = quota.rows[each.row]
            found.append((rows, np.full_like(rows, quota.source), each.shard, each.sample, each.part, each.pad * 1))
        row, source, shard, sample, part, pad = in_rows(found, 6)
        return Located(row, source, shard, sample, ~self.is_real(positions)[row] | (pad > 0), part)

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
        source, number = self._numbers(offset * lanes + lane)
        turn, place = np.divmod(self._first_positions[source] + number, self._sizes[source])
        for each, rows in groups(source):
            for later, members in groups(turn[rows]):
                chosen = rows[members]
                yield Quota(each, self._first_epochs[each] + later, chosen, place[chosen])

    def _numbers(self, positions: Int64) -> tuple[Int64, Int64]:
        """Return the source of each position before the end, and which of the epoch's samples of it is there."""
        if len(self._segments) == 1:
            return self._segments[0].numbers(positions)
        source, number = np.empty_like(positions), np.empty_like(positions)
        for segment, rows in groups(np.searchsorted(self._begins, positions, side="right") - 1):
            source[rows], number[rows] = self._segments[segment].numbers(positions[rows] - self._begins[segment])
            number[rows] += self._before[segment, source[rows]]
        return source, number


class _Segment:
    """A segment of an epoch, in which the sources have constant shares. Positions count from its first.

    Args:
        counts: Samples of each source.
        options: Seed, shuffle and lanes.
        epoch: The epoch.
        number: The segment's number in the epoch.
    """

    def __init__(self, counts: Sequence[int], options: OrderOptions, epoch: int, number: int) -> None:
        self._lanes, self._is_shuffled = options.lanes, options.shuffle
        self._starts = np.array([0, *accumulate(counts)], np.int64)
        self._lane_length = _in_lane(sum(counts), np.arange(options.lanes), options.lanes)
        words = (options.seed, epoch) if options.shuffle else (0, 0)
        segment = (number,) if number else ()
        self._phases, self._labels = (hash_stream(*words, domain, *segment) for domain in (_PHASES, _LABELS))

    def numbers(self, positions: Int64) -> tuple[Int64, Int64]:
        """Return the source of each position, and which of the segment's samples of that source it takes."""
        lane, offset = positions % self._lanes, positions // self._lanes
        return (self._shuffled if self._is_shuffled else self._interleaved)(lane, offset)

    def _interleaved(self, lane: Int64, offset: Int64) -> tuple[Int64, Int64]:
        """Return the source and its number at each offset of a lane.

        The group of sources from `low` up to `high` has the offset; it is halved until it is one source. `place` counts
        the group's earlier offsets in the lane, and `total` all of them.
        """
        num_sources, lanes = len(self._starts) - 1, self._lanes
        low, high = np.zeros_like(lane), np.full_like(lane, num_sources)
        place, total = offset, self._lane_length[lane]
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
        lanes = self._lanes
        blocks, row = np.unique(offset // BLOCK_OFFSETS * lanes + lane, return_inverse=True)
        lane_of, begin = (blocks % lanes)[:, None], (blocks // lanes * BLOCK_OFFSETS)[:, None]
        offsets = begin + np.arange(BLOCK_OFFSETS)
        lane_of = np.broadcast_to(lane_of, offsets.shape)
        is_past = offsets >= self._lane_length[lane_of]
        source, number = self._interleaved(lane_of, np.minimum(offsets, self._lane_length[lane_of] - 1))
        rank = hash_numbers(self._labels, offsets * lanes + lane_of)
        rank[is_past] = _LAST
        dealt = np.take_along_axis(source, np.argsort(rank, axis=1, kind="stable"), 1)
        numbers = np.empty_like(number)
        rising = np.take_along_axis(number, np.argsort(source, axis=1, kind="stable"), 1)
        np.put_along_axis(numbers, np.argsort(dealt, axis=1, kind="stable"), rising, 1)
        slot = offset % BLOCK_OFFSETS
        return dealt[row, slot], numbers[row, slot]


def _in_lane(count: Any, lane: Int64, lanes: int) -> Int64:
    """Return how many of the first `count` numbers a lane gets, if lanes get them in turn."""
    dealt: Int64 = (count - lane + lanes - 1) // lanes
    return dealt


def _divided(factor: Int64, times: Int64, plus: Int64, divisor: Int64) -> tuple[Int64, Int64]:
    """Return quotient and remainder of factor * times + plus, exactly, though the product has up to 100 bits.

    The float quotient is off by less than two. So its remainder is small, and right in 64-bit arithmetic although both
    terms wrap around. The remainder then corrects the quotient.
    """
    quotient = (factor.astype(np.float64) * times / divisor).astype(np.int64)
    remainder = factor * times + plus - quotient * divisor
    off = remainder // divisor
    return quotient + off, remainder - off * divisor
