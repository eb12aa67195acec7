"""Numbers for the samples of a dataset or a view: from 0 on, shard after shard, pads left out.

Pure (no I/O).
"""

from __future__ import annotations

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.order.epoch import groups
from wdsplit.order.selection import Selection

__all__ = ["SampleNumbers"]


class SampleNumbers:
    """The numbers of samples, and their places in the shards.

    Args:
        totals: int64 of shape (shards,): the samples of each shard.
        selection: The samples that are numbered; None for all.

    Attributes:
        counts: int64 of shape (shards,): the numbered samples of each shard.
        ends: int64 of shape (shards,): those up to and with each shard.
    """

    def __init__(self, totals: Int64, selection: Selection | None = None) -> None:
        self._selection = selection
        self.counts = totals if selection is None else selection.counts
        self.ends = np.cumsum(self.counts)

    def __len__(self) -> int:
        return int(self.counts.sum())

    def places(self, numbers: Int64) -> tuple[Int64, Int64]:
        """Return the shard of each number, and the sample's place there."""
        shard = np.searchsorted(self.ends, numbers, side="right")
        sample = numbers - (self.ends - self.counts)[shard]
        if self._selection is not None:
            for each, rows in groups(shard):
                sample[rows] = self._selection.places(each)[sample[rows]]
        return shard, sample

    def of(self, shard: Int64, sample: Int64) -> Int64:
        """Return the numbers of samples by their places; each sample must have a number."""
        numbers: Int64 = sample.copy()
        if self._selection is not None:
            for each, rows in groups(shard):
                numbers[rows] = np.searchsorted(self._selection.places(each), sample[rows])
        numbers += (self.ends - self.counts)[shard]
        return numbers
