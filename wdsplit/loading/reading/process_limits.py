"""Raises limits of this process for reading: open files, and freed memory that the C library keeps."""

from __future__ import annotations

import functools
import resource

import numpy as np

__all__ = ["allow_open_files", "keep_freed_memory"]

_LARGEST_BLOCK_BYTES = 32 * 1024**2 - 8192
_OTHER_FILES = 256
"""Files that a program may have open in addition."""


def allow_open_files(count: int) -> None:
    """Let this process have `count` more files open, as far as the system's hard limit allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next allocation: readers allocate and free all the time.

    glibc returns large blocks to the system when they are freed, and gets them again page by page. Freeing a large
    block raises the size from which on it does so (M_MMAP_THRESHOLD in mallopt(3)). So this frees an untouched block of
    the largest size that counts. With other C libraries it does nothing.
    """
    np.empty(_LARGEST_BLOCK_BYTES, np.uint8)
