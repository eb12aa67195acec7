"""Integers in memory that this process shares with the worker processes it starts, by whatever method.

They lie in memory of `multiprocessing`, not of torch, so that everything but worker processes works without torch.
"""

from __future__ import annotations

import ctypes
import math
import multiprocessing.context
from multiprocessing.sharedctypes import RawArray
from typing import Any

import numpy as np

from wdsplit.arrays import Int64

__all__ = ["SharedIntegers"]


class SharedIntegers:
    """Integers that start at 0. Worker processes share them; a pickle or deep copy has its own, of the same values."""

    def __init__(self, *shape: int) -> None:
        self._shape = shape
        self._cells = RawArray(ctypes.c_int64, math.prod(shape))

    @property
    def array(self) -> Int64:
        """The integers themselves: int64 of `shape`."""
        return np.frombuffer(memoryview(self._cells), np.int64).reshape(self._shape)

    def __reduce__(self) -> tuple[Any, ...]:
        """Share the memory with a process that is being started; make a copy in all other cases."""
        if multiprocessing.context.get_spawning_popen() is not None:
            return _sharing, (self._shape, self._cells)
        return _copying, (self.array.copy(),)


def _sharing(shape: tuple[int, ...], cells: Any) -> SharedIntegers:
    shared = SharedIntegers.__new__(SharedIntegers)
    shared._shape, shared._cells = shape, cells
    return shared


def _copying(values: Int64) -> SharedIntegers:
    shared = SharedIntegers(*values.shape)
    shared.array[...] = values
    return shared
