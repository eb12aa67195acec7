"""Objects of a store that speaks S3, as a storage: ranges are read through faults."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from wdsplit.errors import DatasetNotFoundError, InputError
from wdsplit.s3client import S3Client, S3Options
from wdsplit.s3file import S3File
from wdsplit.storage import PendingFile

__all__ = ["S3Storage"]

_NAMES_TOLD = 5


class S3Storage:
    """The objects under a prefix of a bucket.

    Args:
        url: `s3://bucket/prefix`.
        options: How to reach the store.
    """

    is_remote = True

    def __init__(self, url: str, options: S3Options | None = None) -> None:
        bucket, _, prefix = url.removeprefix("s3://").strip("/").partition("/")
        if not bucket:
            raise InputError("a URL names no bucket", place=url, expected="s3://bucket/folder")
        self._client = S3Client(bucket, options or S3Options())
        self._bucket = bucket
        self._prefix = prefix

    @property
    def url(self) -> str:
        """The prefix, as a URL."""
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def read(self, path: str, most_bytes: int | None = None) -> bytes:
        """Return the bytes of an object, unless it has more than it may have."""
        return self.open(path).read_whole(most_bytes)

    def map(self, path: str) -> bytes:
        """Return the bytes of an object: they cannot be mapped."""
        return self.read(path)

    def open(self, path: str, size: int | None = None) -> S3File:
        """Open an object for reading; nothing is asked for before it is read."""
        return S3File(self._client, self._key(path), f"{self.url}/{path}", size)

    def size(self, path: str) -> int | None:
        """Return the size of an object in bytes, or None if there is none."""
        try:
            return self.open(path).size
        except DatasetNotFoundError:
            return None

    def list(self, path: str = "") -> list[str]:
        """Return the names of objects and folders in a folder, sorted."""
        prefix = self._key(path)
        prefix = f"{prefix}/" if prefix else ""
        names: set[str] = set()
        more: dict[str, str] = {}
        while True:
            answer = self._client.ask("list_objects_v2", self.url, Prefix=prefix, Delimiter="/", **more)
            names.update(entry["Key"].removeprefix(prefix) for entry in answer.get("Contents", ()))
            names.update(entry["Prefix"].removeprefix(prefix).rstrip("/") for entry in answer.get("CommonPrefixes", ()))
            if not answer.get("IsTruncated"):
                return sorted(names - {""})
            more = {"ContinuationToken": answer["NextContinuationToken"]}

    def what_is_there(self) -> str:
        """Return the first names in the folder, or say that there are no objects."""
        return ", ".join(self.list()[:_NAMES_TOLD]) or "no objects"

    def _key(self, path: str) -> str:
        return "/".join(part for part in (self._prefix, path) if part)

    @contextmanager
    def publish(self, path: str, durable: bool = False) -> Iterator[PendingFile]:
        """Refuse: this version only reads."""
        raise _read_only(f"{self.url}/{path}")
        yield

    def remove(self, path: str) -> None:
        """Refuse: this version only reads."""
        raise _read_only(f"{self.url}/{path}")

    def remove_temporary(self, path: str = "") -> None:
        """Refuse: this version only reads."""
        raise _read_only(f"{self.url}/{path}")

    def lock(self, path: str) -> AbstractContextManager[None]:
        """Refuse: this version only reads."""
        raise _read_only(f"{self.url}/{path}")


def _read_only(url: str) -> InputError:
    return InputError(
        "s3:// can only be read by this version",
        place=url,
        expected="a local path to write to",
        remedy="write to a local folder, and copy it with the tools of your store",
    )
