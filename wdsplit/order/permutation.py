"""A random permutation of any number of rows, computed row by row.

Pure (no I/O). A hash network over the bits of the row number (Luby and Rackoff 1988) is a bijection of a power of
two; walking on until the value falls below n (Black and Rogaway 2002) makes it one of range(n). So every task knows
where its rows go, exactly and without memory, and all of them agree.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64
from wdsplit.order.hashing import hash_stream, permutation

__all__ = ["RowPermutation"]

_DOMAIN = 5
_ROUNDS = 8
_TABLE_ROWS = 1 << 16
"""Up to this many rows, the network has too few bits to mix, and a table is small."""


class RowPermutation:
    """A permutation of range(num_rows) that depends on a seed.

    Args:
        num_rows: Rows.
        seed: 0 <= seed < 2**63.
    """

    def __init__(self, num_rows: int, seed: int) -> None:
        self.num_rows = num_rows
        self._table = permutation(num_rows, seed, _DOMAIN) if num_rows <= _TABLE_ROWS else None
        bits = max(2, (max(1, num_rows) - 1).bit_length())
        self._low_bits = np.uint64(bits // 2)
        self._low_mask = np.uint64((1 << (bits // 2)) - 1)
        self._high_mask = np.uint64((1 << (bits - bits // 2)) - 1)
        self._keys = [np.uint64(hash_stream(seed, _DOMAIN, r)) for r in range(_ROUNDS)]

    def positions(self, rows: Int64) -> Int64:
        """Return where rows go: int64 of the same shape, all different for different rows."""
        if self._table is not None:
            return self._table[rows]
        values = self._network(rows.astype(np.uint64))
        outside = np.flatnonzero(values >= self.num_rows)
        while len(outside):
            values[outside] = self._network(values[outside])
            outside = outside[values[outside] >= self.num_rows]
        return values.astype(np.int64)

    def _network(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        low, high = values & self._low_mask, values >> self._low_bits
        for number in range(0, _ROUNDS, 2):
            high = high ^ (_round(low, self._keys[number]) & self._high_mask)
            low = low ^ (_round(high, self._keys[number + 1]) & self._low_mask)
        mixed: npt.NDArray[np.uint64] = high << self._low_bits | low
        return mixed


def _round(half: npt.NDArray[np.uint64], key: np.uint64) -> npt.NDArray[np.uint64]:
    value: npt.NDArray[np.uint64] = (half ^ key) * np.uint64(0x9E3779B97F4A7C15)
    value ^= value >> np.uint64(32)
    value *= np.uint64(0xD6E8FEB86659FD93)
    value ^= value >> np.uint64(32)
    return value
