"""Which bytes of a shard are read for some of its samples: from their places to ranges.

Pure (no I/O).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64
from wdsplit.tar.headers import BLOCK_BYTES
from wdsplit.tar.places import Rows, padded

__all__ = ["MIN_GAP_BYTES", "SMALL_SAMPLE_BYTES", "Range", "Segments", "ranges_of", "starts_of_ranges"]

Range = tuple[int, int]
"""The bytes begin, begin + 1, ..., end - 1."""

SMALL_SAMPLE_BYTES = 16_384
"""Up to this mean size, reading windows at once costs less than finding and reading their payloads."""
SPARE = 5
"""A fifth more bytes than those of the samples may be read, so that there are fewer reads."""
MIN_GAP_BYTES = 16 * 1024
"""Smaller gaps are always read: that takes less time than a read of its own, from a disk as from a bucket."""


@dataclass(frozen=True)
class Segments:
    """What is read of n samples: of each the bytes from its first requested member to its last.

    Attributes:
        rows: The places of the samples.
        begins: int64 of shape (n,): where each segment begins: at a header.
        ends: int64 of shape (n,): where it ends, in whole blocks.
        heads: int64 of shape (n,): the field of the member with that header.
    """

    rows: Rows
    begins: Int64
    ends: Int64
    heads: Int64

    @classmethod
    def of(cls, rows: Rows, columns: Sequence[int]) -> Segments:
        """Return the segments of samples, given the requested columns of `Rows.sizes`, rising.

        Small samples are read whole, so that their hashes can be compared.
        """
        is_there = rows.sizes >= 0
        heads = is_there.argmax(axis=1) if is_there.shape[1] else np.zeros(len(rows.begins), np.int64)
        part = np.flatnonzero(rows.ends - rows.begins > SMALL_SAMPLE_BYTES)
        if len(columns) == is_there.shape[1] or not len(part):
            return cls(rows, rows.begins, rows.ends, heads)
        begins, ends = rows.begins.copy(), rows.ends.copy()
        ends[part] = begins[part] + BLOCK_BYTES
        part = part[is_there[part][:, columns].any(axis=1)]
        if len(part):
            wanted = is_there[part][:, columns]
            starts, sizes = rows.starts[part][:, columns], rows.sizes[part][:, columns]
            begins[part] = np.where(wanted, starts - BLOCK_BYTES, rows.ends[part, None]).min(axis=1)
            ends[part] = np.minimum(np.where(wanted, starts + padded(sizes), 0).max(axis=1), rows.ends[part])
            heads[part] = np.asarray(columns)[wanted.argmax(axis=1)]
        return cls(rows, begins, ends, heads)


def starts_of_ranges(begins: Int64, ends: Int64, windows: Int64) -> npt.NDArray[np.bool_]:
    """Tell at which of n pieces of some windows a range begins, if small gaps are read along, for fewer reads.

    Small gaps are those below MIN_GAP_BYTES, and then a window's smallest, up to a fifth of the bytes of its pieces.

    Args:
        begins: int64 of shape (n,), rising in each window: where the pieces begin.
        ends: int64 of shape (n,): where they end.
        windows: int64 of shape (n,), rising: the window of each piece.

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


def ranges_of(begins: Int64, ends: Int64, windows: Int64) -> tuple[list[int], list[int], list[int]]:
    """Return the ranges to read for some pieces: window, begin and end of each; arguments as for `starts_of_ranges`."""
    starts = np.flatnonzero(starts_of_ranges(begins, ends, windows))
    stops = np.append(starts[1:], len(begins)) - 1
    return windows[starts].tolist(), begins[starts].tolist(), ends[stops].tolist()
