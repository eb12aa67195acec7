"""The units of a view: what one position of the order delivers, as samples of a shard.

Pure (no I/O). A unit is one item, or a pack or group of several (see `bundles`); an item is a sample, or one of several
times that a sample comes in an epoch. The order knows only how many units each window of a shard has; which samples
they are matters only when a window is read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from wdsplit.arrays import Int64
from wdsplit.order.selection import Mask, Selection

__all__ = [
    "GROUP",
    "KINDS",
    "MAX_TIMES",
    "PART_NAMES",
    "PLACE",
    "Items",
    "Kind",
    "ListedUnits",
    "Repeats",
    "ShardUnits",
    "Window",
    "hash_of",
    "item_units",
    "spread",
]

Kind = Literal["select", "repeat", "expand"]
KINDS: tuple[Kind, ...] = ("select", "repeat", "expand")
"""Kinds of items: each selected sample once; or a number of times, far apart (repeat) or together (expand)."""

MAX_TIMES = 2**20
"""Largest number of units of a sample."""

_HASHED_AT_ONCE = 2**20
PLACE, GROUP = "__place__", "__group__"
"""The fields that have a sample's place in its pack or group, from 0, and the value of its group's class."""

PART_NAMES = {"repeat": "__repeat__", "expand": "__part__"}
"""The field of a sample that numbers the times that it comes, from 0, by the kind of units."""


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
        """The number of units up to the end of each window: int64 of shape (windows,), rising."""
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
        """Return the items of some units, by their numbers."""
        samples = units if self._mask is None else np.flatnonzero(self._mask(0, self._total))[units]
        return Items(None, samples, None)


@dataclass(frozen=True, eq=False)
class ListedUnits:
    """Units of which the samples are listed.

    Attributes:
        ends: int64 of shape (windows,), rising: the number of units up to the end of each window.
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
        """Return what is read for the units of a window."""
        first, stop = np.append(0, self.ends)[number : number + 2]
        offsets = None if self.offsets is None else self.offsets[first : stop + 1]
        if offsets is not None:
            first, stop = offsets[0], offsets[-1]
        samples, items = np.unique(self.samples[first:stop], return_inverse=True)
        parts, pads, groups = self._facts(slice(first, stop))
        offsets = None if offsets is None else offsets - first
        return Window(samples, items, parts, offsets, pads, groups)

    def items(self, units: Int64) -> Items:
        """Return the items of some units."""
        rows, numbers = (None, units) if self.offsets is None else spread(self.offsets, units)
        return Items(rows, self.samples[numbers], *self._facts(numbers))

    def _facts(self, items: Any) -> list[Any]:
        """Return `parts`, `pads` and `groups` of some items."""
        parts, pads, groups = (None if each is None else each[items] for each in (self.parts, self.pads, self.classes))
        if groups is not None:  # objects, but only for the items that are asked for
            groups = groups.astype(object) if self.values is None else self.values[groups]
        return [parts, pads, groups]


ShardUnits: TypeAlias = _EvenUnits | ListedUnits
"""The units of a shard, in windows."""


class Repeats:
    """Samples that come several times in an epoch. Immutable.

    Args:
        chosen: The samples that come at least once.
        times: Unsigned integers of shape (selected,), at least 1: how many units each selected sample has, shard by
            shard.
        kind: `repeat` lays the units of a shard out in rounds, so that those of a sample lie far apart; `expand` sample
            by sample, so that a window reads each of its samples once.
        counts: int64 of shape (shards,): the units of each shard; None to count them.

    Attributes:
        totals: As for `Selection`.
        counts: int64 of shape (shards,): the units of each shard.
        num_samples: Units in all: positions of an epoch that are no pads.
    """

    def __init__(
        self, chosen: Selection, times: npt.NDArray[np.unsignedinteger], kind: Kind, counts: Int64 | None = None
    ) -> None:
        self.chosen, self.times, self.kind = chosen, times, kind
        self.totals = chosen.totals
        self._ends = np.cumsum(chosen.counts)
        self.counts = np.zeros_like(chosen.counts) if counts is None else counts
        filled = np.flatnonzero(chosen.counts)
        if counts is None and len(filled):
            begins = (self._ends - chosen.counts)[filled]
            self.counts[filled] = np.add.reduceat(self.times, begins, dtype=np.int64)
        self.num_samples = int(self.counts.sum())

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the units, as for `Selection`."""
        return hash_of(f"{self.kind} {self.chosen.fingerprint} ", self.times)

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
        return ListedUnits(ends, self.chosen.places(shard)[number], parts)


def item_units(items: Selection | Repeats | None, totals: Int64, shard: int, window: int = 0) -> ShardUnits:
    """Return the items of a shard, as units; arguments as for `shard_units`, 0 for one window of all."""
    total, count = int(totals[shard]), int((totals if items is None else items.counts)[shard])
    window = window or max(1, count)
    if isinstance(items, Repeats):
        return items.of_shard(shard, window)
    return _EvenUnits(count, window, total, None if items is None else partial(items.mask, shard))


def hash_of(text: str, values: npt.NDArray[np.unsignedinteger]) -> str:
    """Return a hash of a text and of integers, whatever their width; takes little memory."""
    digest = xxhash.xxh3_128(text.encode())
    for first in range(0, len(values), _HASHED_AT_ONCE):
        digest.update(np.ascontiguousarray(values[first : first + _HASHED_AT_ONCE].astype("<u4")).data)
    return digest.hexdigest()
