"""Groups of rows that stay together in one shard: assigns each group to a shard, and to a place in it.

Pure (no I/O). Groups are identified by 64-bit hashes of their values. The largest groups are assigned first, each to
the shard with the fewest rows so far (Graham 1969). So shards are as equal as the groups allow.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64
from wdsplit.order.hashing import hash_numbers, hash_stream

__all__ = ["GroupPlaces", "Groups", "group_order", "place_groups"]

_ORDER_DOMAIN = 7


@dataclass(frozen=True)
class Groups:
    """The groups of a table.

    Attributes:
        hashes: uint64 of shape (g,): the hash of each group's value, in ascending order.
        counts: int64 of shape (g,): its number of rows.
        firsts: int64 of shape (g,): the number of its first row.
    """

    hashes: npt.NDArray[np.uint64]
    counts: Int64
    firsts: Int64

    def __len__(self) -> int:
        return len(self.hashes)

    @classmethod
    def of(cls, hashes: npt.NDArray[np.uint64], numbers: Int64) -> Groups:
        """Count the groups of rows, from the hash and the number (ascending) of each row."""
        found, first, counts = np.unique(hashes, return_index=True, return_counts=True)
        return cls(found, counts.astype(np.int64), numbers[first])

    @classmethod
    def merged(cls, several: Sequence[Groups]) -> Groups:
        """Merge the groups of several pieces of a table."""
        hashes = np.concatenate([np.zeros(0, np.uint64), *(groups.hashes for groups in several)])
        order = np.argsort(hashes, kind="stable")
        found, first = np.unique(hashes[order], return_index=True)
        if not len(found):
            return cls(found, np.zeros(0, np.int64), np.zeros(0, np.int64))
        counts = np.concatenate([groups.counts for groups in several])[order]
        firsts = np.concatenate([groups.firsts for groups in several])[order]
        return cls(found, np.add.reduceat(counts, first), np.minimum.reduceat(firsts, first))


@dataclass(frozen=True)
class GroupPlaces:
    """The places of groups in the dataset.

    Attributes:
        hashes: uint64 of shape (g,), in ascending order.
        starts: int64 of shape (g,): the place of each group's first row.
    """

    hashes: npt.NDArray[np.uint64]
    starts: Int64

    def starts_of(self, hashes: npt.NDArray[np.uint64]) -> Int64:
        """Return the place of the first row of each row's group: int64 of the same shape."""
        return self.starts[np.searchsorted(self.hashes, hashes)]


def group_order(groups: Groups, seed: int | None) -> Int64:
    """Return the groups in their order in the dataset: by a hash of the seed, or in the order of the table."""
    if seed is None:
        return np.argsort(groups.firsts, kind="stable")
    return np.argsort(hash_numbers(hash_stream(seed, _ORDER_DOMAIN), groups.hashes), kind="stable")


def place_groups(groups: Groups, num_shards: int, seed: int | None) -> tuple[GroupPlaces, tuple[int, ...]]:
    """Assign groups to shards, as evenly as the groups allow.

    Args:
        groups: The groups; at least as many as shards.
        num_shards: Number of shards.
        seed: Seed of their order; None keeps the order of the table.

    Returns:
        The places of the groups; and the place of each shard's first row, followed by the place after the last row.
    """
    order = group_order(groups, seed)
    largest_first = order[np.argsort(-groups.counts[order], kind="stable")]
    loads = [(0, shard) for shard in range(num_shards)]
    shards = np.empty(len(groups), np.int64)
    counts = groups.counts[largest_first].tolist()
    for group, count in zip(largest_first.tolist(), counts, strict=True):
        load, shard = loads[0]
        shards[group] = shard
        heapq.heapreplace(loads, (load + count, shard))
    sequence = order[np.argsort(shards[order], kind="stable")]
    ends = np.cumsum(groups.counts[sequence])
    starts = np.empty(len(groups), np.int64)
    starts[sequence] = ends - groups.counts[sequence]
    sizes = np.zeros(num_shards, np.int64)
    np.add.at(sizes, shards, groups.counts)
    return GroupPlaces(groups.hashes, starts), (0, *np.cumsum(sizes).tolist())
