"""From positions to samples: a reader carries out plans, window by window.

It keeps only the windows that its lanes are in. It can start at any position, because nothing depends on earlier reads.
`plan` decides what to read and what to keep.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice, takewhile
from typing import Any, Protocol

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.errors import CorruptDataError
from wdsplit.loading.reading.block import Block, Gathered, as_objects, picked
from wdsplit.loading.reading.open_shard import OpenShard
from wdsplit.loading.reading.plan import Plan, PlannedWindow, Planner, ShardVisit
from wdsplit.loading.reading.process_limits import allow_open_files, keep_freed_memory
from wdsplit.loading.reading.read_ahead import Ahead, Fetch, FetchRange, LazyShard
from wdsplit.loading.reading.windows import DAMAGE, Part, Scratch, Window, WindowPlace, read_windows
from wdsplit.order.epoch import EpochOrder, groups
from wdsplit.shards.manifest import Manifest, Shard

__all__ = ["BlockReader", "SampleReader", "read_blocks"]

_SAMPLES_TOGETHER, _WINDOWS_TOGETHER = 1024, 64
"""Limits for windows that are parsed together: of samples, because a numpy call costs as much for few as for many; and
of windows, because all their shards are open meanwhile."""

_LARGE_WINDOW_BYTES = 1024**2
"""Fetched windows above this size are parsed as soon as they arrive, together with the next ones if these are there."""

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
        as_arrow: Whether small payloads may come as Arrow arrays, for stages that take columns; False at first.
    """

    ahead: Ahead | None
    as_arrow: bool
    num_read: int
    num_reused: int

    def plan(self, positions: Int64) -> Any:
        """Return a plan for some positions: int64 of any length. Nothing is read."""

    def fetch(self) -> None:
        """Begin to fetch what was planned."""

    def carry_out(self, plan: Any) -> Block:
        """Return the samples of a plan; plans are carried out in the order in which they were made."""


def read_blocks(reader: BlockReader, lists: Iterable[Int64]) -> Iterator[Block]:
    """Give the samples of each list of positions, in its order; data of remote shards is fetched ahead.

    For rising positions, each window is read once, because the window of each lane's last position is kept.
    """
    plans: deque[Any] = deque()
    ahead, lists = reader.ahead, iter(lists)
    while True:
        if not plans:
            positions = next(lists, None)
            if positions is None:
                return
            plans.append(reader.plan(positions))
            reader.fetch()
        if ahead is not None and ahead.has_room and len(plans) <= _MAX_PLANS * 3 // 4:
            while len(plans) < _MAX_PLANS and not ahead.is_full and (following := next(lists, None)) is not None:
                plans.append(reader.plan(following))
            reader.fetch()
        yield reader.carry_out(plans.popleft())


@dataclass(frozen=True)
class _ReadShard:
    """A shard of the manifest, and how it is opened."""

    listed: Shard
    lazy: LazyShard


class SampleReader:
    """Reads the samples of positions of one dataset: a `BlockReader`.

    Args:
        opener: Opens a shard of the manifest.
        manifest: The dataset's manifest.
        order: The epoch's order.
        num_lanes: Lanes that this reader visits; it keeps one window of each.
        ahead: Fetches what was planned, if the dataset is remote.
        salvages_in: Name of the shards' folder in messages, to give damaged samples as their errors: see
            `read_windows`. Those of a shard that cannot be opened are all damaged. None to raise errors.
    """

    def __init__(
        self,
        opener: Callable[[Shard], OpenShard],
        manifest: Manifest,
        order: EpochOrder,
        num_lanes: int,
        ahead: Ahead | None = None,
        salvages_in: str | None = None,
    ) -> None:
        allow_open_files(2 * (num_lanes + 2) + _WINDOWS_TOGETHER)
        keep_freed_memory()
        self.ahead = ahead
        self.num_read = 0
        self.num_reused = 0
        self.as_arrow = False
        self._opener = opener
        self._manifest_shards = manifest.shards
        self._window_size = order.options.window
        self._is_view = order.selection is not None
        self._salvages_in = salvages_in
        self._scratch = Scratch()
        self._planner = Planner(order)
        self._shards: weakref.WeakKeyDictionary[ShardVisit, _ReadShard] = weakref.WeakKeyDictionary()
        self._unfetched: list[PlannedWindow] = []
        self._fetches: dict[PlannedWindow, Fetch] = {}
        self._kept: dict[PlannedWindow, Part] = {}

    def plan(self, positions: Int64) -> Plan:
        """Return a plan for some positions."""
        plan = self._planner.plan(positions)
        if self.ahead is not None:
            new = [window for _, window in plan.new]
            self._unfetched.extend(new)
            self.ahead.num_planned += sum(map(self._planned_bytes, new))
        return plan

    def fetch(self) -> None:
        """Begin to fetch the windows that were planned."""
        planned, self._unfetched = self._unfetched, []
        if self.ahead is None or not planned:
            return
        ranges = [
            FetchRange(
                self._shard(window.visit).lazy, window.first, window.stop, self._num_bytes(window), window.chosen
            )
            for window in planned
        ]
        self._fetches.update(zip(planned, self.ahead.fetch(ranges), strict=True))

    def carry_out(self, plan: Plan) -> Block:
        """Return the samples of a plan."""
        for _, window in plan.new if self._fetches else ():
            if window in self._fetches:
                self._fetches[window].mark_urgent()
        self.num_read += len(plan.new)
        self.num_reused += len(plan.known)
        parts = {number: self._kept[window] for number, window in plan.known}
        while plan.new:
            read = [plan.new.popleft() for _ in range(self._num_together(plan.new))]
            for (number, window), part in zip(read, self._read([window for _, window in read]), strict=True):
                parts[number] = part
                if window in plan.kept:
                    self._kept[window] = part
        self._kept = {window: self._kept[window] for window in plan.kept if window in self._kept}
        gathered = Gathered(len(plan.positions))
        for parsed, rows, places in _by_parsed(plan, [parts[number] for number in range(len(parts))]):
            url = parsed.url if isinstance(parsed.url, str) else parsed.url[places]
            fields = {name: picked(payloads, places) for name, payloads in parsed.fields.items()}
            gathered.add(rows, parsed.keys[places], url, parsed.sizes[places], fields, parsed.whole)
        return gathered.block(plan.positions, plan.pads)

    def _num_together(self, new: Collection[tuple[int, PlannedWindow]]) -> int:
        """Return how many windows, from the first on, are read together."""
        window = next(iter(new))[1]
        most = min(_WINDOWS_TOGETHER, len(new))
        is_large = self.ahead is not None and self._num_bytes(window) > _LARGE_WINDOW_BYTES
        if is_large and self._is_remote(window):
            if self._is_view:  # its windows end at different times, but those read together stay in memory together
                return 1
            fetches = (self._fetches.get(each) for _, each in islice(new, most))
            most = max(1, sum(1 for _ in takewhile(lambda fetch: fetch is not None and fetch.is_done, fetches)))
        if not self._is_view:
            return min(most, -(-_SAMPLES_TOGETHER // self._window_size))
        ends = accumulate(len(each.places) for _, each in islice(new, most))
        return next((number for number, end in enumerate(ends, 1) if end >= _SAMPLES_TOGETHER), most)

    def _is_remote(self, window: PlannedWindow) -> bool:
        """Tell whether a window is fetched; False if its shard cannot be opened, which `_read` notices too."""
        try:
            return self._shard(window.visit).lazy.get().file.is_remote
        except CorruptDataError:
            return False

    def _read(self, windows: list[PlannedWindow]) -> list[Part]:
        """Read windows, and let the system begin to read those that come after them in their shards."""
        places: dict[PlannedWindow, WindowPlace] = {}
        parts: dict[PlannedWindow, Part] = {}
        for window in windows:
            try:
                places[window] = self._place(window)
            except CorruptDataError as error:
                if self._salvages_in is None:
                    raise
                count, url = len(window.places), f"{self._salvages_in}/{self._shard(window.visit).listed.path}"
                # No collector sees into arrays of objects: by a traceback, they would keep this reader forever.
                keys, errors = as_objects([""] * count), as_objects([error.with_traceback(None)] * count)
                parts[window] = Part(Window(url, keys, np.zeros(count, np.int64), {DAMAGE: errors}), 0)
        if places:
            salvages = self._salvages_in is not None
            read = read_windows(list(places.values()), self._scratch, self.as_arrow, salvages)
            parts.update(zip(places, read, strict=True))
        return [parts[window] for window in windows]

    def _place(self, window: PlannedWindow) -> WindowPlace:
        """Return where a window is, with its bytes if they were fetched."""
        data = self._fetched(window)
        opened = self._shard(window.visit).lazy.get()
        if window.following is not None:
            first, stop, chosen = window.following
            opened.expect(slice(first, stop) if chosen is None else chosen)
        return WindowPlace(opened, window.first, window.stop, data, window.chosen)

    def _fetched(self, window: PlannedWindow) -> memoryview | None:
        """Return the bytes of a window if they were fetched; None if it must be read."""
        fetch = self._fetches.pop(window, None)
        if fetch is None:
            return None
        if self.ahead is not None:
            self.ahead.num_planned -= self._planned_bytes(window)
        return fetch.data(window.first)

    def _shard(self, visit: ShardVisit) -> _ReadShard:
        """Return a shard; it opens when it is first needed, and is dropped when no plan and no window needs it."""
        shard = self._shards.get(visit)
        if shard is None:
            opener, listed = self._opener, self._manifest_shards[visit.shard]
            shard = self._shards[visit] = _ReadShard(listed, LazyShard(lambda: opener(listed)))
        return shard

    def _num_bytes(self, window: PlannedWindow) -> int:
        """Return about how many bytes a window has."""
        listed = self._shard(window.visit).listed
        return len(window.places) * listed.num_bytes // max(1, listed.num_samples)

    def _planned_bytes(self, window: PlannedWindow) -> int:
        """Return how many bytes a window counts for while it is planned."""
        return max(_MIN_PLANNED_BYTES, self._num_bytes(window))


def _by_parsed(plan: Plan, parts: list[Part]) -> Iterator[tuple[Window, Int64, Int64]]:
    """Give each parsed window, with the rows of a plan that it fills and the places of their samples in the window.

    Windows that were parsed together count as one, so that small windows share numpy calls.
    """
    if not parts:
        return
    parsed = {id(part.window): part.window for part in parts}
    numbers = {key: number for number, key in enumerate(parsed)}
    parsed_of = np.array([numbers[id(part.window)] for part in parts], np.int64)
    windows = list(parsed.values())
    firsts = np.array([part.first for part in parts], np.int64)
    places = plan.places + firsts[plan.window_of]
    for number, rows in groups(parsed_of[plan.window_of]):
        yield windows[number], rows, places[rows]
