"""The local disk, and network file systems mounted on it.

A published file appears complete or not at all: it is written under a temporary name, which globs for shards do not
match, and then renamed.
"""

from __future__ import annotations

import errno
import functools
import itertools
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from wdsplit.errors import InputError, StorageError
from wdsplit.storage.interface import PendingFile, refuse_too_large
from wdsplit.storage.local_file import LocalFile, translate_errors
from wdsplit.storage.locks import leads_to, open_locked
from wdsplit.storage.reopened_file import ReopenedFile
from wdsplit.urls import shown_url

__all__ = ["LocalStorage", "is_network_mount", "is_temporary", "local_path", "temporary_name", "write_whole"]

_IOV_MAX = 1024
_CREATING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_WITHOUT_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""Errors of file systems that have no hard links."""
_NETWORK_KINDS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "coda", "fuse", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4"}
    | {"ocfs2", "orangefs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs"}
)
_LOCAL_FUSE = frozenset({"fuse.bindfs", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.mergerfs", "fuse.ntfs-3g"})
_MOUNTS = Path("/proc/self/mountinfo")
_MAX_REMOVALS = 20
_MAX_NAMES_SHOWN = 5
_TEMPORARY = re.compile(r"^\..+\.\d+-\d+(-[0-9a-f]{16})?\.tmp$")
_attempts = itertools.count()
_process = os.urandom(8).hex()
"""Distinguishes this process from processes of other machines with the same number."""


def is_temporary(name: str) -> bool:
    """Tell whether a name is temporary, so that the file was never published."""
    return _TEMPORARY.match(name) is not None


def temporary_name(name: str) -> str:
    """Return the name of a file until it is complete; each attempt has another one."""
    return f".{name}.{os.getpid()}-{next(_attempts)}-{_process}.tmp"


def local_path(url: str) -> str:
    """Return the path of a local file or folder that a URL names.

    Raises:
        InputError: The URL is that of a remote store.
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme.lower() == "file":
        return rest
    if separator:
        raise InputError(
            f"{scheme}:// is not supported by this version",
            place=shown_url(url),
            expected="a local path",
            remedy="copy the data to a local or network file system first",
        )
    return url


def is_network_mount(path: str | os.PathLike[str]) -> bool:
    """Tell whether a path is on NFS or another file system whose reads are requests; False if that is unknown.

    In the format of proc_pid_mountinfo(5), the third field is the device, and the one after the dash the kind.
    """
    try:
        device = os.stat(path).st_dev
        mounts = _MOUNTS.read_text(errors="replace")
    except OSError:
        return False
    device_id = f"{os.major(device)}:{os.minor(device)}"
    kinds = [line.partition(" - ")[2].split(" ", 1)[0] for line in mounts.splitlines() if line.split()[2] == device_id]
    return any(kind in _NETWORK_KINDS or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE) for kind in kinds)


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

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a file."""
        file = self.open(path)
        refuse_too_large(file.size, max_bytes, str(self.root / path))
        return file.read(0, file.size)

    def open(self, path: str, size: int | None = None) -> LocalFile | ReopenedFile:
        """Open a file for reading."""
        if not self.has_latency and not (file := LocalFile(self.root / path)).is_near_limit:
            return file
        return ReopenedFile(self.root / path, self.has_latency)

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes, or None if there is no such file."""
        with translate_errors(self.root / path):
            try:
                found = (self.root / path).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            return found.st_size if stat.S_ISREG(found.st_mode) else None

    def list(self, path: str = "") -> list[str]:
        """Return the names in a folder, sorted; none if it does not exist."""
        with translate_errors(self.root / path):
            try:
                return sorted(os.listdir(self.root / path))
            except (FileNotFoundError, NotADirectoryError):
                return []

    def sizes(self, path: str = "") -> dict[str, int]:
        """Return the names of the files in a folder and their sizes in bytes; none if it does not exist."""
        sizes = {name: self.size(os.path.join(path, name)) for name in self.list(path)}
        return {name: size for name, size in sizes.items() if size is not None}

    def describe_contents(self) -> str:
        """Return the first names in the folder, or say that there is no such folder, that it is empty, or a file."""
        with translate_errors(self.root):
            if not self.root.exists():
                return "no such folder"
            return ", ".join(self.list()[:_MAX_NAMES_SHOWN]) or ("an empty folder" if self.root.is_dir() else "a file")

    @contextmanager
    def publish(self, path: str, durable: bool = False) -> Iterator[PendingFile]:
        """Write to a temporary name beside `path`; rename it on success, else remove it."""
        final = self.root / path
        temporary = final.with_name(temporary_name(final.name))
        with translate_errors(final, writing=True):
            try:
                fd = os.open(temporary, _CREATING, 0o666)
            except FileNotFoundError:
                temporary.parent.mkdir(parents=True, exist_ok=True)
                fd = os.open(temporary, _CREATING, 0o666)
            try:
                yield _NewFile(fd)
                if durable:
                    os.fsync(fd)
                os.close(os.dup(fd))  # network file systems may report write errors only here
                try:
                    os.replace(temporary, final)
                except FileNotFoundError:  # NFS sends a rename twice if its answer was lost (rename(2))
                    if not leads_to(final, fd):
                        raise
            except BaseException:
                os.close(fd)
                temporary.unlink(missing_ok=True)
                raise
            os.close(fd)

    def create(self, path: str, data: bytes) -> bool:
        """Write a file unless there is another one: by a link, which the system makes only for a new name."""
        final = self.root / path
        temporary = os.path.join(os.path.dirname(path), temporary_name(final.name))
        with self.publish(temporary, durable=True) as file:
            file.write([data])
        with translate_errors(final, writing=True):
            try:
                os.link(self.root / temporary, final)
            except FileExistsError:
                pass
            except OSError as error:
                if error.errno not in _WITHOUT_LINKS:
                    raise
                if not final.exists():  # the lock of the dataset has to keep others out
                    os.replace(self.root / temporary, final)
            (self.root / temporary).unlink(missing_ok=True)
        return self.read(path) == data  # NFS may report that a successful link failed

    def remove(self, *paths: str) -> None:
        """Remove files, and folders with their contents."""
        for path in paths:
            _remove(self.root / path)

    def remove_temporary(self, path: str = "") -> None:
        """Remove the temporary files that killed attempts have left."""
        self.remove(*(os.path.join(path, name) for name in self.list(path) if is_temporary(name)))

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Lock a file of this folder until the block or the process ends."""
        target = self.root / path
        with translate_errors(target, writing=True):
            try:
                fd = open_locked(target, wait=False)
            except BlockingIOError as error:
                raise StorageError(
                    "another process is writing to this output",
                    place=str(self.root),
                    remedy="wait until it has ended, or choose another output",
                    url=str(self.root),
                ) from error
        try:
            yield
        finally:
            os.close(fd)

    def with_short_deadline(self) -> LocalStorage:
        """Return this storage: the local disk needs no deadline."""
        return self


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, which appears complete or not at all; write directly to a link or a device, such as /dev/stdout.

    Raises:
        StorageError: It cannot be written.
    """
    if path.is_symlink() or not path.parent.is_dir() or (path.exists() and not path.is_file()):
        with translate_errors(path, writing=True):
            path.write_bytes(data)
        return
    with LocalStorage(str(path.parent)).publish(path.name) as file:
        file.write([data])


def _remove(target: Path) -> None:
    """Remove a file or a folder, with what others write into it meanwhile; fail if they do not stop."""
    with translate_errors(target):
        if target.is_symlink() or not target.is_dir():
            target.unlink(missing_ok=True)
            return
        for tries_left in reversed(range(_MAX_REMOVALS)):
            for name in os.listdir(target):
                _remove(target / name)
            try:
                target.rmdir()
                return
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST) or not tries_left:
                    raise


class _NewFile:
    """A file that is being written, given its descriptor."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def write(self, pieces: Sequence[memoryview | bytes]) -> None:
        """Append the pieces, even if the system accepts only a few bytes at a time."""
        for first in range(0, len(pieces), _IOV_MAX):
            left = [memoryview(piece) for piece in pieces[first : first + _IOV_MAX]]
            while left:
                written = os.writev(self.fd, left)
                while left and written >= len(left[0]):
                    written -= len(left[0])
                    del left[0]
                if left and written:
                    left[0] = left[0][written:]
