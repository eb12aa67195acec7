"""Which storage a URL names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wdsplit.storage.fsspec_storage import FsspecFile, FsspecStorage
from wdsplit.storage.interface import Storage
from wdsplit.storage.local import LocalStorage
from wdsplit.storage.s3 import S3Storage
from wdsplit.storage.s3_client import S3Options
from wdsplit.storage.s3_file import S3File

__all__ = ["is_remote", "open_object", "open_storage"]


def open_storage(url: str, options: Mapping[str, Any] | None = None) -> Storage:
    """Return the storage that a URL or a path names. Nothing is touched yet.

    Args:
        url: A path, `s3://bucket/folder`, or a URL of a file system that fsspec knows.
        options: How to reach a remote store: the attributes of `retry.RetryOptions`, and those of `s3client.S3Options`
            or of the file system.

    Raises:
        InputError: There is no such store, or no such option.
        MissingDependencyError: The file system's library is not installed.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return LocalStorage(url)
    if scheme.lower() == "file":
        return LocalStorage(rest)
    if scheme.lower() == "s3":
        return S3Storage(f"s3://{rest}", S3Options.of(options or {}))
    return FsspecStorage(url, options)


def is_remote(url: str) -> bool:
    """Tell whether a URL or a path names something in a remote store."""
    scheme, separator, _ = url.partition("://")
    return bool(separator) and scheme.lower() != "file"


def open_object(url: str, options: Mapping[str, Any] | None = None) -> S3File | FsspecFile:
    """Return an object of a remote store, open for reading. Nothing is asked for yet; raises as `open_storage` does."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() == "s3":
        folder, _, name = rest.rpartition("/")
        return S3Storage(f"s3://{folder}", S3Options.of(options or {})).open(name)
    return FsspecStorage(url, options).open("")
