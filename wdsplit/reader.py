"""From positions to samples: the shards that an order leads through, read window by window.

Composition of the order and the open shards. A reader holds the windows that its lanes are in, and no more; it can
start at any position, because nothing depends on what was read before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from typing import Any, Generic, TypeVar

import numpy as np

from wdsplit.block import Block, Objects
from wdsplit.manifest import Manifest
from wdsplit.order import EpochOrder, Int64, groups, window_order, window_samples
from wdsplit.shards import OpenShard, Scratch, open_shard
from wdsplit.storage import Storage, allow_open_files, keep_freed_memory
from wdsplit.window import Window

__all__ = ["SampleReader"]

Value = TypeVar("Value")


class SampleReader:
    """Reads the samples of positions.

    Args:
        storage: Where the dataset is.
        manifest: Its manifest.
        order: The epoch's order.
        num_lanes: Lanes that this reader visits: about as many windows are kept.
        fields: The fields that are wanted; None for all.
    """

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        order: EpochOrder,
        num_lanes: int,
        fields: Collection[str] | None = None,
    ) -> None:
        allow_open_files(2 * (2 * num_lanes + 2))
        keep_freed_memory()
        self._storage = storage
        self._shards = manifest.shards
        self._order = order
        self._fields = fields
        self._scratch = Scratch()
        self._visits: _Recent[_Visit] = _Recent(2 * num_lanes + 2)
        self._windows: _Recent[tuple[Window, Int64]] = _Recent(2 * num_lanes + 2)

    @property
    def num_parsed(self) -> int:
        """Windows that were read and parsed so far."""
        return self._windows.num_made

    @property
    def num_held(self) -> int:
        """Times that a window was at hand already."""
        return self._windows.num_held

    def read(self, positions: Int64) -> Block:
        """Return the samples at the given positions, in their order.

        Args:
            positions: int64 of any length.

        Raises:
            WdsplitError: A shard is missing or damaged.
        """
        shards, visits, pads = self._order.visits(positions)
        gathered = _Gathered(len(positions))
        for shard, rows in groups(shards):
            visit = self._visits.get(shard, self._open, shard)
            slots = np.searchsorted(visit.ends, visits[rows], side="right")
            for slot, members in groups(slots):
                chosen = rows[members]
                window, order = self._windows.get((shard, slot), self._parse, visit, slot)
                gathered.add(window, order[visits[chosen] - visit.begin(slot)], chosen)
        return gathered.block(positions, pads)

    def _open(self, shard: int) -> _Visit:
        count = int(self._order.counts[shard])
        options, epoch = self._order.options, self._order.epoch
        opened = open_shard(self._storage, self._shards[shard])
        windows = window_order(options, epoch, shard, count)
        sizes = np.minimum(options.window, count - windows * options.window)
        return _Visit(shard, opened, windows, np.cumsum(sizes))

    def _parse(self, visit: _Visit, slot: int) -> tuple[Window, Int64]:
        """Return a window of a shard, and the places of its samples in the order of their visits."""
        options, epoch = self._order.options, self._order.epoch
        number = int(visit.windows[slot])
        first = number * options.window
        count = int(self._order.counts[visit.shard])
        order = window_samples(options, epoch, visit.shard, count, number) - first
        if slot + 1 < len(visit.windows):
            following = int(visit.windows[slot + 1]) * options.window
            visit.opened.expect(following, min(count, following + options.window))
        return visit.opened.window(first, first + len(order), self._fields, self._scratch), order


class _Gathered:
    """A block in the making: samples of several windows, put into their places."""

    def __init__(self, size: int) -> None:
        self._keys, self._urls = np.empty(size, object), np.empty(size, object)
        self._sizes = np.zeros(size, np.int64)
        self._fields: dict[str, Objects] = {}

    def add(self, window: Window, places: Int64, rows: Int64) -> None:
        """Put samples of a window into the rows of the block."""
        self._keys[rows] = window.keys_at(places)
        self._urls[rows] = window.url
        self._sizes[rows] = window.sizes_at(places)
        for name, payloads in window.fields.items():
            if name not in self._fields:
                self._fields[name] = np.empty(len(self._keys), object)
            self._fields[name][rows] = payloads[places]

    def block(self, positions: Int64, pads: Any) -> Block:
        """Return the block."""
        return Block(self._keys, self._urls, positions, pads, self._sizes, self._fields)


class _Visit:
    """A shard that is being visited: its windows in the order of their visits, and where each ends."""

    def __init__(self, shard: int, opened: OpenShard, windows: Int64, ends: Int64) -> None:
        self.shard = shard
        self.opened = opened
        self.windows = windows
        self.ends = ends

    def begin(self, slot: int) -> int:
        return int(self.ends[slot - 1]) if slot else 0


class _Recent(Generic[Value]):
    """The values that were used last, up to a number of them."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._values: OrderedDict[Hashable, Value] = OrderedDict()
        self.num_made = 0
        self.num_held = 0

    def get(self, key: Hashable, make: Callable[..., Value], *arguments: Any) -> Value:
        """Return the value of a key; if it is not held, make it from the arguments."""
        if key in self._values:
            self._values.move_to_end(key)
            self.num_held += 1
            return self._values[key]
        value = self._values[key] = make(*arguments)
        self.num_made += 1
        if len(self._values) > self._capacity:
            self._values.popitem(last=False)
        return value
