"""Memory that can grow, like `SharedMemory`, but for the threads of one process."""

from __future__ import annotations

import mmap
from bisect import bisect

import numpy as np
import numpy.typing as npt

__all__ = ["PrivateMemory", "map_memory"]


def map_memory(num_bytes: int) -> mmap.mmap:
    """Return memory that the system provides as it is filled, in huge pages (2 MiB) where possible."""
    mapping = mmap.mmap(-1, max(1, num_bytes), mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    return mapping


class PrivateMemory:
    """Memory that threads fill and read. With huge pages, the system provides it ten times as fast as a file."""

    def __init__(self) -> None:
        self._begins: list[int] = []
        self._pieces: list[npt.NDArray[np.uint8]] = []
        self._size = 0

    def allocate(self, num_bytes: int) -> int:
        """Allocate more bytes and return their offset; the system provides them as they are filled."""
        piece = map_memory(num_bytes)
        begin = self._size
        self._begins.append(begin)
        self._pieces.append(np.frombuffer(piece, np.uint8))
        self._size += len(piece)
        return begin

    def write(self, begin: int, data: memoryview | bytes) -> None:
        """Write to allocated bytes."""
        source = np.frombuffer(data, np.uint8)
        np.copyto(self._piece(begin, len(source)), source)  # releases the GIL

    def view(self, begin: int, num_bytes: int) -> memoryview:
        """Return a view of allocated bytes."""
        return self._piece(begin, num_bytes).data

    def _piece(self, begin: int, num_bytes: int) -> npt.NDArray[np.uint8]:
        place = bisect(self._begins, begin) - 1
        offset = begin - self._begins[place]
        return self._pieces[place][offset : offset + num_bytes]
