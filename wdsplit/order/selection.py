"""The samples of a dataset that a view selects, as counts and bitmaps.

Pure (no I/O). An order depends only on how many samples each shard gives; which ones these are matters only when a
window is read.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from wdsplit.arrays import Int64

__all__ = ["Bits", "Mask", "Selection", "bitmap_bytes"]

Mask = npt.NDArray[np.bool_]
Bits = npt.NDArray[np.uint8]
"""The bits of all samples of some shards, uint8 of shape (bytes,). The bits of a shard begin at a whole byte, from the
lowest bit on; those after its last sample are 0."""

_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
"""How many bits of each byte are set."""
_SHARDS_AT_ONCE = 2**16


class Selection:
    """The selected samples of each shard. Immutable.

    A shard of which all samples are selected, or none, needs no bitmap. In the bitmap of any other, bit k % 8 of byte
    k // 8, counted from the lowest bit, is sample k; the bits after the last sample are 0.

    Args:
        totals: int64 of shape (shards,): the samples of each shard, pads left out.
        counts: int64 of shape (shards,): how many of them are selected.
        bitmaps: uint8 of shape (bytes,): the bitmaps of the shards that have one, one after another. Like the arrays of
            other units, it may be an object that reads what is asked for, by slices of a shard.
        loader: Called with shards of which the parts of such arrays will be needed next, to read them at the same time.

    Attributes:
        num_samples: How many samples are selected in all.
    """

    def __init__(
        self,
        totals: Int64,
        counts: Int64,
        bitmaps: npt.NDArray[np.uint8],
        loader: Callable[[Collection[int]], None] | None = None,
    ) -> None:
        self.totals = totals
        self.counts = counts
        self.bitmaps = bitmaps
        self._loader = loader
        self.num_samples = int(counts.sum())
        self._ends = np.cumsum(bitmap_bytes(totals, counts))

    @classmethod
    def of_masks(cls, masks: Iterable[npt.NDArray[Any]]) -> Selection:
        """Return the selection of the samples for which masks are True: a bool array of shape (samples,) a shard."""
        totals, counts, bitmaps = [], [], [np.zeros(0, np.uint8)]
        for mask in masks:
            totals.append(len(mask))
            counts.append(int(np.count_nonzero(mask)))
            if 0 < counts[-1] < totals[-1]:
                bitmaps.append(np.packbits(mask, bitorder="little"))
        return cls(np.array(totals, np.int64), np.array(counts, np.int64), np.concatenate(bitmaps))

    @classmethod
    def of_bits(cls, totals: Int64, bits: Bits) -> Selection:
        """Return the selection of the samples with set bits."""
        counts = _num_set(totals, bits)
        is_partial = (counts > 0) & (counts < totals)
        return cls(totals, counts, bits[np.repeat(is_partial, -(-totals // 8))])

    def __len__(self) -> int:
        return len(self.totals)

    @property
    def chosen(self) -> Selection:
        """The samples that have units: itself."""
        return self

    @property
    def bits(self) -> Bits:
        """The bits of all shards, also of those that need no bitmap."""
        sizes, is_full = -(-self.totals // 8), self.counts == self.totals
        bits = np.repeat(np.where(is_full, np.uint8(255), np.uint8(0)), sizes)
        last = np.flatnonzero((self.totals % 8 > 0) & is_full)
        bits[np.cumsum(sizes)[last] - 1] = (1 << (self.totals[last] % 8)) - 1
        bits[np.repeat(bitmap_bytes(self.totals, self.counts) > 0, sizes)] = self.bitmaps
        return bits

    def __and__(self, other: Selection) -> Selection:
        """Return the samples that are in two selections of the same shards."""
        return Selection.of_bits(self.totals, self.bits & other.bits)

    def first(self, totals: Int64) -> Selection:
        """Return the part of the selection in the first samples of its dataset.

        Args:
            totals: int64 of shape (shards,): the remaining samples of the first shards; only the last shard may have
                lost some.
        """
        num_shards, last = len(totals), len(totals) - 1
        bitmaps = self.bitmaps[: int(np.append(0, self._ends)[num_shards])]
        first = Selection(self.totals[:num_shards], self.counts[:num_shards], bitmaps)
        if not num_shards or totals[last] == first.totals[last]:
            return first
        whole = first.bits[: int((-(-totals[:last] // 8)).sum())]
        bits = np.packbits(first.mask(last, 0, int(totals[last])), bitorder="little")
        return Selection.of_bits(totals, np.concatenate([whole, bits]))

    @property
    def is_intact(self) -> bool:
        """Whether the bitmaps match the counts, with no bit set after the last sample of a shard."""
        is_partial = bitmap_bytes(self.totals, self.counts) > 0
        totals = self.totals[is_partial]
        last = self.bitmaps[np.cumsum(-(-totals // 8)) - 1] if len(totals) else self.bitmaps
        too_high = (last.astype(np.int64) >> np.where(totals % 8 > 0, totals % 8, 8)) > 0
        return not too_high.any() and np.array_equal(_num_set(totals, self.bitmaps), self.counts[is_partial])

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the selection: a hash of the counts and bitmaps, however it was made."""
        digest = xxhash.xxh3_128()
        for array in (self.totals.astype("<i8"), self.counts.astype("<i8"), self.bitmaps):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def load(self, shards: Collection[int]) -> None:
        """Read what is needed next of some shards, if it is not in memory."""
        if self._loader is not None:
            self._loader(shards)

    def mask(self, shard: int, first: int = 0, stop: int | None = None) -> Mask:
        """Return which of the samples first, first + 1, ..., stop - 1 of a shard are selected: bool, one a sample."""
        total, count = int(self.totals[shard]), int(self.counts[shard])
        stop = total if stop is None else stop
        if count in (0, total):
            return np.full(stop - first, count > 0)
        begin = int(self._ends[shard]) - -(-total // 8)
        bits = np.unpackbits(self.bitmaps[begin + first // 8 : begin + -(-stop // 8)], bitorder="little")
        return bits[first % 8 : first % 8 + stop - first].view(np.bool_)

    def places(self, shard: int) -> Int64:
        """Return the selected samples of a shard, rising: int64 of shape (selected,)."""
        return np.flatnonzero(self.mask(shard))


def bitmap_bytes(totals: Int64, counts: Int64) -> Int64:
    """Return the bytes of each shard's bitmap: int64 of shape (shards,), like totals and counts."""
    is_partial = (counts > 0) & (counts < totals)
    num_bytes: Int64 = np.where(is_partial, -(-totals // 8), 0)
    return num_bytes


def _num_set(totals: Int64, bits: Bits) -> Int64:
    """Return how many samples of each shard are set: int64 of shape (shards,)."""
    sizes = -(-totals // 8)
    ends, counts = np.cumsum(sizes), np.zeros(len(totals), np.int64)
    for first in range(0, len(totals), _SHARDS_AT_ONCE):
        # reduceat would give an empty shard the first byte of the next
        shards = first + np.flatnonzero(sizes[first : first + _SHARDS_AT_ONCE])
        if len(shards):
            begins = ends[shards] - sizes[shards]
            ones = _ONES[bits[begins[0] : ends[shards[-1]]]]
            counts[shards] = np.add.reduceat(ones, begins - begins[0], dtype=np.int64)
    return counts
