"""The storage of S3-compatible stores.

botocore handles credentials, profiles, endpoints and signatures, as in every AWS tool. Its own retries are off: ours
continue a read where it stopped, and share one deadline.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from wdsplit.engines.local import in_order
from wdsplit.errors import InputError, StorageError, WdsplitError
from wdsplit.storage.interface import IsFolderError
from wdsplit.storage.locks import end_before_forks
from wdsplit.storage.remote import Answer, FileState, RemoteStorage
from wdsplit.storage.retry import Retries, UnfitAnswerError
from wdsplit.storage.s3_client import client_of, parameters_of
from wdsplit.storage.s3_options import S3Options
from wdsplit.storage.store_errors import NO_SUCH_UPLOAD, error_code

__all__ = ["S3Storage"]

logger = logging.getLogger(__name__)

_MAX_KEYS_PER_REMOVAL = 1000
_THREADS = 16
_MARKERS = {"list_objects_v2": ("ContinuationToken",), "list_multipart_uploads": ("KeyMarker", "UploadIdMarker")}
"""The parameters of a list that say where it goes on."""
_OTHER_OBJECT = frozenset({"412", "PreconditionFailed", "InvalidRange"})
"""Errors that say that the object has another version or size."""
_UNNAMED = frozenset({"400", "403", "409"})
_PART_BYTES = 16 * 1024**2
"""Stores require at least 5 MiB, except for the last upload part."""
_PARTS_PER_SIZE = 1000
"""Upload parts double in size after this many, so that the largest object (5 TiB) needs at most 10,000."""
_CONCURRENT_PARTS = 3


class S3Storage(RemoteStorage):
    """The objects under a prefix of a bucket: `s3://bucket/prefix`."""

    _empty = "no objects"

    def __init__(self, url: str, options: S3Options | None = None) -> None:
        self.options = options or S3Options()
        super().__init__(self.options.retries)
        self._bucket, _, self._prefix = url.removeprefix("s3://").strip("/").partition("/")
        if not self._bucket:
            raise InputError("a URL lacks the bucket", place=url, expected="s3://bucket/folder")
        if "@" in self._bucket:
            raise InputError(
                "a URL contains credentials",
                place=f"s3://...@{self._bucket.rpartition('@')[2]}/{self._prefix}",
                expected="s3://bucket/folder",
                remedy="pass them by the environment, a profile or storage_options: URLs appear in logs",
            )

    @property
    def url(self) -> str:
        """The prefix, as a URL."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    @property
    def _store(self) -> str:
        return str(client_of(self.options).client.meta.endpoint_url)

    def _renew(self, moment: float) -> None:
        """Look up the credentials again, unless another thread has done so since the attempt began."""
        client_of(self.options, moment)

    def key(self, path: str) -> str:
        """Return the key of an object."""
        return "/".join(part for part in (self._prefix, path) if part)

    def send(self, operation: str, **parameters: Any) -> Any:
        """Send a request once; `operation` is a method of botocore's client, and the bucket is added."""
        client = client_of(self.options).client
        more = {"RequestPayer": "requester"} if self.options.requester_pays else {}
        if self.options.s3_additional_kwargs:
            takes = parameters_of(client, client.meta.method_to_api_mapping[operation])
            more |= {name: value for name, value in self.options.s3_additional_kwargs.items() if name in takes}
        return getattr(client, operation)(**{**more, "Bucket": self._bucket, **parameters})

    def ask(self, operation: str, url: str, **parameters: Any) -> Any:
        """Send a request about an object or a folder; retry until it is answered or refused, or its time is over."""
        return self.attempt(lambda _: self.send(operation, **parameters), url)

    def head(self, path: str) -> FileState:
        """Ask once for an object's size, version and ETag."""
        key = self.key(path)
        if not key:
            raise IsFolderError("not a file", place=self.url, expected="an object", found="a bucket", url=self.url)
        try:
            answer = self.send("head_object", Key=key)
        except Exception as error:
            if error_code(error) in _UNNAMED:
                # The answer to HEAD has no body to name the error: ask by a GET, which fails with the name.
                self.send("get_object", Key=key, Range="bytes=0-0")["Body"].close()
            raise
        version = answer.get("ETag") or answer.get("LastModified")
        if not version or "ContentLength" not in answer:
            raise UnfitAnswerError("an answer without Content-Length, or without ETag and Last-Modified")
        return FileState(int(answer["ContentLength"]), str(version), answer.get("ETag"))

    def get(self, path: str, start: int, stop: int | None, etag: str | None) -> Answer:
        """Send a GET of an object once."""
        asked = {} if stop is None else {"Range": f"bytes={start}-{stop - 1}"}
        if etag is not None:
            asked["If-Match"] = etag
        try:
            return client_of(self.options).get(self._bucket, self.key(path), asked, partial(self.send, "get_object"))
        except Exception as error:
            if error_code(error) in _OTHER_OBJECT:
                raise UnfitAnswerError(error_code(error)) from None
            raise

    def entries(self, path: str) -> dict[str, int | None]:
        """Return the names in a folder, with the sizes of objects in bytes; None for folders."""
        folder = self._folder(path)
        entries: dict[str, int | None] = {}
        for page in self._pages("list_objects_v2", folder, Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                entries.setdefault(entry["Prefix"].removeprefix(folder).rstrip("/"))
            entries |= {entry["Key"].removeprefix(folder): entry["Size"] for entry in page.get("Contents", ())}
        entries.pop("", None)
        return entries

    def _folder(self, path: str) -> str:
        """Return the prefix of the keys in a folder."""
        key = self.key(path)
        return f"{key}/" if key else ""

    def _pages(self, operation: str, prefix: str, **more: str) -> Iterator[dict[str, Any]]:
        """Yield the answers that together list the objects, or the unfinished uploads, with a key prefix."""
        markers, seen = _MARKERS[operation], set()
        while True:
            page = self.ask(operation, self.url, Prefix=prefix, **more)
            yield page
            if not page.get("IsTruncated"):
                return
            place = tuple(page.get(f"Next{name}", "") for name in markers)
            if not place[0] or place in seen:
                raise StorageError(
                    "the store's list has no end",
                    place=f"s3://{self._bucket}/{prefix}",
                    expected=f"another Next{markers[0]} with each part of the list",
                    found="one that has come before" if place[0] else "none",
                    remedy="update the store or the proxy before it: its lists are incomplete for all clients",
                    url=self.url,
                )
            seen.add(place)
            more |= dict(zip(markers, place, strict=True))

    @contextmanager
    def publish(self, path: str, durable: bool = False) -> Iterator[S3Upload]:
        """Upload an object that appears when the block ends; uploaded objects are durable."""
        upload = S3Upload(self, path)
        try:
            yield upload
            upload.finish()
        except BaseException:
            upload.abort()
            raise

    def _put_new(self, path: str, data: bytes) -> None:
        """Write an object on the condition that there is none; stores that do not know conditions write it anyway."""
        try:
            self.ask("put_object", self.url_of(path), Key=self.key(path), Body=data, IfNoneMatch="*")
        except StorageError as error:
            if error.found == "NotImplemented":
                super()._put_new(path, data)
            elif error.found not in _OTHER_OBJECT:
                raise

    def remove(self, *paths: str) -> None:
        """Remove objects, and folders with their contents; abort unfinished uploads to them."""
        roots = {self.key(path) for path in paths}
        if not roots:
            return

        def is_chosen(key: str) -> bool:
            parts = key.split("/")
            return "" in roots or any("/".join(parts[:count]) in roots for count in range(1, len(parts) + 1))

        prefix = os.path.commonprefix(list(roots))  # noqa: RUF071 (of keys, not of paths)
        found = [entry["Key"] for page in self._pages("list_objects_v2", prefix) for entry in page.get("Contents", ())]
        keys = [key for key in found if is_chosen(key)]
        for first in range(0, len(keys), _MAX_KEYS_PER_REMOVAL):
            left = keys[first : first + _MAX_KEYS_PER_REMOVAL]
            with suppress(StorageError):
                asked = {"Objects": [{"Key": key} for key in left], "Quiet": True}
                left = [error["Key"] for error in self.ask("delete_objects", self.url, Delete=asked).get("Errors", ())]
            for _ in in_order(lambda key: self.ask("delete_object", self._url_of(key), Key=key), left, _THREADS):
                pass
        self._end_uploads(prefix, is_chosen)

    def _url_of(self, key: str) -> str:
        return f"s3://{self._bucket}/{key}"

    def remove_temporary(self, path: str = "") -> None:
        """Abort the uploads that killed attempts have left in a folder."""
        folder = self._folder(path)
        self._end_uploads(folder, lambda key: "/" not in key.removeprefix(folder), Delimiter="/")

    def _end_uploads(self, prefix: str, is_chosen: Callable[[str], bool], **more: str) -> None:
        """Abort the chosen unfinished uploads; do nothing if the store does not list them."""
        try:
            for page in self._pages("list_multipart_uploads", prefix, **more):
                for upload in page.get("Uploads", ()):
                    if is_chosen(key := upload["Key"]):
                        self.abort_upload(key, upload["UploadId"])
        except StorageError as error:
            logger.info("%s: not looking for unfinished uploads (%s)", self.url, error.found)

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Abort an upload, and log a failure to do so."""
        url = self._url_of(key)
        try:
            self.ask("abort_multipart_upload", url, Key=key, UploadId=upload_id)
        except WdsplitError as error:
            if error.found != NO_SUCH_UPLOAD:
                logger.warning(
                    "%s: could not abort an upload (%s); a lifecycle rule of the bucket "
                    "(AbortIncompleteMultipartUpload) removes its parts",
                    url,
                    error.found or error.cause,
                )


class S3Upload:
    """An object that is being written: it appears complete or not at all.

    An object that fits into one upload part is sent by a single request at the end. A larger one is a multipart upload,
    whose last request makes the object appear.

    At most four upload parts are in memory: one is gathered while the others are sent. A faster writer waits.
    """

    def __init__(self, storage: S3Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._key = storage.key(path)
        self._url = storage.url_of(path)
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
            self._storage.ask("put_object", self._url, Key=self._key, Body=self._part, ContentMD5=_md5(self._part))
            return
        self._send()
        while self._in_flight:
            self._etags.append(self._in_flight.popleft().result())
        self._stop_threads()
        self._complete()

    def abort(self) -> None:
        """Remove the upload; a failure is only logged, because there is an error already."""
        self._is_aborted.set()
        self._stop_threads()
        if self._id is not None:
            self._storage.with_short_deadline().abort_upload(self._key, self._id)

    def _send(self) -> None:
        """Let a thread send the gathered upload part; first wait for the oldest one if there are too many."""
        if self._id is None:
            self._id = str(self._storage.ask("create_multipart_upload", self._url, Key=self._key)["UploadId"])
            self._threads = ThreadPoolExecutor(_CONCURRENT_PARTS, initializer=end_before_forks)
        if len(self._in_flight) == _CONCURRENT_PARTS:
            self._etags.append(self._in_flight.popleft().result())
        assert self._threads is not None
        number = len(self._etags) + len(self._in_flight) + 1
        self._in_flight.append(self._threads.submit(self._send_part, number, self._part))
        self._part = bytearray()

    def _send_part(self, number: int, data: bytearray) -> str:
        """Send an upload part; return its ETag. Runs in a thread."""
        digest = _md5(data)

        def send(retries: Retries) -> str:
            if self._is_aborted.is_set():
                raise StorageError("an upload was aborted", place=self._url, url=self._url)
            part = {"PartNumber": number, "UploadId": self._id, "Body": data, "ContentMD5": digest}
            answer = self._storage.send("upload_part", Key=self._key, **part)
            if not answer.get("ETag"):
                raise UnfitAnswerError("an answer without an ETag")
            return str(answer["ETag"])

        return self._storage.attempt(send, self._url, f"upload part {number}", self._is_aborted.wait)

    def _complete(self) -> None:
        """Complete the multipart upload. If the answer is lost, the object's size shows whether it succeeded."""
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(self._etags, 1)]
        asked = {"Key": self._key, "UploadId": self._id, "MultipartUpload": {"Parts": parts}}
        try:
            self._storage.ask("complete_multipart_upload", self._url, **asked)
        except StorageError as error:
            if error.found != NO_SUCH_UPLOAD or self._storage.size(self._path) != self._num_bytes:
                raise

    def _stop_threads(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)


def _md5(data: bytearray) -> str:
    """Return the digest with which a store refuses what was damaged on its way (BadDigest)."""
    return base64.b64encode(hashlib.md5(data, usedforsecurity=False).digest()).decode()
