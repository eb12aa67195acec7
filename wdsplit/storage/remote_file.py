"""The common base of open files of remote stores."""

from __future__ import annotations

from wdsplit.errors import CorruptDataError

__all__ = ["RemoteFile"]


class RemoteFile:
    """A file of a remote store that is open for reading. It sends no request before one is needed.

    Args:
        url: Its URL in messages.
        size: Its size in bytes, if known.
    """

    is_remote = True
    keeps_version = False
    """Whether all reads are of the version that the first answer had."""

    def __init__(self, url: str, size: int | None = None) -> None:
        self.url = url
        self._size = size
        self._version: str | None = None

    @property
    def size(self) -> int:
        """Its size in bytes."""
        if self._size is None:
            self._ask()
        return self._size or 0

    @property
    def version(self) -> str:
        """Its ETag, or its modification time."""
        if self._version is None:
            self._ask()
        return self._version or ""

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes at an offset."""
        raise NotImplementedError

    def read_whole(self, max_bytes: int | None = None) -> bytes:
        """Return the whole file; refuse one of more than `max_bytes` bytes."""
        raise NotImplementedError

    def _ask(self) -> None:
        """Request size and version."""
        raise NotImplementedError

    def expect(self, offset: int, num_bytes: int) -> None:
        """Do nothing: `loading.reading.read_ahead` reads ahead."""

    def _unlike(self, cause: str, expected: str, size: int | None = None) -> CorruptDataError:
        """Return the error for a file of an unexpected size."""
        return CorruptDataError(
            cause,
            place=self.url,
            expected=expected,
            found="fewer" if size is None else f"{size} bytes",
            remedy="it was truncated or changed: copy it again, or convert again with --overwrite",
            url=self.url,
        )
