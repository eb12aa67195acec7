"""Hashes of numbers, and the permutations that they give. Pure (no I/O).

Nothing here depends on a library's random stream: golden values in the tests hold for ever.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64

__all__ = ["GOLDEN", "MASK", "hash_numbers", "hash_stream", "mix_numbers", "permutation"]

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def _mix(value: int) -> int:
    """Mix 64 bits: the finaliser of splitmix64 (Steele, Lea, Flood 2014)."""
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & MASK
    return value ^ (value >> 31)


def hash_stream(*words: int) -> int:
    """Return a 64-bit state that depends on each of the words and on their order."""
    state = 0
    for word in words:
        state = _mix(state + GOLDEN + _mix(word & MASK) & MASK)
    return state


def mix_numbers(value: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Mix 64 bits of each number in place, as `_mix` does."""
    value ^= value >> np.uint64(30)
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(27)
    value *= np.uint64(0x94D049BB133111EB)
    value ^= value >> np.uint64(31)
    return value


def _mixed(state: int, index: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the splitmix64 values at the given places of the stream that begins at `state`; all differ."""
    value: npt.NDArray[np.uint64] = index * np.uint64(GOLDEN)
    value += np.uint64(state)
    return mix_numbers(value)


def hash_numbers(state: int, numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each integer of at most 64 bits; different numbers have different hashes."""
    return _mixed(state, numbers.astype(np.uint64) + np.uint64(1))


def permutation(n: int, *words: int) -> Int64:
    """Return a permutation of range(n) that depends only on n and the words: int64 of shape (n,).

    The items are ranked by a hash that has no ties, so no sorting algorithm can change the result.
    """
    return np.argsort(_mixed(hash_stream(*words), np.arange(1, n + 1, dtype=np.uint64)))
