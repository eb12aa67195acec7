"""Lanes and windows where nobody chooses them. Pure (no I/O)."""

from __future__ import annotations

__all__ = ["MIN_LANES", "default_window", "least_lanes", "round_up", "whole_lanes"]

MIN_LANES = 16
_MAX_LANES = 64
_WINDOW_BYTES = 8 * 1024**2
_MIN_WINDOW, _MAX_WINDOW = 16, 1024


def least_lanes(readers: int) -> int:
    """Return the fewest lanes to choose: a multiple of the readers, at least 16."""
    return round_up(MIN_LANES, readers)


def whole_lanes(num_shards: int, readers: int) -> int | None:
    """Return lanes that divide the shards, so that lanes are whole shards, if there are such up to 64."""
    least = least_lanes(readers)
    candidates = range(least, max(least, _MAX_LANES) + 1, readers)
    return next((lanes for lanes in candidates if num_shards % lanes == 0), None)


def round_up(value: int, multiple: int) -> int:
    """Return the least multiple that is not below a value."""
    return -(-value // multiple) * multiple


def default_window(num_bytes: int, num_samples: int) -> int:
    """Return the samples of a window (Q) that make about 8 MiB, one ranged read: 16 to 1,024 of them."""
    sample_bytes = max(1, num_bytes // max(1, num_samples))
    return min(_MAX_WINDOW, max(_MIN_WINDOW, _WINDOW_BYTES // sample_bytes))
