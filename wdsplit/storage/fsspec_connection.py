"""What speaks with a file system that fsspec knows: requests, attempts, and what its errors mean.

All attempts share a deadline, each process has connections of its own, and what a URL holds of credentials is never
told.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from wdsplit.errors import (
    DatasetNotFoundError,
    InputError,
    MissingDependencyError,
    StorageError,
    UnansweredError,
    WdsplitError,
)
from wdsplit.storage.retry import UNKNOWN_HOST_S, Retries, RetryOptions, is_unknown_host
from wdsplit.urls import is_web, shown_url

__all__ = [
    "GONE_STATUS",
    "REFUSED_STATUS",
    "BeyondEndError",
    "Connection",
    "ShortAnswerError",
    "file_system_class",
    "status_of",
]

Answer = TypeVar("Answer")

_EXTRAS = {"gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure", "hf": "hf"}
_EXTRAS |= {"http": "http", "https": "http", "memory": "http"}
"""Which extra of wdsplit brings what a scheme needs."""
_TIMEOUTS_OF_ATTEMPT = 4
"""How often the time in which something must come an attempt may take, where what comes cannot be seen."""
_PASSING_STATUS = frozenset({408, 425, 429})
"""HTTP statuses that are gone a moment later; all of 500 to 599 are such, too."""
GONE_STATUS, REFUSED_STATUS, _BEYOND_END_STATUS = (404, 410), (401, 403), 416
_PASSING_KINDS = frozenset(
    {
        ("aiohttp", "ClientError"),
        ("azure", "AzureError"),
        ("gcsfs", "ChecksumError"),
        ("google", "TransportError"),
        ("http", "HTTPException"),
        ("httpx", "TransportError"),
        ("urllib3", "HTTPError"),
    }
)
"""Errors of the libraries below fsspec that are no OSError, and that are gone a moment later."""
_LASTING = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, ValueError, TypeError)


class ShortAnswerError(Exception):
    """An answer has another number of bytes than were asked for."""


class BeyondEndError(StorageError):
    """The store has no bytes in the range that it was asked for."""


class Connection:
    """Sends requests to a file system.

    Args:
        url: A URL of it.
        options: Its own options.
        retries: How long to try.

    Attributes:
        protocol: The URL's scheme.
        is_web: Whether paths are whole URLs, quoted, which may have a query.
    """

    def __init__(self, url: str, options: Mapping[str, Any], retries: RetryOptions) -> None:
        self.protocol = url.partition("://")[0].lower()
        self.is_web = is_web(url)
        self._url = url
        self._options = options
        self._retries = retries

    def file_system(self) -> Any:
        """Return what sends requests: each process has its own, because connections cannot be shared."""
        kind = file_system_class(self.protocol, shown_url(self._url))
        options = {**kind._get_kwargs_from_urls(self._url), **self._options}
        if self.is_web:
            options = _web_options(options, self._retries)
        found = kind(**options)
        _kept.add(found)
        return found

    def path_of(self, place: str) -> str:
        """Return what the file system calls a URL."""
        path: str = file_system_class(self.protocol, "")._strip_protocol(place)
        return path

    def limits(self, fs: Any) -> dict[str, Any]:
        """Return the arguments that end an attempt to which too little comes, where the file system takes such."""
        max_s = min(self._retries.deadline_s, _TIMEOUTS_OF_ATTEMPT * self._retries.timeout_s)
        return {"timeout": max_s} if fs.async_impl else {}

    def cat(self, fs: Any, place: str, start: int, stop: int) -> bytes:
        """Return the bytes of a range, or fewer, or more."""
        more = {"cache_type": "none"} if self.protocol == "hf" else {}
        data = fs.cat_file(self.path_of(place), start=start, end=stop, **more, **self.limits(fs))
        return bytes(data)

    def attempt(self, place: str, action: Callable[[Any], Answer]) -> Answer:
        """Do something that may fail for a while with the file system.

        What libraries say of an error may hold URLs with credentials, so it is not handed on.

        Raises:
            DatasetNotFoundError: There is no such file.
            StorageError: The store refuses, or does not answer in time.
            InputError: There is no such storage option.
        """
        retries = Retries(self._retries, place=place)
        while True:
            try:
                return action(self.file_system())
            except WdsplitError:
                raise
            except Exception as error:
                cause = _cause(error)
            wait_s = _seconds_to_wait(cause)
            if wait_s is None:
                raise _refused(cause, place)
            max_s = UNKNOWN_HOST_S if is_unknown_host(cause) else math.inf
            if not retries.wait(wait_s, _last(cause), max_s):
                raise _gave_up(cause, place, retries.num_attempts, min(max_s, self._retries.deadline_s))


_kept: set[Any] = set()
"""File systems that are in use. Those of the parent of a forked process stay here, too: to end them would take away
the parent's connections."""


@functools.cache
def file_system_class(protocol: str, place: str) -> Any:
    """Return the class of a file system.

    Raises:
        InputError: There is none.
        MissingDependencyError: It is not installed.
    """
    extra = _EXTRAS.get(protocol)
    remedy = f"pip install 'wdsplit[{extra}]'"
    try:
        import fsspec
    except ImportError as error:
        raise MissingDependencyError(
            f"{protocol}:// needs fsspec", place, remedy=remedy if extra else "pip install fsspec"
        ) from error
    if protocol not in fsspec.registry and protocol not in fsspec.available_protocols():
        raise InputError(
            "there is no such file system",
            place=place,
            expected=f"a local path, s3://, {', '.join(f'{name}://' for name in _EXTRAS)}, or another that fsspec has",
            found=f"{protocol}://",
            remedy="check the URL, or copy the data to a local folder",
        )
    try:
        return fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise MissingDependencyError(
            f"{protocol}:// needs a library that is not installed",
            place,
            found=str(error),
            remedy=remedy if extra else "install it",
        ) from error


def _web_options(options: Mapping[str, Any], retries: RetryOptions) -> dict[str, Any]:
    """Return the options of fsspec's HTTP with timeouts, and without compression: ranges count a file's own bytes."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=retries.timeout_s, sock_read=retries.timeout_s)
    return {
        **options,
        "headers": {"Accept-Encoding": "identity", **options.get("headers", {})},
        "client_kwargs": {"timeout": timeout, **options.get("client_kwargs", {})},
    }


def _cause(error: Exception) -> Exception:
    """Return what lies behind an error: fsspec says of all that ends its request for a size that no file is there."""
    behind = error.__cause__
    if isinstance(error, FileNotFoundError) and isinstance(behind, Exception):
        return behind if status_of(behind) or _seconds_to_wait(behind) is not None else error
    return error


def status_of(error: Exception) -> int:
    """Return the HTTP status of an answer that is an error; 0 if there was no answer."""
    for each in (error, getattr(error, "response", None)):
        for name in ("status", "status_code", "code"):
            if isinstance(value := getattr(each, name, None), int):
                return value
    return 0


def _seconds_to_wait(error: Exception) -> float | None:
    """Return how long to wait at least before trying again; None if that is of no use."""
    status = status_of(error)
    if status:
        after = str((getattr(error, "headers", None) or {}).get("Retry-After", ""))
        passes = status in _PASSING_STATUS or status >= 500
        return (float(after) if after.isdigit() else 0.0) if passes else None
    if isinstance(error, _LASTING) or str(error).startswith("Forbidden"):  # gcsfs raises an OSError of this text
        return None
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    passes = isinstance(error, (OSError, TimeoutError, ShortAnswerError)) or bool(kinds & _PASSING_KINDS)
    return 0.0 if passes or any(name == "TimeoutError" for _, name in kinds) else None


def _refused(error: Exception, place: str) -> WdsplitError:
    """Return our error for one that will not pass."""
    status = status_of(error)
    found = f"status {status}" if status else type(error).__name__
    url = place.partition(", bytes ")[0]
    if status == _BEYOND_END_STATUS:
        return BeyondEndError("the store has no such bytes", place, found=found, url=url)
    if status in GONE_STATUS or (not status and isinstance(error, FileNotFoundError)):
        return DatasetNotFoundError(
            "there is no such file",
            place,
            found=found,
            remedy="check the URL; a dataset may have been copied in part",
            url=url,
        )
    if isinstance(error, TypeError) and "argument" in str(error):
        return InputError(
            "there is no such storage option",
            place,
            expected="options of the file system, or of RetryOptions",
            found=str(error),
        )
    if status in REFUSED_STATUS or isinstance(error, PermissionError) or str(error).startswith("Forbidden"):
        remedy = "check the credentials and what they allow, and that a signature has not expired"
    else:
        remedy = "check the URL, the credentials and the storage options"
    return StorageError("the store refuses", place, found=found, remedy=remedy, url=url)


def _gave_up(error: Exception, place: str, num_attempts: int, deadline_s: float) -> UnansweredError:
    is_unknown = is_unknown_host(error)
    return UnansweredError(
        "the store's host has no name" if is_unknown else "the store does not answer as it should",
        place,
        expected=f"an answer within {deadline_s:g} s",
        found=f"{num_attempts} attempts, the last of which ended with {_last(error)}",
        remedy="check the URL and the name server"
        if is_unknown
        else "check the network and the store's limits; more patience: storage_options={'deadline_s': ...}",
        url=place.partition(", bytes ")[0],
    )


def _last(error: Exception) -> str:
    """Return what an attempt ended with."""
    status = status_of(error)
    return f"status {status}" if status else type(error).__name__.lstrip("_")
