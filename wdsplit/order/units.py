"""The units of a view: what one position of the order delivers, as samples of a shard.

Pure (no I/O). A unit is one item, or a pack of several; an item is a sample, or one of several times that a sample
comes in an epoch. The order knows only how many units each window of a shard has; which samples they are matters only
when a window is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from wdsplit.arrays import Int64
from wdsplit.order.hashing import hash_numbers, hash_stream
from wdsplit.order.selection import Mask, Selection

__all__ = [
    "KINDS",
    "MAX_TIMES",
    "PART_NAMES",
    "PLACE",
    "Groups",
    "Items",
    "Kind",
    "Packing",
    "Packs",
    "Repeats",
    "ShardUnits",
    "Units",
    "Window",
    "grouped",
    "items_of",
    "num_groups",
    "packing_of",
    "shard_units",
    "spread",
]

Kind = Literal["select", "repeat", "expand"]
KINDS: tuple[Kind, ...] = ("select", "repeat", "expand")
"""Kinds of items: each selected sample once; or a number of times, far apart (repeat) or together (expand)."""

MAX_TIMES = 2**20
"""Largest number of units of a sample."""

_HASHED_AT_ONCE = 2**20

PLACE = "__place__"
"""The field that has a sample's place in its pack, from 0."""

PART_NAMES = {"repeat": "__repeat__", "expand": "__part__"}
"""The field of a sample that numbers the times that it comes, from 0, by the kind of units."""


_MEMBERS = 6
"""Domain of the hash that orders the members of groups."""


@dataclass(frozen=True, eq=False)
class Window:
    """The samples that are read together for some consecutive units of a shard.

    Attributes:
        samples: int64 of shape (samples,), rising: their places in the shard.
        items: int64 of shape (items,): the sample of each item, unit after unit, as an index into `samples`.
        parts: int64 of shape (items,): which of the items of its sample each is; None where each sample has one.
        offsets: int64 of shape (units + 1,): where the items of each unit begin, and their number; None where each unit
            is one item.
        pads: bool of shape (items,): True where an item is repeated to fill its unit; None where none is.
    """

    samples: Int64
    items: Int64
    parts: Int64 | None = None
    offsets: Int64 | None = None
    pads: npt.NDArray[np.bool_] | None = None


class Items(NamedTuple):
    """The items of some units, unit after unit.

    Attributes:
        rows: int64 of shape (items,), rising: which of the units each item is of; None where each unit is one item.
        samples: int64 of shape (items,): the sample of each.
        parts: int64 of shape (items,): which of the items of its sample each is; None where each sample has one.
        pads: bool of shape (items,): True where an item is repeated to fill its unit; None where none is.
    """

    rows: Int64 | None
    samples: Int64
    parts: Int64 | None
    pads: npt.NDArray[np.bool_] | None = None


def spread(offsets: Int64, units: Int64) -> tuple[Int64, Int64]:
    """Return which of some units each of their items is of, and the number of each item; offsets are as in `Window`."""
    sizes = offsets[units + 1] - offsets[units]
    rows = np.repeat(np.arange(len(units)), sizes)
    return rows, np.arange(len(rows)) + np.repeat(offsets[units] - (np.cumsum(sizes) - sizes), sizes)


class ShardUnits(Protocol):
    """The units of a shard, in windows."""

    @property
    def ends(self) -> Int64:
        """The number of units up to the end of each window: int64 of shape (windows,), rising."""

    def window(self, number: int) -> Window:
        """Return what is read for the units of a window."""

    def items(self, units: Int64) -> Items:
        """Return the items of some units, by their numbers."""


class _EvenUnits:
    """Units that are a sample each, in windows of one size.

    Args:
        count: Units of the shard.
        window: Units of a window.
        total: Samples of the shard.
        mask: Returns which of the samples first, ..., stop - 1 are units; None if all are.
    """

    def __init__(self, count: int, window: int, total: int, mask: Callable[[int, int], Mask] | None = None) -> None:
        self._count, self._window, self._total, self._mask = count, window, total, mask

    @property
    def ends(self) -> Int64:
        """The number of units up to the end of each window."""
        ends: Int64 = np.minimum(np.arange(self._window, self._count + self._window, self._window), self._count)
        return ends

    @cached_property
    def _begins(self) -> Int64:
        """The first sample of each window, and the number of samples at last."""
        firsts = np.arange(0, self._count, self._window)
        return np.append(self.items(firsts).samples, self._total)

    def window(self, number: int) -> Window:
        """Return what is read for the units of a window."""
        if self._mask is None:
            first = number * self._window
            samples = np.arange(first, min(first + self._window, self._count))
        else:
            first, stop = self._begins[number : number + 2].tolist()
            samples = first + np.flatnonzero(self._mask(first, stop))
        return Window(samples, np.arange(len(samples)))

    def items(self, units: Int64) -> Items:
        """Return the items of some units."""
        samples = units if self._mask is None else np.flatnonzero(self._mask(0, self._total))[units]
        return Items(None, samples, None)


@dataclass(frozen=True, eq=False)
class _ListedUnits:
    """Units of which the samples are listed.

    Attributes:
        ends: As for `ShardUnits`.
        samples: int64 of shape (items,): the sample of each item, unit after unit.
        parts: As for `Window`, of the whole shard.
        offsets: As for `Window`, of the whole shard.
        pads: As for `Window`, of the whole shard.
    """

    ends: Int64
    samples: Int64
    parts: Int64 | None
    offsets: Int64 | None = None
    pads: npt.NDArray[np.bool_] | None = None

    def window(self, number: int) -> Window:
        first, stop = np.append(0, self.ends)[number : number + 2]
        offsets = None if self.offsets is None else self.offsets[first : stop + 1]
        if offsets is not None:
            first, stop = offsets[0], offsets[-1]
        samples, items = np.unique(self.samples[first:stop], return_inverse=True)
        parts = None if self.parts is None else self.parts[first:stop]
        pads = None if self.pads is None else self.pads[first:stop]
        return Window(samples, items.reshape(-1), parts, None if offsets is None else offsets - first, pads)

    def items(self, units: Int64) -> Items:
        rows, numbers = (None, units) if self.offsets is None else spread(self.offsets, units)
        parts = None if self.parts is None else self.parts[numbers]
        return Items(rows, self.samples[numbers], parts, None if self.pads is None else self.pads[numbers])


class Repeats:
    """Samples that come several times in an epoch. Immutable.

    Args:
        chosen: The samples that come at least once.
        times: Unsigned integers of shape (selected,), at least 1: how many units each selected sample has, shard by
            shard. May be a memory map.
        kind: `repeat` lays the units of a shard out in rounds, so that those of a sample lie far apart; `expand` sample
            by sample, so that a window reads each of its samples once.

    Attributes:
        totals: As for `Selection`.
        counts: int64 of shape (shards,): the units of each shard.
        num_samples: Units in all: positions of an epoch that are no pads.
    """

    def __init__(self, chosen: Selection, times: npt.NDArray[np.unsignedinteger], kind: Kind) -> None:
        self.chosen, self.times, self.kind = chosen, np.asarray(times), kind
        self.totals = chosen.totals
        self._ends = np.cumsum(chosen.counts)
        self.counts = np.zeros_like(chosen.counts)
        filled = np.flatnonzero(chosen.counts)
        if len(filled):
            begins = (self._ends - chosen.counts)[filled]
            self.counts[filled] = np.add.reduceat(self.times, begins, dtype=np.int64)
        self.num_samples = int(self.counts.sum())

    def __len__(self) -> int:
        return len(self.totals)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the units, as for `Selection`."""
        return _hash_of(f"{self.kind} {self.chosen.fingerprint} ", self.times)

    def mask(self, shard: int, first: int = 0, stop: int | None = None) -> Mask:
        """Return which samples have units, as for `Selection`."""
        return self.chosen.mask(shard, first, stop)

    @property
    def part_name(self) -> str:
        """The field that numbers the units of a sample."""
        return PART_NAMES[self.kind]

    def of_shard(self, shard: int, window: int) -> ShardUnits:
        """Return the units of a shard, as `shard_units` does."""
        stop = int(self._ends[shard])
        times = self.times[stop - int(self.chosen.counts[shard]) : stop].astype(np.int64)
        number = np.repeat(np.arange(len(times)), times)
        parts = np.arange(len(number)) - np.repeat(np.cumsum(times) - times, times)
        if self.kind == "expand":  # a window is of whole samples, so that each is read once
            is_first = (parts == 0) & (number % window == 0)
        else:  # a window is in one round, for in two it would reach from the shard's end to its begin
            by_round = np.argsort(parts, kind="stable")
            number, parts = number[by_round], parts[by_round]
            is_first = (np.arange(len(parts)) - np.searchsorted(parts, parts)) % window == 0
        begins = np.flatnonzero(is_first)
        ends = np.append(begins[1:], len(number))[: len(begins)]
        return _ListedUnits(ends, self.chosen.places(shard)[number], parts)


class Packing(NamedTuple):
    """How long packs are.

    Attributes:
        capacity: How long the items of a pack are together at most.
        truncates: Whether longer samples are cut to the capacity; else there are none.
    """

    capacity: int
    truncates: bool


class Packs:
    """Units of several items each. Immutable.

    Args:
        base: The items, as units.
        bins: Unsigned integers of shape (items,), shard by shard in the order of their units: the pack of each item.
            The packs of a shard are numbered from 0, block by block. May be a memory map.
        block: How many items of a shard are packed, and read, together.
        packing: How long packs are.

    Attributes:
        totals: As for `Selection`.
        counts: int64 of shape (shards,): the packs of each shard.
        num_samples: Packs in all: positions of an epoch that are no pads.
    """

    def __init__(
        self, base: Selection | Repeats, bins: npt.NDArray[np.unsignedinteger], block: int, packing: Packing
    ) -> None:
        self.base, self.bins, self.block, self.packing = base, np.asarray(bins), block, packing
        self.chosen, self.totals = base.chosen, base.totals
        self.counts = np.zeros_like(base.counts)
        self._ends = np.cumsum(base.counts)
        filled = np.flatnonzero(base.counts)
        if len(filled):
            self.counts[filled] = (
                np.maximum.reduceat(self.bins, (self._ends - base.counts)[filled]).astype(np.int64) + 1
            )
        self.num_samples = int(self.counts.sum())

    def __len__(self) -> int:
        return len(self.totals)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the units, as for `Selection`."""
        return _hash_of(f"pack {self.block} {tuple(self.packing)} {self.base.fingerprint} ", self.bins)

    def mask(self, shard: int, first: int = 0, stop: int | None = None) -> Mask:
        """Return which samples have items, as for `Selection`."""
        return self.chosen.mask(shard, first, stop)

    @property
    def part_name(self) -> str:
        """The field that numbers the items of a sample; empty where each has one."""
        return self.base.part_name if isinstance(self.base, Repeats) else ""

    def of_shard(self, shard: int) -> ShardUnits:
        """Return the packs of a shard: a window is a block."""
        count, stop = int(self.base.counts[shard]), int(self._ends[shard])
        bins = self.bins[stop - count : stop].astype(np.int64)
        _, samples, parts, _ = shard_units(self.base, self.totals, shard, max(1, count)).items(np.arange(count))
        ends = np.maximum.reduceat(bins, np.arange(0, count, self.block)) + 1 if count else bins
        by_bin = np.argsort(bins, kind="stable")
        offsets = np.append(0, np.cumsum(np.bincount(bins)))
        return _ListedUnits(ends, samples[by_bin], None if parts is None else parts[by_bin], offsets)


def _hash_of(text: str, values: npt.NDArray[np.unsignedinteger]) -> str:
    """Return a hash of a text and of integers, whatever their width; takes little memory."""
    digest = xxhash.xxh3_128(text.encode())
    for first in range(0, len(values), _HASHED_AT_ONCE):
        digest.update(np.ascontiguousarray(values[first : first + _HASHED_AT_ONCE].astype("<u4")).data)
    return digest.hexdigest()


class Groups:
    """Units of several items of one class each, whose members change from epoch to epoch. Immutable.

    Args:
        base: The items, as units.
        classes: Unsigned integers of shape (items,), shard by shard in the order of their units: the class of each
            item. May be a memory map.
        sizes: int64 of shape (classes,): items of a unit of each class.
        counts: int64 of shape (shards,): the units of each shard.
        block: How many items of a shard are grouped, and read, together; 0 for all of a shard, of which each group is
            read by itself.

    Attributes:
        totals: As for `Selection`.
        num_samples: Units in all: positions of an epoch that are no pads.
    """

    def __init__(
        self,
        base: Selection | Repeats,
        classes: npt.NDArray[np.unsignedinteger],
        sizes: Int64,
        counts: Int64,
        block: int,
    ) -> None:
        self.base, self.classes, self.sizes, self.counts, self.block = base, np.asarray(classes), sizes, counts, block
        self.chosen, self.totals = base.chosen, base.totals
        self.num_samples = int(counts.sum())
        self._ends = np.cumsum(base.counts)

    def __len__(self) -> int:
        return len(self.totals)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the units, as for `Selection`."""
        return _hash_of(f"group {self.block} {self.sizes.tolist()} {self.base.fingerprint} ", self.classes)

    def mask(self, shard: int, first: int = 0, stop: int | None = None) -> Mask:
        """Return which samples have items, as for `Selection`."""
        return self.chosen.mask(shard, first, stop)

    @property
    def part_name(self) -> str:
        """The field that numbers the items of a sample; empty where each has one."""
        return self.base.part_name if isinstance(self.base, Repeats) else ""

    def of_shard(self, shard: int, words: tuple[int, ...] | None) -> ShardUnits:
        """Return the groups of a shard; `words` are what the order of members depends on besides, None for none."""
        count, stop = int(self.base.counts[shard]), int(self._ends[shard])
        classes = self.classes[stop - count : stop].astype(np.int64)
        _, samples, parts, _ = shard_units(self.base, self.totals, shard, max(1, count)).items(np.arange(count))
        block = self.block or max(1, count)
        made = [
            grouped(classes[first : first + block], self.sizes, None if words is None else (*words, shard, first))
            for first in range(0, count, block)
        ]
        none = np.zeros(0, np.int64)
        items = np.concatenate([none, *(first * block + each.items for first, each in enumerate(made))])
        sizes = np.concatenate([none, *(np.diff(each.offsets) for each in made)])
        ends = np.cumsum([len(each.offsets) - 1 for each in made]) if self.block else np.arange(1, len(sizes) + 1)
        pads = np.concatenate([none > 0, *(each.pads for each in made)])
        parts = None if parts is None else parts[items]
        return _ListedUnits(ends, samples[items], parts, np.append(0, np.cumsum(sizes)), pads)


class Members(NamedTuple):
    """The items of some units, unit after unit.

    Attributes:
        offsets: int64 of shape (units + 1,): where the items of each unit begin, and their number.
        items: int64 of shape (items,): their numbers.
        pads: bool of shape (items,): True where an item is repeated to fill its unit.
    """

    offsets: Int64
    items: Int64
    pads: npt.NDArray[np.bool_]


def grouped(classes: Int64, sizes: Int64, words: tuple[int, ...] | None) -> Members:
    """Return the units of a block: of the items of each class, in a random order, as many as its size each.

    What is missing in the last unit of a class is filled with the first items of the unit, over and over.

    Args:
        classes: int64 of shape (items,): the class of each item, from 0.
        sizes: int64 of shape (classes,): items of a unit of each class, at least 1.
        words: What the order of the items depends on, such as the seed, the epoch, the shard and the block; None to
            leave them in their order.
    """
    ranks = np.arange(len(classes))
    if words is not None:
        ranks = hash_numbers(hash_stream(_MEMBERS, *words), ranks).astype(np.uint64)
    by_class = np.lexsort((ranks, classes))
    counts = np.bincount(classes, minlength=len(sizes))
    units = -(-counts // sizes)
    size = np.repeat(sizes, units)
    class_of = np.repeat(np.arange(len(sizes)), units)
    number = np.arange(len(size)) - np.repeat(np.cumsum(units) - units, units)
    begin = (np.cumsum(counts) - counts)[class_of] + number * size
    filled = np.minimum(size, np.cumsum(counts)[class_of] - begin)
    offsets = np.append(0, np.cumsum(size))
    place = np.arange(offsets[-1]) - np.repeat(offsets[:-1], size)
    items = by_class[np.repeat(begin, size) + place % np.repeat(filled, size)]
    return Members(offsets, items, place >= np.repeat(filled, size))


def num_groups(classes: Int64, sizes: Int64) -> int:
    """Return how many units `grouped` makes, in any epoch."""
    return int((-(-np.bincount(classes, minlength=len(sizes)) // sizes)).sum())


Units: TypeAlias = Selection | Repeats | Packs | Groups


def packing_of(units: Units | None) -> Packing | None:
    """Return how long packs are; None where each unit is one item."""
    return units.packing if isinstance(units, Packs) else None


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
    if isinstance(units, Repeats):
        return units.of_shard(shard, window)
    if isinstance(units, Packs):
        return units.of_shard(shard)
    if isinstance(units, Groups):
        return units.of_shard(shard, words)
    total = int(totals[shard])
    if units is None:
        return _EvenUnits(total, window, total)
    return _EvenUnits(int(units.counts[shard]), window, total, partial(units.mask, shard))
