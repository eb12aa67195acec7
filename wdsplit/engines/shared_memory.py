"""Memory that can grow, shared with the worker processes that this process starts by any method.

It is an unnamed file from `memfd_create`. The size of /dev/shm (64 MB in a container) does not limit it. The system
frees it when the last process that uses it ends or is killed.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from multiprocessing.reduction import DupFd
from typing import Any

__all__ = ["SharedMemory"]


class SharedMemory:
    """Memory that one process allocates and fills, and another reads; each takes one or two file descriptors.

    It can be pickled only as an argument of a process that is being started.
    """

    def __init__(self) -> None:
        try:
            self._keep(os.memfd_create("wdsplit"))
        except (AttributeError, OSError):  # the system does not support it: a file on disk
            with tempfile.TemporaryFile() as file:
                self._keep(os.dup(file.fileno()))

    def _keep(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._map: mmap.mmap | None = None
        self._size = 0
        self._close = weakref.finalize(self, os.close, descriptor)
        self._close.atexit = False

    def allocate(self, num_bytes: int) -> int:
        """Allocate more bytes, and return their offset: the start of a page."""
        begin = self._size
        self._size += -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        os.ftruncate(self._descriptor, self._size)
        return begin

    def free(self, begin: int, num_bytes: int) -> None:
        """Return allocated bytes to the system, where it supports that; they are not allocated again."""
        advice = getattr(mmap, "MADV_REMOVE", None)
        if advice is not None:
            self._mapped(begin + num_bytes).madvise(advice, begin, num_bytes)

    def write(self, begin: int, data: memoryview | bytes) -> None:
        """Write to allocated bytes, in any process; a view would take twice as long, because of page faults."""
        left = memoryview(data)
        while left:
            written = os.pwrite(self._descriptor, left, begin)
            left, begin = left[written:], begin + written

    def view(self, begin: int, num_bytes: int) -> memoryview:
        """Return a view of bytes that any process has allocated."""
        return memoryview(self._mapped(begin + num_bytes))[begin : begin + num_bytes]

    def _mapped(self, end: int) -> mmap.mmap:
        """Return a map of all the memory: only one, because each takes a file descriptor."""
        if self._map is None or len(self._map) < end:
            self._map = mmap.mmap(self._descriptor, 0)
        return self._map

    def close(self) -> None:
        """Release the memory; views of it stay valid."""
        self._map = None
        self._close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self._descriptor),)


def _received(duplicate: Any) -> SharedMemory:
    memory = SharedMemory.__new__(SharedMemory)
    memory._keep(duplicate.detach())
    return memory
