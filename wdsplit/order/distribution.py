"""The part of an epoch that each reader reads: shards, samples, pads, and how often each window is read.

Pure (no I/O). An epoch's samples, lane after lane, are cut into pieces that lie in one shard and one lane. The readers
of a lane take its samples in turn, so a piece is a range on a ring of readers. All results come from counting these
ranges.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.order.epoch import EpochOrder
from wdsplit.order.split import Steps, World, readers_per_lane
from wdsplit.texts import counted

__all__ = ["Readers", "ShardDistribution", "reading_advice", "shard_distribution"]


@dataclass(frozen=True)
class ShardDistribution:
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
        read_amplification: How often a window is read, on average: see `Readers.read_amplification`.
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


def shard_distribution(order: EpochOrder, world: World, batch_size: int = 1) -> ShardDistribution:
    """Return what one reader reads in one epoch, and what all of them do.

    Takes O((shards + lanes) log), whatever the number of samples: well below a second for 100,000 shards and 8,000
    readers. For a view it reads all bitmaps: seconds for a billion samples.

    Args:
        order: The epoch's order.
        world: The reader.
        batch_size: Samples a rank and step, at least 1: decides how the last step is filled or dropped.
    """
    readers = Readers(order, world.world_size, world.num_workers, batch_size)
    return ShardDistribution(
        total_shards=len(order.counts),
        shards_per_rank=readers.shards_per_rank(),
        shards_per_worker=readers.shards_per_worker(world.rank),
        rank=world.rank,
        world_size=world.world_size,
        worker=world.worker,
        num_workers=world.num_workers,
        assigned_shards=readers.shards(world.rank, world.worker),
        num_samples=order.num_samples,
        num_pads=readers.num_pads,
        read_amplification=readers.read_amplification,
        advice=reading_advice(order.options.lanes, world.world_size, world.num_workers),
    )


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


class Readers:
    """All readers of one epoch, and what each of them reads.

    Args:
        order: The epoch's order.
        world_size: Ranks (W).
        num_workers: Readers of each rank (N), at least 1.
        batch_size: Samples a rank and step, at least 1.

    Attributes:
        num_pads: Pads of all readers together.
    """

    def __init__(self, order: EpochOrder, world_size: int, num_workers: int, batch_size: int = 1) -> None:
        steps = Steps(order, World(0, world_size, 0, num_workers), batch_size)
        self._order = order
        self._world_size = world_size
        self._num_workers = num_workers
        self._num_positions = order.num_positions if order.options.tail == "uneven" else steps.end
        lane = np.arange(order.options.lanes)
        # Of the positions c, c + C, c + 2 C, ... of lane c, ceil((num_positions - c) / C) lie below num_positions.
        reached = np.maximum(0, -((lane - self._num_positions) // order.options.lanes))
        given = np.minimum(reached, order.lane_length)
        self._pieces = _pieces(order, given)
        self.num_pads = 0 if order.options.tail == "uneven" else self._num_positions - int(given.sum())

    @cached_property
    def _workers(self) -> _Ring:
        """All workers of all ranks; worker w of rank r is number r + W w."""
        return _Ring(self._pieces, self._order.options.lanes, self._world_size * self._num_workers)

    def shards(self, rank: int, worker: int) -> list[int]:
        """Return the shards that a reader reads from, in the order of its first visits."""
        return self._workers.shards(rank + self._world_size * worker)

    def num_given(self, rank: int, worker: int) -> int:
        """Return how many samples a reader is given, pads included."""
        reader, readers = rank + self._world_size * worker, self._world_size * self._num_workers
        if self._order.options.tail == "uneven":
            return len(Steps(self._order, World(reader, readers), 1))
        return len(range(reader, self._num_positions, readers))

    def shards_per_rank(self) -> list[int]:
        """Return for each rank the number of shards that it reads from."""
        counts: list[int] = _Ring(self._pieces, self._order.options.lanes, self._world_size).num_shards().tolist()
        return counts

    def shards_per_worker(self, rank: int) -> list[int]:
        """Return for each worker of a rank the number of shards that it reads from."""
        counts: list[int] = self._workers.num_shards()[rank :: self._world_size].tolist()
        return counts

    @cached_property
    def read_amplification(self) -> float:
        """Windows that all readers together read, divided by `num_windows`.

        Each reader that gets a sample of a window reads it once: min(P, its samples) of the P readers of its lane.
        Where a window is cut between two lanes, the readers of each lane read it. A reader of both lanes reads it
        twice, because the visits are far apart. In an uneven view both visits are usually at the same time, so one read
        counts as two here. The value is 1 where ranks x workers divides lanes of whole shards, a little more where
        lanes were cut, and less where `drop` leaves out whole windows. Pads do not count.
        """
        return self._windows_read() / self.num_windows if self.num_windows else 0.0

    @cached_property
    def num_windows(self) -> int:
        """Windows of the dataset; in a view, those with a selected sample."""
        return self._reads_of(np.arange(len(self._order.counts)), 1)

    def _reads_of(self, shards: Int64, readers: int) -> int:
        """Return how many windows some readers read in all, if they take the samples of some shards in turn."""
        window, selection = self._order.options.window, self._order.selection
        if selection is not None:
            return selection.sum_of_windows(shards, window, readers)
        full, rest = np.divmod(self._order.counts[shards], window)
        return int((full * min(window, readers) + np.minimum(rest, readers)).sum())

    def _windows_read(self) -> int:
        order, pieces, period = self._order, self._pieces, self._workers.period
        is_whole = pieces.length == order.counts[pieces.shard]
        read = self._reads_of(pieces.shard[is_whole], period)
        cut = ~is_whole
        first, stop = pieces.first[cut], pieces.first[cut] + pieces.length[cut]
        slots = np.unique(np.searchsorted(order.ends, first, side="right"))
        window_ends = [self._window_ends(slot) for slot in slots.tolist()]
        borders = np.unique(np.concatenate([first, stop, *window_ends]))
        if not len(borders):
            return read
        run = borders[:-1]
        piece = np.searchsorted(first, run, side="right") - 1
        inside = (piece >= 0) & (run < stop[np.maximum(piece, 0)])
        return read + int(np.minimum(np.diff(borders), period)[inside].sum())

    def _window_ends(self, slot: int) -> Int64:
        """Return where a shard's windows, in the order of their visits, end in the lane-major sequence of samples."""
        shard = int(self._order.sequence[slot])
        _, ends = self._order.shard_windows(shard)
        in_sequence: Int64 = self._order.ends[slot] - self._order.counts[shard] + ends
        return in_sequence


@dataclass(frozen=True)
class _Pieces:
    """Runs of consecutive samples in one shard and one lane: int64 arrays of shape (pieces,).

    Attributes:
        first: The place of each run's first sample in the lane-major sequence of all samples; rising.
        length: Its samples.
        shard: Its shard.
        lane: Its lane.
        offset: The place of its first sample in the lane.
    """

    first: Int64
    length: Int64
    shard: Int64
    lane: Int64
    offset: Int64


def _pieces(order: EpochOrder, given: Int64) -> _Pieces:
    """Cut the first `given` samples of each lane where shards end."""
    stops, stretches = order.lane_begin + given, order.stretches
    ends = order.ends if stretches is None else stretches.places_of(order.ends[order.ends < order.num_samples])
    parts = np.zeros(1, np.int64) if stretches is None else stretches.begins
    borders = np.unique(np.concatenate([parts, ends, order.lane_begin, stops]))
    first, length = borders[:-1], np.diff(borders)
    lane = np.searchsorted(order.lane_begin, first, side="right") - 1
    is_given = first < stops[lane]
    first, length, lane = first[is_given], length[is_given], lane[is_given]
    offset = first - order.lane_begin[lane]
    if stretches is not None:
        first = stretches.sources_of(first)
        rising = np.argsort(first)
        first, length, lane, offset = first[rising], length[rising], lane[rising], offset[rising]
    shard = order.sequence[np.searchsorted(order.ends, first, side="right")]
    return _Pieces(first, length, shard, lane, offset)


class _Ring:
    """Readers 0, 1, ..., R - 1, of which reader k takes the positions g with g mod R = k.

    The sample at offset o of lane c has the position c + C o, so reader k takes it if c + C o = k (mod R). With
    D = gcd(C, R) and P = R / D:

    - modulo D, C o is 0: the readers of lane c are those of its class, k mod D = c mod D. There are P of them.
    - so c and k have the same remainder modulo D. Subtract it and divide by D: c div D + (C / D) o = k div D (mod P).
    - C / D and P have no common divisor, so C / D has an inverse v modulo P: v (c div D) + o = v (k div D) (mod P).

    The left side is the sample's turn, the right side the reader's. Consecutive samples have consecutive turns, so a
    piece is a range of turns on a ring of P.

    Args:
        pieces: The samples to read.
        lanes: Lanes (C).
        readers: Readers (R).

    Attributes:
        period: Readers of each lane (P).
    """

    def __init__(self, pieces: _Pieces, lanes: int, readers: int) -> None:
        self._pieces = pieces
        self._lanes = lanes
        self._readers = readers
        self._shared = math.gcd(lanes, readers)
        self.period = readers // self._shared
        self._inverse = pow(lanes // self._shared, -1, self.period)
        self._class = pieces.lane % self._shared
        self._turn = (pieces.lane // self._shared * self._inverse + pieces.offset) % self.period

    def _turn_of(self, reader: Any) -> Any:
        return reader // self._shared * self._inverse % self.period

    def shards(self, reader: int) -> list[int]:
        """Return the shards that a reader takes samples of, in the order of its first visits."""
        pieces = self._pieces
        mine = np.flatnonzero(self._class == reader % self._shared)
        skipped = (self._turn_of(reader) - self._turn[mine]) % self.period
        hit = skipped < pieces.length[mine]
        mine, skipped = mine[hit], skipped[hit]
        position = pieces.lane[mine] + self._lanes * (pieces.offset[mine] + skipped)
        return list(dict.fromkeys(pieces.shard[mine[np.argsort(position)]].tolist()))

    def num_shards(self) -> Int64:
        """Return how many shards each reader takes samples of: int64 of shape (readers,)."""
        pieces, period = self._pieces, self.period
        # Each shard and class has a ring of its own, cut open at turn 0 and laid out at `begin`: a piece is one range
        # of numbers, or two if it goes beyond the cut. Ranges are merged, so that a reader counts a shard once.
        begin = (pieces.shard * self._shared + self._class) * period
        end = self._turn + np.minimum(pieces.length, period)
        first = np.concatenate([begin + self._turn, begin])
        stop = np.concatenate([begin + np.minimum(end, period), begin + np.maximum(end - period, 0)])
        first, stop = _without_overlaps(first, stop)
        # The rings of a shard's classes take R = D P numbers, so class and turn are what is left of the shard's number.
        turn = first % self._readers
        size = self._readers + 1
        change = np.bincount(turn, minlength=size) - np.bincount(turn + stop - first, minlength=size)
        reader = np.arange(self._readers)
        counts: Int64 = np.cumsum(change)[reader % self._shared * period + self._turn_of(reader)]
        return counts


def _without_overlaps(first: Int64, stop: Int64) -> tuple[Int64, Int64]:
    """Return ranges that cover the same numbers, each once, without empty ranges."""
    by_first = np.argsort(first, kind="stable")
    first, stop = first[by_first], stop[by_first]
    covered = np.maximum.accumulate(stop)
    first = np.maximum(first, np.concatenate([first[:1], covered[:-1]]))
    kept = first < stop
    return first[kept], stop[kept]
