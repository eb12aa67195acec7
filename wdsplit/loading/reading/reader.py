"""From positions to samples: plans are carried out, window by window.

A reader keeps the windows that its lanes are in, and no more; it can start at any position, because nothing depends on
what was read before. What to read, and what to keep, is decided in `plan`.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from wdsplit.loading.reading.block import Block, Gathered
from wdsplit.loading.reading.open_shard import OpenShard, Scratch, WindowPlace, read_windows
from wdsplit.loading.reading.plan import Plan, PlannedWindow, Planner, ShardVisit, Take
from wdsplit.loading.reading.process_limits import allow_open_files, keep_freed_memory
from wdsplit.loading.reading.read_ahead import Ahead, Fetch, FetchRange, LazyShard
from wdsplit.loading.reading.window import Window
from wdsplit.order.epoch import EpochOrder, Int64
from wdsplit.shards.manifest import Manifest, Shard

__all__ = ["BlockReader", "SampleReader", "read_blocks"]

_SAMPLES_TOGETHER, _WINDOWS_TOGETHER = 1024, 64
"""Windows are parsed together until they have about so many samples, because numpy's calls cost as much for a few; but
no more of them, because their shards are all open meanwhile."""

_LARGE_WINDOW_BYTES = 1024**2
"""Windows that are fetched are parsed one by one from this size on, each as soon as it has come."""

_MAX_PLANS = 256
"""So many lists of positions are planned ahead at most: what lies on a disk is not fetched, which could bound it."""
_MIN_PLANNED_BYTES = 32 * 1024
"""What a window counts for at least when it is planned: planning takes memory too."""


class BlockReader(Protocol):
    """What reads samples in two steps, so that the first can be far ahead of the second.

    Attributes:
        ahead: What fetches; None if there is nothing to fetch.
        num_read: Windows that were read and parsed so far.
        num_reused: Times that a window was in memory already.
    """

    ahead: Ahead | None
    num_read: int
    num_reused: int

    def plan(self, positions: Int64) -> Any:
        """Return what is to be read for some positions: int64 of any length. Nothing is read."""

    def fetch(self) -> None:
        """Begin to fetch what was planned."""

    def carry_out(self, plan: Any) -> Block:
        """Return the samples of a plan; plans are carried out in the order in which they were made."""


def read_blocks(reader: BlockReader, lists: Iterable[Int64]) -> Iterator[Block]:
    """Give the samples of one list of positions after another, each in its order; what is remote is fetched ahead.

    What is read in rising order is read once: of each lane the window is kept that its last position is in.
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
        num_lanes: Lanes that this reader visits: as many windows are kept.
        fields: The fields to read; None for all.
        ahead: Fetches what was planned, if the dataset is remote.
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
        self.num_read = 0
        self.num_reused = 0
        self._opener = opener
        self._manifest_shards = manifest.shards
        self._window_size = order.options.window
        self._fields = fields
        self._scratch = Scratch()
        self._planner = Planner(order)
        self._shards: weakref.WeakKeyDictionary[ShardVisit, _ReadShard] = weakref.WeakKeyDictionary()
        self._unfetched: list[PlannedWindow] = []
        self._fetches: dict[PlannedWindow, Fetch] = {}
        self._kept: dict[PlannedWindow, Window] = {}

    def plan(self, positions: Int64) -> Plan:
        """Return what is to be read for some positions."""
        plan = self._planner.plan(positions)
        if self.ahead is not None:
            new = [take.window for take in plan.takes if take.is_new]
            self._unfetched.extend(new)
            self.ahead.num_planned += sum(map(self._planned_bytes, new))
        return plan

    def fetch(self) -> None:
        """Begin to fetch the windows that were planned."""
        planned, self._unfetched = self._unfetched, []
        if self.ahead is None or not planned:
            return
        ranges = [
            FetchRange(self._shard(window.visit).lazy, window.first, window.stop, self._num_bytes(window))
            for window in planned
        ]
        self._fetches.update(zip(planned, self.ahead.fetch(ranges), strict=True))

    def carry_out(self, plan: Plan) -> Block:
        """Return the samples of a plan."""
        for take in plan.takes if self._fetches else ():
            if take.window in self._fetches:
                self._fetches[take.window].hurry()
        gathered = Gathered(len(plan.positions))
        kept = dict(self._kept)
        while plan.takes:
            together = self._num_together(plan.takes[0].window)
            takes = [plan.takes.popleft() for _ in range(min(together, len(plan.takes)))]
            for take, window in zip(takes, self._windows(takes), strict=True):
                fields = {name: payloads[take.places] for name, payloads in window.fields.items()}
                keys, sizes = window.keys[take.places], window.sizes[take.places]
                gathered.add(take.rows, keys, window.url, sizes, fields, window.whole)
                if take.window in plan.kept:
                    kept[take.window] = window
        self._kept = {planned: kept[planned] for planned in plan.kept if planned in kept}
        return gathered.block(plan.positions, plan.pads)

    def _num_together(self, window: PlannedWindow) -> int:
        """Return how many windows, from this one on, are read together."""
        is_large = self.ahead is not None and self._num_bytes(window) > _LARGE_WINDOW_BYTES
        if is_large and self._shard(window.visit).lazy.get().file.is_remote:
            return 1
        return min(_WINDOWS_TOGETHER, -(-_SAMPLES_TOGETHER // self._window_size))

    def _windows(self, takes: list[Take]) -> list[Window]:
        """Return windows; those that are not in memory are read."""
        windows = [self._kept.get(take.window) for take in takes]
        missing = [take.window for take, window in zip(takes, windows, strict=True) if window is None]
        self.num_read += len(missing)
        self.num_reused += len(takes) - len(missing)
        read = iter(self._read(missing))
        return [next(read) if window is None else window for window in windows]

    def _read(self, windows: list[PlannedWindow]) -> list[Window]:
        if not windows:
            return []
        places = []
        for window in windows:
            data = self._fetched(window)
            opened = self._shard(window.visit).lazy.get()
            places.append(WindowPlace(opened, window.first, window.stop, data))
            if window.following is not None:
                opened.expect(*window.following)
        return read_windows(places, self._fields, self._scratch)

    def _fetched(self, window: PlannedWindow) -> memoryview | None:
        """Return the bytes of a window that were fetched; None if they are still to be read."""
        fetch = self._fetches.pop(window, None)
        if fetch is None:
            return None
        if self.ahead is not None:
            self.ahead.num_planned -= self._planned_bytes(window)
        return fetch.data(window.first, window.stop)

    def _shard(self, visit: ShardVisit) -> _ReadShard:
        """Return a shard, opened when it is first needed, forgotten when no plan and no window is of it."""
        shard = self._shards.get(visit)
        if shard is None:
            opener, listed = self._opener, self._manifest_shards[visit.shard]
            shard = _ReadShard(listed, LazyShard(lambda: opener(listed)))
            self._shards[visit] = shard
        return shard

    def _num_bytes(self, window: PlannedWindow) -> int:
        """Return about how many bytes a window has."""
        listed = self._shard(window.visit).listed
        return len(window.places) * listed.num_bytes // max(1, listed.num_samples)

    def _planned_bytes(self, window: PlannedWindow) -> int:
        """Return what a window counts for while it is planned."""
        return max(_MIN_PLANNED_BYTES, self._num_bytes(window))
