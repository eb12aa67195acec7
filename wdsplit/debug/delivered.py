"""What some ranks were given, compared: what came twice, and what did not come.

Values go from rank to rank in buckets, about a million at a time, so nobody holds those of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from wdsplit.debug.ranks import Rendezvous
from wdsplit.order.epoch import Int64

__all__ = ["Delivery", "Faults", "compare_positions", "find_repeated"]

_AT_ONCE = 2**20
_MAX_EXAMPLES = 5

Delivery = tuple[int, int]
"""Which of the ranks, by its place among them, and the number of the sample in what it was given."""

Values = npt.NDArray[np.uint64] | Int64


@dataclass
class Faults:
    """What is wrong with what was delivered.

    Attributes:
        num_repeated: Deliveries too many.
        repeated: For some values all their deliveries.
        num_missing: Values that nobody was given.
        missing: Some of them.
        num_unexpected: Values that should not have come.
        unexpected: Some of their deliveries.
    """

    num_repeated: int = 0
    repeated: list[list[Delivery]] = field(default_factory=list)
    num_missing: int = 0
    missing: list[int] = field(default_factory=list)
    num_unexpected: int = 0
    unexpected: list[Delivery] = field(default_factory=list)


@dataclass(frozen=True)
class _Bucket:
    """Some of the values that all ranks were given: arrays of one length, in the order of the values.

    Attributes:
        number: Which bucket: it has the values that leave this remainder when divided by `num_buckets`.
        num_buckets: How many buckets there are.
        values: The values.
        places: Which rank was given each, by its place.
        indexes: Where it stands in what that rank was given.
    """

    number: int
    num_buckets: int
    values: Values
    places: Int64
    indexes: Int64

    def delivery(self, row: int) -> Delivery:
        return int(self.places[row]), int(self.indexes[row])


def _buckets(rendezvous: Rendezvous, values: Values, total: int) -> Iterator[_Bucket]:
    num_buckets = max(1, -(-total // _AT_ONCE))
    bucket = (values % values.dtype.type(num_buckets)).astype(np.int64)
    order = np.argsort(bucket, kind="stable")
    cuts = np.searchsorted(bucket[order], np.arange(num_buckets + 1))
    for number in range(num_buckets):
        mine = order[cuts[number] : cuts[number + 1]]
        parts = rendezvous.gathered((values[mine], mine))
        given = np.concatenate([part for part, _ in parts])
        places = np.repeat(np.arange(len(parts)), [len(part) for part, _ in parts])
        by_value = np.argsort(given, kind="stable")
        indexes = np.concatenate([part for _, part in parts])
        yield _Bucket(number, num_buckets, given[by_value], places[by_value], indexes[by_value])


def find_repeated(rendezvous: Rendezvous, values: Values, total: int) -> Faults:
    """Find values that were delivered more than once; all ranks must call this.

    Args:
        rendezvous: Where the ranks meet.
        values: What this rank was given.
        total: How many values all were given together.
    """
    faults = Faults()
    for bucket in _buckets(rendezvous, values, total):
        _note_repeated(faults, bucket)
    return faults


def compare_positions(
    rendezvous: Rendezvous, values: Int64, total: int, expected: Callable[[Int64], npt.NDArray[np.bool_]], stop: int
) -> Faults:
    """Find positions that were delivered more than once, or not at all, or that should not have been.

    Args:
        rendezvous: Where the ranks meet.
        values: The positions that this rank was given.
        total: How many positions all were given together.
        expected: Tells which of some positions should have been delivered.
        stop: The position after the last that should have been.
    """
    faults = Faults()
    for bucket in _buckets(rendezvous, values, total):
        _note_repeated(faults, bucket)
        positions = bucket.values.astype(np.int64)
        for first in range(bucket.number, stop, bucket.num_buckets * _AT_ONCE):
            due = np.arange(first, min(stop, first + bucket.num_buckets * _AT_ONCE), bucket.num_buckets)
            due = due[expected(due)]
            missing = due[~np.isin(due, positions)]
            faults.num_missing += len(missing)
            faults.missing += missing[: _MAX_EXAMPLES - len(faults.missing)].tolist()
        rows = np.flatnonzero((positions >= stop) | ~expected(positions))
        faults.num_unexpected += len(rows)
        faults.unexpected += [bucket.delivery(row) for row in rows[: _MAX_EXAMPLES - len(faults.unexpected)]]
    faults.missing.sort()
    return faults


def _note_repeated(faults: Faults, bucket: _Bucket) -> None:
    values = bucket.values
    is_first = np.concatenate([np.ones(min(1, len(values)), np.bool_), values[1:] != values[:-1]])
    faults.num_repeated += len(values) - int(is_first.sum())
    begins = np.flatnonzero(is_first)
    ends = np.append(begins[1:], len(values))
    several = np.flatnonzero(ends - begins > 1)
    earliest = np.minimum.reduceat(bucket.indexes, begins)[several] if len(several) else several
    for group in several[np.argsort(earliest, kind="stable")][: _MAX_EXAMPLES - len(faults.repeated)]:
        faults.repeated.append([bucket.delivery(row) for row in range(begins[group], ends[group])])
