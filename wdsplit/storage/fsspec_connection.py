"""Sends requests to a file system of fsspec, and classifies its errors.

Each process has its own connections. Error texts of libraries may contain URLs with credentials, so they are not
passed on.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from wdsplit.errors import InputError, MissingDependencyError, StorageError, WdsplitError
from wdsplit.storage.given import GivenFileSystem
from wdsplit.storage.retry import (
    Failure,
    FailureKind,
    Retries,
    RetryOptions,
    attempt,
    is_transient_status,
    parse_retry_after,
    patience_s,
    transient_kind,
)
from wdsplit.storage.s3_errors import classify_s3, gone, is_of_botocore
from wdsplit.storage.traffic import count
from wdsplit.urls import is_web, shown_url

__all__ = ["GONE_STATUS", "REFUSED_STATUS", "Connection", "file_system_class", "status_of"]

Answer = TypeVar("Answer")

_LEAST_S = 0.001
"""fsspec takes 0 for no limit."""
_EXTRAS = {"gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure", "hf": "hf"}
_EXTRAS |= {"http": "http", "https": "http", "memory": "http"}
"""The extra of wdsplit that installs what a scheme needs."""
GONE_STATUS, REFUSED_STATUS, _BEYOND_END_STATUS = (404, 410), (401, 403), 416
_TRANSIENT_KINDS = frozenset(
    {
        ("aiohttp", "ClientError"),
        ("aiohttp", "HttpProcessingError"),
        ("azure", "AzureError"),
        ("gcsfs", "ChecksumError"),
        ("google", "TransportError"),
        ("http", "HTTPException"),
        ("httpx", "TransportError"),
        ("urllib3", "HTTPError"),
    }
)
"""Errors of the libraries below fsspec that are retried, though they are not OSErrors."""
_PERMANENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError, ValueError, TypeError)


@dataclass(frozen=True)
class Connection:
    """Sends requests to a file system.

    Attributes:
        url: A URL on it.
        options: Options of the file system.
        retries: How long to retry.
        given: The file system, if the caller has made it.
    """

    url: str
    options: Mapping[str, Any]
    retries: RetryOptions
    given: GivenFileSystem | None = None

    def __post_init__(self) -> None:
        if self.given is None:
            file_system_class(self.protocol, shown_url(self.url))
        _forget_loop_in_forks()

    @property
    def protocol(self) -> str:
        """The URL's scheme."""
        return self.url.partition("://")[0].lower()

    @property
    def is_web(self) -> bool:
        """Whether paths are whole, quoted URLs, which may have a query."""
        return is_web(self.url)

    def with_short_deadline(self) -> Connection:
        """Return a connection with a short deadline, for cleaning up after an error."""
        return replace(self, retries=self.retries.shortened())

    def file_system(self) -> Any:
        """Return the file system; each process has its own, because connections cannot be shared."""
        if self.given is not None:
            return self.given.get()
        kind = file_system_class(self.protocol, shown_url(self.url))
        options = {**kind._get_kwargs_from_urls(self.url), **self.options}
        if self.is_web:
            import aiohttp

            times = {"sock_connect": self.retries.timeout_s, "sock_read": self.retries.timeout_s}
            timeout = aiohttp.ClientTimeout(total=None, **times)
            options["client_kwargs"] = {"timeout": timeout, **options.get("client_kwargs", {})}
            # Ranges count uncompressed bytes.
            options["headers"] = {"Accept-Encoding": "identity", **options.get("headers", {})}
        found = kind(**options)
        _kept.add(found)
        return found

    def path_of(self, place: str) -> str:
        """Return the file system's path for a URL."""
        if self.given is not None:
            return place if self.is_web else place.partition("://")[2]
        path: str = file_system_class(self.protocol, "")._strip_protocol(place)
        return path

    def limits(self, fs: Any) -> dict[str, Any]:
        """Return the arguments that limit the duration of an attempt, if the file system has them."""
        return {"timeout": max(patience_s(), _LEAST_S)} if fs.async_impl else {}

    def get(self, fs: Any, place: str, start: int, stop: int) -> tuple[bytes, int, str]:
        """Return an answer to a request for a range: its bytes, status and Content-Range; no bytes beyond the end."""
        path = self.path_of(place)
        if self.is_web and hasattr(fs, "set_session"):
            from fsspec.asyn import sync

            answer: tuple[bytes, int, str] = sync(fs.loop, _get, fs, path, start, stop, **self.limits(fs))
            count(num_bytes=len(answer[0]))
            return answer
        more: dict[str, Any] = {"cache_type": "none"} if self.protocol == "hf" else {}
        if type(fs).__module__ == "fsspec.implementations.arrow":
            more["seekable"] = True
        data = bytes(fs.cat_file(path, start=start, end=stop, **more, **self.limits(fs)))
        count(num_bytes=len(data))
        # Other file systems do not show the answer: more bytes than requested are the whole file.
        is_whole = len(data) > stop - start
        return data, 200, "" if is_whole or not data else f"bytes {start}-{start + len(data) - 1}/*"

    def attempt(self, action: Callable[[Any], Answer], url: str, details: str = "") -> Answer:
        """Call an action with the file system, and retry temporary failures."""
        return attempt(lambda _: action(self.file_system()), _classify, Retries(self.retries, url, details))


async def _get(fs: Any, url: str, start: int, stop: int) -> tuple[bytes, int, str]:
    """Send a request as fsspec's HTTP does, whose `cat_file` shows neither status nor headers."""
    options = dict(fs.kwargs)
    headers = {**options.pop("headers", {}), "Range": f"bytes={start}-{stop - 1}"}
    session = await fs.set_session()
    async with session.get(fs.encode_url(url), headers=headers, **options) as answer:
        data = await answer.read()
        if answer.status == _BEYOND_END_STATUS:
            return b"", answer.status, ""
        answer.raise_for_status()
        return data, answer.status, answer.headers.get("Content-Range", "")


@functools.cache
def _forget_loop_in_forks() -> None:
    """Let forked processes start their own event loop: fsspec before 2025 would wait for the parent's forever."""
    import fsspec.asyn

    os.register_at_fork(after_in_child=fsspec.asyn.reset_lock)


_kept: set[Any] = set()
"""File systems in use. A forked process keeps those of its parent: closing them would close the parent's
connections."""


@functools.cache
def file_system_class(protocol: str, place: str) -> Any:
    """Return the class of a file system.

    Raises:
        InputError: fsspec has no such file system.
        MissingDependencyError: Its library is not installed.
    """
    extra = _EXTRAS.get(protocol)
    remedy = f"pip install 'wdsplit[{extra}]'"
    if "::" in protocol:
        raise InputError(
            "a chain of file systems cannot be opened by its URL",
            place=place,
            expected="one URL, or a path with fs=",
            remedy="fs, path = fsspec.core.url_to_fs(URL), then pass path and fs=fs",
        )
    try:
        import fsspec
    except ImportError as error:
        raise MissingDependencyError(
            f"{protocol}:// needs fsspec", place, remedy=remedy if extra else "pip install fsspec"
        ) from error
    if protocol not in fsspec.registry and protocol not in fsspec.available_protocols():
        raise InputError(
            "unknown file system",
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


def status_of(error: Exception) -> int:
    """Return the HTTP status of a failed request; 0 if there was no valid answer."""
    if any(type(each).__module__ == "aiohttp.http_exceptions" for each in (error, error.__cause__)):
        return 0  # aiohttp has a status of its own for an answer that it cannot parse
    for each in (error, getattr(error, "response", None)):
        for name in ("status", "status_code", "code"):
            if isinstance(value := getattr(each, name, None), int):
                return value
    return 0


def _classify(error: Exception, place: str, url: str) -> Failure | None:
    """Tell whether another attempt may succeed; our own errors are not retried."""
    if isinstance(error, WdsplitError):
        return None
    for each in (error, error.__cause__):
        if is_of_botocore(each):
            return classify_s3(each, place, url)
    behind = error.__cause__  # fsspec raises FileNotFoundError for any failed request for a size
    if isinstance(error, FileNotFoundError) and isinstance(behind, Exception):
        error = behind if status_of(behind) or _is_transient(behind) else error
    status = status_of(error)
    name = f"status {status}" if status else type(error).__name__
    if not _is_transient(error):
        return Failure(FailureKind.FINAL, name, _refused(error, status, name, place, url))
    after = str((getattr(error, "headers", None) or {}).get("Retry-After", "")) if status else ""
    return Failure(transient_kind(error), name.lstrip("_"), retry_after_s=parse_retry_after(after))


def _is_transient(error: Exception) -> bool:
    status = status_of(error)
    if status:
        return is_transient_status(status)
    if isinstance(error, _PERMANENT) or _is_forbidden(error):
        return False
    if isinstance(error, (OSError, TimeoutError)):
        return True
    kinds = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(error).__mro__}
    return bool(kinds & _TRANSIENT_KINDS) or any(name == "TimeoutError" for _, name in kinds)


def _is_forbidden(error: Exception) -> bool:
    """Tell whether access is forbidden; gcsfs raises an OSError of this text."""
    return isinstance(error, PermissionError) or str(error).startswith("Forbidden")


def _refused(error: Exception, status: int, found: str, place: str, url: str) -> WdsplitError:
    """Return our error for a permanent failure."""
    if isinstance(error, NotImplementedError):
        return StorageError(
            "the file system is read-only", place, remedy="write to a local folder or another store", url=url
        )
    if status in GONE_STATUS or (not status and isinstance(error, FileNotFoundError)):
        return gone("file", place, found, url)
    if isinstance(error, TypeError) and "argument" in str(error):
        return InputError(
            "unknown storage option",
            place,
            expected="options of the file system, or of RetryOptions",
            found=str(error),
        )
    remedy = "check the URL, the credentials and the storage options"
    if status in REFUSED_STATUS or _is_forbidden(error):
        remedy = "check the credentials and what they allow, and that a signature has not expired"
    return StorageError("the store refused the request", place, found=found, remedy=remedy, url=url)
