"""The samples that some ranks received, compared: duplicate and missing ones.

Ranks exchange values in buckets of about a million, so that no rank stores all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wdsplit.debug.ranks import Rendezvous
from wdsplit.order.epoch import Int64

__all__ = ["Delivery", "Faults", "compare_positions", "find_repeated"]

_AT_ONCE = 2**20
_MAX_EXAMPLES = 5

UInt64 = npt.NDArray[np.uint64]


class Delivery(NamedTuple):
    """A sample that a rank received."""

    place: int  # of the rank among those that compare
    step: int
    position: int


@dataclass
class Faults:
    """Faults of the deliveries: their numbers, and some examples."""

    num_repeated: int = 0  # deliveries too many
    repeated: list[list[Delivery]] = field(default_factory=list)  # for some values all their deliveries
    num_missing: int = 0
    missing: list[int] = field(default_factory=list)  # positions
    num_unexpected: int = 0
    unexpected: list[Delivery] = field(default_factory=list)

    def add_repeated(self, values: UInt64, deliveries: Int64) -> None:
        """Add the duplicates among sorted values, with their deliveries: shape (values, 3)."""
        _, first, counts = np.unique(values, return_index=True, return_counts=True)
        self.num_repeated += len(values) - len(first)
        for group in np.flatnonzero(counts > 1)[: _MAX_EXAMPLES - len(self.repeated)]:
            rows = deliveries[first[group] : first[group] + counts[group]].tolist()
            self.repeated.append([Delivery(*row) for row in rows])


def find_repeated(rendezvous: Rendezvous, values: UInt64, steps: Int64, positions: Int64, total: int) -> Faults:
    """Find values that were delivered more than once; all ranks must call this.

    Args:
        rendezvous: Where the ranks meet.
        values: The values that this rank received.
        steps: The step of each.
        positions: The position of each.
        total: Number of values that all ranks received together.
    """
    faults = Faults()
    for bucket_values, deliveries in _buckets(rendezvous, values, steps, positions, total):
        faults.add_repeated(bucket_values, deliveries)
    return faults


def compare_positions(
    rendezvous: Rendezvous,
    steps: Int64,
    positions: Int64,
    total: int,
    is_due: Callable[[Int64], npt.NDArray[np.bool_]],
    stop: int,
) -> Faults:
    """Find positions that were delivered more than once, or not at all, or that should not have been.

    Args:
        rendezvous: Where the ranks meet; all of them must call this.
        steps: The steps of the samples that this rank received.
        positions: The position of each.
        total: Number of positions that all ranks received together.
        is_due: Returns which of some positions should have been delivered.
        stop: The position after the last that should have been.
    """
    faults = Faults()
    buckets = _buckets(rendezvous, positions.astype(np.uint64), steps, positions, total)
    num_buckets = _num_buckets(total)
    for number, (values, deliveries) in enumerate(buckets):
        faults.add_repeated(values, deliveries)
        given = deliveries[:, 2]
        for first in range(number, stop, num_buckets * _AT_ONCE):
            due = np.arange(first, min(stop, first + num_buckets * _AT_ONCE), num_buckets)
            due = due[is_due(due)]
            missing = due[~np.isin(due, given)]
            faults.num_missing += len(missing)
            faults.missing += missing[: _MAX_EXAMPLES - len(faults.missing)].tolist()
        rows = np.flatnonzero((given >= stop) | ~is_due(given))
        faults.num_unexpected += len(rows)
        examples = deliveries[rows[: _MAX_EXAMPLES - len(faults.unexpected)]].tolist()
        faults.unexpected += [Delivery(*row) for row in examples]
    faults.missing.sort()
    return faults


def _num_buckets(total: int) -> int:
    return max(1, -(-total // _AT_ONCE))


def _buckets(
    rendezvous: Rendezvous, values: UInt64, steps: Int64, positions: Int64, total: int
) -> Iterator[tuple[UInt64, Int64]]:
    """Yield the values of all ranks, sorted, and their deliveries: bucket i has the values with remainder i."""
    num_buckets = _num_buckets(total)
    bucket = values % np.uint64(num_buckets)
    order = np.argsort(bucket, kind="stable")
    for own in np.split(order, np.searchsorted(bucket[order], np.arange(1, num_buckets))):
        parts = rendezvous.gathered((values[own], steps[own], positions[own]))
        places = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
        all_values, all_steps, all_positions = (np.concatenate(column) for column in zip(*parts, strict=True))
        by_value = np.argsort(all_values, kind="stable")
        yield all_values[by_value], np.column_stack([places, all_steps, all_positions])[by_value]
