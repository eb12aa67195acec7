"""An object of an S3-compatible store, open for reading."""

from __future__ import annotations

import re
from contextlib import closing
from typing import Any

from wdsplit.errors import CorruptDataError
from wdsplit.storage.interface import refuse_too_large
from wdsplit.storage.remote_file import RemoteFile
from wdsplit.storage.retry import Retries
from wdsplit.storage.s3_client import S3Client
from wdsplit.storage.s3_errors import NoDataError, error_code
from wdsplit.storage.traffic import count as count_traffic

__all__ = ["S3File"]

_BYTES_PER_READ = 1024**2
"""Bytes that a stalled connection may force us to read again."""
_CHANGED = frozenset({"412", "PreconditionFailed"})
_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+)")


class S3File(RemoteFile):
    """An object that is open for reading. All reads are of one version: that of the first answer.

    It sends no request before the first read. Threads may read it at the same time.

    Args:
        client: Sends requests about its bucket.
        key: Its key.
        url: Its URL in messages.
        size: Its size in bytes, if known; an object of another size is refused.
    """

    keeps_version = True

    def __init__(self, client: S3Client, key: str, url: str, size: int | None = None) -> None:
        super().__init__(url, size)
        self._client = client
        self._key = key
        self._etag: str | None = None

    def _ask(self) -> None:
        answer = self._client.head(self._key, self.url)
        self._notice(answer, int(answer["ContentLength"]))
        self._version = self._etag or str(answer.get("LastModified", ""))

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return the bytes at an offset."""
        data = bytearray(num_bytes)
        self.read_into(memoryview(data), offset)
        return bytes(data)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes at an offset; a failed read continues where it stopped."""
        stop = offset + len(buffer)
        if self._size is not None and stop > self._size:
            raise self._unlike("an object is shorter than expected", f"at least {stop} bytes", self._size)
        filling = _Filling(self, buffer, offset)
        if len(buffer):
            self._client.attempt(filling.go_on, self.url, f"bytes {offset} to {stop - 1}")

    def read_whole(self, max_bytes: int | None = None) -> bytes:
        """Return the whole object; sends one request, unless it fails."""
        filling: _Filling | None = None

        def fill(retries: Retries) -> None:
            nonlocal filling
            if filling is None:
                with closing(self._body()) as body:
                    refuse_too_large(self.size, max_bytes, self.url)
                    filling = _Filling(self, memoryview(bytearray(self.size)), 0)
                    filling.take(body, retries)
            filling.go_on(retries)

        self._client.attempt(fill, self.url)
        return bytes(filling.buffer) if filling is not None else b""

    def _body(self, offset: int = 0, stop: int | None = None) -> Any:
        """Request the bytes from `offset` to `stop`, or all; return the body of the answer."""
        asked = {} if stop is None else {"Range": f"bytes={offset}-{stop - 1}"}
        if self._etag is not None:
            asked["If-Match"] = self._etag
        try:
            answer = self._client.get(self._key, asked)
        except Exception as error:
            if error_code(error) in _CHANGED:
                raise self._replaced("another version") from error
            if error_code(error) == "InvalidRange":
                raise self._unlike("an object is shorter than expected", f"at least {stop} bytes") from None
            raise
        body = answer["Body"]
        try:
            found = _RANGE.fullmatch(answer.get("ContentRange", ""))
            self._notice(answer, int(found[2] if found else answer["ContentLength"]))
            if found is not None and int(found[1]) != offset:
                raise NoDataError  # only other bytes than requested
            _skip(body, 0 if found else offset)  # some stores answer with the whole object
        except BaseException:
            body.close()
            raise
        return body

    def _notice(self, answer: dict[str, Any], size: int) -> None:
        """Check that an answer has the known ETag and size; record them if they are unknown."""
        etag = answer.get("ETag")
        if self._etag is not None and etag not in (None, self._etag):
            raise self._replaced(f"version {etag}")
        if self._size is not None and size != self._size:
            raise self._unlike("an object has an unexpected size", f"{self._size} bytes", size)
        self._etag, self._size = etag, size
        self._version = etag or self._version

    def _replaced(self, found: str) -> CorruptDataError:
        return CorruptDataError(
            "an object was replaced while it was read",
            place=self.url,
            expected=f"version {self._etag}",
            found=found,
            remedy="write new data to another place, and start again",
            url=self.url,
        )


class _Filling:
    """A buffer that is being filled with bytes of an object, by as many requests as necessary."""

    def __init__(self, file: S3File, buffer: memoryview, offset: int) -> None:
        self.buffer = buffer
        self._file = file
        self._offset = offset
        self._filled = 0

    def go_on(self, retries: Retries) -> None:
        """Request the missing bytes until there are none."""
        while self._filled < len(self.buffer):
            before = self._filled
            with closing(self._file._body(self._offset + before, self._offset + len(self.buffer))) as body:
                self.take(body, retries)
            if self._filled == before:
                raise NoDataError

    def take(self, body: Any, retries: Retries) -> None:
        """Read the body of an answer."""
        while self._filled < len(self.buffer):
            count = body.readinto(self.buffer[self._filled : self._filled + _BYTES_PER_READ])
            if not count:
                return
            self._filled += count
            count_traffic(num_bytes=count)
            retries.progressed()


def _skip(body: Any, num_bytes: int) -> None:
    while num_bytes:
        data = body.read(min(num_bytes, _BYTES_PER_READ))
        if not data:
            raise NoDataError
        num_bytes -= len(data)
        count_traffic(num_bytes=len(data))
