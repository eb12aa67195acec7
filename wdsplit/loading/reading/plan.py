"""Which windows are read for some positions, in which order, and which of them are kept for the next ones.

Pure (no I/O). A plan depends on the order and on the plans before it, not on what was read: so it may be made far ahead
of `reader`, which carries plans out one after another.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wdsplit.order.epoch import EpochOrder, Int64, groups, window_order, window_samples

__all__ = ["Plan", "PlannedWindow", "Planner", "ShardVisit", "Take"]


@dataclass(frozen=True, eq=False)
class ShardVisit:
    """A shard in one epoch.

    Attributes:
        shard: Its number in the manifest.
        windows: int64 of shape (windows,): its windows in the order of their visits.
        ends: int64 of shape (windows,): how many of its samples have been visited after each of them.
    """

    shard: int
    windows: Int64
    ends: Int64


@dataclass(frozen=True, eq=False)
class PlannedWindow:
    """A window that is read once, and kept as long as plans in a row need it.

    Attributes:
        visit: Its shard.
        slot: Its place among the shard's windows, in the order of their visits.
        first: Its first sample.
        stop: The sample after its last.
        places: int64 of shape (stop - first,): its samples in the order of their visits, counted from `first`.
        following: First sample, and the one after the last, of the window that is visited next; None if it is the last.
    """

    visit: ShardVisit
    slot: int
    first: int
    stop: int
    places: Int64
    following: tuple[int, int] | None

    @property
    def num_visited(self) -> int:
        """Samples of the shard that are visited before it."""
        return int(self.visit.ends[self.slot]) - len(self.places)


class Take(NamedTuple):
    """Samples of one window.

    Attributes:
        window: The window.
        is_new: Whether it must be read; else the plan before has kept it.
        rows: int64 of shape (n,): which of the plan's positions they belong to.
        places: int64 of shape (n,): their places in the window.
    """

    window: PlannedWindow
    is_new: bool
    rows: Int64
    places: Int64


@dataclass(frozen=True)
class Plan:
    """What is to be read for some positions.

    Attributes:
        positions: int64 of shape (n,).
        pads: bool of shape (n,): True where the sample is a repetition.
        takes: The windows in the order in which they are read, each once; a reader removes those that it has read.
        kept: The windows that are kept afterwards.
    """

    positions: Int64
    pads: npt.NDArray[np.bool_]
    takes: deque[Take]
    kept: Collection[PlannedWindow]


class Planner:
    """Plans what a reader reads for one list of positions after another.

    Of each lane the window of its last position is kept, because the lane goes on there.

    Args:
        order: The epoch's order.
    """

    def __init__(self, order: EpochOrder) -> None:
        self._order = order
        self._visits: weakref.WeakValueDictionary[int, ShardVisit] = weakref.WeakValueDictionary()
        self._last_of_lane: dict[int, PlannedWindow] = {}

    def plan(self, positions: Int64) -> Plan:
        """Return what is to be read for some positions, in any order: int64 of any length."""
        shards, visits, pads = self._order.visits(positions)
        lanes = positions % self._order.options.lanes
        is_last = _last_of_lanes(positions, lanes, self._order.options.lanes)
        kept = {(window.visit.shard, window.slot): window for window in self._last_of_lane.values()}
        takes: deque[Take] = deque()
        for shard, rows in groups(shards):
            visit = self._visit(shard)
            slots = np.searchsorted(visit.ends, visits[rows], side="right")
            for slot, members in groups(slots):
                own = rows[members]
                known = kept.get((shard, slot))
                window = known or self._window(visit, slot)
                places = window.places[visits[own] - window.num_visited]
                takes.append(Take(window, known is None, own, places))
                for lane in lanes[own[is_last[own]]].tolist():
                    self._last_of_lane[lane] = window
        return Plan(positions, pads, takes, frozenset(self._last_of_lane.values()))

    def _visit(self, shard: int) -> ShardVisit:
        """Return a shard that is visited; it is forgotten when no plan and no window is of it."""
        visit = self._visits.get(shard)
        if visit is None:
            count = int(self._order.counts[shard])
            options = self._order.options
            windows = window_order(options, self._order.epoch, shard, count)
            sizes = np.minimum(options.window, count - windows * options.window)
            visit = ShardVisit(shard, windows, np.cumsum(sizes))
            self._visits[shard] = visit
        return visit

    def _window(self, visit: ShardVisit, slot: int) -> PlannedWindow:
        number, count = int(visit.windows[slot]), int(self._order.counts[visit.shard])
        first, stop = self._span(number, count)
        samples = window_samples(self._order.options, self._order.epoch, visit.shard, count, number)
        following = None
        if slot + 1 < len(visit.windows):
            following = self._span(int(visit.windows[slot + 1]), count)
        return PlannedWindow(visit, slot, first, stop, samples - first, following)

    def _span(self, number: int, count: int) -> tuple[int, int]:
        """Return the first sample of a window, and the one after its last, in a shard of so many samples."""
        first = number * self._order.options.window
        return first, min(count, first + self._order.options.window)


def _last_of_lanes(positions: Int64, lanes: Int64, num_lanes: int) -> npt.NDArray[np.bool_]:
    """Tell which positions are the highest of their lanes."""
    is_rising = not (positions[1:] < positions[:-1]).any()
    rising = np.arange(len(lanes)) if is_rising else np.argsort(positions, kind="stable")
    last = np.full(num_lanes, -1)
    last[lanes[rising]] = rising
    is_last = np.zeros(len(positions), np.bool_)
    is_last[last[last >= 0]] = True
    return is_last
