"""How well an epoch is mixed: the classes in a rank's batches, and how often samples meet again.

Positions come from the order itself, so this is what a training will see, not a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.checks.mixing import ClassMixing, Mixing, class_mixing, draw_batches, mixing
from wdsplit.order.epoch import EpochOrder
from wdsplit.reporting.subject import Subject

__all__ = ["BatchMix", "RankView", "batch_mix", "meeting_again", "rank_view"]

_MIN_BATCHES = 16
_COLUMNS = 60

CodesOf = Callable[[Int64], Int64]
"""Returns the class of samples by their numbers; -1 where they have none."""


@dataclass(frozen=True)
class BatchMix(ClassMixing):
    """How the classes of a rank's batches differ from those of the dataset.

    Attributes:
        world_size: Ranks (W).
        error: The standard error of `chi_squared`, if only some batches were counted; 0 if all were.
    """

    world_size: int

    @property
    def ratio(self) -> float:
        """Chi-squared, less two standard errors, divided by the ideal."""
        return max(0.0, self.chi_squared - 2 * self.error) / self.ideal


@dataclass(frozen=True)
class RankView:
    """What rank 0 gets, step by step.

    Attributes:
        world_size: Ranks.
        steps: int64 of shape (columns,): the steps that are shown.
        classes: int64 of shape (classes, columns): samples of each class in its batch.
    """

    world_size: int
    steps: Int64
    classes: Int64


def batch_mix(
    subject: Subject, codes_of: CodesOf, batch_size: int, world_sizes: Sequence[int], max_labels: int
) -> list[BatchMix]:
    """Compare the classes of the batches of all ranks with those of the dataset, for some numbers of ranks.

    Args:
        subject: The dataset.
        codes_of: The classes of samples.
        batch_size: Samples per batch on each rank.
        world_sizes: Numbers of ranks; those for which an epoch has no whole step are left out.
        max_labels: About how many samples' classes to look up for each number of ranks.
    """
    order = subject.order(0)
    found = []
    for world_size in world_sizes:
        if order.num_samples < batch_size * world_size:
            continue
        drawn = draw_batches(order, world_size, batch_size, max_labels, _MIN_BATCHES)
        places = drawn.samples
        numbers = subject.numbers_of(places.source, places.shard, places.sample)
        mixed = class_mixing(drawn.batch, codes_of(numbers))
        if mixed is not None:
            mixed = replace(mixed, error=0.0) if drawn.is_all else mixed
            found.append(BatchMix(**vars(mixed), world_size=world_size))
    return found


def rank_view(
    subject: Subject, codes_of: CodesOf, num_classes: int, batch_size: int, world_size: int, max_labels: int
) -> RankView | None:
    """Return what rank 0 gets at some steps spread over an epoch; None if an epoch has no whole step."""
    order = subject.order(0)
    global_batch = batch_size * world_size
    num_steps = order.num_samples // global_batch
    if not num_steps:
        return None
    columns = max(1, min(_COLUMNS, num_steps, max_labels // batch_size))
    steps = np.arange(columns) * num_steps // columns
    positions = steps[:, None] * global_batch + np.arange(batch_size) * world_size
    found = order.locate(positions.reshape(-1))
    firsts = np.searchsorted(found.row, np.arange(positions.size))  # of a pack, its first sample
    codes = codes_of(subject.numbers_of(found.source, found.shard, found.sample)[firsts])
    known = codes >= 0
    cells = np.repeat(np.arange(columns), batch_size)[known] + codes[known] * columns
    classes = np.bincount(cells, minlength=num_classes * columns).reshape(num_classes, columns)
    return RankView(world_size, steps, classes)


def meeting_again(subject: Subject, global_batch: int) -> Mixing | None:
    """Return how often samples of a batch meet again in the next epoch; None for a mixture, or without a shuffle."""
    order = subject.order(0)
    return mixing(order, global_batch) if isinstance(order, EpochOrder) and order.options.shuffle else None
