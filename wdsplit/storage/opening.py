"""Which storage a URL names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wdsplit.errors import InputError
from wdsplit.storage.fsspec_storage import FsspecFile, FsspecStorage
from wdsplit.storage.interface import ReadableStorage, Storage
from wdsplit.storage.local import LocalStorage
from wdsplit.storage.s3 import S3Storage
from wdsplit.storage.s3_client import S3Options
from wdsplit.storage.s3_file import S3File
from wdsplit.urls import shown_url

__all__ = ["is_remote", "open_object", "open_readable_storage", "open_storage"]


def open_storage(url: str, options: Mapping[str, Any] | None = None) -> Storage:
    """Return the storage that a URL or a path names, for reading and writing. Nothing is touched yet.

    Args:
        url: A path, or `s3://bucket/folder`.
        options: How to reach a remote store: the attributes of `RetryOptions` and of `S3Options`.

    Raises:
        InputError: The store can only be read, or has no such option.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        return LocalStorage(url)
    if scheme.lower() == "file":
        return LocalStorage(rest)
    if scheme.lower() == "s3":
        return S3Storage(f"s3://{rest}", S3Options.of(options or {}))
    raise InputError(
        f"{scheme}:// can only be read",
        place=shown_url(url),
        expected="a local folder, or s3://bucket/folder, to write to",
        remedy="write to a local folder, and copy it with the tools of your store",
    )


def open_readable_storage(url: str, options: Mapping[str, Any] | None = None) -> ReadableStorage:
    """Return the storage that a URL or a path names, for reading. Nothing is touched yet.

    Args:
        url: A path, `s3://bucket/folder`, or a URL of a file system that fsspec knows.
        options: As for `open_storage`; of other stores, those of fsspec's file system.

    Raises:
        InputError: There is no such store, or no such option.
        MissingDependencyError: The file system's library is not installed.
    """
    scheme, separator, _ = url.partition("://")
    if separator and scheme.lower() not in ("file", "s3"):
        return FsspecStorage(url, options)
    return open_storage(url, options)


def is_remote(url: str) -> bool:
    """Tell whether a URL or a path names something in a remote store."""
    scheme, separator, _ = url.partition("://")
    return bool(separator) and scheme.lower() != "file"


def open_object(url: str, options: Mapping[str, Any] | None = None, size: int | None = None) -> S3File | FsspecFile:
    """Return an object of a remote store, open for reading; raises as `open_readable_storage` does.

    Nothing is requested yet. An object of another size than `size` is refused when it is read.
    """
    scheme, _, rest = url.partition("://")
    if scheme.lower() == "s3":
        folder, _, name = rest.rpartition("/")
        return S3Storage(f"s3://{folder}", S3Options.of(options or {})).open(name, size)
    return FsspecStorage(url, options).open("", size)
