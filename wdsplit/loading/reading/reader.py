"""From positions to samples: a reader carries out plans, window by window.

It keeps only the windows that its lanes are in. It can start at any position, because nothing depends on earlier reads.
`plan` decides what to read and what to keep.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.errors import CorruptDataError, WdsplitError
from wdsplit.loading.reading.block import Block, gathered
from wdsplit.loading.reading.open_shard import OpenShard
from wdsplit.loading.reading.plan import Plan, PlannedWindow, Planner
from wdsplit.loading.reading.process_limits import allow_open_files, keep_freed_memory
from wdsplit.loading.reading.read_ahead import Ahead, Fetch, FetchRange, LazyShard, side_by_side
from wdsplit.loading.reading.windows import Part, Scratch, WindowPlace, damaged, expect, read_windows
from wdsplit.order.epoch import EpochOrder, groups
from wdsplit.order.units import GROUP, PLACE
from wdsplit.shards.manifest import Shards

__all__ = ["BlockReader", "CountingReader", "Reading", "SampleReader"]

_OTHER_SHARDS = 64
"""Shards of windows that are read together, open in addition to those of the lanes."""
_MAX_PLANS = 256
"""Lists of positions to plan ahead at most: shards on a disk are not fetched, so the limit of bytes does not apply."""
_MIN_PLANNED_BYTES = 32 * 1024
"""A planned window counts for at least this many bytes: planning takes memory too."""


class BlockReader(Protocol):
    """Reads samples in two steps, a plan and the reading, so that plans can be made far ahead.

    Attributes:
        ahead: Fetches in the background; None if there is nothing to fetch.
        num_read: Windows that were read and parsed so far.
        num_reused: Times that a window was already in memory.
    """

    ahead: Ahead | None
    num_read: int
    num_reused: int

    def plan(self, positions: Int64) -> Any:
        """Return a plan for some positions: int64 of any length. Nothing is read."""

    def fetch(self) -> None:
        """Begin to fetch what was planned."""

    def carry_out(self, plan: Any) -> Block:
        """Return the samples of a plan; plans are carried out in the order in which they were made."""

    @property
    def has_failed(self) -> bool:
        """Whether something that is needed next could not be fetched."""


class Reading(Iterator[Block]):
    """The samples of each list of positions, in its order; data of remote shards is fetched ahead.

    For rising positions, each window is read once, because the window of each lane's last position is kept.

    Args:
        reader: Reads them.
        lists: The positions.

    Attributes:
        follow: Makes the reading after this one, whose reader has the same `ahead`; None if there is none.
        following: That reading, once all of this one is planned: it is then planned, within the limits of `ahead`.
    """

    def __init__(self, reader: BlockReader, lists: Iterable[Int64]) -> None:
        self.reader = reader
        self.follow: Callable[[], Reading] | None = None
        self.following: Reading | None = None
        self._lists = iter(lists)
        self._plans: deque[Any] = deque()

    def __next__(self) -> Block:
        if not self._plans:
            if not self._plan():
                raise StopIteration
            self.reader.fetch()
        self._plan_ahead()
        return self.reader.carry_out(self._plans.popleft())

    def _plan(self) -> bool:
        """Plan the next list; return whether there was one."""
        positions = next(self._lists, None)
        if positions is not None:
            self._plans.append(self.reader.plan(positions))
        return positions is not None

    def _plan_ahead(self) -> None:
        ahead = self.reader.ahead
        if ahead is None or not ahead.has_room or len(self._plans) > _MAX_PLANS * 3 // 4:
            return
        is_all = False
        while len(self._plans) < _MAX_PLANS and not ahead.is_full and not is_all:
            is_all = not self._plan()
        self.reader.fetch()
        if is_all and self.follow is not None:
            try:
                self.following = self.following or self.follow()
                self.following._plan_ahead()
            except WdsplitError:  # which is raised again when that is read itself
                self.follow = self.following = None


class SampleReader:
    """Reads the samples of positions of one dataset: a `BlockReader`.

    Args:
        opener: Opens a shard by its number.
        shards: The shards of the dataset, with the bytes that are read of each.
        order: The epoch's order.
        num_lanes: Lanes that this reader visits; it keeps one window of each.
        num_files: Files of a shard that are open at the same time.
        ahead: Fetches what was planned, if the dataset is remote.
        salvages_in: Name of the shards' folder in messages, to give damaged samples as their errors: see
            `read_windows`. Those of a shard that cannot be opened are all damaged. None to raise errors.
    """

    def __init__(
        self,
        opener: Callable[[int], OpenShard],
        shards: Shards,
        order: EpochOrder,
        num_lanes: int,
        num_files: int = 1,
        ahead: Ahead | None = None,
        salvages_in: str | None = None,
    ) -> None:
        allow_open_files(num_files * (2 * (num_lanes + 2) + _OTHER_SHARDS))
        keep_freed_memory()
        self.ahead = ahead
        self.num_read = 0
        self.num_reused = 0
        self._part_name = order.part_name
        self._planner = Planner(order, lambda number: LazyShard(shards[number], partial(opener, number)))
        self._salvages_in = salvages_in
        self._scratch = Scratch()
        self._unfetched: list[PlannedWindow] = []
        self._fetches: dict[PlannedWindow, Fetch] = {}
        self._kept: dict[PlannedWindow, Part] = {}

    def plan(self, positions: Int64) -> Plan:
        """Return a plan for some positions."""
        plan = self._planner.plan(positions)
        if self.ahead is not None:
            new = [plan.windows[number] for number in plan.new]
            self._unfetched.extend(new)
            self.ahead.num_planned += sum(map(_planned_bytes, new))
        return plan

    def fetch(self) -> None:
        """Begin to fetch the windows that were planned."""
        planned, self._unfetched = self._unfetched, []
        if self.ahead is not None and planned:
            ranges = [FetchRange(window.visit.shard, window.samples) for window in planned]
            self._fetches.update(zip(planned, self.ahead.fetch(ranges), strict=True))

    def carry_out(self, plan: Plan) -> Block:
        """Return the samples of a plan."""
        new = [plan.windows[number] for number in plan.new]
        for window in new if self._fetches else ():
            if window in self._fetches:
                self._fetches[window].mark_urgent()
        self.num_read += len(new)
        self.num_reused += len(plan.known)
        parts = self._kept | self._read(new)
        self._kept = {window: part for window, part in parts.items() if window in plan.kept}
        read = [parts[window] for window in plan.windows]
        places = plan.places + np.array([part.first for part in read], np.int64)[plan.window_of]
        # Windows that were read together count as one, so that small windows share numpy calls.
        blocks = {id(part.block): part.block for part in read}
        numbers = {key: number for number, key in enumerate(blocks)}
        block_of = np.array([numbers[id(part.block)] for part in read], np.int64)[plan.window_of]
        listed = list(blocks.values())
        filled = [(rows, listed[number], places[rows]) for number, rows in groups(block_of)]
        block = gathered(filled, plan.positions, plan.pads)
        if plan.units is not None:
            nth = np.arange(len(block)) - np.searchsorted(plan.units, plan.units)
            block = replace(block, units=plan.units).with_field(PLACE, nth.astype(object))
        if plan.groups is not None:
            block = block.with_field(GROUP, plan.groups)
        return block if plan.parts is None else block.with_field(self._part_name, plan.parts.astype(object))

    @property
    def has_failed(self) -> bool:
        """Whether something that is needed next could not be fetched."""
        return any(fetch.has_failed for fetch in self._fetches.values())

    def _read(self, windows: list[PlannedWindow]) -> dict[PlannedWindow, Part]:
        """Read windows, and let the system begin to read those that come after them in their shards."""
        parts: dict[PlannedWindow, Part] = {}
        opened: deque[PlannedWindow] = deque()
        following: list[WindowPlace] = []

        def places() -> Iterator[WindowPlace]:
            for window in windows:
                try:
                    place = self._place(window)
                except CorruptDataError as error:
                    if self._salvages_in is None:
                        raise
                    url = f"{self._salvages_in}/{window.visit.shard.listed.path}"
                    parts[window] = Part(damaged(url, window.samples, error), 0)
                else:
                    opened.append(window)
                    yield place
                    if not place.shard.file.is_remote and window.slot + 1 < len(window.visit.windows):
                        samples = window.visit.window(window.slot + 1).samples
                        following.append(WindowPlace(place.shard, samples))

        for part in read_windows(places(), self._scratch, self._salvages_in is not None):
            parts[opened.popleft()] = part
        expect(following)
        return parts

    def _place(self, window: PlannedWindow) -> WindowPlace:
        """Return where a window is, with its bytes if they were fetched."""
        fetch = self._fetches.pop(window, None)
        if fetch is None or self.ahead is None:
            return WindowPlace(window.visit.shard.get(), window.samples)
        self.ahead.use(fetch, _planned_bytes(window))
        return fetch.window(window.samples)


class CountingReader(SampleReader):
    """Plans as a `SampleReader` does, but fetches and reads nothing: it counts.

    Attributes:
        num_windows: Windows that were planned.
        num_bytes: Their bytes.
        num_requests: Requests that would fetch them.
    """

    num_windows = num_bytes = num_requests = 0

    def fetch(self) -> None:
        """Count what was planned."""
        planned, self._unfetched = self._unfetched, []
        self.num_windows += len(planned)
        self.num_bytes += sum(each.visit.shard.num_bytes(each.samples) for each in planned)
        self.num_requests += len(side_by_side([FetchRange(each.visit.shard, each.samples) for each in planned]))

    def carry_out(self, plan: Plan) -> Any:
        """Make room for the next plans; there are no samples."""
        if self.ahead is not None:
            self.ahead.num_planned -= sum(_planned_bytes(plan.windows[number]) for number in plan.new)


def _planned_bytes(window: PlannedWindow) -> int:
    """Return how many bytes a window counts for while it is planned."""
    shard: LazyShard = window.visit.shard
    return max(_MIN_PLANNED_BYTES, shard.num_bytes(window.samples))
