"""An object of an S3-compatible store, open for reading."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

from wdsplit.storage.interface import refuse_too_large
from wdsplit.storage.remote_file import RemoteFile
from wdsplit.storage.retry import Retries, UnfitAnswerError
from wdsplit.storage.s3_client import S3Client
from wdsplit.storage.s3_errors import error_code
from wdsplit.storage.traffic import count as count_traffic

__all__ = ["S3File"]

_BYTES_PER_READ = 1024**2
"""Bytes that a stalled connection may force us to read again."""
_OTHER_OBJECT = frozenset({"412", "PreconditionFailed", "InvalidRange"})
"""Errors that say that the object has another version or size."""


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
    _client: S3Client

    def __init__(self, client: S3Client, key: str, url: str, size: int | None = None) -> None:
        super().__init__(client, url, size)
        self._key = key
        self._etag: str | None = None

    def _look(self) -> tuple[int, str]:
        answer = self._client.head_once(self._key)
        if "ContentLength" not in answer:
            raise UnfitAnswerError("an answer without Content-Length")
        self._etag = self._etag or answer.get("ETag")
        return int(answer["ContentLength"]), _version(answer)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes at an offset; a failed read continues where it stopped."""
        stop = offset + len(buffer)
        if self._size is not None and stop > self._size:
            raise self._shorter(stop, self._size)
        if len(buffer):
            self._filled(buffer, offset, f"bytes {offset} to {stop - 1}")

    def read_whole(self, max_bytes: int | None = None) -> bytes:
        """Return the whole object; sends one request, unless it fails."""
        return bytes(self._filled(None, 0, "", max_bytes))

    def _filled(self, buffer: memoryview | None, offset: int, details: str, max_bytes: int | None = None) -> memoryview:
        """Fill a buffer, or a new one for the whole object, by as many requests as necessary; return it."""
        filled = 0

        def go_on(retries: Retries) -> memoryview:
            nonlocal buffer, filled
            while buffer is None or filled < len(buffer):
                before, stop = filled, None if buffer is None else offset + len(buffer)
                with closing(self._body(offset + filled, stop)) as body:
                    if buffer is None:
                        refuse_too_large(self.size, max_bytes, self.url)
                        buffer = memoryview(bytearray(self.size))
                    while filled < len(buffer):
                        count = body.readinto(buffer[filled : filled + _BYTES_PER_READ])
                        if not count:
                            break
                        filled += count
                        count_traffic(num_bytes=count)
                        retries.progressed(count)
                if filled == before and len(buffer):
                    raise UnfitAnswerError("an answer without data")
            return buffer

        return self._client.attempt(go_on, self.url, details)

    def _body(self, offset: int, stop: int | None) -> Any:
        """Request the bytes from `offset` to `stop`, or all; return the body of the answer."""
        asked = {} if stop is None else {"Range": f"bytes={offset}-{stop - 1}"}
        if self._etag is not None:
            asked["If-Match"] = self._etag
        try:
            answer = self._client.get(self._key, asked)
        except Exception as error:
            if error_code(error) in _OTHER_OBJECT:
                raise self._unfit(error_code(error), stop) from None
            raise
        body, length = answer["Body"], str(answer.get("ContentLength"))
        try:
            etag, status = _version(answer) and answer.get("ETag"), answer["ResponseMetadata"]["HTTPStatusCode"]
            if self._etag is not None and etag not in (None, self._etag):
                raise self._unfit(f"version {etag}")
            content_range = answer.get("ContentRange") or ""
            before = self._place(offset, stop, status, content_range, int(length) if length.isdecimal() else None)
            self._etag = self._etag or etag
            self._version = self._etag or self._version
            spare = memoryview(bytearray(min(before, _BYTES_PER_READ)))
            while before:  # some stores answer with the whole object
                count = body.readinto(spare[:before])
                if not count:
                    raise UnfitAnswerError("an answer without the requested data")
                before -= count
                count_traffic(num_bytes=count)
        except BaseException:
            body.close()
            raise
        return body


def _version(answer: Mapping[str, Any]) -> str:
    """Return the object's version; each answer of a store about an object has one."""
    version = answer.get("ETag") or answer.get("LastModified")
    if not version:
        raise UnfitAnswerError("an answer without ETag and Last-Modified")
    return str(version)
