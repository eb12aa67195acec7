"""Where bytes live: a small interface over a folder of named objects, and the local disk behind it.

The only room that opens files of a dataset. Errors of the operating system are translated here. What is published
appears whole or not at all: it is written under a temporary name, which no glob for shards finds, and then renamed.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import itertools
import mmap
import os
import re
import resource
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, NamedTuple, Protocol, TypeVar

import numpy as np

from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, StorageError, UnansweredError
from wdsplit.storage.mounts import is_network_mount
from wdsplit.storage.retry import Retries, RetryOptions
from wdsplit.urls import shown_url

__all__ = [
    "LocalFile",
    "LocalStorage",
    "NetworkFile",
    "PendingFile",
    "ReadableFile",
    "Storage",
    "allow_open_files",
    "is_temporary",
    "keep_freed_memory",
    "local_path",
    "refuse_too_large",
]

Result = TypeVar("Result")

_IOV_MAX = 1024
_LARGEST_BLOCK_BYTES = 32 * 1024**2 - 8192
_REMOVALS = 20
_NAMES_TOLD = 5
_PASSING = frozenset(
    {errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EHOSTDOWN, errno.EHOSTUNREACH}
    | {errno.ECONNRESET, errno.ECONNABORTED, errno.ECONNREFUSED}
)
_PATIENCE = RetryOptions(deadline_s=2.0, most_delay_s=1.0)
"""Which errors of a network file system may be gone a moment later, and how long that may be."""
_OTHER_FILES = 256
"""What a program may hold open besides."""
_TEMPORARY = re.compile(r"^\..+\.\d+-\d+(-[0-9a-f]{16})?\.tmp$")
_attempts = itertools.count()
_process = os.urandom(8).hex()
"""Tells this process from those of other machines, which may have its number too."""


class PendingFile(Protocol):
    """A file that is being written and does not exist yet for anyone else."""

    def write(self, pieces: Sequence[memoryview | bytes]) -> None:
        """Append the pieces, one after another."""


class ReadableFile(Protocol):
    """An object that is open for reading; it is closed when nobody refers to it any more."""

    @property
    def size(self) -> int:
        """Its bytes."""

    @property
    def is_remote(self) -> bool:
        """Whether each read is a request, so that few large ones are better than many small ones."""

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return bytes from an offset on.

        Raises:
            CorruptDataError: The object ends before.
            StorageError: The system refused.
        """

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes from an offset on; raises as `read` does."""

    def expect(self, offset: int, num_bytes: int) -> None:
        """Let the system begin to read what will be wanted soon; nothing waits for it."""

    def map(self) -> mmap.mmap | bytes:
        """Return all its bytes without reading them all, where the system can."""


class Storage(Protocol):
    """A folder of objects. Paths are relative to it and have forward slashes.

    Every method raises StorageError where the system refuses, and DatasetNotFoundError for an object that is not there.
    """

    @property
    def url(self) -> str:
        """What to call this folder in a message."""

    @property
    def is_remote(self) -> bool:
        """Whether it is a store of objects, not a file system."""

    @property
    def has_latency(self) -> bool:
        """Whether each read is a request, so that it is worth while to read ahead."""

    def read(self, path: str, most_bytes: int | None = None) -> bytes:
        """Return the bytes of a small object.

        Raises:
            CorruptDataError: It has more bytes than it may have.
        """

    def map(self, path: str) -> mmap.mmap | bytes:
        """Return the bytes of an object without reading them all, where the system can."""

    def open(self, path: str, size: int | None = None) -> ReadableFile:
        """Open an object for reading at any offset.

        Args:
            path: Its path.
            size: Its bytes, if they are known: a remote object need not be asked, and is refused if it has others.
        """

    def size(self, path: str) -> int | None:
        """Return the size of an object in bytes, or None if there is no such object (but a folder, say)."""

    def sizes(self, path: str = "") -> dict[str, int]:
        """Return the names of the objects in a folder, without folders, and their sizes in bytes."""

    def list(self, path: str = "") -> list[str]:
        """Return the names in a folder, sorted; none if it is not there."""

    def what_is_there(self) -> str:
        """Say in a few words what is found at this place, for a message that something else was expected."""

    def publish(self, path: str, durable: bool = False) -> AbstractContextManager[PendingFile]:
        """Give a PendingFile that appears under `path` whole when the block ends, or not at all if it raises.

        A durable file has reached the disk by then; another one only survives the end of the process.
        """

    def remove(self, *paths: str) -> None:
        """Remove objects, and folders with all that is in them; nothing happens to what is not there."""

    def remove_temporary(self, path: str = "") -> None:
        """Remove what attempts that were killed have left in a folder."""

    def lock(self, path: str) -> AbstractContextManager[None]:
        """Hold a lock that goes with the process, however that ends; StorageError if another process holds it.

        That of a remote store keeps out other processes of this machine alone.
        """

    def hurried(self) -> Storage:
        """Return the same storage, which gives up soon if it is remote: for clearing up after an error."""


def is_temporary(name: str) -> bool:
    """Tell whether a name is that of a file which was never published."""
    return _TEMPORARY.match(name) is not None


def local_path(url: str) -> str:
    """Return the path of a local file or folder that a URL names.

    Raises:
        InputError: The URL is that of a remote store.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "file":
        return rest
    if separator:
        raise InputError(
            f"{scheme}:// is not supported by this version",
            place=shown_url(url),
            expected="a local path",
            remedy="copy the data to a local or network file system first",
        )
    return url


def allow_open_files(count: int) -> None:
    """Let this process hold as many files open, as far as the system's hard limit lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


@functools.cache
def keep_freed_memory() -> None:
    """Let the C library keep some memory that was freed for what is allocated next, as readers do all the time.

    glibc gives freed memory back to the system, and gets it again page by page, beyond thresholds that it raises when
    it sees a large block freed (M_MMAP_THRESHOLD in mallopt(3)): so one of the largest size that counts is freed here,
    untouched. Elsewhere this does nothing.
    """
    np.empty(_LARGEST_BLOCK_BYTES, np.uint8)


def refuse_too_large(size: int, most_bytes: int | None, url: str) -> None:
    """Refuse a file that has more bytes than it may have.

    Raises:
        CorruptDataError: It has.
    """
    if most_bytes is not None and size > most_bytes:
        raise CorruptDataError(
            "a file is too large",
            place=url,
            expected=f"at most {most_bytes} bytes",
            found=f"{size} bytes",
            remedy="the file was changed: copy the dataset again",
            url=url,
        )


class LocalStorage:
    """A folder of the local disk or of a network file system."""

    is_remote = False

    def __init__(self, root: str) -> None:
        self.root = Path(root)

    @functools.cached_property
    def has_latency(self) -> bool:
        """Whether it is on a network file system."""
        return is_network_mount(self.root)

    @property
    def url(self) -> str:
        """The folder's path."""
        return str(self.root)

    def read(self, path: str, most_bytes: int | None = None) -> bytes:
        """Return the bytes of a file, unless it has more than it may have."""
        file = self.open(path)
        refuse_too_large(file.size, most_bytes, str(self.root / path))
        return file.read(0, file.size)

    def map(self, path: str) -> mmap.mmap | bytes:
        """Map a file into memory, read-only; an empty file cannot be mapped and comes as b''."""
        return self.open(path).map()

    def open(self, path: str, size: int | None = None) -> LocalFile:
        """Open a file for reading."""
        return (NetworkFile if self.has_latency else LocalFile)(self.root / path)

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes, or None if there is no such file."""
        with _translated(self.root / path):
            try:
                found = (self.root / path).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            return found.st_size if stat.S_ISREG(found.st_mode) else None

    def list(self, path: str = "") -> list[str]:
        """Return the names in a folder, sorted; none if it is not there."""
        with _translated(self.root / path):
            try:
                return sorted(os.listdir(self.root / path))
            except FileNotFoundError:
                return []
            except NotADirectoryError:
                return []

    def sizes(self, path: str = "") -> dict[str, int]:
        """Return the names of the files in a folder and their sizes in bytes; none if it is not there."""
        sizes = {name: self.size(_join(path, name)) for name in self.list(path)}
        return {name: size for name, size in sizes.items() if size is not None}

    def what_is_there(self) -> str:
        """Return the first names in the folder, or say that there is no such folder, that it is empty, or a file."""
        with _translated(self.root):
            if not self.root.exists():
                return "no such folder"
            return ", ".join(self.list()[:_NAMES_TOLD]) or ("an empty folder" if self.root.is_dir() else "a file")

    @contextmanager
    def publish(self, path: str, durable: bool = False) -> Iterator[PendingFile]:
        """Write to a temporary name beside `path`; rename it if all went well, else remove it."""
        final = self.root / path
        temporary = final.with_name(f".{final.name}.{os.getpid()}-{next(_attempts)}-{_process}.tmp")
        with _translated(final, writing=True):
            final.parent.mkdir(parents=True, exist_ok=True)
            with _NewFile(temporary) as file:
                yield file
                if durable:
                    os.fsync(file.fd)
                os.close(os.dup(file.fd))  # a network file system says here, if not before, that the file is not whole
                os.replace(temporary, final)

    def remove(self, *paths: str) -> None:
        """Remove files, and folders with all that is in them."""
        for path in paths:
            self._remove(path)

    def _remove(self, path: str) -> None:
        target = self.root / path
        with _translated(target):
            if target.is_dir() and not target.is_symlink():
                self._remove_folder(path, target)
            else:
                target.unlink(missing_ok=True)

    def _remove_folder(self, path: str, target: Path) -> None:
        """Remove a folder; what others write into it meanwhile goes too, unless they do not stop."""
        for tries_left in reversed(range(_REMOVALS)):
            for name in os.listdir(target):
                self._remove(_join(path, name))
            try:
                target.rmdir()
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not tries_left:
                    raise
            else:
                return

    def remove_temporary(self, path: str = "") -> None:
        """Remove what attempts that were killed have left under temporary names."""
        for name in self.list(path):
            if is_temporary(name):
                self.remove(_join(path, name))

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Hold a lock on a file of this folder; it goes with the process, however that ends.

        Raises:
            StorageError: Another process holds it.
        """
        target = self.root / path
        with _translated(target, writing=True):
            file = self._locked(target)
        with file:
            yield

    def hurried(self) -> LocalStorage:
        """Return the same: the system answers soon."""
        return self

    def _locked(self, target: Path) -> IO[bytes]:
        """Open and lock a file; again if whoever held it before has removed it meanwhile."""
        while True:
            target.parent.mkdir(parents=True, exist_ok=True)
            file = open(target, "ab")  # noqa: SIM115 (held for as long as the lock is)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if target.exists() and os.path.samestat(os.fstat(file.fileno()), target.stat()):
                    return file
            except BlockingIOError as error:
                file.close()
                raise StorageError(
                    "another process is writing to this output",
                    place=str(self.root),
                    remedy="wait until it has ended, or choose another output",
                    url=str(self.root),
                ) from error
            except OSError:
                file.close()
                raise
            file.close()


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


class LocalFile:
    """A file of the local disk or of a network file system, open for reading.

    Attributes:
        size: Its bytes.
    """

    is_remote = False

    def __init__(self, path: Path) -> None:
        self._path = path
        with _translated(path):
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                status = os.fstat(fd)
            except OSError:
                os.close(fd)
                raise
            self._fd = fd
        if not stat.S_ISREG(status.st_mode):
            raise StorageError(
                "this is no file",
                place=str(path),
                expected="a regular file",
                found=stat.filemode(status.st_mode),
                remedy="copy the dataset again",
                url=str(path),
            )
        self.size = status.st_size
        self._version = _Version.of(status)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            with suppress(OSError):  # of a file system that is gone
                os.close(self._fd)

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return bytes from an offset on, however few the system gives at a time."""
        try:
            data = os.pread(self._fd, num_bytes, offset)
        except OSError:
            data = b""
        return data if len(data) == num_bytes else self._all(offset, num_bytes, data)

    def _all(self, offset: int, num_bytes: int, data: bytes) -> bytes:
        """Return all bytes of which some were read."""
        with _translated(self._path):
            while len(data) < num_bytes:
                more = os.pread(self._fd, num_bytes - len(data), offset + len(data))
                if not more:
                    raise self._too_short(offset + num_bytes, offset + len(data))
                data += more
        return data

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes from an offset on."""
        with _translated(self._path):
            filled = 0
            while filled < len(buffer):
                count = os.preadv(self._fd, [buffer[filled:]], offset + filled)
                if not count:
                    raise self._too_short(offset + len(buffer), offset + filled)
                filled += count

    def _too_short(self, expected: int, found: int) -> CorruptDataError:
        return CorruptDataError(
            "a file has become shorter while it was read",
            place=str(self._path),
            expected=f"at least {expected} bytes",
            found=f"{found} bytes",
            remedy="the file was truncated: copy it again",
            url=str(self._path),
        )

    def expect(self, offset: int, num_bytes: int) -> None:
        """Let the system read ahead, where it takes such advice."""
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, offset, num_bytes, os.POSIX_FADV_WILLNEED)

    def map(self) -> mmap.mmap | bytes:
        """Map the file into memory, read-only; an empty file cannot be mapped and comes as b''."""
        with _translated(self._path):
            return mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ) if self.size else b""


class NetworkFile(LocalFile):
    """A file of a network file system, open for reading: what the system refuses for a while is tried again."""

    is_remote = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._again(lambda: LocalFile.__init__(self, path))

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return bytes from an offset on."""
        return self._again(lambda: LocalFile.read(self, offset, num_bytes))

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes from an offset on."""
        self._again(lambda: LocalFile.read_into(self, buffer, offset))

    def expect(self, offset: int, num_bytes: int) -> None:
        """Do nothing: the system may wait for the server."""

    def _again(self, action: Callable[[], Result]) -> Result:
        retries = Retries(_PATIENCE)
        while True:
            try:
                return action()
            except StorageError as error:
                cause = error.__cause__
                passes = isinstance(cause, OSError) and cause.errno in _PASSING
                if not passes or not retries.wait():
                    raise
            self._open_again()

    def _open_again(self) -> None:
        """Open the file anew, under the same descriptor: others may be reading from it.

        Raises:
            CorruptDataError: Another file has taken its place.
        """
        if not hasattr(self, "_fd"):
            return
        with suppress(OSError):
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                found = _Version.of(os.fstat(fd))
                if found == self._version:
                    os.dup2(fd, self._fd, inheritable=False)
            finally:
                os.close(fd)
            if found != self._version:
                raise CorruptDataError(
                    "a file was replaced while it was read",
                    place=str(self._path),
                    expected=str(self._version),
                    found=str(found),
                    remedy="write new data to another place, and start again",
                    url=str(self._path),
                )


class _Version(NamedTuple):
    """What tells a file from another that has taken its place; the number of its inode may change with the mount."""

    num_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> _Version:
        return cls(status.st_size, status.st_mtime_ns)

    def __str__(self) -> str:
        return f"{self.num_bytes} bytes, written {np.datetime64(self.modified_ns, 'ns')} UTC"


class _NewFile:
    """A file under its temporary name; removed when left, unless it was renamed."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> _NewFile:
        self.fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        os.close(self.fd)
        self.path.unlink(missing_ok=True)

    def write(self, pieces: Sequence[memoryview | bytes]) -> None:
        """Append the pieces, however few bytes the system takes at a time."""
        for first in range(0, len(pieces), _IOV_MAX):
            left = [memoryview(piece) for piece in pieces[first : first + _IOV_MAX]]
            while left:
                written = os.writev(self.fd, left)
                while left and written >= len(left[0]):
                    written -= len(left[0])
                    del left[0]
                if left and written:
                    left[0] = left[0][written:]


@contextmanager
def _translated(path: Path, writing: bool = False) -> Iterator[None]:
    """Turn errors of the operating system into ours; who writes misses no file, but is refused."""
    try:
        yield
    except (StorageError, DatasetNotFoundError):
        raise
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not writing:
            raise DatasetNotFoundError(
                "there is no such file",
                place=str(path),
                remedy="check the path; a dataset may have been copied in part",
                url=str(path),
            ) from error
        too_many = error.errno == errno.EMFILE
        kind = UnansweredError if error.errno in _PASSING else StorageError
        raise kind(
            f"the system refused: {error.strerror or error}",
            place=str(path),
            remedy="raise `ulimit -n`: each lane that is read holds a shard open, or use fewer lanes"
            if too_many
            else "check permissions, free space and the mount",
            url=str(path),
        ) from error
