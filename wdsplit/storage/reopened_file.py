"""Local files that are opened again, on network file systems and in processes that may open only a few more files."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from wdsplit.errors import StorageError
from wdsplit.storage.interface import replaced
from wdsplit.storage.local_file import TRANSIENT_ERRNOS, LocalFile
from wdsplit.storage.retry import Failure, FailureKind, Retries, RetryOptions, attempt
from wdsplit.storage.traffic import count

__all__ = ["ReopenedFile"]

Result = TypeVar("Result")

_RETRY_OPTIONS = RetryOptions(deadline_s=2.0, max_delay_s=1.0)


class ReopenedFile:
    """A file that is open for reading, and is opened again if that is necessary.

    Args:
        path: Its path.
        is_remote: Whether it is on a network file system: transient errors are retried.

    Attributes:
        size: Its size in bytes.
        version: A mark that changes when the file is changed or replaced.
        is_remote: Whether each read is a request.
    """

    def __init__(self, path: Path, is_remote: bool) -> None:
        self._path, self.is_remote = path, is_remote
        file = self._retried(lambda retries: LocalFile(path))
        self.size, self.version = file.size, file.version
        self._file = None if file.is_near_limit else file

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return the bytes at an offset."""
        return self._with_file(lambda file: file.read(offset, num_bytes), num_bytes)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes at an offset."""
        self._with_file(lambda file: file.read_into(buffer, offset), len(buffer))

    def expect(self, offset: int, num_bytes: int) -> None:
        """Let the system read ahead; on a network file system, the call may wait for the server."""
        if not self.is_remote:
            self._with_file(lambda file: file.expect(offset, num_bytes))

    def map(self) -> mmap.mmap | bytes:
        """Map the file into memory, read-only; return b'' for an empty file, which cannot be mapped."""
        return self._with_file(LocalFile.map)

    def _with_file(self, action: Callable[[LocalFile], Result], num_bytes: int = 0) -> Result:
        def act(retries: Retries | None) -> Result:
            if self._file is None:
                return action(self._reopened())
            if retries is not None and retries.num_attempts > 1:
                # Other threads may be reading from the former one, which is closed when they have ended.
                with suppress(OSError):  # the server is still away
                    self._file = self._reopened()
            return action(self._file)

        result = self._retried(act)
        if self.is_remote:
            count(num_bytes=num_bytes)
        return result

    def _reopened(self) -> LocalFile:
        file = LocalFile(self._path)
        if file.version != self.version:
            raise replaced(str(self._path), self.version, file.version)
        return file

    def _retried(self, action: Callable[[Retries | None], Result]) -> Result:
        if not self.is_remote:
            return action(None)
        return attempt(action, _classify, Retries(_RETRY_OPTIONS, str(self._path)))


def _classify(error: Exception, place: str, url: str) -> Failure | None:
    cause = error.__cause__
    if isinstance(error, StorageError) and isinstance(cause, OSError) and cause.errno in TRANSIENT_ERRNOS:
        return Failure(FailureKind.TRANSIENT, str(cause), error, cause)
    return None
