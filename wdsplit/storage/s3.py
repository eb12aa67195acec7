"""The storage of S3-compatible stores: failed reads are retried, and objects appear complete or not at all."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from wdsplit.engines.local import in_order
from wdsplit.errors import InputError, StorageError
from wdsplit.storage.remote_storage import RemoteStorage
from wdsplit.storage.s3_client import S3Client
from wdsplit.storage.s3_file import S3File
from wdsplit.storage.s3_options import S3Options
from wdsplit.storage.s3_upload import S3Upload, abort_upload

__all__ = ["S3Storage"]

logger = logging.getLogger(__name__)

_MAX_KEYS_PER_REMOVAL = 1000
_THREADS = 16
_MARKERS = {"list_objects_v2": ("ContinuationToken",), "list_multipart_uploads": ("KeyMarker", "UploadIdMarker")}
"""The parameters of a list that say where it goes on."""


class S3Storage(RemoteStorage):
    """The objects under a prefix of a bucket.

    Args:
        url: `s3://bucket/prefix`.
        options: How to reach the store.
    """

    _empty = "no objects"

    def __init__(self, url: str, options: S3Options | None = None) -> None:
        bucket, _, prefix = url.removeprefix("s3://").strip("/").partition("/")
        if not bucket:
            raise InputError("a URL lacks the bucket", place=url, expected="s3://bucket/folder")
        if "@" in bucket:
            raise InputError(
                "a URL contains credentials",
                place=f"s3://...@{bucket.rpartition('@')[2]}/{prefix}",
                expected="s3://bucket/folder",
                remedy="pass them by the environment, a profile or storage_options: URLs appear in logs",
            )
        super().__init__(S3Client(bucket, options or S3Options()))
        self._bucket = bucket
        self._prefix = prefix

    @property
    def url(self) -> str:
        """The prefix, as a URL."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def open(self, path: str, size: int | None = None) -> S3File:
        """Open an object for reading; sends no request yet."""
        return S3File(self._client, self._key(path), f"{self.url}/{path}", size)

    def size(self, path: str) -> int | None:
        """Return the size of an object in bytes, or None if there is none."""
        return super().size(path) if self._key(path) else None

    def entries(self, path: str) -> dict[str, int | None]:
        """Return the names in a folder, with the sizes of objects in bytes; None for folders."""
        folder = _folder(self._key(path))
        entries: dict[str, int | None] = {}
        for page in self._pages("list_objects_v2", folder, Delimiter="/"):
            for entry in page.get("CommonPrefixes", ()):
                entries.setdefault(entry["Prefix"].removeprefix(folder).rstrip("/"))
            entries |= {entry["Key"].removeprefix(folder): entry["Size"] for entry in page.get("Contents", ())}
        entries.pop("", None)
        return entries

    def _pages(self, operation: str, prefix: str, **more: str) -> Iterator[dict[str, Any]]:
        """Yield the answers that together list the objects, or the unfinished uploads, with a key prefix."""
        markers, seen = _MARKERS[operation], set()
        while True:
            page = self._client.ask(operation, self.url, Prefix=prefix, **more)
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

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    @contextmanager
    def publish(self, path: str, durable: bool = False) -> Iterator[S3Upload]:
        """Upload an object that appears when the block ends; uploaded objects are durable."""
        upload = S3Upload(self._client, self._key(path), f"{self.url}/{path}")
        try:
            yield upload
            upload.finish()
        except BaseException:
            upload.abort()
            raise

    def remove(self, *paths: str) -> None:
        """Remove objects, and folders with their contents; abort unfinished uploads to them."""
        roots = {self._key(path) for path in paths}
        if not roots:
            return
        prefix = os.path.commonprefix(list(roots))  # noqa: RUF071 (of keys, not of paths)
        found = [entry["Key"] for page in self._pages("list_objects_v2", prefix) for entry in page.get("Contents", ())]
        keys = [key for key in found if not roots.isdisjoint(_lineage(key))]
        for first in range(0, len(keys), _MAX_KEYS_PER_REMOVAL):
            left = keys[first : first + _MAX_KEYS_PER_REMOVAL]
            with suppress(StorageError):
                asked = {"Objects": [{"Key": key} for key in left], "Quiet": True}
                answer = self._client.ask("delete_objects", self.url, Delete=asked)
                left = [error["Key"] for error in answer.get("Errors", ())]
            for _ in in_order(self._remove_key, left, _THREADS):
                pass
        self._end_uploads(prefix, lambda key: not roots.isdisjoint(_lineage(key)))

    def _remove_key(self, key: str) -> None:
        self._client.ask("delete_object", f"s3://{self._bucket}/{key}", Key=key)

    def remove_temporary(self, path: str = "") -> None:
        """Abort the uploads that killed attempts have left in a folder."""
        folder = _folder(self._key(path))
        self._end_uploads(folder, lambda key: "/" not in key.removeprefix(folder), Delimiter="/")

    def _end_uploads(self, prefix: str, is_chosen: Callable[[str], bool], **more: str) -> None:
        """Abort the chosen unfinished uploads; do nothing if the store does not list them."""
        try:
            for page in self._pages("list_multipart_uploads", prefix, **more):
                for upload in page.get("Uploads", ()):
                    if is_chosen(key := upload["Key"]):
                        abort_upload(self._client, key, upload["UploadId"], f"s3://{self._bucket}/{key}")
        except StorageError as error:
            logger.info("%s: not looking for unfinished uploads (%s)", self.url, error.found)

    @property
    def _store(self) -> str:
        return str(self._client.endpoint)


def _folder(key: str) -> str:
    """Return the prefix of the keys in a folder."""
    return f"{key}/" if key else ""


def _lineage(key: str) -> Iterator[str]:
    """Yield a key and the keys of all its folders."""
    yield key
    while key:
        key = key.rpartition("/")[0]
        yield key
