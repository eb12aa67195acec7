"""How well an epoch mixes: do samples of one batch meet again in the next epoch, and do batches have all classes.

For small datasets, all pairs or batches are counted. For larger ones, batches are drawn by a hash. Pairs
of one shard are looked up in the next epoch; pairs of different shards are only counted, because their places are
independent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from wdsplit.arrays import Float64, Int64
from wdsplit.order.epoch import EpochOrder, Located
from wdsplit.order.hashing import hash_numbers, hash_stream
from wdsplit.order.split import AnyOrder

__all__ = ["MAX_COUNTED", "Batches", "ClassMixing", "Mixing", "class_mixing", "draw_batches", "draw_numbers", "mixing"]

MAX_COUNTED = 2**22
"""Up to this many samples, all pairs are counted."""
_SAMPLED = 2**16
_MIN_BATCHES = 16
"""Batches to draw at least, even if they have more samples than requested."""
_MAX_LISTED = 2**12
"""Largest number of shards in which samples are looked up, if a view lists the units of each, in a millisecond."""
_DOMAIN = 9


@dataclass(frozen=True)
class Mixing:
    """How often samples that shared a batch share one again in the next epoch.

    Attributes:
        figure: How much likelier than by chance that is: 1 is ideal.
        error: The standard error of the figure, from the batches that were drawn; 0 if all pairs were counted.
        met_again: How many of the other samples of its batch a sample meets again in the next epoch, on average.
        by_chance: The same, if the next epoch's batches were drawn at random.
    """

    figure: float
    error: float
    met_again: float
    by_chance: float


def mixing(order: EpochOrder, global_batch: int) -> Mixing | None:
    """Compare the batches of an epoch with those of the next one, of the same samples.

    Args:
        order: The order of the epoch.
        global_batch: Samples of a step over all ranks, at least 1.

    Returns:
        None if no two samples share a batch.
    """
    if global_batch < 2 or order.num_samples < 2:
        return None
    following = EpochOrder(order.totals, order.options, order.epoch + 1, selection=order.selection)
    if order.num_samples <= MAX_COUNTED:
        return _counted(order, following, global_batch)
    return _sampled(order, following, global_batch)


def _mixing_of(again: float, by_chance: float, global_batch: int, error: float) -> Mixing | None:
    """Return the result from the probabilities that two samples of a batch meet again, and would by chance."""
    if not by_chance:
        return None
    figure, others = again / by_chance, global_batch - 1
    return Mixing(figure, error, again * others, by_chance * others)


def _pairs(sizes: Any) -> Float64:
    """Return how many pairs there are in groups of some sizes."""
    pairs: Float64 = sizes * (sizes - 1.0) / 2
    return pairs


# All pairs counted


def _counted(order: EpochOrder, following: EpochOrder, global_batch: int) -> Mixing | None:
    positions = order.positions(np.arange(order.num_samples))
    shard, unit, _ = order.units(positions)
    first, second = positions // global_batch, following.positions_of(shard, unit) // global_batch
    num_steps = int(second.max()) + 1
    together = np.sort(first * num_steps + second)
    bounds = np.flatnonzero(np.diff(together, prepend=-1, append=-1))
    met = float(_pairs(np.bincount(first)).sum())
    if not met:
        return None
    by_chance = float(_pairs(np.bincount(second)).sum() / _pairs(order.num_samples))
    return _mixing_of(float(_pairs(np.diff(bounds)).sum()) / met, by_chance, global_batch, 0.0)


# Batches drawn


def _sampled(order: EpochOrder, following: EpochOrder, global_batch: int) -> Mixing | None:
    num_steps = order.num_samples // global_batch
    if not num_steps:
        return _counted(order, following, global_batch)
    drawn = draw_numbers(num_steps, max(_MIN_BATCHES, _SAMPLED // global_batch), order)
    positions = (drawn[:, None] * global_batch + np.arange(global_batch)).reshape(-1)
    shard, visit, pad = order.visits(positions)
    batch, shard, visit = np.repeat(np.arange(len(drawn)), global_batch)[~pad], shard[~pad], visit[~pad]
    num_pairs = _pairs(np.bincount(batch, minlength=len(drawn)))
    # Pairs of one shard: how many there are in each batch, and how many of them share a batch again.
    groups, group, sizes = np.unique(batch * len(order.counts) + shard, return_inverse=True, return_counts=True)
    batch_of, group = groups // len(order.counts), group.reshape(-1)
    of_one_shard = np.bincount(batch_of, _pairs(sizes), len(drawn))
    mates = np.flatnonzero(sizes > 1)  # of a large dataset few: only their windows are permuted
    some = mates if order.is_even else mates[draw_numbers(len(mates), _MAX_LISTED, order)]
    has_mate = np.isin(group, some)
    group, shard, visit = group[has_mate], shard[has_mate], visit[has_mate]
    steps = following.positions_of(shard, order.units_of(shard, visit)) // global_batch
    most = int(steps.max(initial=0)) + 1
    meetings, counts = np.unique(group * most + steps, return_counts=True)
    again = np.bincount(batch_of[meetings // most], _pairs(counts), len(drawn)) * (len(mates) / max(1, len(some)))
    # Pairs of different shards share a batch as often in the next epoch as in this one, wherever they are now.
    total = float(_pairs(order.num_samples))
    by_chance = order.num_samples * (global_batch - 1) / 2 / total
    apart = float((num_pairs - of_one_shard).sum() / num_pairs.sum())
    apart_again = apart * by_chance * total / max(1.0, total - float(_pairs(order.counts).sum()))
    each = (again + (num_pairs - of_one_shard) * apart_again) / num_pairs / by_chance
    error = float(each.std() / np.sqrt(len(each)))
    return _mixing_of(float(each.mean()) * by_chance, by_chance, global_batch, error)


def draw_numbers(total: int, count: int, order: AnyOrder) -> Int64:
    """Draw `count` numbers below `total`, all different, rising: not evenly spaced, as lanes end windows together."""
    if total <= count:
        return np.arange(total)
    hashes = hash_numbers(hash_stream(order.options.seed, order.epoch, _DOMAIN), np.arange(2 * count))
    numbers, firsts = np.unique(hashes % np.uint64(total), return_index=True)
    return np.sort(numbers[np.argsort(firsts)[:count]]).astype(np.int64)


# Classes in the batches of a rank


@dataclass(frozen=True)
class Batches:
    """Batches of ranks, and the n samples in them; pads are left out.

    Attributes:
        batch: int64 of shape (n,): the number of the batch that each sample is in.
        samples: The samples.
        is_all: Whether these are all batches of all ranks, not a random choice.
        world_size: Ranks (W).
    """

    batch: Int64
    samples: Located
    is_all: bool
    world_size: int


def draw_batches(order: AnyOrder, world_size: int, batch_size: int, max_samples: int) -> Batches:
    """Return batches of single ranks: all, if they have few samples, else some that a hash draws.

    Args:
        order: The order of the epoch.
        world_size: Ranks.
        batch_size: Samples of a rank's batch.
        max_samples: Limit for the samples in the returned batches; at least 16 are drawn.
    """
    global_batch = world_size * batch_size
    is_all = order.num_positions <= max_samples
    if is_all:
        positions = np.arange(order.num_positions)
        batch = positions // global_batch * world_size + positions % world_size
    else:
        num_batches = -(-order.num_positions // global_batch) * world_size
        drawn = draw_numbers(num_batches, max(_MIN_BATCHES, max_samples // batch_size), order)
        firsts = drawn // world_size * global_batch + drawn % world_size
        positions = (firsts[:, None] + world_size * np.arange(batch_size)).reshape(-1)
        batch = np.repeat(np.arange(len(drawn)), batch_size)
    is_real = order.is_real(positions)
    located = order.locate(positions[is_real])
    return Batches(batch[is_real][located.row], located, is_all, world_size)


@dataclass(frozen=True)
class ClassMixing:
    """How the classes of samples are spread over the batches of a rank.

    Attributes:
        chi_squared: The mean chi-squared of a batch's classes; the expected shares are those in all batches.
        error: The standard error of that mean.
        ideal: What it is if batches are drawn at random: classes - 1.
        classes_in_batch: Different classes in a batch, on average; batches that pads fill up are left out.
        num_batches: Batches.
        is_all: Whether these are all batches of the epoch, not only some.
        world_size: Ranks (W).
    """

    chi_squared: float
    error: float
    ideal: int
    classes_in_batch: float
    num_batches: int
    is_all: bool
    world_size: int

    @property
    def shown_error(self) -> float:
        """The standard error if only some batches were counted; 0 if all were."""
        return 0.0 if self.is_all else self.error

    @property
    def ratio(self) -> float:
        """Chi-squared, less two standard errors if some batches were counted, divided by the ideal."""
        return max(0.0, self.chi_squared - 2 * self.shown_error) / self.ideal


def class_mixing(batches: Batches, classes: Int64) -> ClassMixing | None:
    """Compare the classes in each of some batches with those in all of them.

    Args:
        batches: The batches, of n samples.
        classes: int64 of shape (n,): the class of each sample; -1 if it has none, so that it is not counted.

    Returns:
        None if there are fewer than two batches or classes, or no batch has two samples.
    """
    _, numbers, filled = np.unique(batches.batch, return_inverse=True, return_counts=True)
    known = classes >= 0
    classes = classes[known]
    kept, batch = np.unique(numbers.reshape(-1)[known], return_inverse=True)
    batch, is_whole = batch.reshape(-1), (filled == filled.max(initial=0))[kept]
    sizes, shares = np.bincount(batch), np.bincount(classes) / max(1, len(classes))
    num_batches, num_classes = len(sizes), int((shares > 0).sum())
    if num_batches < 2 or num_classes < 2 or sizes.max() < 2:
        return None
    cells, counts = np.unique(batch * len(shares) + classes, return_counts=True)
    its_batch, its_class = cells // len(shares), cells % len(shares)
    # The sum of (count - expected)**2 / expected over all classes; an absent class adds its expected count.
    terms = counts**2 / (sizes[its_batch] * shares[its_class])
    each = np.bincount(its_batch, terms, num_batches) - sizes
    # The shares are taken from the same batches, which costs one of their degrees of freedom.
    mean, error = each.sum() / (num_batches - 1), each.std(ddof=1) / np.sqrt(num_batches)
    in_batch = np.bincount(its_batch)[is_whole if is_whole.any() else slice(None)].mean()
    figures = float(mean), float(error), num_classes - 1, float(in_batch), num_batches
    return ClassMixing(*figures, batches.is_all, batches.world_size)
