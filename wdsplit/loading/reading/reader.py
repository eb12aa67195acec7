"""From positions to samples: the shards that an order leads through, read window by window.

Composition of the order and the open shards. A reader holds the windows that its lanes are in, and no more; it can
start at any position, because nothing depends on what was read before.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from wdsplit.loading.reading.block import Block, Gathered
from wdsplit.loading.reading.open_shard import OpenShard, Scratch, WindowPlace, read_windows
from wdsplit.loading.reading.process_limits import allow_open_files, keep_freed_memory
from wdsplit.loading.reading.read_ahead import Ahead, Fetch, LazyShard, Wanted
from wdsplit.loading.reading.window import Window
from wdsplit.order.epoch import EpochOrder, Int64, groups, window_order, window_samples
from wdsplit.shards.manifest import Manifest, Shard

__all__ = ["Planning", "SampleReader", "read_planned"]

_SAMPLES_TOGETHER, _WINDOWS_TOGETHER = 1024, 64
"""Windows are parsed together until they have about so many samples, because numpy's calls cost as much for a few; but
no more of them, because their shards are all open meanwhile."""

_LARGE_WINDOW_BYTES = 1024**2
"""Windows that are fetched are parsed one by one from this size on, each as soon as it has come."""

_MAX_PLANS = 256
"""So many lists of positions are planned ahead at most: what lies on a disk is not fetched, which could bound it."""
_LEAST_PLANNED_BYTES = 32 * 1024
"""What a window counts for at least when it is planned: planning takes memory too."""

Plan = TypeVar("Plan")


class Planning(Protocol[Plan]):
    """What reads samples in two steps, so that the first can be far ahead of the second."""

    @property
    def ahead(self) -> Ahead | None:
        """What fetches; None if there is nothing to fetch."""

    def plan(self, positions: Int64) -> Plan:
        """Return what is to be read for some positions."""

    def fetch(self) -> None:
        """Begin to fetch what was planned."""

    def carry_out(self, plan: Plan) -> Block:
        """Return the samples; plans are carried out in the order in which they were made."""


def read_planned(reader: Planning[Plan], lists: Iterable[Int64]) -> Iterator[Block]:
    """Give the samples of one list of positions after another, while those of the next are fetched."""
    plans: deque[Plan] = deque()
    ahead, lists = reader.ahead, iter(lists)
    while True:
        if not plans:
            plans.extend(reader.plan(positions) for positions in islice(lists, 1))
            reader.fetch()
        if not plans:
            return
        if ahead is not None and ahead.has_room and len(plans) <= _MAX_PLANS * 3 // 4:
            while len(plans) < _MAX_PLANS and not ahead.is_full and (following := next(lists, None)) is not None:
                plans.append(reader.plan(following))
            reader.fetch()
        yield reader.carry_out(plans.popleft())


@dataclass
class _Plan:
    """What is to be read for some positions.

    Attributes:
        positions: int64 of shape (n,).
        visits: For each the number of its visit in its shard.
        pads: For each whether it is repeated.
        pieces: The windows, in the order in which they are read.
    """

    positions: Int64
    visits: Int64
    pads: npt.NDArray[np.bool_]
    pieces: deque[_Piece]


class SampleReader:
    """Reads the samples of positions.

    Args:
        opener: Opens a shard of the manifest.
        manifest: The dataset's manifest.
        order: The epoch's order.
        num_lanes: Lanes that this reader visits: as many windows are kept.
        fields: The fields that are wanted; None for all.
        ahead: Fetches what was planned, if the dataset is remote.

    Attributes:
        ahead: That.
        num_parsed: Windows that were read and parsed so far.
        num_held: Times that a window was at hand already.
    """

    def __init__(
        self,
        opener: Callable[[Shard], OpenShard],
        manifest: Manifest,
        order: EpochOrder,
        num_lanes: int,
        fields: Collection[str] | None = None,
        ahead: Ahead | None = None,
    ) -> None:
        allow_open_files(2 * (num_lanes + 2) + _WINDOWS_TOGETHER)
        keep_freed_memory()
        self.ahead = ahead
        self._opener = opener
        self._shards = manifest.shards
        self._order = order
        self._fields = fields
        self._scratch = Scratch()
        self._visits: weakref.WeakValueDictionary[int, _Visit] = weakref.WeakValueDictionary()
        self._lanes: dict[int, tuple[int, int]] = {}
        self._held: dict[tuple[int, int], _Held] = {}
        self._planned_lanes: dict[int, tuple[int, int]] = {}
        self._planned: list[_Piece] = []
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
        plan = self.plan(positions)
        self.fetch()
        return self.carry_out(plan)

    def blocks(self, lists: Iterable[Int64]) -> Iterator[Block]:
        """Give the samples of one list of positions after another; what is remote is fetched ahead."""
        return read_planned(self, lists)

    def plan(self, positions: Int64) -> _Plan:
        """Return what is to be read for some positions; nothing is read."""
        shards, visits, pads = self._order.visits(positions)
        lanes = positions % self._order.options.lanes
        is_last = _last_of_lanes(positions, lanes, self._order.options.lanes)
        pieces: deque[_Piece] = deque()
        for shard, rows in groups(shards):
            visit = self._visit(shard)
            slots = np.searchsorted(visit.ends, visits[rows], side="right")
            for slot, members in groups(slots):
                own = rows[members]
                pieces.append(_Piece(visit, slot, own, lanes[own[is_last[own]]].tolist()))
        if self.ahead is not None:
            self._note_planned(pieces, self.ahead)
        return _Plan(positions, visits, pads, pieces)

    def _note_planned(self, pieces: Iterable[_Piece], ahead: Ahead) -> None:
        """Note which windows will not be at hand when the plan is carried out."""
        held = set(self._planned_lanes.values())
        for piece in pieces:
            if piece.key not in held:
                self._planned.append(piece)
                ahead.num_planned += self._planned_bytes(piece)
        for piece in pieces:
            self._planned_lanes.update(dict.fromkeys(piece.lanes, piece.key))

    def _num_bytes(self, piece: _Piece) -> int:
        """Return about how many bytes a window has."""
        first, stop = self._samples(piece)
        shard = piece.visit.listed
        return (stop - first) * shard.num_bytes // max(1, shard.num_samples)

    def _planned_bytes(self, piece: _Piece) -> int:
        """Return what a window counts for while it is planned."""
        return max(_LEAST_PLANNED_BYTES, self._num_bytes(piece))

    def _samples(self, piece: _Piece) -> tuple[int, int]:
        """Return a window's first sample, and the one after its last."""
        first = int(piece.visit.windows[piece.slot]) * self._order.options.window
        return first, min(int(self._order.counts[piece.visit.shard]), first + self._order.options.window)

    def fetch(self) -> None:
        """Begin to fetch the windows that were planned."""
        planned, self._planned = self._planned, []
        if self.ahead is None or not planned:
            return
        wanted = [Wanted(piece.visit.opening, *self._samples(piece), self._num_bytes(piece)) for piece in planned]
        for piece, fetch in zip(planned, self.ahead.fetch(wanted), strict=True):
            piece.visit.fetches.setdefault(piece.slot, deque()).append(fetch)

    def carry_out(self, plan: _Plan) -> Block:
        """Return the samples of a plan.

        Raises:
            WdsplitError: A shard is missing or damaged.
        """
        gathered = Gathered(len(plan.positions))
        held = dict(self._held)
        for piece in plan.pieces if self.ahead is not None else ():
            for fetch in islice(piece.visit.fetches.get(piece.slot, ()), 1):
                fetch.hurry()
        while part := self._part(plan.pieces):
            for piece, entry in zip(part, self._entries(part), strict=True):
                window = entry.window
                places = entry.order[plan.visits[piece.rows] - piece.visit.begin(piece.slot)]
                fields = {name: payloads[places] for name, payloads in window.fields.items()}
                keys, sizes = window.keys_at(places), window.sizes_at(places)
                gathered.add(piece.rows, keys, window.url, sizes, fields, window.whole)
                for lane in piece.lanes:
                    self._lanes[lane] = piece.key
                    held[piece.key] = entry
        self._held = {key: held[key] for key in self._lanes.values()}
        return gathered.block(plan.positions, plan.pads)

    def _part(self, pieces: deque[_Piece]) -> list[_Piece]:
        """Take as many windows as are read together; none if there are no more."""
        together = min(_WINDOWS_TOGETHER, -(-_SAMPLES_TOGETHER // self._order.options.window))
        if self.ahead is not None and pieces and self._num_bytes(pieces[0]) > _LARGE_WINDOW_BYTES:
            together = 1 if pieces[0].visit.opening.get().file.is_remote else together
        return [pieces.popleft() for _ in range(min(together, len(pieces)))]

    def _entries(self, part: list[_Piece]) -> list[_Held]:
        """Return windows; those that are not at hand are read."""
        entries = [self._held.get(piece.key) for piece in part]
        new = [piece for piece, entry in zip(part, entries, strict=True) if entry is None]
        self.num_parsed += len(new)
        self.num_held += len(part) - len(new)
        read = iter(self._read(new))
        return [next(read) if entry is None else entry for entry in entries]

    def _visit(self, shard: int) -> _Visit:
        """Return a shard that is, or will be, visited; it is forgotten when no plan and no window is of it."""
        visit = self._visits.get(shard)
        if visit is None:
            count = int(self._order.counts[shard])
            options, epoch = self._order.options, self._order.epoch
            windows = window_order(options, epoch, shard, count)
            sizes = np.minimum(options.window, count - windows * options.window)
            visit = _Visit(shard, self._shards[shard], self._opener, windows, np.cumsum(sizes))
            self._visits[shard] = visit
        return visit

    def _read(self, pieces: list[_Piece]) -> list[_Held]:
        """Read windows."""
        if not pieces:
            return []
        options, epoch = self._order.options, self._order.epoch
        places, orders = [], []
        for piece in pieces:
            visit, slot = piece.visit, piece.slot
            first, stop = self._samples(piece)
            number, count = int(visit.windows[slot]), int(self._order.counts[visit.shard])
            orders.append(window_samples(options, epoch, visit.shard, count, number) - first)
            data = self._fetched(piece, first, stop)
            opened = visit.opening.get()
            places.append(WindowPlace(opened, first, stop, data))
            if slot + 1 < len(visit.windows):
                following = int(visit.windows[slot + 1]) * options.window
                opened.expect(following, min(count, following + options.window))
        windows = read_windows(places, self._fields, self._scratch)
        return [_Held(piece.visit, window, order) for piece, window, order in zip(pieces, windows, orders, strict=True)]

    def _fetched(self, piece: _Piece, first: int, stop: int) -> memoryview | None:
        """Return the bytes of a window that were fetched; None if they are still to be read."""
        fetches = piece.visit.fetches.get(piece.slot)
        if not fetches:
            return None
        if self.ahead is not None:
            self.ahead.num_planned -= self._planned_bytes(piece)
        return fetches.popleft().data(first, stop)


class _Visit:
    """A shard that is being visited: its windows in the order of their visits, and where each ends."""

    def __init__(
        self, shard: int, listed: Shard, opener: Callable[[Shard], OpenShard], windows: Int64, ends: Int64
    ) -> None:
        self.shard = shard
        self.listed = listed
        self.opening = LazyShard(lambda: opener(listed))
        self.windows = windows
        self.ends = ends
        self.fetches: dict[int, deque[Fetch]] = {}

    def begin(self, slot: int) -> int:
        return int(self.ends[slot - 1]) if slot else 0


class _Piece(NamedTuple):
    """A window that samples are in, which of those that are read, and the lanes that leave off in it."""

    visit: _Visit
    slot: int
    rows: Int64
    lanes: list[int]

    @property
    def key(self) -> tuple[int, int]:
        """The shard's number and the window's place among its visits."""
        return self.visit.shard, self.slot


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
