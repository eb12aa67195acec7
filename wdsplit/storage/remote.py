"""Folders and files of remote stores: which requests are sent, how answers are checked, and when they are repeated.

A back end (`s3`, `fsspec_storage`) only sends single requests: list, head, get, upload and remove. Stores have no locks
that end with a process, so a lock excludes only other processes of this user on this machine.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import logging
import os
import re
import stat
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from wdsplit.errors import CorruptDataError, DatasetNotFoundError, StorageError
from wdsplit.storage.interface import IsFolderError, Storage, refuse_too_large, replaced
from wdsplit.storage.local import LocalStorage
from wdsplit.storage.retry import Retries, RetryOptions, UnfitAnswerError, attempt
from wdsplit.storage.store_errors import classify
from wdsplit.storage.traffic import count as count_traffic

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Answer", "FileState", "RemoteFile", "RemoteStorage"]

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

_MAX_NAMES_SHOWN = 5
_BYTES_PER_READ = 1024**2
"""Bytes that a stalled connection may force us to read again."""
_MAX_BYTES_WITHOUT_SIZE = 1024**3
"""If a file may have more bytes, its size is requested before it is read from a store without bodies."""
_PART_STATUS = 206
_RANGE = re.compile(r"bytes ([0-9]+)-([0-9]+)/([0-9]+|\*)")


class FileState(NamedTuple):
    """What a store says about a file.

    Attributes:
        size: Its size in bytes.
        version: A text that changes when the file is replaced.
        etag: Its ETag, if later requests can demand it.
    """

    size: int
    version: str
    etag: str | None = None


class Answer(NamedTuple):
    """A store's answer to a GET.

    Attributes:
        status: Its HTTP status.
        length: The bytes of its body; None if unknown.
        content_range: Its Content-Range; empty if it has none.
        etag: Its ETag, if later requests can demand it.
        body: Has `readinto` and `close`.
    """

    status: int
    length: int | None
    content_range: str
    etag: str | None
    body: Any


class RemoteStorage(Storage, ABC):
    """A folder of a remote store; `retries` says how long requests are retried."""

    is_remote = True
    has_latency = True
    max_request_bytes = sys.maxsize
    """A larger range is read by several requests."""
    has_bodies = True
    """Whether the head of an answer, which has the size, is there before its bytes."""
    _empty = "no list of files"

    def __init__(self, retries: RetryOptions) -> None:
        self._retries = retries

    @abstractmethod
    def entries(self, path: str) -> dict[str, int | None]:
        """Return the names in a folder, with the sizes of files in bytes; None for folders."""

    @abstractmethod
    def head(self, path: str) -> FileState:
        """Ask once for a file's state; raise IsFolderError for a folder."""

    @abstractmethod
    def get(self, path: str, start: int, stop: int | None, etag: str | None) -> Answer:
        """Send a GET once.

        Args:
            path: The file.
            start: The first requested byte.
            stop: The byte after the last; None for all.
            etag: The ETag that the file must have.

        Raises:
            UnfitAnswerError: The store says that the file has another size or ETag.
        """

    def url_of(self, path: str) -> str:
        """Return the URL of a file, without secrets."""
        return f"{self.url}/{path}" if path else self.url

    def _renew(self, moment: float) -> object:
        """Renew credentials older than a moment of `time.monotonic`."""

    @property
    def _store(self) -> str:
        """Identifies the store among others with the same URLs."""
        return ""

    def attempt(
        self,
        action: Callable[[Retries], Result],
        url: str,
        details: str = "",
        sleep: Callable[[float], object] = time.sleep,
    ) -> Result:
        """Call an action, and retry temporary failures; arguments as for `Retries`, raises as `retry.attempt` does."""
        return attempt(action, classify, Retries(self._retries, url, details, sleep), self._renew)

    def open(self, path: str, size: int | None = None) -> RemoteFile:
        """Open a file for reading; sends no request yet."""
        return RemoteFile(self, path, size)

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a file; refuse one of more than `max_bytes`."""
        return self.open(path).read_whole(max_bytes)

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes, or None if there is none."""
        try:
            return self.open(path).size
        except (DatasetNotFoundError, IsFolderError):
            return None

    def list(self, path: str = "") -> list[str]:
        """Return the names of files and folders in a folder, sorted."""
        return sorted(self.entries(path))

    def sizes(self, path: str = "") -> dict[str, int]:
        """Return the names of the files in a folder, and their sizes in bytes."""
        return {name: size for name, size in sorted(self.entries(path).items()) if size is not None}

    def describe_contents(self) -> str:
        """Return the first names in the folder, or say that none are listed."""
        return ", ".join(self.list()[:_MAX_NAMES_SHOWN]) or self._empty

    def create(self, path: str, data: bytes) -> bool:
        """Write a small file, unless the store has another one."""
        if self.size(path) is None:
            self._put_new(path, data)
        return self.read(path) == data

    def _put_new(self, path: str, data: bytes) -> None:
        """Write a file that the store did not have just now; a store that can shall refuse to replace another one."""
        with self.publish(path, durable=True) as file:
            file.write([data])

    def with_short_deadline(self) -> Self:
        """Return the same folder with a short deadline for requests."""
        storage = copy.copy(self)
        storage._retries = self._retries.shortened()
        return storage

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Lock out other processes of this user on this machine."""
        folder = LocalStorage(_lock_folder())
        name = hashlib.sha256(f"{self._store} {self.url}/{path}".encode()).hexdigest()
        with ExitStack() as stack:
            try:
                stack.enter_context(folder.lock(name))
            except StorageError as error:
                raise error.at(self.url) from error
            stack.callback(folder.remove, name)
            yield


def _lock_folder() -> str:
    """Return the folder of this user's locks."""
    folder = os.path.join(tempfile.gettempdir(), f"wdsplit-{os.getuid()}")
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise StorageError(
            "the folder of locks belongs to another user",
            place=folder,
            expected=f"a folder of user {os.getuid()}",
            found=f"{stat.filemode(found.st_mode)} of user {found.st_uid}",
            remedy="remove it, or set TMPDIR to a folder of your own",
            url=folder,
        )
    return folder


class RemoteFile:
    """A file of a remote store that is open for reading. Threads may read it at the same time.

    It sends no request before the first read. With an ETag, all reads are of the version of the first answer.

    Args:
        storage: The folder of the file.
        path: The path in it.
        size: The size in bytes, if known; a file of another size is refused.
    """

    is_remote = True

    def __init__(self, storage: RemoteStorage, path: str, size: int | None = None) -> None:
        self._storage = storage
        self._path = path
        self.url = storage.url_of(path)
        self._size = size
        self._version: str | None = None
        self._etag: str | None = None

    @property
    def size(self) -> int:
        """Its size in bytes."""
        if self._size is None:
            self._ask()
        return self._size or 0

    @property
    def version(self) -> str:
        """Its ETag, or its modification time."""
        if self._version is None:
            self._ask()
        return self._version or ""

    def _ask(self) -> None:
        self._storage.attempt(lambda _: self._look(), self.url)

    def _look(self) -> FileState:
        """Request size and version once."""
        state = self._storage.head(self._path)
        if self._size not in (None, state.size):
            raise self._unlike("a file has an unexpected size", f"{self._size} bytes", state.size)
        self._size, self._version = state.size, self._version or state.version
        self._etag = self._etag or state.etag
        return state

    def expect(self, offset: int, num_bytes: int) -> None:
        """Do nothing: `loading.reading.read_ahead` reads ahead."""

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return the bytes at an offset."""
        data = bytearray(num_bytes)
        self.read_into(memoryview(data), offset)
        return bytes(data)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes at an offset; a failed read continues where it stopped."""
        if not len(buffer):
            return
        stop = offset + len(buffer)
        # After the first byte, the size identifies the answer of a server that ignores ranges.
        if (offset or self._size is not None) and stop > self.size:
            raise self._unlike("a file is shorter than expected", f"at least {stop} bytes", self.size)
        self._filled(buffer, offset, f"bytes {offset} to {stop - 1}")

    def read_whole(self, max_bytes: int | None = None) -> bytes:
        """Return the whole file; by one request, unless it fails, if it can be refused before it is in memory."""
        if self._storage.has_bodies or (max_bytes is not None and max_bytes < _MAX_BYTES_WITHOUT_SIZE):
            return bytes(self._filled(None, 0, "", max_bytes))
        refuse_too_large(self.size, max_bytes, self.url)
        return self.read(0, self.size)

    def _filled(self, buffer: memoryview | None, offset: int, details: str, max_bytes: int | None = None) -> memoryview:
        """Fill a buffer, or a new one for the whole file, by as many requests as necessary; return it."""
        filled = 0

        def go_on(retries: Retries) -> memoryview:
            nonlocal buffer, filled
            while buffer is None or filled < len(buffer):
                before, stop = filled, None
                if buffer is not None:
                    stop = offset + min(len(buffer), filled + self._storage.max_request_bytes)
                elif not self._storage.has_bodies and max_bytes is not None:
                    stop = max_bytes + 1
                with closing(self._body(offset + filled, stop, is_whole=buffer is None)) as body:
                    if buffer is None:
                        refuse_too_large(self.size, max_bytes, self.url)
                        buffer = memoryview(bytearray(self.size))
                    end = len(buffer) if stop is None else min(len(buffer), stop - offset)
                    while filled < end and (
                        count := body.readinto(buffer[filled : min(end, filled + _BYTES_PER_READ)])
                    ):
                        filled += count
                        count_traffic(num_bytes=count)
                        retries.progressed(count)
                # An answer that ended early has brought some bytes: the rest is requested at once, without a wait.
                if filled == before and len(buffer):
                    raise UnfitAnswerError("an answer without data")
            return buffer

        return self._storage.attempt(go_on, self.url, details)

    def _body(self, start: int, stop: int | None, is_whole: bool) -> Any:
        """Send a GET and check the answer; return its body from `start` on.

        Args:
            start: The first requested byte.
            stop: The byte after the last; None for all.
            is_whole: Whether `stop` may be beyond the end.
        """
        needed = None if is_whole else stop
        try:
            answer = self._storage.get(self._path, start, stop, self._etag)
        except UnfitAnswerError as error:
            raise self._unfit(str(error), needed) from None
        try:
            if self._etag is not None and answer.etag not in (None, self._etag):
                raise self._unfit(f"version {answer.etag}")
            if stop is not None and not answer.content_range and self._size is None:
                self._look()  # the server ignores ranges, or this is no answer about the file
            before = self._place(start, needed, answer)
            if answer.etag is not None:
                self._etag = self._version = self._etag or answer.etag
            if before or (needed is not None and (answer.length or 0) > needed - start):
                _warn_of_ignored_ranges(self._storage.url)
            while before:
                count = answer.body.readinto(memoryview(bytearray(min(before, _BYTES_PER_READ))))
                if not count:
                    raise UnfitAnswerError("an answer without the requested data")
                before -= count
                count_traffic(num_bytes=count)
        except BaseException:
            answer.body.close()
            raise
        return answer.body

    def _place(self, start: int, stop: int | None, answer: Answer) -> int:
        """Check that an answer has the requested bytes; return how many other bytes precede them.

        Raises:
            UnfitAnswerError: It has not, and another attempt may succeed.
            CorruptDataError: The file is too short, or was replaced.
        """
        length, content_range = answer.length, answer.content_range
        found = _RANGE.fullmatch(content_range)
        if found is not None:
            first, last = int(found[1]), int(found[2])
            total = None if found[3] == "*" else int(found[3])
            is_other = first != start or (stop is not None and last >= stop)
            if is_other or (length is not None and length > last + 1 - first):
                raise self._unfit(f"{content_range} in {length} bytes", stop)
        elif content_range or answer.status == _PART_STATUS:
            raise self._unfit(f"a part with the Content-Range {content_range!r}", stop)
        else:
            first, total = 0, length
        if total is not None and (self._size not in (None, total) or (stop is not None and stop > total)):
            raise self._unfit(f"an answer of a file of {total} bytes", stop)
        self._size = total if self._size is None else self._size
        return start - first

    def _unfit(self, found: str, stop: int | None = None) -> Exception:
        """Return the error for an answer that does not fit; the file's size and version tell whether the file does.

        Args:
            found: What does not fit.
            stop: The end of the requested bytes, if any.
        """
        version, state = self._version, self._look()
        if stop is not None and stop > state.size:
            return self._unlike("a file is shorter than expected", f"at least {stop} bytes", state.size)
        if version and state.version != version:
            return replaced(self.url, f"version {version}", f"version {state.version}")
        return UnfitAnswerError(found)

    def _unlike(self, cause: str, expected: str, size: int) -> CorruptDataError:
        """Return the error for a file of an unexpected size."""
        return CorruptDataError(
            cause,
            place=self.url,
            expected=expected,
            found=f"{size} bytes",
            remedy="it was truncated or changed: copy it again, or convert again with --overwrite",
            url=self.url,
        )


@functools.cache
def _warn_of_ignored_ranges(url: str) -> None:
    logger.warning("%s: the server ignores range requests, so reading a part downloads the whole file", url)
