"""Which windows are read for some positions, in which order, and which of them are kept for the next ones.

Pure (no I/O). A plan depends on the order and on the plans before it, not on what was read: so it may be made far ahead
of `reader`, which carries plans out one after another.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64
from wdsplit.loading.reading.block import Objects
from wdsplit.order.epoch import EpochOrder, groups
from wdsplit.order.units import ShardUnits, Window, spread

__all__ = ["Plan", "PlannedWindow", "Planner", "ShardVisit"]

_MAX_VISITS = 1 << 40


@dataclass(frozen=True, eq=False)
class ShardVisit:
    """A shard in one epoch.

    Attributes:
        number: Its number in the manifest.
        shard: What the reader opens it with.
        windows: int64 of shape (windows,): its windows in the order of their visits.
        ends: int64 of shape (windows,): how many of its units are visited up to the end of each window.
        units: Which samples its units are.
    """

    number: int
    shard: Any
    windows: Int64
    ends: Int64
    units: ShardUnits

    def window(self, slot: int) -> Window:
        """Return what is read for one of `windows`."""
        return self.units.window(int(self.windows[slot]))


@dataclass(frozen=True, eq=False)
class PlannedWindow:
    """A window that is read once, and kept as long as consecutive plans need it.

    Attributes:
        visit: Its shard.
        slot: Its index in the windows of the shard.
        window: The samples that are read, and the units that they make.
        order: int64 of shape (units,): its units in the order of their visits.
        num_visited: Units of the shard that are visited before it.
    """

    visit: ShardVisit
    slot: int
    window: Window
    order: Int64
    num_visited: int

    @property
    def samples(self) -> Int64:
        """The places in the shard of the samples that are read, rising."""
        return self.window.samples


@dataclass(frozen=True)
class Plan:
    """What to read for some positions, of which the units have n items.

    Attributes:
        positions: int64 of shape (n,): the position of each item.
        pads: bool of shape (n,): True where the sample is a repetition.
        windows: The windows that are needed.
        known: The numbers of those that the previous plan has kept.
        new: The numbers of those that must be read, in the order of their first positions.
        window_of: int64 of shape (n,): the number of the window of each position.
        places: int64 of shape (n,): the place of its sample in the window.
        parts: int64 of shape (n,): which of its sample's items it is; None where each sample is one.
        units: int64 of shape (n,), rising: which of the requested positions it is of; None where each has one item.
        groups: Objects of shape (n,): the value of its group's class; None unless units are groups.
        kept: The windows that are kept afterwards.
    """

    positions: Int64
    pads: npt.NDArray[np.bool_]
    windows: list[PlannedWindow]
    known: list[int]
    new: list[int]
    window_of: Int64
    places: Int64
    parts: Int64 | None
    units: Int64 | None
    groups: Objects | None
    kept: Collection[PlannedWindow]


class Planner:
    """Plans what a reader reads for one list of positions after another.

    The window of each lane's last position is kept, if the lane continues in it.

    Args:
        order: The epoch's order.
        shard: Called with the number of a shard, each time that it is visited anew, for `ShardVisit.shard`.
    """

    def __init__(self, order: EpochOrder, shard: Callable[[int], Any]) -> None:
        self._order = order
        self._shard = shard
        self._visits: weakref.WeakValueDictionary[int, ShardVisit] = weakref.WeakValueDictionary()
        self._lanes: dict[int, tuple[ShardVisit, PlannedWindow | None]] = {}

    def plan(self, positions: Int64) -> Plan:
        """Return the plan for some positions in any order: int64 of any length."""
        shards, visits, pads = self._order.visits(positions)
        unique, used_of = np.unique(shards, return_inverse=True)
        numbers = unique.tolist()
        self._order.load([number for number in numbers if number not in self._visits])
        used = [self._visit(number) for number in numbers]
        ends = [index * _MAX_VISITS + visit.ends for index, visit in enumerate(used)]
        slot_of = np.searchsorted(
            np.concatenate([np.zeros(0, np.int64), *ends]), used_of * _MAX_VISITS + visits, side="right"
        )
        needed, first_of, window_of = np.unique(slot_of, return_index=True, return_inverse=True)
        kept = {(window.visit.number, window.slot): window for _, window in self._lanes.values() if window is not None}
        firsts = np.cumsum([0, *(len(visit.ends) for visit in used)])
        visit_of = np.searchsorted(firsts, needed, side="right") - 1
        keys = [
            (used[each], slot)
            for each, slot in zip(visit_of.tolist(), (needed - firsts[visit_of]).tolist(), strict=True)
        ]
        found = [kept.get((visit.number, slot)) for visit, slot in keys]
        created = iter(self._windows([key for key, window in zip(keys, found, strict=True) if window is None]))
        windows = [window or next(created) for window in found]
        known = [number for number, window in enumerate(found) if window is not None]
        new = [number for number in np.argsort(first_of).tolist() if found[number] is None]
        inside = visits - np.array([window.num_visited for window in windows], np.int64)[window_of]
        self._keep(positions, windows, window_of, inside)
        after = frozenset(window for _, window in self._lanes.values() if window is not None)
        begins = np.cumsum([0, *(len(window.order) for window in windows[:-1])])
        order = np.concatenate(
            [begins[:0], *(window.order + begin for window, begin in zip(windows, begins, strict=False))]
        )
        items = order[begins[window_of] + inside]  # each unit is one, unless units have offsets
        reads, units = [window.window for window in windows], None

        def joined(name: str) -> Any:
            """Return an attribute of the items of all windows; None if they do not have it."""
            found = [value for read in reads if (value := getattr(read, name)) is not None]
            return np.concatenate(found) if found else None

        offsets = [np.diff(read.offsets) for read in reads if read.offsets is not None]
        if offsets:
            units, items = spread(np.append(0, np.cumsum(np.concatenate(offsets))), items)
            positions, pads, window_of = positions[units], pads[units], window_of[units]
        places, parts, repeated, values = (
            None if each is None else each[items] for each in map(joined, ("items", "parts", "pads", "groups"))
        )
        if places is None:
            places = items
        pads = pads if repeated is None else pads | repeated
        return Plan(positions, pads, windows, known, new, window_of, places, parts, units, values, after)

    def _keep(self, positions: Int64, windows: list[PlannedWindow], window_of: Int64, inside: Int64) -> None:
        """Keep the window of each lane's last position, unless the lane continues in another window."""
        num_lanes = self._order.options.lanes
        rising, last = np.argsort(positions, kind="stable"), np.full(num_lanes, -1)
        last[positions[rising] % num_lanes] = rising
        rows = last[last >= 0]
        lanes = positions[rows] % num_lanes
        goes_on = positions[rows] // num_lanes + 1 < self._order.lane_length[lanes]
        columns = lanes.tolist(), window_of[rows].tolist(), inside[rows].tolist(), goes_on.tolist()
        for lane, number, place, more in zip(*columns, strict=True):
            window = windows[number]
            is_over = more and place + 1 == len(window.order)
            self._lanes[lane] = window.visit, None if is_over else window

    def _visit(self, number: int) -> ShardVisit:
        """Return a shard's visit; it is dropped when no plan, no window and no lane needs it."""
        visit = self._visits.get(number)
        if visit is None:
            windows, ends = self._order.shard_windows(number)
            visit = ShardVisit(number, self._shard(number), windows, ends, self._order.shard_units(number))
            self._visits[number] = visit
        return visit

    def _windows(self, keys: list[tuple[ShardVisit, int]]) -> list[PlannedWindow]:
        """Return the planned windows for some shards and slots."""
        shards = np.array([visit.number for visit, _ in keys], np.int64)
        numbers = np.array([visit.windows[slot] for visit, slot in keys], np.int64)
        sizes = np.array([visit.ends[slot] - (visit.ends[slot - 1] if slot else 0) for visit, slot in keys], np.int64)
        windows: list[Any] = [None] * len(keys)
        for _, some in groups(np.frexp(sizes)[1]):  # of about one size: each takes the memory of the largest
            orders = self._order.places_in_windows(shards[some], numbers[some], sizes[some])
            for row, order in zip(some.tolist(), orders, strict=True):
                (visit, slot), size = keys[row], int(sizes[row])
                before = int(visit.ends[slot]) - size
                windows[row] = PlannedWindow(visit, slot, visit.window(slot), order[:size], before)
        return windows
