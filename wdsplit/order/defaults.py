"""Default lanes and windows. Pure (no I/O)."""

from __future__ import annotations

__all__ = ["MIN_LANES", "default_lanes", "default_window", "lanes_of_adopted", "lanes_of_shards", "round_up"]

LANES = (192, 96, 48, 16)
"""Lanes to choose from: 192 can be dealt whole to 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96 or 192 readers."""
MIN_LANES = LANES[-1]
_MAX_WHOLE_LANES = 64
_MIN_LANE_SAMPLES, _MIN_LANE_BYTES = 100, 1024**2
"""Least samples and bytes of a lane; smaller data gets fewer lanes. So pads are at most 1 %, and lanes are whole
shards."""
_MEMORY_BYTES, _MAX_WINDOW_BYTES, _MAX_WINDOW = 256 * 1024**2, 8 * 1024**2, 1024
"""Approximate memory of a process that reads all lanes; and the largest window, in bytes and in samples."""


def default_lanes(num_samples: int, num_bytes: int, readers: int) -> int:
    """Return the lanes (C) for some data: 192, or fewer for little data, rounded up to a multiple of the readers."""
    choices = (round_up(lanes, readers) for lanes in LANES)
    fit = (num for num in choices if num_samples >= num * _MIN_LANE_SAMPLES and num_bytes >= num * _MIN_LANE_BYTES)
    return next(fit, round_up(MIN_LANES, readers))


def lanes_of_shards(num_shards: int, most: int, readers: int) -> int:
    """Return lanes for a given number of shards: whole shards, unless that would halve the lanes.

    Args:
        num_shards: Shards (S), a multiple of the readers.
        most: The lanes that suit the data, a multiple of the readers; a little more if that makes whole shards.
        readers: Number of readers to choose lanes for.

    Returns:
        The readers times 2**n or 3 x 2**n, so that many numbers of readers divide it; at most the shards.
    """
    if num_shards % most == 0 or num_shards <= MIN_LANES:
        return min(num_shards, most)
    top = min(num_shards, max(most, _MAX_WHOLE_LANES)) // readers
    powers = [1 << power for power in range(top.bit_length())]
    sizes = sorted(readers * times * power for times in (1, 3) for power in powers)
    sizes = [size for size in sizes if size <= readers * top]
    nearest = [size for size in sizes if size >= most] + [size for size in sizes if size <= most][::-1]
    cut = max(size for size in sizes if size <= most)
    whole = (size for size in nearest if num_shards % size == 0 and 2 * size >= cut)
    return next(whole, cut)


def lanes_of_adopted(num_shards: int, most: int, readers: int) -> int:
    """Return lanes for existing shards: whole shards, unless that would halve the lanes; else cut inside shards."""
    lanes = lanes_of_shards(num_shards, most, readers) if num_shards >= readers else most
    return lanes if 2 * lanes >= most and num_shards % lanes == 0 else most


def round_up(value: int, multiple: int) -> int:
    """Return a value, rounded up to a multiple."""
    return -(-value // multiple) * multiple


def default_window(num_bytes: int, num_samples: int, lanes: int) -> int:
    """Return the samples of a window (Q): at most 1,024, and 8 MiB; windows of 192 lanes take about 256 MiB."""
    sample_bytes = max(1, num_bytes // max(1, num_samples))
    window_bytes = min(_MAX_WINDOW_BYTES, _MEMORY_BYTES // min(lanes, LANES[0]))
    return min(_MAX_WINDOW, max(1, window_bytes // sample_bytes))
