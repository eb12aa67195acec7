"""Numbers for the samples of a dataset or a view: from 0 on, shard after shard, pads left out.

Pure (no I/O).
"""

from __future__ import annotations

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.order.bundles import Units, items_of
from wdsplit.order.epoch import groups
from wdsplit.order.units import item_units

__all__ = ["SampleNumbers"]


class SampleNumbers:
    """The numbers of samples, and their places in the shards.

    Args:
        totals: int64 of shape (shards,): the samples of each shard.
        selection: The units whose items are numbered; None for each sample once.

    Attributes:
        counts: int64 of shape (shards,): the numbers of each shard.
        ends: int64 of shape (shards,): those up to and with each shard.
    """

    def __init__(self, totals: Int64, selection: Units | None = None) -> None:
        self._totals, self._items = totals, items_of(selection)
        self.counts = totals if self._items is None else self._items.counts
        self.ends = np.cumsum(self.counts)

    def __len__(self) -> int:
        return int(self.counts.sum())

    def places(self, numbers: Int64) -> tuple[Int64, Int64, Int64]:
        """Return the shard of each number, the sample's place there, and which of its units it is."""
        shard = np.searchsorted(self.ends, numbers, side="right")
        sample = numbers - (self.ends - self.counts)[shard]
        part = np.zeros_like(sample)
        if self._items is not None:
            for each, rows in groups(shard):
                found = item_units(self._items, self._totals, each).items(sample[rows])
                sample[rows], part[rows] = found.samples, 0 if found.parts is None else found.parts
        return shard, sample, part

    def of(self, shard: Int64, sample: Int64) -> Int64:
        """Return the first number of each sample, by their places; each must have one."""
        numbers: Int64 = sample.copy()
        if self._items is not None:
            for each, rows in groups(shard):
                every = item_units(self._items, self._totals, each).items(np.arange(self.counts[each])).samples
                samples, firsts = np.unique(every, return_index=True)
                numbers[rows] = firsts[np.searchsorted(samples, sample[rows])]
        numbers += (self.ends - self.counts)[shard]
        return numbers
