"""From positions to samples: the shards that an order leads through, read window by window.

Composition of the order and the open shards. A reader holds the windows that its lanes are in, and no more; it can
start at any position, because nothing depends on what was read before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wdsplit.block import Block, Gathered
from wdsplit.manifest import Manifest
from wdsplit.openshard import OpenShard, Scratch, WindowPlace, open_shard, read_windows
from wdsplit.order import EpochOrder, Int64, groups, window_order, window_samples
from wdsplit.storage import Storage, allow_open_files, keep_freed_memory
from wdsplit.window import Window

__all__ = ["SampleReader"]

_SAMPLES_TOGETHER, _WINDOWS_TOGETHER = 1024, 64
"""Windows are parsed together until they have about so many samples, because numpy's calls cost as much for a few; but
no more of them, because their shards are all open meanwhile."""


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
        allow_open_files(2 * (num_lanes + 2) + _WINDOWS_TOGETHER)
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
        gathered = Gathered(len(positions))
        held = dict(self._held)
        for part in self._parts(shards, visits):
            for piece, entry in zip(part, self._entries(part), strict=True):
                window, slot = entry.window, piece.slot
                places = entry.order[visits[piece.rows] - piece.visit.begin(slot)]
                fields = {name: payloads[places] for name, payloads in window.fields.items()}
                keys, sizes = window.keys_at(places), window.sizes_at(places)
                gathered.add(piece.rows, keys, window.url, sizes, fields, window.whole)
                for lane in lanes[piece.rows[is_last[piece.rows]]].tolist():
                    self._lanes[lane] = piece.visit.shard, slot
                    held[piece.visit.shard, slot] = entry
        self._held = {key: held[key] for key in self._lanes.values()}
        return gathered.block(positions, pads)

    def _parts(self, shards: Int64, visits: Int64) -> Iterator[list[_Piece]]:
        """Give the windows that samples are in, as many together as are read together."""
        open_visits = {shard: held.visit for (shard, _), held in self._held.items()}
        part: list[_Piece] = []
        for shard, rows in groups(shards):
            visit = open_visits.get(shard) or self._open(shard)
            slots = np.searchsorted(visit.ends, visits[rows], side="right")
            for slot, members in groups(slots):
                part.append(_Piece(visit, slot, rows[members]))
                if len(part) >= min(_WINDOWS_TOGETHER, -(-_SAMPLES_TOGETHER // self._order.options.window)):
                    yield part
                    part = []
        yield part

    def _entries(self, part: list[_Piece]) -> list[_Held]:
        """Return windows; those that are not at hand are read."""
        entries = [self._held.get((piece.visit.shard, piece.slot)) for piece in part]
        new = [piece for piece, entry in zip(part, entries, strict=True) if entry is None]
        self.num_parsed += len(new)
        self.num_held += len(part) - len(new)
        read = iter(self._read(new))
        return [next(read) if entry is None else entry for entry in entries]

    def _open(self, shard: int) -> _Visit:
        count = int(self._order.counts[shard])
        options, epoch = self._order.options, self._order.epoch
        opened = open_shard(self._storage, self._shards[shard])
        windows = window_order(options, epoch, shard, count)
        sizes = np.minimum(options.window, count - windows * options.window)
        return _Visit(shard, opened, windows, np.cumsum(sizes))

    def _read(self, pieces: list[_Piece]) -> list[_Held]:
        """Read windows."""
        if not pieces:
            return []
        options, epoch = self._order.options, self._order.epoch
        places, orders = [], []
        for visit, slot, _ in pieces:
            number = int(visit.windows[slot])
            first = number * options.window
            count = int(self._order.counts[visit.shard])
            orders.append(window_samples(options, epoch, visit.shard, count, number) - first)
            places.append(WindowPlace(visit.opened, first, first + len(orders[-1])))
            if slot + 1 < len(visit.windows):
                following = int(visit.windows[slot + 1]) * options.window
                visit.opened.expect(following, min(count, following + options.window))
        windows = read_windows(places, self._fields, self._scratch)
        return [_Held(piece.visit, window, order) for piece, window, order in zip(pieces, windows, orders, strict=True)]


class _Visit:
    """A shard that is being visited: its windows in the order of their visits, and where each ends."""

    def __init__(self, shard: int, opened: OpenShard, windows: Int64, ends: Int64) -> None:
        self.shard = shard
        self.opened = opened
        self.windows = windows
        self.ends = ends

    def begin(self, slot: int) -> int:
        return int(self.ends[slot - 1]) if slot else 0


class _Piece(NamedTuple):
    """A window that samples are in, and which of those that are read."""

    visit: _Visit
    slot: int
    rows: Int64


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
