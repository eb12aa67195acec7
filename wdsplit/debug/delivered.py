"""The samples that some ranks received, compared: duplicate and missing ones.

Ranks exchange values in buckets of about a million, so that no rank stores all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64, UInt64
from wdsplit.debug.ranks import Rendezvous

__all__ = ["Delivery", "Faults", "compare_deliveries"]

_AT_ONCE = 2**20
_MAX_EXAMPLES = 5


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


def compare_deliveries(
    rendezvous: Rendezvous,
    values: UInt64,
    steps: Int64,
    positions: Int64,
    total: int,
    is_due: Callable[[Int64], npt.NDArray[np.bool_]] | None = None,
    stop: int = 0,
) -> Faults:
    """Find values that were delivered more than once; positions also not at all, or that should not have been.

    Args:
        rendezvous: Where the ranks meet; all of them must call this.
        values: What this rank received: hashes, or the positions themselves.
        steps: The step of each.
        positions: The position of each.
        total: Number of values that all ranks received together.
        is_due: Returns which of some positions should have been delivered; None if the values are no positions.
        stop: The position after the last that should have been.
    """
    faults, num_buckets = Faults(), max(1, -(-total // _AT_ONCE))
    bucket = values % np.uint64(num_buckets)
    order = np.argsort(bucket, kind="stable")
    for number, own in enumerate(np.split(order, np.searchsorted(bucket[order], np.arange(1, num_buckets)))):
        parts = rendezvous.gathered((values[own], steps[own], positions[own]))
        places = np.repeat(np.arange(len(parts)), [len(part[0]) for part in parts])
        all_values, all_steps, given = (np.concatenate(column) for column in zip(*parts, strict=True))
        deliveries = np.column_stack([places, all_steps, given])
        by_value = np.argsort(all_values, kind="stable")
        _, first, counts = np.unique(all_values[by_value], return_index=True, return_counts=True)
        faults.num_repeated += len(given) - len(first)
        for group in np.flatnonzero(counts > 1)[: _MAX_EXAMPLES - len(faults.repeated)]:
            rows = by_value[first[group] : first[group] + counts[group]]
            faults.repeated.append([Delivery(*row) for row in deliveries[rows].tolist()])
        if is_due is None:
            continue
        for start in range(number, stop, num_buckets * _AT_ONCE):
            due = np.arange(start, min(stop, start + num_buckets * _AT_ONCE), num_buckets)
            due = due[is_due(due)]
            missing = due[~np.isin(due, given)]
            faults.num_missing += len(missing)
            faults.missing += missing[: _MAX_EXAMPLES - len(faults.missing)].tolist()
        unexpected = np.flatnonzero((given >= stop) | ~is_due(given))
        faults.num_unexpected += len(unexpected)
        shown = deliveries[unexpected[: _MAX_EXAMPLES - len(faults.unexpected)]].tolist()
        faults.unexpected += [Delivery(*row) for row in shown]
    faults.missing.sort()
    return faults
