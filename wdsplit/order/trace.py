"""Who reads what in an epoch: a trace of all ranks and workers.

Pure (no I/O). A trace consists of runs: consecutive samples of one shard in one lane. There are about as many runs as
shards and lanes, whatever the number of samples. The readers of a lane take its samples in turn, so all that they read
is counted from the runs; `EpochOrder.locate` gives single samples, where someone asks for them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.order.epoch import EpochOrder, groups
from wdsplit.order.split import Steps, Turns, World, readers_per_lane
from wdsplit.texts import Brief, counted

__all__ = ["Runs", "ShardDistribution", "Trace", "reading_advice", "runs_of"]


@dataclass(frozen=True)
class Runs:
    """Runs of consecutive samples, lane after lane: int64 arrays of shape (runs,).

    Attributes:
        lane: The lane of each run.
        shard: Its shard.
        first: Which visit of the shard its first sample is.
        length: Its samples, at least 1.
        offset: The place of its first sample in the lane: the position is lane + lanes x offset.
    """

    lane: Int64
    shard: Int64
    first: Int64
    length: Int64
    offset: Int64


def runs_of(order: EpochOrder, stop: int) -> Runs:
    """Return the runs of the samples at positions below `stop`; pads, which repeat some of them, are left out."""
    lanes, stretches = np.arange(order.options.lanes), order.stretches
    # Of the positions c, c + C, c + 2 C, ... of lane c, ceil((stop - c) / C) lie below stop.
    reached = np.maximum(0, -((lanes - stop) // len(lanes)))
    stops = order.lane_begin + np.minimum(reached, order.lane_length)
    ends = order.ends if stretches is None else stretches.places_of(order.ends[order.ends < order.num_samples])
    parts = np.zeros(1, np.int64) if stretches is None else stretches.begins
    borders = np.unique(np.concatenate([parts, ends, order.lane_begin, stops]))
    lane = np.searchsorted(order.lane_begin, borders[:-1], side="right") - 1
    is_given = borders[:-1] < stops[lane]
    lane, length = lane[is_given], np.diff(borders)[is_given]
    offset = borders[:-1][is_given] - order.lane_begin[lane]
    shard, first, _ = order.visits(lane + len(lanes) * offset)
    return Runs(lane, shard, first, length, offset)


@dataclass(frozen=True, repr=False)
class ShardDistribution(Brief):
    """The part of an epoch that one reader reads, and the totals of all readers. All values are plain.

    A shard counts for each reader that reads a sample of it; pads, which may come from any shard, do not count.

    Attributes:
        total_shards: Shards of the dataset, empty ones included.
        shards_per_rank: For each rank, the number of shards that it reads from.
        shards_per_worker: For each worker of this rank, the number of shards that it reads from.
        rank: This reader's rank.
        world_size: Ranks.
        worker: This reader's worker.
        num_workers: Readers of each rank, at least 1.
        assigned_shards: The shards that this reader reads from, in the order of its first visits.
        num_samples: Samples of the epoch, pads left out.
        num_pads: Pads of the epoch, on all ranks together.
        read_amplification: How often a window is read, on average: see `Trace.read_amplification`.
        advice: How to make reading cheaper, or None: see `reading_advice`.
    """

    total_shards: int
    shards_per_rank: list[int]
    shards_per_worker: list[int]
    rank: int
    world_size: int
    worker: int
    num_workers: int
    assigned_shards: list[int]
    num_samples: int
    num_pads: int
    read_amplification: float
    advice: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return all of it as plain JSON values."""
        return dataclasses.asdict(self)


class Trace:
    """What each reader reads in an epoch.

    Args:
        order: The epoch's order.
        world_size: Ranks (W).
        num_workers: Readers of each rank (N), at least 1.
        batch_size: Samples a rank and step, at least 1: decides how the last step is filled or dropped.

    Attributes:
        runs: The samples that are read.
        num_pads: Pads of all readers together.
    """

    def __init__(self, order: EpochOrder, world_size: int = 1, num_workers: int = 1, batch_size: int = 1) -> None:
        steps = Steps(order, World(0, world_size, 0, num_workers), batch_size)
        self._order = order
        self._world_size, self._num_workers = world_size, num_workers
        self._num_readers = world_size * num_workers
        is_uneven = order.options.tail == "uneven"
        self._num_positions = order.num_positions if is_uneven else steps.end
        self.runs = runs_of(order, self._num_positions)
        self.num_pads = 0 if is_uneven else self._num_positions - int(self.runs.length.sum())

    def of(self, rank: int, worker: int) -> ShardDistribution:
        """Return what a reader reads, and the totals of all.

        Takes O((shards + lanes) log), whatever the number of samples: well below a second for 100,000 shards and 8,000
        readers.
        """
        return ShardDistribution(
            total_shards=len(self._order.counts),
            shards_per_rank=self.shards_per_rank(),
            shards_per_worker=self.shards_per_worker(rank),
            rank=rank,
            world_size=self._world_size,
            worker=worker,
            num_workers=self._num_workers,
            assigned_shards=self.shards(rank, worker),
            num_samples=self._order.num_samples,
            num_pads=self.num_pads,
            read_amplification=self.read_amplification,
            advice=reading_advice(self._order.options.lanes, self._world_size, self._num_workers),
        )

    def shards(self, rank: int, worker: int) -> list[int]:
        """Return the shards that a reader reads from, in the order of its first visits."""
        # Worker w of rank r takes the positions g with g mod W = r and (g div W) mod N = w: g mod (W N) = r + W w.
        reader, lanes = rank + self._world_size * worker, self._order.options.lanes
        runs, (turns, classes, turn) = self.runs, self._turns
        mine = np.flatnonzero(classes == reader % turns.shared)
        skipped = (turns.of(reader) - turn[mine]) % turns.period
        hit = skipped < runs.length[mine]
        mine, skipped = mine[hit], skipped[hit]
        position = runs.lane[mine] + lanes * (runs.offset[mine] + skipped)
        return list(dict.fromkeys(runs.shard[mine[np.argsort(position)]].tolist()))

    def num_given(self, rank: int, worker: int) -> int:
        """Return how many samples a reader is given, pads included."""
        reader = rank + self._world_size * worker
        if self._order.options.tail == "uneven":
            return len(Steps(self._order, World(reader, self._num_readers), 1))
        return len(range(reader, self._num_positions, self._num_readers))

    def shards_per_rank(self) -> list[int]:
        """Return for each rank the number of shards that it reads from."""
        return self._num_shards(self._turns_of(self._world_size))

    def shards_per_worker(self, rank: int) -> list[int]:
        """Return for each worker of a rank the number of shards that it reads from."""
        return self._num_shards(self._turns)[rank :: self._world_size]

    @cached_property
    def _turns(self) -> tuple[Turns, Int64, Int64]:
        return self._turns_of(self._num_readers)

    def _turns_of(self, readers: int) -> tuple[Turns, Int64, Int64]:
        """Return the turns of some readers; and for each run its lane's class and the turn of its first sample."""
        runs, turns = self.runs, Turns(self._order.options.lanes, readers)
        return turns, runs.lane % turns.shared, (turns.of(runs.lane) + runs.offset) % turns.period

    def _num_shards(self, turns_of_runs: tuple[Turns, Int64, Int64]) -> list[int]:
        """Return how many shards each reader takes samples of."""
        turns, classes, turn = turns_of_runs
        runs, shared, period = self.runs, turns.shared, turns.period
        readers = shared * period
        # The readers of a class of lanes are a ring of P turns, on which a run is a range. Each shard and class has a
        # ring of its own, cut open at turn 0 and laid out at `begin`: a run is one range of numbers, or two if it goes
        # beyond the cut. Ranges are merged, so that a reader counts a shard once.
        begin = (runs.shard * shared + classes) * period
        end = turn + np.minimum(runs.length, period)
        first = np.concatenate([begin + turn, begin])
        stop = np.concatenate([begin + np.minimum(end, period), begin + np.maximum(end - period, 0)])
        rising = np.argsort(first, kind="stable")
        first, covered = first[rising], np.maximum.accumulate(stop[rising])
        first = np.maximum(first, np.append(first[:1], covered[:-1]))
        # The rings of a shard's classes take R = D P numbers, so class and turn are what is left of the shard's number.
        at, size = first % readers, readers + 1
        change = np.bincount(at, minlength=size) - np.bincount(at + np.maximum(covered - first, 0), minlength=size)
        reader = np.arange(readers)
        counts: list[int] = np.cumsum(change)[reader % shared * period + turns.of(reader)].tolist()
        return counts

    @property
    def read_amplification(self) -> float:
        """Windows that all readers together read, divided by `num_windows`.

        Each reader that gets a sample of a window reads it once: min(P, its samples) of the P readers of its lane.
        Where a window is cut between two lanes, the readers of each lane read it. A reader of both lanes reads it
        twice, because the visits are far apart. In an uneven view both visits are usually at the same time, so one read
        counts as two here. The value is 1 where ranks x workers divides lanes of whole shards, a little more where
        lanes were cut, and less where `drop` leaves out whole windows. Pads do not count.
        """
        return self.windows_read / self.num_windows if self.num_windows else 0.0

    @cached_property
    def windows_read(self) -> int:
        """Windows that all readers together read."""
        order, runs = self._order, self.runs
        period, stop = self._turns[0].period, runs.first + runs.length
        is_cut = runs.length < order.counts[runs.shard]
        read = self._windows_read(runs.shard[~is_cut], period)
        cut = np.flatnonzero(is_cut)
        for shard, rows in groups(runs.shard[cut]):
            _, ends = order.shard_windows(shard)
            for row in cut[rows]:
                low, high = np.searchsorted(ends, runs.first[row], side="right"), np.searchsorted(ends, stop[row])
                parts = np.diff(ends[low:high], prepend=runs.first[row], append=stop[row])
                read += int(np.minimum(parts, period).sum())
        return read

    @cached_property
    def num_windows(self) -> int:
        """Windows of the epoch."""
        return self._windows_read(np.arange(len(self._order.counts)), 1)

    def _windows_read(self, shards: Int64, readers: int) -> int:
        """Return how many windows some readers read in all, if they take all samples of some shards in turn."""
        order, window = self._order, self._order.options.window
        if not order.is_even:
            sizes = (np.diff(order.shard_units(shard).ends, prepend=0) for shard in shards.tolist())
            return sum(int(np.minimum(each, readers).sum()) for each in sizes)
        full, rest = np.divmod(order.counts[shards], window)
        return int((full * min(window, readers) + np.minimum(rest, readers)).sum())


def reading_advice(lanes: int, world_size: int, num_workers: int) -> str | None:
    """Return a sentence with the nearest numbers that give each lane one reader, or None if it has one already.

    Args:
        lanes: Lanes of the order (C).
        world_size: Ranks (W).
        num_workers: Readers of each rank (N), at least 1.
    """
    shared = readers_per_lane(lanes, world_size, num_workers)
    if shared == 1:
        return None
    readers = world_size * num_workers
    fewer, more = lanes // readers * readers, -(-lanes // readers) * readers
    better = [counted(near, "worker") for near in _nearest_divisors(lanes, world_size, num_workers)]
    better += [counted(near, "rank") for near in _nearest_divisors(lanes, num_workers, world_size)]
    lanes_too = " or ".join(f"lanes={near}" for near in (fewer, more) if near)
    choices = ", or ".join(filter(None, [" or ".join(better), lanes_too]))
    return (
        f"{counted(world_size, 'rank')} x {counted(num_workers, 'worker')} do not divide {counted(lanes, 'lane')}, so "
        f"{shared} readers share each lane "
        f"and read the same windows; use {choices} "
        "(for a new training: saved states need the same lanes)"
    )


def _nearest_divisors(lanes: int, times: int, number_asked: int) -> list[int]:
    """Return the nearest numbers below and above `number_asked` that, times `times`, divide the lanes."""
    whole, rest = divmod(lanes, times)
    if rest:
        return []
    number = np.arange(1, whole + 1)
    fitting = number[whole % number == 0]
    below = int(np.searchsorted(fitting, number_asked))
    near: list[int] = fitting[max(0, below - 1) : below + 1].tolist()
    return near
