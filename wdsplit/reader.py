"""From positions to samples: the shards that an order leads through, read window by window.

Composition of the order and the open shards. A reader holds the windows that its lanes are in, and no more; it can
start at any position, because nothing depends on what was read before.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.block import Block, Objects
from wdsplit.manifest import Manifest
from wdsplit.order import EpochOrder, Int64, groups, window_order, window_samples
from wdsplit.shards import OpenShard, Scratch, open_shard
from wdsplit.storage import Storage, allow_open_files, keep_freed_memory
from wdsplit.window import Window

__all__ = ["SampleReader"]


class SampleReader:
    """Reads the samples of positions.

    Args:
        storage: Where the dataset is.
        manifest: Its manifest.
        order: The epoch's order.
        num_lanes: Lanes that this reader visits: as many windows are kept.
        fields: The fields that are wanted; None for all.

    Attributes:
        num_parsed: Windows that were read and parsed so far.
        num_held: Times that a window was at hand already.
    """

    def __init__(
        self,
        storage: Storage,
        manifest: Manifest,
        order: EpochOrder,
        num_lanes: int,
        fields: Collection[str] | None = None,
    ) -> None:
        allow_open_files(2 * (num_lanes + 2))
        keep_freed_memory()
        self._storage = storage
        self._shards = manifest.shards
        self._order = order
        self._fields = fields
        self._scratch = Scratch()
        self._lanes: dict[int, tuple[int, int]] = {}
        self._held: dict[tuple[int, int], _Held] = {}
        self.num_parsed = 0
        self.num_held = 0

    def read(self, positions: Int64) -> Block:
        """Return the samples at the given positions, in their order.

        What is read in rising order is read once: of each lane the window is kept that its last position is in.

        Args:
            positions: int64 of any length.

        Raises:
            WdsplitError: A shard is missing or damaged.
        """
        shards, visits, pads = self._order.visits(positions)
        lanes = positions % self._order.options.lanes
        is_last = _last_of_lanes(positions, lanes, self._order.options.lanes)
        gathered = _Gathered(len(positions))
        open_visits = {shard: held.visit for (shard, _), held in self._held.items()}
        held = dict(self._held)
        for shard, rows in groups(shards):
            visit = open_visits.get(shard) or self._open(shard)
            slots = np.searchsorted(visit.ends, visits[rows], side="right")
            for slot, members in groups(slots):
                chosen = rows[members]
                entry = self._entry(visit, slot)
                gathered.add(entry.window, entry.order[visits[chosen] - visit.begin(slot)], chosen)
                for lane in lanes[chosen[is_last[chosen]]].tolist():
                    self._lanes[lane] = shard, slot
                    held[shard, slot] = entry
        self._held = {key: held[key] for key in self._lanes.values()}
        return gathered.block(positions, pads)

    def _entry(self, visit: _Visit, slot: int) -> _Held:
        """Return a window of a shard that is at hand, or read it."""
        entry = self._held.get((visit.shard, slot))
        if entry is not None:
            self.num_held += 1
            return entry
        self.num_parsed += 1
        return self._parse(visit, slot)

    def _open(self, shard: int) -> _Visit:
        count = int(self._order.counts[shard])
        options, epoch = self._order.options, self._order.epoch
        opened = open_shard(self._storage, self._shards[shard])
        windows = window_order(options, epoch, shard, count)
        sizes = np.minimum(options.window, count - windows * options.window)
        return _Visit(shard, opened, windows, np.cumsum(sizes))

    def _parse(self, visit: _Visit, slot: int) -> _Held:
        """Read a window of a shard."""
        options, epoch = self._order.options, self._order.epoch
        number = int(visit.windows[slot])
        first = number * options.window
        count = int(self._order.counts[visit.shard])
        order = window_samples(options, epoch, visit.shard, count, number) - first
        if slot + 1 < len(visit.windows):
            following = int(visit.windows[slot + 1]) * options.window
            visit.opened.expect(following, min(count, following + options.window))
        return _Held(visit, visit.opened.window(first, first + len(order), self._fields, self._scratch), order)


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


@dataclass(frozen=True)
class _Held:
    """A window of a shard that is being visited, and the places of its samples in the order of their visits."""

    visit: _Visit
    window: Window
    order: Int64


def _last_of_lanes(positions: Int64, lanes: Int64, num_lanes: int) -> npt.NDArray[np.bool_]:
    """Tell which positions are the highest of their lanes."""
    rising = np.argsort(positions, kind="stable") if (positions[1:] < positions[:-1]).any() else np.arange(len(lanes))
    last = np.full(num_lanes, -1)
    last[lanes[rising]] = rising
    is_last = np.zeros(len(positions), np.bool_)
    is_last[last[last >= 0]] = True
    return is_last
