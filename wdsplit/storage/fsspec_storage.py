"""File systems that fsspec knows, as storages: gs://, az://, hf://, https:// and others, or any object passed as `fs=`.

fsspec sends the requests, and `fsspec_connection` retries them. A short answer is never accepted as complete. File
objects of fsspec are not used: most of them commit an incomplete file when the block that writes it raises.
"""

from __future__ import annotations

import functools
import html
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from wdsplit.engines.local import in_order
from wdsplit.errors import DatasetNotFoundError, InputError, StorageError
from wdsplit.storage.fsspec_connection import GONE_STATUS, REFUSED_STATUS, Connection, status_of
from wdsplit.storage.given import FS_OPTION
from wdsplit.storage.interface import IsFolderError, PendingFile, refuse_too_large
from wdsplit.storage.local import LocalStorage, is_temporary, temporary_name
from wdsplit.storage.local_file import translate_errors
from wdsplit.storage.remote_file import RemoteFile
from wdsplit.storage.remote_storage import RemoteStorage
from wdsplit.storage.retry import RETRY_NAMES, RetryOptions, UnfitAnswerError
from wdsplit.urls import joined_url, shown_url

__all__ = ["FsspecFile", "FsspecStorage"]

logger = logging.getLogger(__name__)

_THREADS = 16
_MAX_REQUEST_BYTES = 16 * 1024**2
"""A larger range is read by several requests: only a failed one is sent again."""
_MAX_BYTES_WITHOUT_SIZE = 1024**3
"""If a file may have more bytes, its size is requested before it is read."""
_UNLISTED_STATUS = (*GONE_STATUS, *REFUSED_STATUS, 405)
_VERSIONS = ("ETag", "etag", "generation", "blob_id", "md5Hash", "Last-Modified", "last_modified", "updated", "created")
"""The names that file systems have for an object's version; the most reliable first."""
_ONE_COMMIT = frozenset({"abfs", "abfss", "az", "gcs", "gs", "oss", "s3", "s3a"})
"""Object stores, where an uploaded file appears only when it is complete; a rename would copy it."""


class FsspecStorage(RemoteStorage):
    """A folder on a file system of fsspec.

    Args:
        url: Its URL. The query of an http(s) URL, such as a signature, is sent with all requests.
        options: Options of the file system and of `RetryOptions`; or the file system itself, as from `located`.

    Raises:
        InputError: fsspec has no such file system.
        MissingDependencyError: Its library is not installed.
    """

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        if options is not None and not isinstance(options, Mapping):
            raise InputError("invalid storage_options", expected="a dict", found=type(options).__name__)
        options = dict(options or {})
        retries = RetryOptions(**{name: options.pop(name) for name in RETRY_NAMES & options.keys()})
        super().__init__(Connection(url, options, retries, options.pop(FS_OPTION, None)))
        self._folder = url

    @property
    def url(self) -> str:
        """The folder's URL, without secrets."""
        return shown_url(self._folder).rstrip("/")

    def open(self, path: str, size: int | None = None) -> FsspecFile:
        """Open a file for reading; sends no request yet."""
        url = f"{self.url}/{path}" if path else self.url
        return FsspecFile(self._client, joined_url(self._folder, path), url, size)

    def list(self, path: str = "") -> list[str]:
        """Return the names in a folder, sorted; on an http(s) server, the links of the folder's page."""
        return sorted(self._listed(path))

    def entries(self, path: str) -> dict[str, int | None]:
        """Return the names in a folder, with the sizes of files in bytes; None for folders."""
        entries = self._listed(path)
        if self._client.is_web:  # a page of links has no sizes
            found = in_order(lambda name: self.size(f"{path}/{name}" if path else name), list(entries), _THREADS)
            entries = dict(zip(entries, found, strict=True))
        return entries

    def _listed(self, path: str) -> dict[str, int | None]:
        """Return the names in a folder, with the sizes that the list has."""
        place = joined_url(self._folder, path)
        try:
            found = self._client.attempt(functools.partial(_listed, self._client, place), f"{self.url}/{path}")
        except DatasetNotFoundError:
            return {}
        own, is_web = self._client.path_of(place).rstrip("/"), self._client.is_web
        entries = {
            _name_below(entry["name"], own, is_web): entry["size"] if entry["type"] == "file" else None
            for entry in found
        }
        entries.pop("", None)
        return entries

    @contextmanager
    def publish(self, path: str, durable: bool = False) -> Iterator[PendingFile]:
        """Write a file to the local disk (TMPDIR), and upload it when the block ends; uploaded files are durable."""
        with translate_errors(Path(tempfile.gettempdir()), writing=True):
            folder = tempfile.TemporaryDirectory(prefix="wdsplit-")
        with folder:
            local = LocalStorage(folder.name)
            with local.publish("file") as file:
                yield file
            send = functools.partial(self._send, local.root / "file", joined_url(self._folder, path))
            self._client.attempt(send, f"{self.url}/{path}")

    def _send(self, local: Path, place: str, fs: Any) -> None:
        path = self._client.path_of(place)
        if self._client.protocol in _ONE_COMMIT and fs.async_impl:  # others copy through file objects
            fs.put_file(str(local), path)
        else:
            _put_and_rename(fs, str(local), path)
        fs.invalidate_cache()
        expected, found = local.stat().st_size, fs.info(path)["size"]
        if found != expected:
            raise StorageError(
                "a file in the store does not have the size that was sent",
                place=shown_url(place),
                expected=f"{expected} bytes",
                found=f"{found} bytes",
                remedy="continue with --resume, and run one conversion at a time per output",
                url=shown_url(place),
            )

    def remove(self, *paths: str) -> None:
        """Remove files, and folders with their contents."""
        for _ in in_order(self._remove, paths, _THREADS):
            pass

    def _remove(self, path: str) -> None:
        place = self._client.path_of(joined_url(self._folder, path))

        def remove(fs: Any) -> None:
            fs.invalidate_cache()
            with suppress(FileNotFoundError):
                fs.rm(place, recursive=True)

        self._client.attempt(remove, f"{self.url}/{path}")

    def remove_temporary(self, path: str = "") -> None:
        """Remove the temporary files that killed attempts have left."""
        below = f"{path}/" if path else ""
        self.remove(*(f"{below}{name}" for name in self.list(path) if is_temporary(name)))


def _put_and_rename(fs: Any, local: str, path: str) -> None:
    """Write to a temporary name beside the path; rename it on success, else remove it."""
    folder, separator, name = path.rpartition("/")
    temporary = f"{folder}{separator}{temporary_name(name)}"
    if folder:
        fs.makedirs(folder, exist_ok=True)
    try:
        fs.put_file(local, temporary)
        fs.mv(temporary, path)
    except BaseException:
        with suppress(Exception):
            fs.rm_file(temporary)
        raise


class FsspecFile(RemoteFile):
    """A file that is open for reading. Threads may read it at the same time.

    Args:
        connection: Sends requests.
        place: Its URL.
        url: Its URL in messages.
        size: Its size in bytes, if known.
    """

    _client: Connection

    def __init__(self, connection: Connection, place: str, url: str, size: int | None = None) -> None:
        super().__init__(connection, url, size)
        self._url = place

    def _look(self) -> tuple[int, str]:
        fs = self._client.file_system()
        fs.invalidate_cache()
        info = fs.info(self._client.path_of(self._url), **self._client.limits(fs))
        if info.get("type") == "directory":
            raise IsFolderError("not a file", place=self.url, expected="a file", found="a folder", url=self.url)
        if info.get("size") is None:
            raise StorageError(
                "the server does not say how large a file is",
                place=self.url,
                expected="Content-Length",
                remedy="copy the data to a server that does, or to a local folder",
                url=self.url,
            )
        return int(info["size"]), next((str(info[name]) for name in _VERSIONS if info.get(name)), "")

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return the bytes at an offset."""
        if num_bytes <= _MAX_REQUEST_BYTES:
            return self._piece(offset, offset + num_bytes)
        return super().read(offset, num_bytes)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes at an offset."""
        for begin in range(0, len(buffer), _MAX_REQUEST_BYTES):
            part = buffer[begin : begin + _MAX_REQUEST_BYTES]
            part[:] = self._piece(offset + begin, offset + begin + len(part))

    def read_whole(self, max_bytes: int | None = None) -> bytes:
        """Return the whole file; by one request if `max_bytes` is small."""
        if self._size is None and max_bytes is not None and max_bytes < _MAX_BYTES_WITHOUT_SIZE:
            data = self._client.attempt(lambda fs: self._up_to(fs, max_bytes + 1), self.url)
            if len(data) <= max_bytes:
                return data
        refuse_too_large(self.size, max_bytes, self.url)
        return self.read(0, self.size)

    def _piece(self, start: int, stop: int) -> bytes:
        """Return the bytes of a range; sends one request, unless it fails."""
        if start >= stop:
            return b""
        # After the first byte, the size is needed: it identifies the answer of a server that ignores ranges.
        if (start or self._size is not None) and stop > self.size:
            raise self._shorter(stop, self.size)
        return self._client.attempt(lambda fs: self._range(fs, start, stop), self.url, f"bytes {start} to {stop - 1}")

    def _answer(self, fs: Any, start: int, stop: int, needed: int | None = None) -> tuple[bytes, int]:
        """Request a range and check the answer; return its bytes, and how many precede the range.

        Args:
            fs: The file system.
            start: The first requested byte.
            stop: The byte after the last.
            needed: How far the file must reach, if that is known.
        """
        data, status, content_range = self._client.get(fs, self._url, start, stop)
        if not content_range and self._size is None:  # the server ignores ranges, or this is no file
            self._size, self._version = self._look()
        return data, self._place(start, needed, status, content_range, len(data))

    def _range(self, fs: Any, start: int, stop: int) -> bytes:
        data, before = self._answer(fs, start, stop, stop)
        if before or len(data) > stop - start:
            _warn_of_ignored_ranges(self.url.rpartition("/")[0])
            data = data[before : before + stop - start]
        if len(data) < stop - start:
            raise self._unfit(f"{len(data)} of {stop - start} bytes", stop)
        return data

    def _up_to(self, fs: Any, num_bytes: int) -> bytes:
        """Return the first bytes of the file, or all if it has fewer."""
        data, _ = self._answer(fs, 0, num_bytes)
        if self._size is not None and len(data) < min(self._size, num_bytes):
            raise UnfitAnswerError(f"{len(data)} of {self._size} bytes")
        return data


def _listed(connection: Connection, place: str, fs: Any) -> list[dict[str, Any]]:
    """Return the entries of a folder, as from fsspec's `ls`; none if an http(s) server does not list it."""
    fs.invalidate_cache()
    folder = connection.path_of(place)
    if connection.is_web:
        base, mark, query = folder.partition("?")
        folder = f"{base.rstrip('/')}/{mark}{query}"
    try:
        found: list[dict[str, Any]] = fs.ls(folder, detail=True, **connection.limits(fs))
        return found
    except Exception as error:
        if connection.is_web and status_of(error) in _UNLISTED_STATUS:
            return []
        raise


def _name_below(entry: str, folder: str, is_web: bool) -> str:
    """Return the name of an entry in a folder; empty for other links, such as those that sort the list."""
    if not is_web:
        name = entry.strip("/").removeprefix(folder.strip("/")).strip("/")
        return "" if "/" in name else name
    base, mark, query = folder.partition("?")
    for before in (f"{base.rstrip('/')}/{mark}{query}", base.rstrip("/")):
        entry = entry.removeprefix(f"{before}/")
    link = html.unescape(entry).partition("?")[0].partition("#")[0]
    name = unquote(link).removeprefix("./").rstrip("/")
    return "" if "/" in name or name in (".", "..") else name


@functools.cache
def _warn_of_ignored_ranges(url: str) -> None:
    logger.warning("%s: the server ignores range requests, so reading a part downloads the whole file", url)
