"""Which bytes of a shard are read for some of its samples.

Pure (no I/O).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wdsplit.order.epoch import Int64

__all__ = ["MIN_GAP_BYTES", "SPARE", "Range", "expected_ranges", "ranges_to_read"]

Range = tuple[int, int]
"""The bytes begin, begin + 1, ..., end - 1."""

SPARE = 5
"""A fifth more bytes than those of the samples may be read, so that there are fewer reads."""
MIN_GAP_BYTES = 16 * 1024
"""Smaller gaps are always read: that takes less time than a read of its own, from a disk as from a bucket."""
_EXPECTED_GAP_BYTES = 32 * 1024
"""Gaps that a disk reads along with what is around them."""


def ranges_to_read(begins: Int64, ends: Int64) -> list[Range]:
    """Return the ranges to read for some samples, with some of the gaps between them, so that there are fewer reads.

    These are all small gaps, and of the others the smallest, up to a fifth of the samples' bytes.

    Args:
        begins: int64 of shape (n,), rising: where the samples begin.
        ends: int64 of shape (n,): where they end.
    """
    gaps = begins[1:] - ends[:-1]
    is_read = gaps < MIN_GAP_BYTES
    if is_read.all():
        return [(int(begins[0]), int(ends[-1]))]
    others = np.flatnonzero(~is_read)
    by_size = others[np.argsort(gaps[others], kind="stable")]
    allowed = int((ends - begins).sum()) // SPARE
    is_read[by_size[: np.searchsorted(np.cumsum(gaps[by_size]), allowed, side="right")]] = True
    return _joined(begins, ends, is_read)


def expected_ranges(begins: Int64, ends: Int64) -> list[Range]:
    """Return the ranges that a disk may begin to read for some samples: as of `ranges_to_read`."""
    return _joined(begins, ends, begins[1:] - ends[:-1] <= _EXPECTED_GAP_BYTES)


def _joined(begins: Int64, ends: Int64, is_read: npt.NDArray[np.bool_]) -> list[Range]:
    """Return the ranges of samples that are joined where the gap between two is read."""
    is_cut = np.ones(len(begins) + 1, np.bool_)
    is_cut[1:-1] = ~is_read
    return list(zip(begins[is_cut[:-1]].tolist(), ends[is_cut[1:]].tolist(), strict=True))
