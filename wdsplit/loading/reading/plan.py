"""Which windows are read for some positions, in which order, and which of them are kept for the next ones.

Pure (no I/O). A plan depends on the order and on the plans before it, not on what was read: so it may be made far ahead
of `reader`, which carries plans out one after another.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64
from wdsplit.order.epoch import EpochOrder

__all__ = ["Plan", "PlannedWindow", "Planner", "ShardVisit"]

_SLOT_BITS = 40
_MAX_SLOTS = 1 << _SLOT_BITS


Span: TypeAlias = "tuple[int, int, Int64 | None]"
"""The first sample to read of a window, the one after the last, and which of them to read; None for all."""


@dataclass(frozen=True, eq=False)
class ShardVisit:
    """A shard in one epoch.

    All its windows have the same size but the one at the shard's end, which may be visited at any time. In a view they
    have any sizes.

    Attributes:
        shard: Its number in the manifest.
        count: The shard's samples, pads left out; also those that are not selected.
        windows: int64 of shape (windows,): its windows in the order of their visits.
        ends: int64 of shape (windows,): how many of its samples are visited up to the end of each window.
        short_slot: The index of the smaller window among them; the number of windows if there is none.
        short_size: Its samples, or 0.
        spans: What to read of windows that will be planned next, by their slots.
    """

    shard: int
    count: int
    windows: Int64
    ends: Int64
    short_slot: int
    short_size: int
    spans: dict[int, Span] = field(default_factory=dict)


class PlannedWindow:
    """A window that is read once, and kept as long as consecutive plans need it.

    Attributes:
        visit: Its shard.
        first: The first of its samples that is read.
        stop: The sample after the last that is read.
        chosen: int64 of shape (n,), rising: the samples from first to stop that are read; None for all of them.
        places: int64 of shape (n,): the samples in the order of their visits, as indices into those that are read.
        num_visited: Samples of the shard that are visited before it.
        following: First sample, the one after the last, and `chosen`, of the window that is visited next; None if it is
            the last.
    """

    __slots__ = ("__weakref__", "chosen", "first", "following", "num_visited", "places", "stop", "visit")

    def __init__(self, visit: ShardVisit, span: Span, places: Int64, num_visited: int, following: Span | None) -> None:
        self.visit = visit
        self.first, self.stop, self.chosen = span
        self.places = places
        self.num_visited = num_visited
        self.following = following


@dataclass(frozen=True)
class Plan:
    """What to read for some positions.

    Attributes:
        positions: int64 of shape (n,).
        pads: bool of shape (n,): True where the sample is a repetition.
        known: The windows that the previous plan has kept, each once, with their numbers in this plan.
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

    The window of each lane's last position is kept, if the lane continues in it.

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
        """Return the plan for some positions in any order: int64 of any length."""
        shards, visits, pads = self._order.visits(positions)
        distinct, shard_of = np.unique(shards, return_inverse=True)
        used = [self._visit(shard) for shard in distinct.tolist()]
        slots = self._slots(used, shard_of, visits)
        needed, window_of, first_of = _distinct(shard_of * _MAX_SLOTS + slots)
        keys = [(used[number >> _SLOT_BITS], number & (_MAX_SLOTS - 1)) for number in needed.tolist()]
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
        """Keep the window of each lane's last position, unless the lane continues in another window."""
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
                self._last_of_lane[lane] = window.visit.shard, keys[number][1], window

    def _visit(self, shard: int) -> ShardVisit:
        """Return a shard's visit; it is dropped when no plan and no window needs it."""
        visit = self._visits.get(shard)
        if visit is None:
            count = int(self._order.totals[shard])
            windows, ends = self._order.shard_windows(shard)
            number, size = divmod(count, self._size)
            slot = int(np.argmax(windows == number)) if size else len(windows)
            visit = self._visits[shard] = ShardVisit(shard, count, windows, ends, slot, size)
        return visit

    def _slots(self, used: list[ShardVisit], shard_of: Int64, visits: Int64) -> Int64:
        """Return for each visit of a shard the index of its window in `ShardVisit.windows`."""
        if self._order.selection is not None:
            return _slots_of_any(used, shard_of, visits)
        slot = np.array([visit.short_slot for visit in used], np.int64)[shard_of]
        size = np.array([visit.short_size for visit in used], np.int64)[shard_of]
        after = (visits - size) // self._size + 1
        before: Int64 = visits // self._size
        slots: Int64 = np.where(before < slot, before, np.where(visits < slot * self._size + size, slot, after))
        return slots

    def _windows(self, keys: list[tuple[ShardVisit, int]]) -> list[PlannedWindow]:
        """Return the planned windows for some shards and slots."""
        shards = np.array([visit.shard for visit, _ in keys], np.int64)
        numbers = np.array([visit.windows[slot] for visit, slot in keys], np.int64)
        spans = [visit.spans.pop(slot) if slot in visit.spans else self._span(visit, slot) for visit, slot in keys]
        rows = zip(keys, spans, numbers.tolist(), self._order.places_in_windows(shards, numbers), strict=True)
        return [self._window(*key, span, self._places(span, number, row)) for key, span, number, row in rows]

    def _places(self, span: Span, number: int, row: Int64) -> Int64:
        """Return the order of a window's samples as indices into those that are read."""
        (first, stop, chosen), window_first = span, number * self._size
        if chosen is None:
            return row[: stop - first] - (first - window_first)
        return np.searchsorted(chosen, row[: len(chosen)] + window_first)

    def _window(self, visit: ShardVisit, slot: int, span: Span, places: Int64) -> PlannedWindow:
        num_visited = int(visit.ends[slot]) - len(places)
        following = None
        if slot + 1 < len(visit.windows):
            following = visit.spans[slot + 1] = self._span(visit, slot + 1)
        return PlannedWindow(visit, span, places, num_visited, following)

    def _span(self, visit: ShardVisit, slot: int) -> Span:
        """Return which samples of a window are read."""
        first = int(visit.windows[slot]) * self._size
        stop = min(visit.count, first + self._size)
        if self._order.selection is None:
            return first, stop, None
        chosen = first + np.flatnonzero(self._order.selection.mask(visit.shard, first, stop))
        first, stop = int(chosen[0]), int(chosen[-1]) + 1
        return first, stop, None if stop - first == len(chosen) else chosen


def _slots_of_any(used: list[ShardVisit], shard_of: Int64, visits: Int64) -> Int64:
    """Return the same as `_slots`, for windows of any sizes."""
    if not used:
        return visits
    begins = np.cumsum([0, *(visit.ends[-1] for visit in used)])
    ends = np.concatenate([begin + visit.ends for begin, visit in zip(begins.tolist(), used, strict=False)])
    firsts = np.cumsum([0, *(len(visit.ends) for visit in used)])
    slots: Int64 = np.searchsorted(ends, begins[shard_of] + visits, side="right") - firsts[shard_of]
    return slots


def _distinct(values: Int64) -> tuple[Int64, Int64, Int64]:
    """Return the distinct values, rising; for each value its index among them; and where each occurs first."""
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
