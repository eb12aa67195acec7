"""The common base of open files of remote stores: size, version, and the check of all answers."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from typing import Any

from wdsplit.errors import CorruptDataError
from wdsplit.storage.interface import replaced
from wdsplit.storage.retry import UnfitAnswerError

__all__ = ["RemoteFile"]

_PART_STATUS = 206
_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+|\*)")


class RemoteFile(ABC):
    """A file of a remote store that is open for reading. It sends no request before one is needed.

    Args:
        client: Sends requests.
        url: Its URL in messages.
        size: Its size in bytes, if known; a file of another size is refused.
    """

    is_remote = True
    keeps_version = False
    """Whether all reads are of the version that the first answer had."""

    def __init__(self, client: Any, url: str, size: int | None = None) -> None:
        self._client = client
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

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return the bytes at an offset."""
        data = bytearray(num_bytes)
        self.read_into(memoryview(data), offset)
        return bytes(data)

    @abstractmethod
    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes at an offset."""

    @abstractmethod
    def read_whole(self, max_bytes: int | None = None) -> bytes:
        """Return the whole file; refuse one of more than `max_bytes` bytes."""

    def _ask(self) -> None:
        """Request size and version."""
        size, version = self._client.attempt(lambda _: self._look(), self.url)
        if self._size not in (None, size):
            raise self._unlike("a file has an unexpected size", f"{self._size} bytes", size)
        self._size, self._version = size, version

    @abstractmethod
    def _look(self) -> tuple[int, str]:
        """Request size and version once."""

    def expect(self, offset: int, num_bytes: int) -> None:  # noqa: B027 (for all remote files)
        """Do nothing: `loading.reading.read_ahead` reads ahead."""

    def _place(self, start: int, stop: int | None, status: int, content_range: str, length: int | None) -> int:
        """Check that an answer has the requested bytes; return how many other bytes precede them.

        Args:
            start: The first requested byte.
            stop: The byte after the last; None for all.
            status: The answer's HTTP status.
            content_range: Its Content-Range; empty if it has none.
            length: The bytes of its body; None if unknown.

        Raises:
            UnfitAnswerError: It has not, and another attempt may succeed.
            CorruptDataError: The file is too short, or was replaced.
        """
        found = _RANGE.fullmatch(content_range)
        if found is not None:
            first, last = int(found[1]), int(found[2])
            total = None if found[3] == "*" else int(found[3])
            is_other = first != start or (stop is not None and last >= stop)
            if is_other or (length is not None and length > last + 1 - first):
                raise self._unfit(f"{content_range} in {length} bytes", stop)
        elif content_range or status == _PART_STATUS:
            raise self._unfit(f"a part with the Content-Range {content_range!r}", stop)
        else:
            first, total = 0, length
        if total is not None and (self._size not in (None, total) or (stop is not None and stop > total)):
            raise self._unfit(f"an answer of a file of {total} bytes", stop)
        self._size = total if self._size is None else self._size
        return start - first

    def _unfit(self, found: str, stop: int | None = None) -> Exception:
        """Return the error for an answer that does not fit; the file's size and version tell whether the file does.

        Args:
            found: What does not fit.
            stop: The end of the requested bytes, if any.
        """
        size, version = self._look()
        if self._size not in (None, size):
            return self._unlike("a file has an unexpected size", f"{self._size} bytes", size)
        if stop is not None and stop > size:
            return self._shorter(stop, size)
        if self._version and version != self._version:
            return replaced(self.url, f"version {self._version}", f"version {version}")
        return UnfitAnswerError(found)

    def _shorter(self, stop: int, size: int) -> CorruptDataError:
        return self._unlike("a file is shorter than expected", f"at least {stop} bytes", size)

    def _unlike(self, cause: str, expected: str, size: int) -> CorruptDataError:
        """Return the error for a file of an unexpected size."""
        return CorruptDataError(
            cause,
            place=self.url,
            expected=expected,
            found=f"{size} bytes",
            remedy="it was truncated or changed: copy it again, or convert again with --overwrite",
            url=self.url,
        )
