"""How well an epoch mixes: how much likelier than by chance two samples of one batch meet again in the next epoch.

Pure (no I/O). Up to some millions of samples all pairs are counted. Beyond, batches are drawn by a hash, pairs of one
shard are followed into the next epoch, and pairs of different shards, whose places are independent, are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.order.epoch import (
    EpochOrder,
    Int64,
    groups,
    hash_numbers,
    hash_stream,
    visit_order,
    window_order,
    window_samples,
)

__all__ = ["MAX_COUNTED", "Mixing", "mixing"]

Float64 = npt.NDArray[np.float64]

MAX_COUNTED = 2**22
"""Up to so many samples all pairs are counted."""
_SAMPLED = 2**16
_MIN_BATCHES = 16
_DOMAIN = 9


@dataclass(frozen=True)
class Mixing:
    """How often samples that shared a batch share one again in the next epoch.

    Attributes:
        figure: How much likelier than by chance that is: 1 is ideal.
        error: The standard error of the figure, from the batches that were drawn; 0 if all pairs were counted.
        met_again: Of the other samples of its batch, how many a sample meets again in the next epoch, on average.
        by_chance: How many that would be if the next epoch's batches were drawn at random.
    """

    figure: float
    error: float
    met_again: float
    by_chance: float


def mixing(order: EpochOrder, following: EpochOrder, global_batch: int) -> Mixing | None:
    """Compare the batches of an epoch with those of the next one.

    Args:
        order: The order of an epoch.
        following: The order of the next epoch, of the same dataset and options.
        global_batch: Samples of a step over all ranks, at least 1.

    Returns:
        None if no two samples share a batch.
    """
    if global_batch < 2 or order.num_samples < 2:
        return None
    if order.num_samples <= MAX_COUNTED:
        return _counted(order, following, global_batch)
    return _sampled(order, following, global_batch)


def _mixing_of(again: float, by_chance: float, global_batch: int, error: float) -> Mixing | None:
    """Return the result for two samples of one batch, which meet again, and would by chance, with a probability."""
    if not by_chance:
        return None
    figure, others = again / by_chance, global_batch - 1
    return Mixing(figure, error, again * others, by_chance * others)


def _pairs(sizes: Any) -> float:
    return float((sizes * (sizes - 1) / 2).sum())


# All pairs counted


def _counted(order: EpochOrder, following: EpochOrder, global_batch: int) -> Mixing | None:
    first, second = _steps_of_samples(order, global_batch), _steps_of_samples(following, global_batch)
    num_steps = int(second.max()) + 1
    together = np.sort(first * num_steps + second)
    bounds = np.flatnonzero(np.diff(together, prepend=-1, append=-1))
    met = _pairs(np.bincount(first).astype(float))
    if not met:
        return None
    total = _pairs(np.array([float(order.num_samples)]))
    by_chance = _pairs(np.bincount(second).astype(float)) / total
    return _mixing_of(_pairs(np.diff(bounds).astype(float)) / met, by_chance, global_batch, 0.0)


def _steps_of_samples(order: EpochOrder, global_batch: int) -> Int64:
    """Return the step of each sample of the dataset, shard after shard: int64 of shape (num_samples,)."""
    begins = np.cumsum(order.counts) - order.counts
    samples = np.empty(order.num_samples, np.int64)
    place = 0
    for shard in order.sequence.tolist():
        count = int(order.counts[shard])
        samples[place : place + count] = begins[shard] + visit_order(order.options, order.epoch, shard, count)
        place += count
    steps = np.empty(order.num_samples, np.int64)
    steps[samples] = _positions(order, np.arange(order.num_samples)) // global_batch
    return steps


def _positions(order: EpochOrder, places: Int64) -> Int64:
    """Return the positions of places in the lane-major sequence of all samples."""
    lane = np.searchsorted(order.lane_begin, places, side="right") - 1
    positions: Int64 = lane + order.options.lanes * (places - order.lane_begin[lane])
    return positions


# Batches drawn


def _sampled(order: EpochOrder, following: EpochOrder, global_batch: int) -> Mixing | None:
    num_steps = order.num_samples // global_batch
    if not num_steps:
        return _counted(order, following, global_batch)
    drawn = _drawn_steps(num_steps, max(_MIN_BATCHES, _SAMPLED // global_batch), order)
    positions = drawn[:, None] * global_batch + np.arange(global_batch)
    shard, visit, pad = order.visits(positions.reshape(-1))
    batch = np.repeat(np.arange(len(drawn)), global_batch)
    batch, shard, visit = batch[~pad], shard[~pad], visit[~pad]
    num_pairs = _pairs_by(np.bincount(batch, minlength=len(drawn)))
    of_one_shard, again = _pairs_of_one_shard((order, following), batch, shard, visit, global_batch, len(drawn))
    shards = order.counts.astype(float)
    total = _pairs(np.array([float(order.num_samples)]))
    by_chance = order.num_samples * (global_batch - 1) / 2 / total
    # Pairs of different shards share a batch as often in the next epoch as in this one, wherever they are now.
    apart = float((num_pairs - of_one_shard).sum() / num_pairs.sum())
    apart_again = apart * by_chance * total / max(1.0, total - _pairs(shards))
    each = (again + (num_pairs - of_one_shard) * apart_again) / num_pairs / by_chance
    error = float(each.std() / np.sqrt(len(each)))
    return _mixing_of(float(each.mean()) * by_chance, by_chance, global_batch, error)


def _drawn_steps(num_steps: int, count: int, order: EpochOrder) -> Int64:
    """Return the numbers of some steps, all different: not at equal distances, as lanes end their windows together."""
    if num_steps <= count:
        return np.arange(num_steps)
    hashes = hash_numbers(hash_stream(order.options.seed, order.epoch, _DOMAIN), np.arange(2 * count))
    return np.unique(hashes % np.uint64(num_steps))[:count].astype(np.int64)


def _pairs_by(sizes: Int64) -> Float64:
    pairs: Float64 = sizes * (sizes - 1.0) / 2
    return pairs


def _pairs_of_one_shard(
    orders: tuple[EpochOrder, EpochOrder],
    batch: Int64,
    shard: Int64,
    visit: Int64,
    global_batch: int,
    num_batches: int,
) -> tuple[Float64, Float64]:
    """Return for each batch its pairs of samples of one shard, and how many of them share a batch again."""
    order, following = orders
    _, group, sizes = np.unique(batch * len(order.counts) + shard, return_inverse=True, return_counts=True)
    group = group.reshape(-1)
    batch_of_group = np.empty(len(sizes), np.int64)
    batch_of_group[group] = batch
    of_one_shard = np.bincount(batch_of_group, _pairs_by(sizes), num_batches).astype(float)
    has_mate = np.flatnonzero(sizes[group] > 1)
    steps = _next_positions(order, following, shard[has_mate], visit[has_mate]) // global_batch
    num_steps = int(steps.max(initial=0)) + 1
    meetings, counts = np.unique(group[has_mate] * num_steps + steps, return_counts=True)
    again = np.bincount(batch_of_group[meetings // num_steps], _pairs_by(counts), num_batches).astype(float)
    return of_one_shard, again


def _next_positions(order: EpochOrder, following: EpochOrder, shard: Int64, visit: Int64) -> Int64:
    """Return where samples are in the next epoch, by their shards and visits in this one."""
    begins = np.empty(len(order.counts), np.int64)
    begins[following.sequence] = following.ends - following.counts[following.sequence]
    places = np.empty(len(shard), np.int64)
    for number, rows in groups(shard):
        places[rows] = begins[number] + _Visits(following, number).of(_Visits(order, number).samples(visit[rows]))
    return _positions(following, places)


class _Visits:
    """The visits of one shard, of which only the windows that are asked for are put into their order."""

    def __init__(self, order: EpochOrder, shard: int) -> None:
        self._order, self._shard, self._count = order, shard, int(order.counts[shard])
        self._size = order.options.window
        self._windows = window_order(order.options, order.epoch, shard, self._count)
        self._ends = np.cumsum(np.minimum(self._size, self._count - self._windows * self._size))

    def _places(self, window: int) -> Int64:
        return window_samples(self._order.options, self._order.epoch, self._shard, self._count, window)

    def samples(self, visits: Int64) -> Int64:
        """Return the samples of some visits."""
        samples = np.empty(len(visits), np.int64)
        for slot, rows in groups(np.searchsorted(self._ends, visits, side="right")):
            places = self._places(int(self._windows[slot]))
            samples[rows] = places[visits[rows] - (self._ends[slot] - len(places))]
        return samples

    def of(self, samples: Int64) -> Int64:
        """Return the visits of some samples."""
        slots = np.argsort(self._windows)
        visits = np.empty(len(samples), np.int64)
        for window, rows in groups(samples // self._size):
            places = self._places(window)
            inside = np.argsort(places)[samples[rows] - window * self._size]
            visits[rows] = self._ends[slots[window]] - len(places) + inside
        return visits
