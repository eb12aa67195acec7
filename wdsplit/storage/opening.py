"""Opens the storage that a URL names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wdsplit.errors import InputError
from wdsplit.storage.given import FS_OPTION
from wdsplit.storage.interface import Storage
from wdsplit.storage.local import LocalStorage
from wdsplit.urls import is_web, shown_url

if TYPE_CHECKING:
    from wdsplit.storage.fsspec_storage import FsspecStorage
    from wdsplit.storage.remote import RemoteFile
    from wdsplit.storage.s3 import S3Storage

__all__ = ["is_remote", "open_object", "open_readable_storage", "open_remote_storage", "open_storage"]


def open_storage(url: str, options: Mapping[str, Any] | None = None) -> Storage:
    """Return the storage that a URL or a path names, for reading and writing. Accesses nothing yet.

    Args:
        url: A path, `s3://bucket/folder`, or a URL of another file system of fsspec.
        options: As from `located`: the attributes of `RetryOptions` and, for `s3://`, of `S3Options`, or the options of
            another file system.

    Raises:
        InputError: The store can only be read, or has no such option.
        MissingDependencyError: The file system's library is not installed.
    """
    given = options.get(FS_OPTION) if isinstance(options, Mapping) else None
    if is_web(url) or (given is not None and given.is_archive):
        raise InputError(
            f"{url.partition('://')[0]}:// can only be read",
            place=shown_url(url),
            expected="a local folder, s3://bucket/folder, or a URL of another file system of fsspec to write to",
            remedy="write to a local folder, and copy it with the tools of your store",
        )
    return open_readable_storage(url, options)


def open_readable_storage(
    url: str, options: Mapping[str, Any] | None = None
) -> LocalStorage | S3Storage | FsspecStorage:
    """Return the storage that a URL or a path names, for reading; arguments and errors as for `open_storage`."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return LocalStorage(url)
    given = options.get(FS_OPTION) if isinstance(options, Mapping) else None
    if given is None or scheme not in given.schemes:
        if given is not None and options is not None:
            options = {name: value for name, value in options.items() if name != FS_OPTION}
        if scheme.lower() == "file":
            return LocalStorage(rest)
        if scheme.lower() == "s3":
            from wdsplit.storage.s3 import S3Storage  # imported here, to load only stores in use
            from wdsplit.storage.s3_options import S3Options

            return S3Storage(f"s3://{rest}", S3Options.of(options or {}))
    from wdsplit.storage.fsspec_storage import FsspecStorage

    return FsspecStorage(url, options)


def open_remote_storage(url: str, options: Mapping[str, Any] | None = None) -> S3Storage | FsspecStorage:
    """Return the storage of a URL in a remote store, for reading; arguments and errors as for `open_storage`."""
    storage = open_readable_storage(url, options)
    assert not isinstance(storage, LocalStorage)
    return storage


def is_remote(url: str) -> bool:
    """Tell whether a URL or a path names something in a remote store."""
    scheme, separator, _ = url.partition("://")
    return bool(separator) and scheme.lower() != "file"


def open_object(url: str, options: Mapping[str, Any] | None = None, size: int | None = None) -> RemoteFile:
    """Return an object of a remote store, open for reading; raises as `open_readable_storage` does.

    Nothing is requested yet. An object of another size than `size` is refused when it is read.
    """
    return open_remote_storage(url, options).open("", size)
