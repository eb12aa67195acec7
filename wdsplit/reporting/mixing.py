"""How well an epoch is mixed: the classes in a rank's batches, and how often samples meet again.

Positions come from the order itself, so this is what a training will see, not a simulation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wdsplit.arrays import Int64
from wdsplit.checks.mixing import ClassMixing, Mixing, class_mixing, draw_batches, mixing
from wdsplit.order.epoch import EpochOrder
from wdsplit.reporting.subject import Subject

__all__ = ["BatchMix", "batch_mix", "meeting_again"]

_MIN_BATCHES = 16

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


def meeting_again(subject: Subject, global_batch: int) -> Mixing | None:
    """Return how often samples of a batch meet again in the next epoch; None for a mixture, or without a shuffle."""
    order = subject.order(0)
    return mixing(order, global_batch) if isinstance(order, EpochOrder) and order.options.shuffle else None
