"""From positions to samples: the shards that an order leads through, read window by window.

Composition of the order and the open shards. A reader holds the windows that its lanes are in, and no more; it can
start at any position, because nothing depends on what was read before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import numpy as np

from wdsplit.manifest import Manifest
from wdsplit.order import EpochOrder, Int64, groups, window_order, window_samples
from wdsplit.shards import OpenShard, Window, open_shard
from wdsplit.storage import Storage, allow_open_files

__all__ = ["SampleReader"]

Value = TypeVar("Value")


class SampleReader:
    """Reads the samples of positions.

    Args:
        storage: Where the dataset is.
        manifest: Its manifest.
        order: The epoch's order.
        num_lanes: Lanes that this reader visits: about as many windows are kept.
    """

    def __init__(self, storage: Storage, manifest: Manifest, order: EpochOrder, num_lanes: int) -> None:
        allow_open_files(2 * (2 * num_lanes + 2))
        self._storage = storage
        self._shards = manifest.shards
        self._order = order
        self._visits: _Recent[_Visit] = _Recent(2 * num_lanes + 2)
        self._windows: _Recent[tuple[Window, Int64]] = _Recent(2 * num_lanes + 2)

    def read(self, positions: Int64) -> list[dict[str, Any]]:
        """Return the samples at the given positions, in their order.

        Args:
            positions: int64 of any length.

        Returns:
            Dicts of `__key__`, `__url__`, `__position__`, `__pad__` and the fields' bytes.

        Raises:
            WdsplitError: A shard is missing or damaged.
        """
        samples: list[dict[str, Any]] = [{}] * len(positions)
        shards, visits, pads = self._order.visits(positions)
        for shard, rows in groups(shards):
            visit = self._visits.get(shard, self._open, shard)
            slots = np.searchsorted(visit.ends, visits[rows], side="right")
            for slot, members in groups(slots):
                chosen = rows[members]
                window, order = self._windows.get((shard, slot), self._parse, visit, slot)
                places = order[visits[chosen] - visit.begin(slot)]
                taken = window.take(places.tolist(), positions[chosen].tolist(), pads[chosen].tolist())
                for row, sample in zip(chosen.tolist(), taken, strict=True):
                    samples[row] = sample
        return samples

    def _open(self, shard: int) -> _Visit:
        count = int(self._order.counts[shard])
        options, epoch = self._order.options, self._order.epoch
        windows = window_order(options, epoch, shard, count)
        sizes = np.minimum(options.window, count - windows * options.window)
        return _Visit(shard, open_shard(self._storage, self._shards[shard]), windows, np.cumsum(sizes))

    def _parse(self, visit: _Visit, slot: int) -> tuple[Window, Int64]:
        """Return a window of a shard, and the places of its samples in the order of their visits."""
        options, epoch = self._order.options, self._order.epoch
        number = int(visit.windows[slot])
        first = number * options.window
        count = int(self._order.counts[visit.shard])
        order = window_samples(options, epoch, visit.shard, count, number) - first
        return visit.opened.window(first, first + len(order)), order


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

    def get(self, key: Hashable, make: Callable[..., Value], *arguments: Any) -> Value:
        """Return the value of a key; if it is not held, make it from the arguments."""
        if key in self._values:
            self._values.move_to_end(key)
            return self._values[key]
        value = self._values[key] = make(*arguments)
        if len(self._values) > self._capacity:
            self._values.popitem(last=False)
        return value
