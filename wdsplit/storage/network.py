"""Files of network file systems (NFS and the like), open for reading; transient errors are retried."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from wdsplit.errors import CorruptDataError, StorageError
from wdsplit.storage.local_file import TRANSIENT_ERRNOS, FileVersion, LocalFile
from wdsplit.storage.retry import Retries, RetryOptions

__all__ = ["NetworkFile"]

Result = TypeVar("Result")

_PATIENCE = RetryOptions(deadline_s=2.0, max_delay_s=1.0)


class NetworkFile(LocalFile):
    """A file of a network file system, open for reading: what the system refuses for a while is tried again."""

    is_remote = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._again(lambda: LocalFile.__init__(self, path))

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return bytes from an offset on."""
        return self._again(lambda: LocalFile.read(self, offset, num_bytes))

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes from an offset on."""
        self._again(lambda: LocalFile.read_into(self, buffer, offset))

    def expect(self, offset: int, num_bytes: int) -> None:
        """Do nothing: the system may wait for the server."""

    def _again(self, action: Callable[[], Result]) -> Result:
        retries = Retries(_PATIENCE)
        while True:
            try:
                return action()
            except StorageError as error:
                cause = error.__cause__
                passes = isinstance(cause, OSError) and cause.errno in TRANSIENT_ERRNOS
                if not passes or not retries.wait():
                    raise
            self._open_again()

    def _open_again(self) -> None:
        """Open the file anew, under the same descriptor: others may be reading from it.

        Raises:
            CorruptDataError: Another file has taken its place.
        """
        if not hasattr(self, "_fd"):
            return
        with suppress(OSError):
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                found = FileVersion.of(os.fstat(fd))
                if found == self._version:
                    os.dup2(fd, self._fd, inheritable=False)
            finally:
                os.close(fd)
            if found != self._version:
                raise CorruptDataError(
                    "a file was replaced while it was read",
                    place=str(self._path),
                    expected=str(self._version),
                    found=str(found),
                    remedy="write new data to another place, and start again",
                    url=str(self._path),
                )
