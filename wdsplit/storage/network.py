"""Files of network file systems (NFS and the like), open for reading; transient errors are retried."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from wdsplit.errors import StorageError
from wdsplit.storage.interface import replaced
from wdsplit.storage.local_file import TRANSIENT_ERRNOS, LocalFile, version_of
from wdsplit.storage.retry import Failure, FailureKind, Retries, RetryOptions, attempt
from wdsplit.storage.traffic import count

__all__ = ["NetworkFile"]

Result = TypeVar("Result")

_RETRY_OPTIONS = RetryOptions(deadline_s=2.0, max_delay_s=1.0)


class NetworkFile(LocalFile):
    """A file of a network file system, open for reading: transient errors are retried."""

    is_remote = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._retried(lambda: LocalFile.__init__(self, path))

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return the bytes at an offset."""
        data = self._retried(lambda: LocalFile.read(self, offset, num_bytes))
        count(num_bytes=num_bytes)
        return data

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes at an offset."""
        self._retried(lambda: LocalFile.read_into(self, buffer, offset))
        count(num_bytes=len(buffer))

    def expect(self, offset: int, num_bytes: int) -> None:
        """Do nothing: the call may wait for the server."""

    def _retried(self, action: Callable[[], Result]) -> Result:
        def reopen_and_act(retries: Retries) -> Result:
            if retries.num_attempts > 1 and hasattr(self, "_fd"):
                self._reopen()
            return action()

        return attempt(reopen_and_act, _classify, Retries(_RETRY_OPTIONS, str(self._path)))

    def _reopen(self) -> None:
        """Reopen the file under the same descriptor: other threads may be reading from it."""
        with suppress(OSError):
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                found = version_of(os.fstat(fd))
                if found == self.version:
                    os.dup2(fd, self._fd, inheritable=False)
            finally:
                os.close(fd)
            if found != self.version:
                raise replaced(str(self._path), self.version, found)


def _classify(error: Exception, place: str, url: str) -> Failure | None:
    cause = error.__cause__
    if isinstance(error, StorageError) and isinstance(cause, OSError) and cause.errno in TRANSIENT_ERRNOS:
        return Failure(FailureKind.TRANSIENT, str(cause), error, cause)
    return None
