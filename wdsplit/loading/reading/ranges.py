"""Which bytes of a shard are read for some of its samples.

Pure (no I/O).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64

__all__ = [
    "EXPECTED_GAP_BYTES",
    "MIN_GAP_BYTES",
    "SPARE",
    "Range",
    "expected_ranges",
    "joined",
    "range_starts",
    "ranges_to_read",
]

Range = tuple[int, int]
"""The bytes begin, begin + 1, ..., end - 1."""

SPARE = 5
"""A fifth more bytes than those of the samples may be read, so that there are fewer reads."""
MIN_GAP_BYTES = 16 * 1024
"""Smaller gaps are always read: that takes less time than a read of its own, from a disk as from a bucket."""
EXPECTED_GAP_BYTES = 32 * 1024
"""A disk reads gaps up to this size along with the bytes around them."""


def ranges_to_read(begins: Int64, ends: Int64) -> list[Range]:
    """Return the ranges to read for some samples of a window, with some of the gaps between them: see `range_starts`.

    Args:
        begins: int64 of shape (n,), rising: where the samples begin.
        ends: int64 of shape (n,): where they end.
    """
    return _listed(*joined(begins, ends, range_starts(begins, ends, np.zeros(len(begins), np.int64))))


def range_starts(begins: Int64, ends: Int64, windows: Int64) -> npt.NDArray[np.bool_]:
    """Tell at which samples of some windows a range begins, if small gaps are read along, for fewer reads.

    Small gaps are those below MIN_GAP_BYTES, and then a window's smallest, up to a fifth of the bytes of its samples.

    Args:
        begins: int64 of shape (n,), rising in each window: where the samples begin.
        ends: int64 of shape (n,): where they end.
        windows: int64 of shape (n,), rising: the window of each sample.

    Returns:
        bool of shape (n,).
    """
    gaps = begins[1:] - ends[:-1]
    is_inside = windows[1:] == windows[:-1]
    is_start = np.ones(len(begins), np.bool_)
    is_start[1:] = ~is_inside | (gaps >= MIN_GAP_BYTES)
    large = np.flatnonzero(is_inside & is_start[1:])
    if len(large):
        large = large[np.lexsort((gaps[large], windows[large]))]
        of_window, total = windows[large], np.cumsum(gaps[large])
        begin = np.searchsorted(of_window, of_window)  # of the window's large gaps
        sizes = np.concatenate([[0], np.cumsum(ends - begins)])
        first, stop = (np.searchsorted(windows, of_window, side=side) for side in ("left", "right"))
        allowed = (sizes[stop] - sizes[first]) // SPARE
        is_start[large[total - total[begin] + gaps[large][begin] <= allowed] + 1] = False
    return is_start


def expected_ranges(begins: Int64, ends: Int64) -> list[Range]:
    """Return the ranges that a disk may begin to read for some samples (see `ranges_to_read`); if dense, all bytes."""
    num_samples = len(begins)
    if ends[-1] - begins[0] <= num_samples * EXPECTED_GAP_BYTES:
        return [(int(begins[0]), int(ends[-1]))]
    is_start = np.ones(num_samples, np.bool_)
    is_start[1:] = begins[1:] - ends[:-1] > EXPECTED_GAP_BYTES
    return _listed(*joined(begins, ends, is_start))


def joined(begins: Int64, ends: Int64, is_start: npt.NDArray[np.bool_]) -> tuple[Int64, Int64]:
    """Return where the ranges of samples begin and end, given the samples that begin one."""
    starts = np.flatnonzero(is_start)
    return begins[starts], ends[np.append(starts[1:], len(begins)) - 1]


def _listed(begins: Int64, ends: Int64) -> list[Range]:
    return list(zip(begins.tolist(), ends.tolist(), strict=True))
