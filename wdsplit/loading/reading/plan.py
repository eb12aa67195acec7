"""Which windows are read for some positions, in which order, and which of them are kept for the next ones.

Pure (no I/O). A plan depends on the order and on the plans before it, not on what was read: so it may be made far ahead
of `reader`, which carries plans out one after another.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsplit.order.epoch import EpochOrder, Int64, places_in_windows, window_order, window_samples

__all__ = ["Plan", "PlannedWindow", "Planner", "ShardVisit"]

_SLOT_BITS = 40
_MAX_SLOTS = 1 << _SLOT_BITS


@dataclass(frozen=True, eq=False)
class ShardVisit:
    """A shard in one epoch. All its windows have the same size but the one at its end, which may be visited any time.

    Attributes:
        shard: Its number in the manifest.
        count: Its samples, pads left out.
        windows: int64 of shape (windows,): its windows in the order of their visits.
        short_slot: Where the smaller window is among them; beyond all of them if there is none.
        short_size: Its samples, or 0.
    """

    shard: int
    count: int
    windows: Int64
    short_slot: int
    short_size: int


class PlannedWindow:
    """A window that is read once, and kept as long as plans in a row need it.

    Attributes:
        visit: Its shard.
        first: Its first sample.
        stop: The sample after its last.
        places: int64 of shape (stop - first,): its samples in the order of their visits, counted from `first`.
        num_visited: Samples of the shard that are visited before it.
        following: First sample, and the one after the last, of the window that is visited next; None if it is the last.
    """

    __slots__ = ("__weakref__", "first", "following", "num_visited", "places", "stop", "visit")

    def __init__(
        self,
        visit: ShardVisit,
        first: int,
        stop: int,
        places: Int64,
        num_visited: int,
        following: tuple[int, int] | None,
    ) -> None:
        self.visit = visit
        self.first = first
        self.stop = stop
        self.places = places
        self.num_visited = num_visited
        self.following = following


@dataclass(frozen=True)
class Plan:
    """What is to be read for some positions.

    Attributes:
        positions: int64 of shape (n,).
        pads: bool of shape (n,): True where the sample is a repetition.
        known: The windows that the plan before has kept, each once, with their numbers in this plan.
        new: Those that must be read, in the order of their first positions; a reader removes those that it has read.
        window_of: int64 of shape (n,): the number of the window of each position.
        places: int64 of shape (n,): the place of its sample in the window.
        kept: The windows that are kept afterwards.
    """

    positions: Int64
    pads: npt.NDArray[np.bool_]
    known: list[tuple[int, PlannedWindow]]
    new: deque[tuple[int, PlannedWindow]]
    window_of: Int64
    places: Int64
    kept: Collection[PlannedWindow]


class Planner:
    """Plans what a reader reads for one list of positions after another.

    Of each lane the window of its last position is kept, if the lane goes on there.

    Args:
        order: The epoch's order.
    """

    def __init__(self, order: EpochOrder) -> None:
        self._order = order
        self._size = order.options.window
        self._visits: weakref.WeakValueDictionary[int, ShardVisit] = weakref.WeakValueDictionary()
        self._last_of_lane: dict[int, tuple[int, int, PlannedWindow]] = {}
        self._visit_of_lane: dict[int, ShardVisit] = {}

    def plan(self, positions: Int64) -> Plan:
        """Return what is to be read for some positions, in any order: int64 of any length."""
        shards, visits, pads = self._order.visits(positions)
        numbers, shard_of = np.unique(shards, return_inverse=True)
        used = [self._visit(number) for number in numbers.tolist()]
        slots = self._slots(used, shard_of, visits)
        wanted, window_of, first_of = _distinct(shard_of * _MAX_SLOTS + slots)
        keys = [(used[number >> _SLOT_BITS], number & (_MAX_SLOTS - 1)) for number in wanted.tolist()]
        known = {(shard, slot): window for shard, slot, window in self._last_of_lane.values()}
        found = [known.get((visit.shard, slot)) for visit, slot in keys]
        created = iter(self._windows([key for key, window in zip(keys, found, strict=True) if window is None]))
        windows = [window or next(created) for window in found]
        known_windows = [(number, window) for number, window in enumerate(found) if window is not None]
        by_need = np.argsort(first_of).tolist()
        new = deque((number, windows[number]) for number in by_need if found[number] is None)
        begins = np.cumsum([0, *(len(window.places) for window in windows[:-1])])
        before = np.array([window.num_visited for window in windows], np.int64)
        inside = visits - before[window_of]
        all_places = np.concatenate([np.zeros(0, np.int64), *(window.places for window in windows)])
        places = all_places[begins[window_of] + inside]
        self._remember(positions, keys, windows, window_of, inside)
        kept = frozenset(window for _, _, window in self._last_of_lane.values())
        return Plan(positions, pads, known_windows, new, window_of, places, kept)

    def _remember(
        self,
        positions: Int64,
        keys: list[tuple[ShardVisit, int]],
        windows: list[PlannedWindow],
        window_of: Int64,
        inside: Int64,
    ) -> None:
        """Keep the window of each lane's last position, unless it is at the window's end and the lane goes on."""
        num_lanes = self._order.options.lanes
        lanes = positions % num_lanes
        rows = np.flatnonzero(_last_of_lanes(positions, lanes, num_lanes))
        goes_on = positions[rows] // num_lanes + 1 < self._order.lane_length[lanes[rows]]
        for lane, number, place, more in zip(
            lanes[rows].tolist(),
            window_of[rows].tolist(),
            inside[rows].tolist(),
            goes_on.tolist(),
            strict=True,
        ):
            window = windows[number]
            self._visit_of_lane[lane] = window.visit
            if more and place + 1 == len(window.places):
                self._last_of_lane.pop(lane, None)
            else:
                self._last_of_lane[lane] = keys[number][0].shard, keys[number][1], window

    def _visit(self, shard: int) -> ShardVisit:
        """Return a shard that is visited; it is forgotten when no plan and no window is of it."""
        visit = self._visits.get(shard)
        if visit is None:
            count = int(self._order.counts[shard])
            windows = window_order(self._order.options, self._order.epoch, shard, count)
            number, size = divmod(count, self._size)
            slot = int(np.flatnonzero(windows == number)[0]) if size else len(windows)
            visit = ShardVisit(shard, count, windows, slot, size)
            self._visits[shard] = visit
        return visit

    def _slots(self, used: list[ShardVisit], shard_of: Int64, visits: Int64) -> Int64:
        """Return for each visit of a shard which of the shard's windows it falls into, in the order of their visits."""
        slot = np.array([visit.short_slot for visit in used], np.int64)[shard_of]
        size = np.array([visit.short_size for visit in used], np.int64)[shard_of]
        after = (visits - size) // self._size + 1
        before: Int64 = visits // self._size
        slots: Int64 = np.where(before < slot, before, np.where(visits < slot * self._size + size, slot, after))
        return slots

    def _windows(self, keys: list[tuple[ShardVisit, int]]) -> list[PlannedWindow]:
        """Return windows of shards by their place in the order of the visits, with the order of their samples."""
        shards = np.array([visit.shard for visit, _ in keys], np.int64)
        numbers = np.array([visit.windows[slot] for visit, slot in keys], np.int64)
        is_full = np.array([slot != visit.short_slot for visit, slot in keys], np.bool_)
        options, epoch = self._order.options, self._order.epoch
        full = iter(places_in_windows(options, epoch, shards[is_full], numbers[is_full], self._size))
        return [
            self._window(visit, slot, number, next(full) if whole else None)
            for (visit, slot), number, whole in zip(keys, numbers.tolist(), is_full.tolist(), strict=True)
        ]

    def _window(self, visit: ShardVisit, slot: int, number: int, places: Int64 | None) -> PlannedWindow:
        first, stop = self._span(number, visit.count)
        if places is None:
            samples = window_samples(self._order.options, self._order.epoch, visit.shard, visit.count, number)
            places = samples - first
        num_visited = slot * self._size if slot <= visit.short_slot else (slot - 1) * self._size + visit.short_size
        following = None
        if slot + 1 < len(visit.windows):
            following = self._span(int(visit.windows[slot + 1]), visit.count)
        return PlannedWindow(visit, first, stop, places, num_visited, following)

    def _span(self, number: int, count: int) -> tuple[int, int]:
        """Return the first sample of a window, and the one after its last, in a shard of so many samples."""
        first = number * self._order.options.window
        return first, min(count, first + self._order.options.window)


def _distinct(values: Int64) -> tuple[Int64, Int64, Int64]:
    """Return the distinct values, rising, and for each value its number among them; and where each occurs first."""
    distinct, first, number = np.unique(values, return_index=True, return_inverse=True)
    return distinct, number.reshape(-1), first


def _last_of_lanes(positions: Int64, lanes: Int64, num_lanes: int) -> npt.NDArray[np.bool_]:
    """Tell which positions are the highest of their lanes."""
    is_rising = not (positions[1:] < positions[:-1]).any()
    rising = np.arange(len(lanes)) if is_rising else np.argsort(positions, kind="stable")
    last = np.full(num_lanes, -1)
    last[lanes[rising]] = rising
    is_last = np.zeros(len(positions), np.bool_)
    is_last[last[last >= 0]] = True
    return is_last
