"""Selections of many shards at once, as the bits of all their samples.

Pure (no I/O). A shard's bits begin at a whole byte, from the lowest bit on; those after its last sample are 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64
from wdsplit.order.selection import Selection, bitmap_bytes

__all__ = ["Bits", "both", "first_of", "is_whole", "num_set", "packed", "selection_of"]

Bits = npt.NDArray[np.uint8]

_ONES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1).sum(axis=1, dtype=np.uint8)
"""How many bits of each byte are set."""
_SHARDS_AT_ONCE = 2**16


def num_set(totals: Int64, bits: Bits) -> Int64:
    """Return how many samples of each shard are set: int64 of shape (shards,).

    Args:
        totals: int64 of shape (shards,): the samples of each shard.
        bits: uint8 of shape (bytes,): the bits of all shards.
    """
    sizes = -(-totals // 8)
    ends = np.cumsum(sizes)
    counts = np.zeros(len(totals), np.int64)
    for first in range(0, len(totals), _SHARDS_AT_ONCE):
        shards = np.arange(first, min(len(totals), first + _SHARDS_AT_ONCE))
        filled = shards[sizes[shards] > 0]  # reduceat gives an empty shard the first byte of the next
        if len(filled):
            begins = ends[filled] - sizes[filled]
            ones = _ONES[bits[begins[0] : ends[filled[-1]]]]
            counts[filled] = np.add.reduceat(ones, begins - begins[0], dtype=np.int64)
    return counts


def is_whole(selection: Selection) -> bool:
    """Tell whether the bitmaps of a selection match its counts, with no bit set after the last sample."""
    is_partial = bitmap_bytes(selection.totals, selection.counts) > 0
    totals = selection.totals[is_partial]
    last = selection.bitmaps[np.cumsum(-(-totals // 8)) - 1] if len(totals) else selection.bitmaps
    too_high = (last.astype(np.int64) >> np.where(totals % 8 > 0, totals % 8, 8)) > 0
    return not too_high.any() and np.array_equal(num_set(totals, selection.bitmaps), selection.counts[is_partial])


def packed(selection: Selection) -> Bits:
    """Return the bits of all shards of a selection, also of those that need no bitmap: uint8 of shape (bytes,)."""
    totals, counts = selection.totals, selection.counts
    sizes = -(-totals // 8)
    bits = np.repeat(np.where(counts == totals, np.uint8(255), np.uint8(0)), sizes)
    last = np.flatnonzero((totals % 8 > 0) & (counts == totals))
    bits[np.cumsum(sizes)[last] - 1] = (1 << (totals[last] % 8)) - 1
    bits[np.repeat(bitmap_bytes(totals, counts) > 0, sizes)] = selection.bitmaps
    return bits


def selection_of(totals: Int64, bits: Bits) -> Selection:
    """Return the selection of the samples with set bits; arguments as in `num_set`."""
    counts = num_set(totals, bits)
    is_partial = bitmap_bytes(totals, counts) > 0
    return Selection(totals, counts, bits[np.repeat(is_partial, -(-totals // 8))])


def both(one: Selection, other: Selection) -> Selection:
    """Return the samples that are in two selections of the same shards."""
    return selection_of(one.totals, packed(one) & packed(other))


def first_of(selection: Selection, totals: Int64) -> Selection:
    """Return the part of a selection in the first samples of its dataset.

    Args:
        selection: The selection.
        totals: int64 of shape (shards,): the remaining samples of the first shards; only the last shard may have lost
            some.
    """
    num_shards = len(totals)
    num_bytes = int(bitmap_bytes(selection.totals, selection.counts)[:num_shards].sum())
    first = Selection(selection.totals[:num_shards], selection.counts[:num_shards], selection.bitmaps[:num_bytes])
    if not num_shards or totals[-1] == first.totals[-1]:
        return first
    last = Selection.of_masks([first.mask(num_shards - 1)[: totals[-1]]])
    whole = bitmap_bytes(first.totals, first.counts)[:-1].sum()
    bitmaps = np.concatenate([first.bitmaps[:whole], last.bitmaps])
    return Selection(totals, np.concatenate([first.counts[:-1], last.counts]), bitmaps)
