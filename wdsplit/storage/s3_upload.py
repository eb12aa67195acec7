"""An object of a store that speaks S3, being written: it appears whole when it is finished, or not at all.

What fits into one part is sent by a single request at the end. More becomes an upload in parts, which threads send
while the next part is gathered; the object is there when the store is told that all parts are.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from wdsplit.errors import DatasetNotFoundError, StorageError, WdsplitError
from wdsplit.storage.s3_client import S3Client, error_code

__all__ = ["S3Upload", "abort_upload"]

logger = logging.getLogger(__name__)

_PART_BYTES = 16 * 1024**2
"""Stores want 5 MiB at least, but of the last part."""
_PARTS_OF_A_SIZE = 1000
"""Then parts are twice as large: no object, of 5 TiB at most, needs more than 10,000 parts."""
_PARTS_AT_ONCE = 3
_FORGOTTEN = "NoSuchUpload"


class S3Upload:
    """An object that is being written.

    It holds four parts at the most: one is gathered, the others are sent. Who writes faster than they are sent, waits.

    Args:
        client: Sends requests about its bucket.
        key: Its key.
        url: What to call it.
    """

    def __init__(self, client: S3Client, key: str, url: str) -> None:
        self._client = client
        self._key = key
        self._url = url
        self._part = bytearray()
        self._num_bytes = 0
        self._id: str | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._sending: deque[Future[str]] = deque()
        self._etags: list[str] = []
        self._ended = threading.Event()

    def write(self, pieces: Sequence[memoryview | bytes]) -> None:
        """Append the pieces, one after another; they may change afterwards."""
        for piece in pieces:
            left = memoryview(piece).cast("B")
            self._num_bytes += len(left)
            while len(left):
                room = self._part_bytes() - len(self._part)
                if not room:
                    self._send()
                    continue
                self._part += left[:room]
                left = left[room:]

    def finish(self) -> None:
        """Let the object appear.

        Raises:
            StorageError: The store refuses, or does not answer in time.
        """
        if self._id is None:
            self._client.ask("put_object", self._url, Key=self._key, Body=self._part)
            return
        self._send()
        while self._sending:
            self._etags.append(self._sending.popleft().result())
        self._shut()
        self._client.attempt(self._url, lambda _: self._complete())

    def abort(self) -> None:
        """Leave nothing behind; what cannot be cleared up is logged, because there is an error already."""
        self._ended.set()
        self._shut()
        if self._id is not None:
            abort_upload(self._client.with_short_deadline(), self._key, self._id, self._url)

    def _part_bytes(self) -> int:
        return _PART_BYTES << (len(self._etags) + len(self._sending)) // _PARTS_OF_A_SIZE

    def _send(self) -> None:
        """Let a thread send the part that was gathered; wait for the oldest if there are too many."""
        if self._id is None:
            self._id = str(self._client.ask("create_multipart_upload", self._url, Key=self._key)["UploadId"])
            self._threads = ThreadPoolExecutor(_PARTS_AT_ONCE)
        if len(self._sending) == _PARTS_AT_ONCE:
            self._etags.append(self._sending.popleft().result())
        assert self._threads is not None
        number = len(self._etags) + len(self._sending) + 1
        self._sending.append(self._threads.submit(self._send_part, number, self._part))
        self._part = bytearray()

    def _send_part(self, number: int, data: bytearray) -> str:
        """Send a part; return its ETag. Runs in a thread."""

        def send(_: object) -> str:
            if self._ended.is_set():
                raise StorageError("an upload was ended", place=self._url, url=self._url)
            answer = self._asked(lambda: self._client.send("upload_part", PartNumber=number, Body=data, **self._named))
            return str(answer["ETag"])

        return self._client.attempt(f"{self._url}, part {number}", send, self._ended.wait)

    def _complete(self) -> None:
        """Tell the store that all parts are there. If an answer to that was lost, the object tells that all is well."""
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(self._etags, 1)]
        try:
            self._asked(
                lambda: self._client.send("complete_multipart_upload", MultipartUpload={"Parts": parts}, **self._named)
            )
        except StorageError as error:
            if error.found != _FORGOTTEN or self._found_bytes() != self._num_bytes:
                raise

    def _found_bytes(self) -> int | None:
        """Return the size of the object that is there."""
        try:
            return int(self._client.ask("head_object", self._url, Key=self._key)["ContentLength"])
        except DatasetNotFoundError:
            return None

    @property
    def _named(self) -> dict[str, Any]:
        return {"Key": self._key, "UploadId": self._id}

    def _asked(self, ask: Callable[[], Any]) -> Any:
        """Ask something about the upload.

        Raises:
            StorageError: The store knows it no more.
        """
        try:
            return ask()
        except Exception as error:
            if error_code(error) != _FORGOTTEN:
                raise
            raise StorageError(
                "the store has forgotten an upload that was under way",
                place=self._url,
                expected="the parts that were sent",
                found=_FORGOTTEN,
                remedy="the store was restarted, a rule of the bucket ended the upload, or another run writes to this "
                "output: continue with --resume",
                url=self._url,
            ) from error

    def _shut(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)


def abort_upload(client: S3Client, key: str, upload_id: str, url: str) -> None:
    """Let a store forget an upload; log where it does not."""
    try:
        client.ask("abort_multipart_upload", url, Key=key, UploadId=upload_id)
    except WdsplitError as error:
        if error.found != _FORGOTTEN:
            logger.warning(
                "%s: an upload could not be ended (%s); what is left of it goes by a lifecycle rule of the bucket "
                "(AbortIncompleteMultipartUpload)",
                url,
                error.found or error.cause,
            )
