"""Items of some lengths in as few packs of a capacity, or groups of a budget, as is quickly found. Pure (no I/O)."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64
from wdsplit.order.bundles import Grouping

__all__ = [
    "MAX_CAPACITY",
    "MAX_SIZE",
    "best_fit",
    "block_of",
    "group_block_of",
    "packed",
    "padded_lengths",
]

MAX_CAPACITY = 2**31 - 1
"""Largest capacity and budget: offsets are 32-bit integers where attention kernels take them."""
MAX_SIZE = 65_536
"""Largest size of a group."""

_BIN_BITS = 32
_BLOCKS = ((8192, 699), (32_768, 2048))
_LARGEST_BLOCK = 2796

_GROUPED_BYTES = 4 * 1024**2
_MIN_GROUPED, _MAX_GROUPED = 512, 8192
_GROUPS_TOGETHER = 2
"""Groups of a budget that exchange their members. More of them change more from epoch to epoch, and pad more: of
lognormal lengths of mean 400, two leave 0.91 of the padded elements to samples, four 0.85."""


def block_of(capacity: int) -> int:
    """Return how many items to pack together: of lognormal lengths of mean 400, 0.96 to 0.99 of packs is filled."""
    return next((block for most, block in _BLOCKS if capacity <= most), _LARGEST_BLOCK)


def packed(lengths: Int64, capacity: int, block: int) -> npt.NDArray[np.uint32]:
    """Return the pack of each item of a shard: uint32 of shape (items,), numbered from 0, block by block.

    Args:
        lengths: int64 of shape (items,), each from 0 to the capacity.
        capacity: How long the items of a pack are together at most.
        block: How many consecutive items are packed together.
    """
    bins, begin = np.empty(len(lengths), np.uint32), 0
    for first in range(0, len(lengths), block):
        own = best_fit(lengths[first : first + block], capacity)
        bins[first : first + block] = begin + own
        begin += int(own.max()) + 1
    return bins


def group_block_of(sample_bytes: int, size: int, is_expanded: bool = False) -> int:
    """Return how many items to group, and read, together, for groups of about `size`.

    It is 0 for large samples: then all of a shard are grouped together, and each group is read by itself. Not so if
    samples are expanded: then their parts follow one another, so that a block reads each of its samples once.
    """
    least, block = max(_MIN_GROUPED, 16 * size), min(_MAX_GROUPED, _GROUPED_BYTES // max(1, sample_bytes))
    if is_expanded:
        return least
    return 0 if block < least else block


def padded_lengths(lengths: Int64, form: Grouping, block: int) -> npt.NDArray[np.uint32]:
    """Return the class of each item of a shard for a budget: the length to which its group is padded at most.

    Args:
        lengths: int64 of shape (items,), each from 0 to the budget.
        form: The budget.
        block: How many consecutive items are grouped together; 0 for all.
    """
    classes, block = np.empty(len(lengths), np.uint32), block or max(1, len(lengths))
    for first in range(0, len(lengths), block):
        by_length = first + np.argsort(-lengths[first : first + block], kind="stable")
        begin = 0
        while begin < len(by_length):
            longest = lengths[by_length[begin]]
            stop = begin + _GROUPS_TOGETHER * int(form.sizes(np.array([longest]))[0])
            classes[by_length[begin:stop]] = longest
            begin = stop
    return classes


def best_fit(lengths: Int64, capacity: int) -> Int64:
    """Pack items into bins: the longest first, each into the fullest bin that it fits into.

    Equal lengths come in the order of the items, and of equally full bins the one that was begun first is taken
    (best-fit decreasing: Johnson, Demers, Ullman, Garey and Graham 1974).

    Args:
        lengths: int64 of shape (items,), each from 0 to the capacity.
        capacity: How long the items of a bin are together at most.

    Returns:
        int64 of shape (items,): the bin of each item, counted from 0 in the order in which they are begun.
    """
    by_length = np.argsort(-lengths, kind="stable")
    room: list[int] = []  # of each bin, its room above its number: so the list is sorted by room, then by number
    bins = []
    for length in lengths[by_length].tolist():
        place = bisect_left(room, length << _BIN_BITS)
        chosen = room.pop(place) if place < len(room) else capacity << _BIN_BITS | len(room)
        bins.append(chosen & (1 << _BIN_BITS) - 1)
        insort(room, chosen - (length << _BIN_BITS))
    result = np.empty(len(lengths), np.int64)
    result[by_length] = bins
    return result
