"""The units of a view: what one position of the order delivers, as samples of a shard.

Pure (no I/O). A unit is one item, or a pack or group of several; an item is a sample, or one of several times that a
sample comes in an epoch. The order knows only how many units each window of a shard has; which samples they are matters
only when a window is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from wdsplit.arrays import Int64
from wdsplit.order.hashing import hash_numbers, hash_stream
from wdsplit.order.selection import Mask, Selection

__all__ = [
    "GROUP",
    "KINDS",
    "MAX_TIMES",
    "PART_NAMES",
    "PLACE",
    "Form",
    "Grouping",
    "Groups",
    "Items",
    "Kind",
    "Packing",
    "Packs",
    "Repeats",
    "ShardUnits",
    "Units",
    "Window",
    "fewer_lanes",
    "form_of",
    "items_of",
    "shard_units",
    "spread",
    "window_items",
]

Kind = Literal["select", "repeat", "expand"]
KINDS: tuple[Kind, ...] = ("select", "repeat", "expand")
"""Kinds of items: each selected sample once; or a number of times, far apart (repeat) or together (expand)."""

MAX_TIMES = 2**20
"""Largest number of units of a sample."""

_HASHED_AT_ONCE = 2**20
_LANES_BYTES, _MIN_LANES = 256 * 2**20, 48
"""About how much memory the windows of all lanes may take in one process, and fewest lanes to stay below it."""

PLACE, GROUP = "__place__", "__group__"
"""The fields that have a sample's place in its pack or group, from 0, and the value of its group's class."""

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
        groups: Objects of shape (items,): the value of the class of each item's group; None unless units are groups.
    """

    samples: Int64
    items: Int64
    parts: Int64 | None = None
    offsets: Int64 | None = None
    pads: npt.NDArray[np.bool_] | None = None
    groups: npt.NDArray[np.object_] | None = None


class Items(NamedTuple):
    """The items of some units, unit after unit.

    Attributes:
        rows: int64 of shape (items,), rising: which of the units each item is of; None where each unit is one item.
        samples: int64 of shape (items,): the sample of each.
        parts: int64 of shape (items,): which of the items of its sample each is; None where each sample has one.
        pads, groups: As for `Window`.
    """

    rows: Int64 | None
    samples: Int64
    parts: Int64 | None
    pads: npt.NDArray[np.bool_] | None = None
    groups: npt.NDArray[np.object_] | None = None


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
        classes: Unsigned integers of shape (items,): the class of each item's group; None unless units are groups.
        values: What the classes stand for; None if they are lengths.
    """

    ends: Int64
    samples: Int64
    parts: Int64 | None
    offsets: Int64 | None = None
    pads: npt.NDArray[np.bool_] | None = None
    classes: npt.NDArray[np.unsignedinteger] | None = None
    values: npt.NDArray[np.object_] | None = None

    def window(self, number: int) -> Window:
        first, stop = np.append(0, self.ends)[number : number + 2]
        offsets = None if self.offsets is None else self.offsets[first : stop + 1]
        if offsets is not None:
            first, stop = offsets[0], offsets[-1]
        samples, items = np.unique(self.samples[first:stop], return_inverse=True)
        parts, pads, groups = self._facts(slice(first, stop))
        offsets = None if offsets is None else offsets - first
        return Window(samples, items.reshape(-1), parts, offsets, pads, groups)

    def items(self, units: Int64) -> Items:
        rows, numbers = (None, units) if self.offsets is None else spread(self.offsets, units)
        return Items(rows, self.samples[numbers], *self._facts(numbers))

    def _facts(self, items: Any) -> list[Any]:
        """Return `parts`, `pads` and `groups` of some items."""
        parts, pads, groups = (None if each is None else each[items] for each in (self.parts, self.pads, self.classes))
        if groups is not None:  # objects, but only for the items that are asked for
            groups = groups.astype(object) if self.values is None else self.values[groups]
        return [parts, pads, groups]


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


class _Bundles:
    """Units of several items each.

    Args:
        base: The items, as units.
        codes: Unsigned integers of shape (items,), shard by shard in the order of their units. May be a memory map.
        block: How many items of a shard make units together; 0 for all of them.

    Attributes:
        totals: As for `Selection`.
        counts: int64 of shape (shards,): the units of each shard.
        num_samples: Units in all: positions of an epoch that are no pads.
    """

    def __init__(self, base: Selection | Repeats, codes: npt.NDArray[np.unsignedinteger], block: int) -> None:
        self.base, self.codes, self.block = base, np.asarray(codes), block
        self.chosen, self.totals = base.chosen, base.totals
        self._ends = np.cumsum(base.counts)
        self.counts = np.array([self._count(self._codes_of(shard)) for shard in range(len(base.counts))], np.int64)
        self.num_samples = int(self.counts.sum())

    def __len__(self) -> int:
        return len(self.totals)

    def mask(self, shard: int, first: int = 0, stop: int | None = None) -> Mask:
        """Return which samples have items, as for `Selection`."""
        return self.chosen.mask(shard, first, stop)

    @property
    def part_name(self) -> str:
        """The field that numbers the items of a sample; empty where each has one."""
        return self.base.part_name if isinstance(self.base, Repeats) else ""

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
        count = int(self.base.counts[shard])
        return shard_units(self.base, self.totals, shard, max(1, count)).items(np.arange(count))


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
    """

    def __init__(
        self, base: Selection | Repeats, codes: npt.NDArray[np.unsignedinteger], block: int, form: Packing
    ) -> None:
        super().__init__(base, codes, block)
        self.form = form

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the units, as for `Selection`."""
        return _hash_of(f"pack {self.block} {tuple(self.form)} {self.base.fingerprint} ", self.codes)

    def _count(self, codes: npt.NDArray[np.unsignedinteger]) -> int:
        return int(codes.max()) + 1 if len(codes) else 0

    def of_shard(self, shard: int) -> ShardUnits:
        """Return the packs of a shard."""
        bins, (_, samples, parts, _, _) = self._codes_of(shard).astype(np.int64), self._items_of(shard)
        ends = np.maximum.reduceat(bins, np.arange(0, len(bins), self.block)) + 1 if len(bins) else bins
        by_bin = np.argsort(bins, kind="stable")
        offsets = np.append(0, np.cumsum(np.bincount(bins)))
        return _ListedUnits(ends, samples[by_bin], None if parts is None else parts[by_bin], offsets)


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
    """

    def __init__(
        self, base: Selection | Repeats, codes: npt.NDArray[np.unsignedinteger], block: int, form: Grouping
    ) -> None:
        self.form = form
        super().__init__(base, codes, block)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the units, as for `Selection`."""
        return _hash_of(f"group {self.block} {tuple(self.form)} {self.base.fingerprint} ", self.codes)

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
        for shard in range(len(self)):
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
        counted = (np.unique(block, return_counts=True) for _, block in self._blocks(codes))
        return sum(int((-(-counts // self.form.sizes(classes))).sum()) for classes, counts in counted)

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
        return _ListedUnits(
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


def _hash_of(text: str, values: npt.NDArray[np.unsignedinteger]) -> str:
    """Return a hash of a text and of integers, whatever their width; takes little memory."""
    digest = xxhash.xxh3_128(text.encode())
    for first in range(0, len(values), _HASHED_AT_ONCE):
        digest.update(np.ascontiguousarray(values[first : first + _HASHED_AT_ONCE].astype("<u4")).data)
    return digest.hexdigest()


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
