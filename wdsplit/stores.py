"""Which storage a URL names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wdsplit.s3 import S3Storage
from wdsplit.s3client import S3Options
from wdsplit.storage import LocalStorage, Storage, local_path

__all__ = ["open_storage"]


def open_storage(url: str, options: Mapping[str, Any] | None = None) -> Storage:
    """Return the storage that a URL or a path names. Nothing is touched yet.

    Args:
        url: A path, or `s3://bucket/folder`.
        options: How to reach a remote store: the attributes of `s3client.S3Options` and `retry.RetryOptions`.

    Raises:
        InputError: No such store can be reached, or there is no such option.
    """
    if url.startswith("s3://"):
        return S3Storage(url, S3Options.of(options or {}))
    return LocalStorage(local_path(url))
