"""File systems that fsspec knows, as storages: gs://, az://, hf://, https:// and others, or any object passed as `fs=`.

Each process has its own connections. File objects of fsspec are not used: most of them commit an incomplete file when
the block that writes it raises.
"""

from __future__ import annotations

import functools
import io
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from wdsplit.engines.local import in_order
from wdsplit.errors import DatasetNotFoundError, InputError, MissingDependencyError, StorageError
from wdsplit.storage.given import FS_OPTION, GivenFileSystem
from wdsplit.storage.interface import IsFolderError, PendingFile
from wdsplit.storage.local import LocalStorage, is_temporary, temporary_name
from wdsplit.storage.local_file import translate_errors
from wdsplit.storage.remote import Answer, FileState, RemoteStorage
from wdsplit.storage.retry import RETRY_NAMES, RetryOptions, patience_s
from wdsplit.storage.store_errors import status_of
from wdsplit.urls import is_web, joined_url, shown_url

__all__ = ["FsspecStorage"]

Result = TypeVar("Result")

_THREADS = 16
_LEAST_S = 0.001
"""fsspec takes 0 for no limit."""
_EXTRAS = {"gs": "gcs", "gcs": "gcs", "az": "azure", "abfs": "azure", "abfss": "azure", "hf": "hf"}
_EXTRAS |= {"http": "http", "https": "http", "memory": "http"}
"""The extra of wdsplit that installs what a scheme needs."""
_VERSIONS = (
    "ETag",
    "etag",
    "generation",
    "blob_id",
    "md5Hash",
    "Last-Modified",
    "last_modified",
    "updated",
    "created",
    "mtime",
)
"""The names that file systems have for an object's version; the most reliable first."""
_ONE_COMMIT = frozenset({"abfs", "abfss", "az", "gcs", "gs", "oss", "s3", "s3a"})
"""Object stores, where an uploaded file appears only when it is complete; a rename would copy it."""
_kept: set[Any] = set()
"""File systems in use. A forked process keeps those of its parent: closing them would close the parent's
connections."""


class FsspecStorage(RemoteStorage):
    """A folder on a file system of fsspec.

    Args:
        url: Its URL. The query of an http(s) URL, such as a signature, is sent with all requests.
        options: Options of the file system and of `RetryOptions`; or the file system itself, as from `located`.

    Raises:
        InputError: fsspec has no such file system.
        MissingDependencyError: Its library is not installed.
    """

    has_bodies = False
    max_request_bytes = 16 * 1024**2

    def __init__(self, url: str, options: Mapping[str, Any] | None = None) -> None:
        if options is not None and not isinstance(options, Mapping):
            raise InputError("invalid storage_options", expected="a dict", found=type(options).__name__)
        options = dict(options or {})
        super().__init__(RetryOptions(**{name: options.pop(name) for name in RETRY_NAMES & options.keys()}))
        self._given: GivenFileSystem | None = options.pop(FS_OPTION, None)
        self._options = options
        self._folder = url
        self._protocol = url.partition("://")[0].lower()
        self._is_web = is_web(url)
        if self._given is None:
            _class_of(self._protocol, self.url)
        _forget_loop_in_forks()

    @property
    def url(self) -> str:
        """The folder's URL, without secrets."""
        return shown_url(self._folder).rstrip("/")

    @property
    def _store(self) -> str:
        return str(os.getpid()) if self._protocol == "memory" else ""

    def _file_system(self) -> Any:
        """Return this process's file system: connections cannot be shared."""
        if self._given is not None:
            return self._given.get()
        kind = _class_of(self._protocol, self.url)
        options = {**kind._get_kwargs_from_urls(self._folder), **self._options}
        if self._is_web:
            import aiohttp

            times = {"sock_connect": self._retries.timeout_s, "sock_read": self._retries.timeout_s}
            timeout = aiohttp.ClientTimeout(total=None, **times)
            options["client_kwargs"] = {"timeout": timeout, **options.get("client_kwargs", {})}
            # Ranges count uncompressed bytes.
            options["headers"] = {"Accept-Encoding": "identity", **options.get("headers", {})}
        found = kind(**options)
        _kept.add(found)
        return found

    def _path_of(self, path: str) -> str:
        """Return the file system's name of a path: of http(s), the quoted URL, which may have a query."""
        place = joined_url(self._folder, path)
        if self._given is not None:
            return place if self._is_web else place.partition("://")[2]
        found: str = _class_of(self._protocol, "")._strip_protocol(place)
        return found

    def _try(self, action: Callable[[Any], Result], path: str) -> Result:
        """Call an action with the file system, and retry temporary failures."""
        return self.attempt(lambda _: action(self._file_system()), self.url_of(path))

    def head(self, path: str) -> FileState:
        """Ask once for a file's size and version."""
        fs = self._file_system()
        fs.invalidate_cache()
        info, url = fs.info(self._path_of(path), **_limits(fs)), self.url_of(path)
        if info.get("type") == "directory":
            raise IsFolderError("not a file", place=url, expected="a file", found="a folder", url=url)
        if info.get("size") is None:
            raise StorageError(
                "the server does not say how large a file is",
                place=url,
                expected="Content-Length",
                remedy="copy the data to a server that does, or to a local folder",
                url=url,
            )
        return FileState(int(info["size"]), next((str(info[name]) for name in _VERSIONS if info.get(name)), ""))

    def get(self, path: str, start: int, stop: int | None, etag: str | None) -> Answer:
        """Get a range once; the answer is empty if the range begins beyond the end."""
        assert stop is not None
        fs, place, status = self._file_system(), self._path_of(path), 200
        try:
            if self._is_web and hasattr(fs, "set_session"):
                from fsspec.asyn import sync

                data, status, content_range = sync(fs.loop, _got, fs, place, start, stop, **_limits(fs))
            else:
                more: dict[str, Any] = {"cache_type": "none"} if self._protocol == "hf" else {}
                if type(fs).__module__ == "fsspec.implementations.arrow":
                    more["seekable"] = True
                data = bytes(fs.cat_file(place, start=start, end=stop, **more, **_limits(fs)))
                # The answer is not shown. More bytes than requested are the whole file, and fewer are its end.
                total = start + len(data) if len(data) < stop - start else "*"
                is_part = 0 < len(data) <= stop - start
                content_range = f"bytes {start}-{start + len(data) - 1}/{total}" if is_part else ""
        except Exception as error:
            if not any(isinstance(each, Exception) and status_of(each) == 416 for each in (error, error.__cause__)):
                raise
            data, content_range = b"", ""  # the range begins beyond the end: also the first byte of an empty file
        return Answer(status, len(data), content_range, None, io.BytesIO(data))

    def entries(self, path: str) -> dict[str, int | None]:
        """Return the names in a folder, with the sizes of files in bytes; None for folders. A web server lists none."""
        if self._is_web:
            return {}
        folder = self._path_of(path)

        def listed(fs: Any) -> list[dict[str, Any]]:
            fs.invalidate_cache()
            found: list[dict[str, Any]] = fs.ls(folder, detail=True, **_limits(fs))
            return found

        try:
            found = self._try(listed, path)
        except DatasetNotFoundError:
            return {}
        entries: dict[str, int | None] = {}
        for entry in found:
            name = entry["name"].strip("/").removeprefix(folder.strip("/")).strip("/")
            if name and "/" not in name:
                entries[name] = entry["size"] if entry["type"] == "file" else None
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
            self._try(functools.partial(self._put, local.root / "file", path), path)

    def _put(self, local: Path, path: str, fs: Any) -> None:
        place = self._path_of(path)
        if self._protocol in _ONE_COMMIT and fs.async_impl:  # others copy through file objects
            fs.put_file(str(local), place)
        else:
            folder, separator, name = place.rpartition("/")
            temporary = f"{folder}{separator}{temporary_name(name)}"
            if folder:
                fs.makedirs(folder, exist_ok=True)
            try:
                fs.put_file(str(local), temporary)
                fs.mv(temporary, place)
            except BaseException:
                with suppress(Exception):
                    fs.rm_file(temporary)
                raise
        fs.invalidate_cache()
        expected, found = local.stat().st_size, fs.info(place)["size"]
        if found != expected:
            raise StorageError(
                "a file in the store does not have the size that was sent",
                place=self.url_of(path),
                expected=f"{expected} bytes",
                found=f"{found} bytes",
                remedy="continue with --resume, and run one conversion at a time per output",
                url=self.url_of(path),
            )

    def remove(self, *paths: str) -> None:
        """Remove files, and folders with their contents."""

        def removed(path: str, fs: Any) -> None:
            fs.invalidate_cache()
            with suppress(FileNotFoundError):
                fs.rm(self._path_of(path), recursive=True)

        for _ in in_order(lambda path: self._try(functools.partial(removed, path), path), paths, _THREADS):
            pass

    def remove_temporary(self, path: str = "") -> None:
        """Remove the temporary files that killed attempts have left."""
        below = f"{path}/" if path else ""
        self.remove(*(f"{below}{name}" for name in self.list(path) if is_temporary(name)))


def _limits(fs: Any) -> dict[str, Any]:
    """Return the arguments that limit the duration of an attempt, if the file system has them."""
    return {"timeout": max(patience_s(), _LEAST_S)} if fs.async_impl else {}


async def _got(fs: Any, url: str, start: int, stop: int) -> tuple[bytes, int, str]:
    """Send a request as fsspec's HTTP does, whose `cat_file` shows neither status nor headers."""
    options = dict(fs.kwargs)
    headers = {**options.pop("headers", {}), "Range": f"bytes={start}-{stop - 1}"}
    session = await fs.set_session()
    async with session.get(fs.encode_url(url), headers=headers, **options) as answer:
        data = await answer.read()
        answer.raise_for_status()
        return data, answer.status, answer.headers.get("Content-Range", "")


@functools.cache
def _forget_loop_in_forks() -> None:
    """Let forked processes start their own event loop: fsspec before 2025 would wait for the parent's forever."""
    import fsspec.asyn

    os.register_at_fork(after_in_child=fsspec.asyn.reset_lock)


@functools.cache
def _class_of(protocol: str, place: str) -> Any:
    """Return the class of a file system.

    Raises:
        InputError: fsspec has no such file system.
        MissingDependencyError: Its library is not installed.
    """
    extra = _EXTRAS.get(protocol)
    try:
        import fsspec

        if protocol in fsspec.registry or protocol in fsspec.available_protocols():
            return fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise MissingDependencyError(
            f"{protocol}:// needs a library that is not installed",
            place,
            found=str(error),
            remedy=f"pip install 'wdsplit[{extra}]'" if extra else "install it",
        ) from error
    raise InputError(
        "unknown file system",
        place=place,
        expected=f"a local path, s3://, {', '.join(f'{name}://' for name in _EXTRAS)}, or another that fsspec has",
        found=f"{protocol}://",
        remedy="check the URL, or pass the file system as fs=; of a chain, fsspec.core.url_to_fs(URL) gives it",
    )
