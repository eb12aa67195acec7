"""Bundles: units of several items each, which are packs or groups; and what the units of any view are.

Pure (no I/O). Packs are as long as a capacity, and made once. Groups have items of one class each, which change from
epoch to epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64
from wdsplit.order.hashing import hash_numbers, hash_stream
from wdsplit.order.selection import Selection
from wdsplit.order.units import Items, ListedUnits, Repeats, ShardUnits, hash_of, item_units

__all__ = [
    "Form",
    "Grouping",
    "Groups",
    "Packing",
    "Packs",
    "Units",
    "fewer_lanes",
    "form_of",
    "items_of",
    "shard_units",
    "window_items",
]

_MEMBERS = 6
"""Domain of the hash that orders the members of groups."""
_LANES_BYTES, _MIN_LANES = 256 * 2**20, 48
"""About how much memory the windows of all lanes may take in one process, and fewest lanes to stay below it."""


class _Bundles:
    """Units of several items each.

    Args:
        base: The items, as units.
        codes: Unsigned integers of shape (items,), shard by shard in the order of their units.
        block: How many items of a shard make units together; 0 for all of them.
        form: What units are.
        counts: int64 of shape (shards,): the units of each shard; None to count them.

    Attributes:
        totals: As for `Selection`.
        counts: int64 of shape (shards,): the units of each shard.
        num_samples: Units in all: positions of an epoch that are no pads.
    """

    def __init__(
        self,
        base: Selection | Repeats,
        codes: npt.NDArray[np.unsignedinteger],
        block: int,
        form: Packing | Grouping,
        counts: Int64 | None = None,
    ) -> None:
        self.base, self.codes, self.block, self.form = base, codes, block, form
        self.chosen, self.totals = base.chosen, base.totals
        self._ends = np.cumsum(base.counts)
        if counts is None:
            counts = np.array([self._count(self._codes_of(shard)) for shard in range(len(base.counts))], np.int64)
        self.counts = counts
        self.num_samples = int(self.counts.sum())

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the units, as for `Selection`."""
        return hash_of(f"{self.form.noun} {self.block} {tuple(self.form)} {self.base.fingerprint} ", self.codes)

    def _count(self, codes: npt.NDArray[np.unsignedinteger]) -> int:
        """Return how many units the items of a shard make, by their codes."""
        raise NotImplementedError

    def _codes_of(self, shard: int) -> npt.NDArray[np.unsignedinteger]:
        """Return the codes of the items of a shard."""
        stop = int(self._ends[shard])
        codes: npt.NDArray[np.unsignedinteger] = self.codes[stop - int(self.base.counts[shard]) : stop]
        return codes

    def _items_of(self, shard: int) -> Items:
        """Return all items of a shard."""
        return item_units(self.base, self.totals, shard).items(np.arange(self.base.counts[shard]))


class Packing(NamedTuple):
    """How long packs are.

    Attributes:
        capacity: How long the items of a pack are together at most.
        truncates: Whether longer samples are cut to the capacity; else there are none.
    """

    capacity: int
    truncates: bool

    @property
    def noun(self) -> str:
        """What a unit is called."""
        return "pack"

    def __str__(self) -> str:
        return f"of up to {self.capacity:,}{', truncated' if self.truncates else ''}"


class Packs(_Bundles):
    """Units of items that are at most so long together. A window is a block. Immutable.

    Args:
        base: The items, as units.
        codes: As for `_Bundles`: the pack of each item. The packs of a shard are numbered from 0, block by block.
        block: How many items of a shard are packed, and read, together.
        form: How long packs are.
        counts: As for `_Bundles`.
    """

    form: Packing

    def _count(self, codes: npt.NDArray[np.unsignedinteger]) -> int:
        """Return how many packs there are; 0 if a block does not begin with the number after the block before."""
        firsts = np.arange(0, len(codes), self.block)
        if not len(firsts):
            return 0
        ends = np.maximum.reduceat(codes, firsts).astype(np.int64) + 1
        is_right = np.array_equal(np.minimum.reduceat(codes, firsts), np.append(0, ends[:-1]))
        return int(ends[-1]) if is_right else 0

    def of_shard(self, shard: int) -> ShardUnits:
        """Return the packs of a shard."""
        codes, (_, samples, parts, _, _) = self._codes_of(shard), self._items_of(shard)
        bins = codes.astype(np.int64)
        ends = np.maximum.reduceat(bins, np.arange(0, len(bins), self.block)) + 1 if len(bins) else bins
        by_bin = np.argsort(codes, kind="stable")  # of 16 bits: several times as fast as of 64
        offsets = np.append(0, np.cumsum(np.bincount(bins)))
        return ListedUnits(ends, samples[by_bin], None if parts is None else parts[by_bin], offsets)


class Grouping(NamedTuple):
    """How many items a group has.

    Attributes:
        size: The items of each group; with a budget the most of them, 0 for any number.
        budget: How long the items are together at most, each counted as long as the longest; 0 for groups of `size`.
        values: What the codes of classes stand for, such as the names of buckets; with a budget the codes are lengths.
    """

    size: int
    budget: int
    values: tuple[Any, ...] = ()

    @property
    def noun(self) -> str:
        """What a unit is called."""
        return "group"

    def __str__(self) -> str:
        most = f"of up to {self.size:,}" if self.budget else f"of {self.size:,}"
        return " ".join([most] * bool(self.size) + [f"with a budget of {self.budget:,}"] * bool(self.budget))

    def sizes(self, codes: Int64) -> Int64:
        """Return the items of a group of some classes: int64 of shape (classes,)."""
        if not self.budget:
            return np.full_like(codes, self.size)
        fitting: Int64 = np.maximum(1, self.budget // np.maximum(1, codes))
        return np.minimum(fitting, self.size) if self.size else fitting


class Groups(_Bundles):
    """Units of items of one class each, whose members change from epoch to epoch. Immutable.

    The last group of a class in a block may lack items. With a budget it is a smaller group; else it is filled with its
    own first items, over and over, as pads.

    Args:
        base: The items, as units.
        codes: As for `_Bundles`: the class of each item.
        block: How many items of a shard are grouped, and read, together; 0 for all of a shard, of which each group is
            read by itself.
        form: How many items a group has.
        counts: As for `_Bundles`.
    """

    form: Grouping

    @cached_property
    def num_pads(self) -> int:
        """Items that are repeated to fill groups, in all."""
        return 0 if self.form.budget else self.num_samples * self.form.size - self.base.num_samples

    @property
    def costs(self) -> npt.NDArray[np.float64]:
        """Of groups of a budget: for each its items times the square of the length that they are padded to at most.

        Shape (groups,), in no order.
        """
        costs = [np.zeros(0)]
        for shard in range(len(self.counts)):
            for _, classes in self._blocks(self._codes_of(shard)):
                lengths, counts = np.unique(classes, return_counts=True)
                sizes, squares = self.form.sizes(lengths), lengths.astype(np.float64) ** 2
                costs += [np.repeat(squares * sizes, counts // sizes), (squares * (counts % sizes))[counts % sizes > 0]]
        return np.concatenate(costs)

    def _blocks(self, codes: npt.NDArray[np.unsignedinteger]) -> Iterator[tuple[int, Int64]]:
        """Give where each block of a shard begins, and the classes of its items."""
        block = self.block or max(1, len(codes))
        for first in range(0, len(codes), block):
            yield first, codes[first : first + block].astype(np.int64)

    def _count(self, codes: npt.NDArray[np.unsignedinteger]) -> int:
        if self.form.budget:
            counted = (np.unique(block, return_counts=True) for _, block in self._blocks(codes))
            return sum(int((-(-counts // self.form.sizes(classes))).sum()) for classes, counts in counted)
        # All blocks at once, as every process that opens a view counts all of its items.
        blocks = np.arange(len(codes)) // (self.block or max(1, len(codes)))
        counts = np.bincount(blocks * (int(codes.max(initial=0)) + 1) + codes.astype(np.int64))
        return int((-(-counts // self.form.size)).sum())

    def of_shard(self, shard: int, words: tuple[int, ...] | None) -> ShardUnits:
        """Return the groups of a shard; `words` are what the order of members depends on besides, None for none."""
        codes, (_, samples, parts, _, _) = self._codes_of(shard), self._items_of(shard)
        items, sizes, pads, ends = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], [np.zeros(0, np.bool_)], [0]
        for first, classes in self._blocks(codes):
            own = self._grouped(classes, None if words is None else (*words, shard, first))
            items.append(first + own.items)
            sizes.append(own.sizes)
            pads.append(own.pads)
            ends.append(ends[-1] + len(own.sizes))
        item, size = np.concatenate(items), np.concatenate(sizes)
        return ListedUnits(
            np.array(ends[1:], np.int64) if self.block else np.arange(1, len(size) + 1),
            samples[item],
            None if parts is None else parts[item],
            np.append(0, np.cumsum(size)),
            None if self.form.budget else np.concatenate(pads),
            codes[item],
            self._values if self.form.values else None,
        )

    @cached_property
    def _values(self) -> npt.NDArray[np.object_]:
        return np.array([*self.form.values, None], object)[:-1]

    def _grouped(self, classes: Int64, words: tuple[int, ...] | None) -> _Members:
        """Return the groups of a block: of the items of each class, in an order of `words`, as many as a group has."""
        codes, class_of_item = np.unique(classes, return_inverse=True)
        ranks = np.arange(len(classes))
        if words is not None:
            ranks = hash_numbers(hash_stream(_MEMBERS, *words), ranks).astype(np.uint64)
        by_class = np.lexsort((ranks, class_of_item))
        counts, sizes = np.bincount(class_of_item), self.form.sizes(codes)
        units = -(-counts // sizes)
        size = np.repeat(sizes, units)
        ends = np.repeat(np.cumsum(counts), units)
        number = np.arange(len(size)) - np.repeat(np.cumsum(units) - units, units)
        begin = ends - np.repeat(counts, units) + number * size
        filled = np.minimum(size, ends - begin)
        size = filled if self.form.budget else size
        place = np.arange(size.sum()) - np.repeat(np.cumsum(size) - size, size)
        items = by_class[np.repeat(begin, size) + place % np.repeat(filled, size)]
        return _Members(items, size, place >= np.repeat(filled, size))


class _Members(NamedTuple):
    """The items of some groups, group after group: their numbers, the groups' sizes, and which items are pads."""

    items: Int64
    sizes: Int64
    pads: npt.NDArray[np.bool_]


Units: TypeAlias = Selection | Repeats | Packs | Groups


Form: TypeAlias = Packing | Grouping
"""What the units are that have several items each."""


def form_of(units: Units | None) -> Form | None:
    """Return what the units are; None where each is one item."""
    return units.form if isinstance(units, (Packs, Groups)) else None


def window_items(units: Units | None, window: int) -> int:
    """Return about how many samples are read together: `window`, unless units are packs or groups."""
    if not isinstance(units, (Packs, Groups)):
        return window
    items = units.block or -(-units.base.num_samples // max(1, units.num_samples))
    is_expanded = isinstance(units.base, Repeats) and units.base.kind == "expand"  # parts of a sample are read once
    return items * units.chosen.num_samples // max(1, units.base.num_samples) if is_expanded else items


def fewer_lanes(units: Units, lanes: int, sample_bytes: int) -> int:
    """Return how many lanes an epoch has by default: fewer where windows are large, since each lane keeps one of them.

    Args:
        units: The units.
        lanes: Lanes of the dataset: the result is this, or this divided by two, or by four, but not below 48.
        sample_bytes: Bytes of a sample.
    """
    num_bytes = window_items(units, 0) * sample_bytes
    while lanes % 2 == 0 and lanes // 2 >= _MIN_LANES and lanes * num_bytes > _LANES_BYTES:
        lanes //= 2
    return lanes


def items_of(units: Units | None) -> Selection | Repeats | None:
    """Return the items of some units, as units of one item each; None for each sample once."""
    return units.base if isinstance(units, (Packs, Groups)) else units


def shard_units(
    units: Units | None, totals: Int64, shard: int, window: int, words: tuple[int, ...] | None = None
) -> ShardUnits:
    """Return the units of a shard in windows of about `window` units.

    Args:
        units: The units of all shards; None for each sample once.
        totals: int64 of shape (shards,): the samples of each shard.
        shard: The shard.
        window: Units of a window; where windows are of whole samples, its samples.
        words: What the members of groups depend on, such as the seed and the epoch; None to leave them in their order.
    """
    if isinstance(units, Packs):
        return units.of_shard(shard)
    if isinstance(units, Groups):
        return units.of_shard(shard, words)
    return item_units(units, totals, shard, window)
