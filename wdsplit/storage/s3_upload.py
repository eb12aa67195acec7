"""Writes an object to an S3-compatible store: it appears complete or not at all.

An object that fits into one upload part is sent by a single request at the end. A larger one is a multipart upload:
threads send its parts while the next one is gathered, and the last request makes the object appear.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from wdsplit.errors import DatasetNotFoundError, StorageError, WdsplitError
from wdsplit.storage.locks import end_before_forks
from wdsplit.storage.retry import Retries, UnfitAnswerError
from wdsplit.storage.s3_client import S3Client
from wdsplit.storage.s3_errors import error_code

__all__ = ["S3Upload", "abort_upload"]

logger = logging.getLogger(__name__)

_PART_BYTES = 16 * 1024**2
"""Stores require at least 5 MiB, except for the last upload part."""
_PARTS_PER_SIZE = 1000
"""Upload parts double in size after this many, so that the largest object (5 TiB) needs at most 10,000."""
_CONCURRENT_PARTS = 3
_NO_SUCH_UPLOAD = "NoSuchUpload"
_MD5 = re.compile("[0-9a-f]{32}")
_MAX_ATTEMPTS_TO_MATCH = 3


class S3Upload:
    """An object that is being written.

    At most four upload parts are in memory: one is gathered while the others are sent. A faster writer waits.

    Args:
        client: Sends requests about its bucket.
        key: Its key.
        url: Its URL in messages.
    """

    def __init__(self, client: S3Client, key: str, url: str) -> None:
        self._client = client
        self._key = key
        self._url = url
        self._part = bytearray()
        self._num_bytes = 0
        self._id: str | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._in_flight: deque[Future[str]] = deque()
        self._etags: list[str] = []
        self._is_aborted = threading.Event()

    def write(self, pieces: Sequence[memoryview | bytes]) -> None:
        """Append copies of the pieces, one after another."""
        for piece in pieces:
            left = memoryview(piece).cast("B")
            self._num_bytes += len(left)
            while len(left):
                num_parts = len(self._etags) + len(self._in_flight)
                room = (_PART_BYTES << num_parts // _PARTS_PER_SIZE) - len(self._part)
                if not room:
                    self._send()
                    continue
                self._part += left[:room]
                left = left[room:]

    def finish(self) -> None:
        """Complete the upload: the object appears.

        Raises:
            StorageError: The store refuses, or does not answer in time.
        """
        if self._id is None:
            self._client.attempt(self._put, self._url)
            return
        self._send()
        while self._in_flight:
            self._etags.append(self._in_flight.popleft().result())
        self._stop_threads()
        self._client.attempt(lambda _: self._complete(), self._url)

    def _put(self, retries: Retries) -> None:
        answer = self._client.send("put_object", Key=self._key, Body=self._part)
        if self._client.options.check_etag:
            self._compare(answer, _md5(self._part), retries)

    def _compare(self, answer: Any, digest: str, retries: Retries) -> None:
        """Compare an ETag with the MD5 of the data that was sent, if the ETag is an MD5; another attempt may succeed.

        ETags are no MD5s if the object has parts, or is encrypted with a key of KMS or of the caller.
        """
        etag = str(answer.get("ETag", "")).strip('"')
        is_encrypted = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms") or (
            "SSECustomerAlgorithm" in answer
        )
        if etag == digest or is_encrypted or not _MD5.fullmatch(etag):
            return
        if retries.num_attempts < _MAX_ATTEMPTS_TO_MATCH:
            raise UnfitAnswerError("another ETag than the MD5 of what was sent")
        raise StorageError(
            "the stored data differs from what was sent",
            place=retries.place,
            expected=f"ETag {digest}, the MD5 of what was sent",
            found=f"ETag {etag}, in {retries.num_attempts} attempts",
            remedy="check the network and proxies; for a store whose ETags are not MD5s pass "
            "storage_options={'check_etag': False}, and run `wdsplit verify` afterwards",
            url=self._url,
        )

    def abort(self) -> None:
        """Remove the upload; a failure is only logged, because there is an error already."""
        self._is_aborted.set()
        self._stop_threads()
        if self._id is not None:
            abort_upload(self._client.with_short_deadline(), self._key, self._id, self._url)

    def _send(self) -> None:
        """Let a thread send the gathered upload part; first wait for the oldest one if there are too many."""
        if self._id is None:
            self._id = str(self._client.ask("create_multipart_upload", self._url, Key=self._key)["UploadId"])
            self._threads = ThreadPoolExecutor(_CONCURRENT_PARTS, initializer=end_before_forks)
        if len(self._in_flight) == _CONCURRENT_PARTS:
            self._etags.append(self._in_flight.popleft().result())
        assert self._threads is not None
        number = len(self._etags) + len(self._in_flight) + 1
        self._in_flight.append(self._threads.submit(self._send_part, number, self._part))
        self._part = bytearray()

    def _send_part(self, number: int, data: bytearray) -> str:
        """Send an upload part; return its ETag. Runs in a thread."""
        digest = _md5(data) if self._client.options.check_etag else ""

        def send(retries: Retries) -> str:
            if self._is_aborted.is_set():
                raise StorageError("an upload was aborted", place=self._url, url=self._url)
            answer = self._send_once("upload_part", PartNumber=number, Body=data)
            if digest:
                self._compare(answer, digest, retries)
            if not answer.get("ETag"):
                raise UnfitAnswerError("an answer without an ETag")
            return str(answer["ETag"])

        return self._client.attempt(send, self._url, f"upload part {number}", self._is_aborted.wait)

    def _complete(self) -> None:
        """Complete the multipart upload. If the answer is lost, the object's size shows whether it succeeded."""
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(self._etags, 1)]
        try:
            self._send_once("complete_multipart_upload", MultipartUpload={"Parts": parts})
        except StorageError as error:
            if error.found != _NO_SUCH_UPLOAD:
                raise
            try:
                found = self._client.attempt(lambda _: self._client.head_once(self._key), self._url)["ContentLength"]
            except DatasetNotFoundError:
                raise error from None
            if found != self._num_bytes:
                raise

    def _send_once(self, operation: str, **parameters: Any) -> Any:
        """Send a request about the upload."""
        try:
            return self._client.send(operation, **parameters, Key=self._key, UploadId=self._id)
        except Exception as error:
            if error_code(error) != _NO_SUCH_UPLOAD:
                raise
            raise StorageError(
                "the store no longer knows an unfinished upload",
                place=self._url,
                expected="the upload parts that were sent",
                found=_NO_SUCH_UPLOAD,
                remedy="the store was restarted, a rule of the bucket ended the upload, or another run writes to this "
                "output: continue with --resume",
                url=self._url,
            ) from error

    def _stop_threads(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)


def _md5(data: bytearray) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def abort_upload(client: S3Client, key: str, upload_id: str, url: str) -> None:
    """Abort an upload, and log a failure to do so."""
    try:
        client.ask("abort_multipart_upload", url, Key=key, UploadId=upload_id)
    except WdsplitError as error:
        if error.found != _NO_SUCH_UPLOAD:
            logger.warning(
                "%s: could not abort an upload (%s); a lifecycle rule of the bucket (AbortIncompleteMultipartUpload) "
                "removes its parts",
                url,
                error.found or error.cause,
            )
