"""Local files that are open for reading, and our errors for those of the operating system."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from wdsplit.errors import CorruptDataError, DatasetNotFoundError, StorageError, UnansweredError

__all__ = ["TRANSIENT_ERRNOS", "LocalFile", "translate_errors"]

TRANSIENT_ERRNOS = frozenset(
    {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH}
    | {errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED}
)
"""Errors of a network file system that are retried."""

_REMEDIES = {
    errno.EMFILE: "raise `ulimit -n`, or use fewer lanes: each lane that is read keeps a shard open",
    errno.EACCES: "check permissions: those of the path, and of the folders above it",
    errno.ENOENT: "check the path: its folder must exist",
    errno.ENOTDIR: "check the path: one of its folders is a file",
    errno.EEXIST: "check the path: one of its folders is a file",
}
_OTHER_FILES = 64
"""File descriptors to leave free for files that are open only briefly."""


class LocalFile:
    """A file of the local disk or of a network file system, open for reading.

    Attributes:
        size: Its size in bytes.
        version: A mark that changes when the file is changed or replaced.
    """

    is_remote = False

    def __init__(self, path: Path) -> None:
        self._path = path
        with translate_errors(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                status = os.fstat(fd)
            except OSError:
                os.close(fd)
                raise
            self._fd = fd
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(
                "not a regular file",
                place=str(path),
                expected="a regular file",
                found=stat.filemode(status.st_mode),
                remedy="copy the dataset again",
                url=str(path),
            )
        self.size = status.st_size
        # Without the inode number, which may change with the mount.
        self.version = f"{status.st_size} bytes, written {np.datetime64(status.st_mtime_ns, 'ns')} UTC"

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_fd") and not is_finalizing():  # then modules are gone, and the file closes with the program
            with suppress(OSError):  # of a file system that is gone
                os.close(self._fd)

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return the bytes at an offset, even if the system returns only a few at a time."""
        try:
            data = os.pread(self._fd, num_bytes, offset)
        except OSError as error:
            raise _translated(error, self._path) from error
        if len(data) < num_bytes:
            buffer = bytearray(num_bytes)
            self.read_into(memoryview(buffer), offset)
            data = bytes(buffer)
        return data

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes at an offset, even if the system returns only a few at a time."""
        filled = 0
        while filled < len(buffer):
            try:
                count = os.preadv(self._fd, [buffer[filled:]], offset + filled)
            except OSError as error:
                raise _translated(error, self._path) from error
            if not count:
                raise CorruptDataError(
                    "a file became shorter while it was read",
                    place=str(self._path),
                    expected=f"at least {offset + len(buffer)} bytes",
                    found=f"{offset + filled} bytes",
                    remedy="the file was truncated: copy it again",
                    url=str(self._path),
                )
            filled += count

    def expect(self, offset: int, num_bytes: int) -> None:
        """Let the system read ahead, where it supports that."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, offset, num_bytes, os.POSIX_FADV_WILLNEED)

    def map(self) -> mmap.mmap | bytes:
        """Map the file into memory, read-only; return b'' for an empty file, which cannot be mapped."""
        with translate_errors(self._path):
            return mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ) if self.size else b""

    @property
    def is_near_limit(self) -> bool:
        """Whether the process can open only a few more files: descriptors are the lowest free numbers."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return limit != resource.RLIM_INFINITY and self._fd >= limit - _OTHER_FILES


@contextmanager
def translate_errors(path: Path, writing: bool = False) -> Iterator[None]:
    """Turn errors of the operating system into ours; with `writing`, a missing file is not a missing dataset."""
    try:
        yield
    except (StorageError, DatasetNotFoundError):
        raise
    except OSError as error:
        raise _translated(error, path, writing) from error


def _translated(error: OSError, path: Path, writing: bool = False) -> StorageError | DatasetNotFoundError:
    if isinstance(error, FileNotFoundError) and not writing:
        remedy = "check the path; the dataset may be an incomplete copy"
        return DatasetNotFoundError("there is no such file", place=str(path), remedy=remedy, url=str(path))
    kind = UnansweredError if error.errno in TRANSIENT_ERRNOS else StorageError
    return kind(
        f"the system refused: {error.strerror or error}",
        place=str(path),
        remedy=_REMEDIES.get(error.errno or 0, "check permissions, free space and the mount"),
        url=str(path),
    )
