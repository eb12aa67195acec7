"""Limits of this process that reading needs raised: open files, and memory that the C library keeps."""

from __future__ import annotations

import functools
import resource

import numpy as np

__all__ = ["allow_open_files", "keep_freed_memory"]

_LARGEST_BLOCK_BYTES = 32 * 1024**2 - 8192
_OTHER_FILES = 256
"""Files that a program may hold open besides."""


def allow_open_files(count: int) -> None:
    """Let this process hold as many files open, as far as the system's hard limit lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = count + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        limit = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library keep some memory that was freed for what is allocated next, as readers do all the time.

    glibc gives freed memory back to the system, and gets it again page by page, beyond thresholds that it raises when
    it sees a large block freed (M_MMAP_THRESHOLD in mallopt(3)): so one of the largest size that counts is freed here,
    untouched. Elsewhere this does nothing.
    """
    np.empty(_LARGEST_BLOCK_BYTES, np.uint8)
