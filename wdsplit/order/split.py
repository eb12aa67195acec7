"""The positions of each rank and worker, and the steps.

Pure (no I/O). Rank r of W takes the positions g with g mod W = r; its worker w of N those of them with
(g div W) mod N = w. Step t covers batch_size x W consecutive positions, so the global batch depends on this product
alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.errors import InputError, TopologyError
from wdsplit.order.epoch import EpochOrder
from wdsplit.order.skips import NO_SKIPS, Skips

if TYPE_CHECKING:
    from wdsplit.order.mixture import MixedOrder

__all__ = [
    "AnyOrder",
    "Step",
    "Steps",
    "Turns",
    "World",
    "assigned_lanes",
    "reader_positions",
    "readers_per_lane",
    "worker_of",
]

AnyOrder: TypeAlias = "EpochOrder | MixedOrder"
"""An order of any kind: positions to samples."""

_SCAN_POSITIONS = 65_536


@dataclass(frozen=True)
class World:
    """The place of one reader among all readers.

    Attributes:
        rank: 0 <= rank < world_size.
        world_size: Ranks (W), at least 1.
        worker: 0 <= worker < num_workers.
        num_workers: Readers of each rank (N), at least 1: a loader without worker processes is one reader.
    """

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 1

    def __post_init__(self) -> None:
        for name, count in (("rank", "world_size"), ("worker", "num_workers")):
            number, total = getattr(self, name), getattr(self, count)
            if type(number) is not int or type(total) is not int or not 0 <= number < total:
                raise TopologyError(
                    f"{name} and {count} contradict each other",
                    expected=f"0 <= {name} < {count}",
                    found=f"{name} {number!r}, {count} {total!r}",
                    remedy="pass both, or start the program with a launcher that sets both; counting begins at 0",
                )


@dataclass(frozen=True)
class Step:
    """One rank's part of one step.

    Attributes:
        positions: int64 of shape (batch,), rising.
        end: The position from which a resumed epoch goes on after this step.
    """

    positions: Int64
    end: int


class Steps:
    """The steps of one rank in one epoch, from a start on: sized and iterable.

    With tail `pad` or `drop` all ranks have the same number of steps, each of batch_size positions. With `uneven` a
    step takes the rank's next batch_size positions that hold a sample; the last may be smaller and ranks may differ.

    Args:
        order: The epoch's order.
        world: Rank and world size; the worker is ignored.
        batch_size: Samples per rank and step, at least 1.
        start: The position to start from: 0, or that of a checkpoint.
        skips: Positions to leave out: steps consist of the other positions. Not with `uneven`.
    """

    def __init__(self, order: AnyOrder, world: World, batch_size: int, start: int = 0, skips: Skips = NO_SKIPS) -> None:
        if batch_size < 1:
            raise InputError("invalid batch size", expected="at least 1", found=str(batch_size))
        self.order = order
        self.world = world
        self.batch_size = batch_size
        self.start = start
        self.skips = skips

    @property
    def global_batch(self) -> int:
        """Samples of a step over all ranks (B)."""
        return self.batch_size * self.world.world_size

    def __len__(self) -> int:
        tail = self.order.options.tail
        if tail == "uneven":
            return -(-self._count_real() // self.batch_size)
        left = max(0, int(self.skips.numbers(self.order.num_positions)) - self._first)
        return left // self.global_batch if tail == "drop" else -(-left // self.global_batch)

    @property
    def first_number(self) -> int:
        """The number of the first step; if there is none, how many the whole epoch has."""
        first = int(self.skips.positions(self._first)) if len(self) else self.order.num_positions
        return self.number_at(first)

    def number_at(self, position: int) -> int:
        """Return the number of a step that begins at a position: how many global batches are before it, skipped or not.

        After a resume with another global batch these may not be whole. So steps are counted backwards from the end of
        the epoch: the last one always has the same number.
        """
        whole_epoch = Steps(self.order, self.world, self.batch_size)
        return len(whole_epoch) - len(Steps(self.order, self.world, self.batch_size, position))

    def __iter__(self) -> Iterator[Step]:
        return self._uneven_steps() if self.order.options.tail == "uneven" else self._even_steps()

    @property
    def end(self) -> int:
        """The position after the last step of an even epoch."""
        return self._end(len(self)) if len(self) else self.start

    @property
    def _first(self) -> int:
        """How many positions before `start` are not left out."""
        return int(self.skips.numbers(self.start))

    def _end(self, num_steps: int) -> int:
        """Return the position after some even steps."""
        return int(self.skips.positions(self._first + num_steps * self.global_batch - 1)) + 1

    def _even_steps(self) -> Iterator[Step]:
        rank, world_size = self.world.rank, self.world.world_size
        stride, own_first = np.arange(self.batch_size) * world_size, self._first
        for step in range(len(self)):
            begin = own_first + step * self.global_batch
            first = begin + (rank - begin) % world_size
            yield Step(self.skips.positions(first + stride), self._end(step + 1))

    def _uneven_steps(self) -> Iterator[Step]:
        rank, world_size = self.world.rank, self.world.world_size
        begin = self.start + (rank - self.start) % world_size
        pending = np.zeros(0, np.int64)
        while begin < self.order.num_positions:
            scanned = begin + np.arange(_SCAN_POSITIONS) * world_size
            begin = int(scanned[-1]) + world_size
            scanned = scanned[scanned < self.order.num_positions]
            pending = np.concatenate([pending, scanned[self.order.is_real(scanned)]])
            full = len(pending) // self.batch_size * self.batch_size
            for positions in pending[:full].reshape(-1, self.batch_size):
                yield Step(positions, int(positions[-1]) + 1)
            pending = pending[full:]
        if len(pending):
            yield Step(pending, int(pending[-1]) + 1)

    def _count_real(self) -> int:
        """Count the rank's samples from `start` on, in closed form."""
        lanes, rank = self.order.options.lanes, self.world.rank
        turns = Turns(lanes, self.world.world_size)
        lane = turns.lanes_of(rank)
        first = (turns.of(rank) - turns.of(lane)) % turns.period
        length = self.order.lane_length[lane]
        skipped = np.clip(-(-(self.start - lane) // lanes), 0, length)
        below = [np.maximum(0, -(-(bound - first) // turns.period)).sum() for bound in (length, skipped)]
        return int(below[0] - below[1])


class Turns:
    """The turns that readers 0, 1, ..., R - 1 take in C lanes. Reader k takes the positions g with g mod R = k.

    The sample at offset o of lane c has the position c + C o, so reader k takes it if c + C o = k (mod R). With
    D = gcd(C, R) and P = R / D:

    - modulo D, C o is 0: the readers of lane c are those of its class, k mod D = c mod D. There are P of them.
    - so c and k have the same remainder modulo D. Subtract it and divide by D: c div D + (C / D) o = k div D (mod P).
    - C / D and P have no common divisor, so C / D has an inverse v modulo P: v (c div D) + o = v (k div D) (mod P).

    So a number n, of a lane or of a reader, has the turn v (n div D) mod P. A reader takes the offsets of a lane of its
    class that are the difference of their turns, modulo P: consecutive samples go to consecutive turns.

    Args:
        lanes: Lanes (C).
        readers: Readers (R).

    Attributes:
        shared: Classes of lanes and readers (D).
        period: Readers of each lane (P).
    """

    def __init__(self, lanes: int, readers: int) -> None:
        self._lanes = lanes
        self.shared = math.gcd(lanes, readers)
        self.period = readers // self.shared
        self._inverse = pow(lanes // self.shared, -1, self.period)

    def of(self, number: Any) -> Any:
        """Return the turn of a lane or reader: an integer, or int64 of the shape of `number`."""
        return number // self.shared * self._inverse % self.period

    def lanes_of(self, reader: int) -> Int64:
        """Return the lanes that a reader visits, rising."""
        return np.arange(reader % self.shared, self._lanes, self.shared)


def worker_of(positions: Int64, world_size: int, num_workers: int) -> Int64:
    """Return the worker that reads each of a rank's positions."""
    return positions // world_size % num_workers


def assigned_lanes(lanes: int, world: World) -> Int64:
    """Return the lanes that a reader visits, rising."""
    turns = Turns(lanes, world.world_size * world.num_workers)
    return turns.lanes_of(world.rank + world.world_size * world.worker)


def readers_per_lane(lanes: int, world_size: int, num_workers: int) -> int:
    """Return how many readers share each lane: 1 if world_size x num_workers divides the lanes."""
    return Turns(lanes, world_size * num_workers).period


def reader_positions(order: AnyOrder, world: World, chunk: int) -> Iterator[Int64]:
    """Give the positions of one reader over a whole epoch, at most `chunk` at a time: steps of one sample a rank.

    With tail `pad` the end is filled, with `drop` cut, so that all ranks get the same number.
    """
    tail, total = order.options.tail, order.num_positions
    if tail != "uneven":
        total = len(Steps(order, world, 1)) * world.world_size
    stride = world.world_size * world.num_workers
    first = world.rank + world.world_size * world.worker
    for begin in range(first, total, stride * chunk):
        positions = np.arange(begin, min(total, begin + stride * chunk), stride)
        yield positions[order.is_real(positions)] if tail == "uneven" else positions
