"""Whole shards on a node's own disk, downloaded once for all its processes, verified, evicted by least recent use.

A shard is one file: its tar, then its places. It is named by the checksum of the tar, so that datasets share equal
shards and never read a wrong one. One rule: a file that nobody has locked may be removed, by the process that has
locked the whole folder. The system ends locks (flock) with their process.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import xxhash

from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, StorageError, WdsplitError
from wdsplit.loading.reading.open_shard import OpenShard, open_shard
from wdsplit.shards.manifest import Shard, checksum_of
from wdsplit.storage.interface import ReadableFile, ReadableStorage
from wdsplit.storage.local import LocalStorage, local_path
from wdsplit.storage.local_file import LocalFile
from wdsplit.storage.locks import leads_to, open_locked, unlock
from wdsplit.tar.places import Places, parse_places, plain_places_bytes

__all__ = ["ShardCache"]

logger = logging.getLogger(__name__)

_FOLDER, _LOCK = "shards", "lock"
_SUBFOLDER = "[0-9a-f][0-9a-f]"
_NAME = re.compile(r"[0-9a-f]{32}-[0-9]+\.shard(|\.part)")
_CHECKSUM = re.compile(r"xxh3_128:([0-9a-f]{32})")
_PART = ".part"
_FREE_PART = 10
"""A tenth of the disk is left free if there is no size limit."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_READ_BYTES = 8 * 1024**2
"""Bytes of a request."""
_FIRST_DELAY_S, _MAX_DELAY_S = 0.02, 0.2

_warned: dict[tuple[str, str], object] = {}
"""What this process has warned about: the cache's folder, and the kind of problem."""
_shrunk: set[tuple[str, int | None]] = set()
"""The caches that this process has opened, and their size limits."""


class _NoRoomError(StorageError):
    """There is no room for a shard, and nothing more can be evicted."""


class CachedFile(LocalFile):
    """The tar of a cached shard, open for reading; the shard is not evicted before this is closed."""

    def __init__(self, path: str) -> None:
        super().__init__(Path(path))
        fcntl.flock(self._fd, fcntl.LOCK_SH)  # an exclusive lock lasts for a moment only
        self.path = path
        self.checksum, num_bytes = os.path.basename(path).removesuffix(".shard").split("-")
        self._places_bytes, self.size = self.size - int(num_bytes), int(num_bytes)

    @property
    def is_current(self) -> bool:
        """Whether its path still leads to it: it may have been removed before it was locked."""
        return leads_to(Path(self.path), self._fd)

    def places(self, num_samples: int, fields: tuple[str, ...]) -> Places:
        """Read its places; arguments and errors as for `parse_places`."""
        data = self.read(self.size, max(0, self._places_bytes))
        return parse_places(data, self.size, self.checksum, num_samples, fields)

    def touch(self) -> None:
        """Record the time of use."""
        now = time.time_ns()
        with suppress(PermissionError):  # another user's file
            os.utime(self._fd, ns=(now, now))


class _Entry(NamedTuple):
    """A shard in a cache, or a download; those that were used least recently come first."""

    used_ns: int
    path: str
    num_bytes: int
    is_whole: bool


class ShardCache:
    """A cache of shards in a folder, shared by all processes of the node.

    No file is touched before a shard is opened, so that a cache can be sent to other processes. Its files are in the
    folder `shards`:

    - `CHECKSUM-BYTES.shard`: complete. Its mtime is the time of use. Readers hold a shared lock.
    - `CHECKSUM-BYTES.shard.part`: of full size from the start. Whoever downloads it holds an exclusive lock.
    - `lock`: locked while entries are counted, made, named or removed.

    Args:
        folder: The folder that `shards` is in; created if missing.
        max_bytes: Size limit for all its files; None to keep a tenth of the disk free. Jobs that share a folder may
            have different limits: each applies its own when it opens its first shard, and when it downloads.

    Raises:
        InputError: The folder is remote.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int | None = None) -> None:
        self.folder = Path(local_path(os.fspath(folder))) / _FOLDER
        self.max_bytes = max_bytes

    def open(
        self,
        storage: ReadableStorage,
        shard: Shard,
        names: tuple[str, ...],
        is_needed: Callable[[], bool],
    ) -> OpenShard | None:
        """Open a shard of a dataset; download it if it is not cached, or if its size or its places were changed.

        Its checksum is compared as it is downloaded; it is named once its disk has it. Threads and processes may open
        it at the same time: one downloads, the others wait for it.

        Args:
            storage: Where the dataset is.
            shard: The shard, as its manifest has it.
            names: The fields of the manifest.
            is_needed: Called repeatedly; when it returns False, downloading and waiting end.

        Returns:
            The shard; None if it is not needed, or if there is no room for it, which is logged once.

        Raises:
            DatasetNotFoundError: The shard, or its places, are not in the dataset.
            CorruptDataError: It does not match the manifest, even after a second download.
            StorageError: The file system or the store failed.
            InputError: The folder is inside the dataset.
        """
        checksum = _CHECKSUM.fullmatch(shard.checksum)
        if checksum is None:
            self._warn("checksum", f"shards without a known checksum are streamed, such as {shard.path}")
            return None
        path = str(self.folder / checksum[1][:2] / f"{checksum[1]}-{shard.num_bytes}.shard")
        num_bytes = shard.num_bytes + plain_places_bytes(shard.num_samples, len(names))
        try:
            with self._translated():
                self._shrink()
                if self.max_bytes is not None and num_bytes > self.max_bytes:
                    sizes = f"a shard takes {num_bytes:,} bytes, and the limit is {self.max_bytes:,} bytes"
                    self._warn("size", f"{sizes}: such shards are streamed; give a larger cache_size")
                    return None
                delay_s = _FIRST_DELAY_S
                while is_needed():
                    opened = self._cached(path, f"{storage.url}/{shard.path}", shard, names)
                    if opened is not None:
                        return opened
                    with _try_lock(path + _PART) as is_free:
                        pass
                    if is_free:
                        self._check_apart(storage)
                        with self._reserved(path, num_bytes) as fd:
                            if fd is not None:
                                origin = open_shard(storage, shard, names)
                                needed = shard.num_bytes + len(origin.places.data)
                                if needed <= num_bytes:
                                    return self._downloaded(path, fd, origin, storage, shard, is_needed)
                                num_bytes = needed  # members are listed: reserve more
                        continue
                    time.sleep(delay_s)
                    delay_s = min(2 * delay_s, _MAX_DELAY_S)
        except _NoRoomError as error:
            self._warn(error.cause, f"{error.cause}: shards are streamed until there is room for them")
        return None

    def _cached(self, path: str, url: str, shard: Shard, names: tuple[str, ...]) -> OpenShard | None:
        """Open a cached shard; None if it is not cached, or was damaged and removed."""
        try:
            file = CachedFile(path)
        except DatasetNotFoundError:
            return None
        if not file.is_current:
            return None
        try:
            opened = OpenShard(url, file, file.places(shard.num_samples, names), names)
        except CorruptDataError as error:
            logger.warning("%s: a cached shard is damaged, and is downloaded again: %s", path, error.cause)
            self.discard(file)
            return None
        file.touch()
        return opened

    def _downloaded(
        self,
        path: str,
        fd: int,
        origin: OpenShard,
        storage: ReadableStorage,
        shard: Shard,
        is_needed: Callable[[], bool],
    ) -> OpenShard | None:
        """Download a shard for which there is room, verify and open it; None if it is no longer needed."""
        checksum = _copied(origin.file, fd, is_needed)
        if checksum not in (shard.checksum, None):
            logger.warning("%s: damaged during the download, and is downloaded again", origin.url)
            origin = open_shard(storage, shard, origin.names)
            checksum = _copied(origin.file, fd, is_needed)
        if checksum is None:
            return None
        if checksum != shard.checksum:
            raise CorruptDataError(
                "a shard was changed",
                place=origin.url,
                expected=shard.checksum,
                found=f"{checksum}, also when it was downloaded again",
                remedy="copy it again, or convert again with --overwrite",
                url=origin.url,
            )
        os.ftruncate(fd, shard.num_bytes)
        _write(fd, memoryview(origin.places.data), shard.num_bytes)
        os.fsync(fd)
        with self._locked():
            os.replace(path + _PART, path)
            fcntl.flock(fd, fcntl.LOCK_SH)
            file = CachedFile(path)
            file.touch()  # the time of its last write is the system's, which is some milliseconds behind
        return replace(origin, file=file)

    def discard(self, file: ReadableFile) -> None:
        """Remove a shard of this cache that turned out to be damaged, to download it again.

        Processes that have it open keep it.
        """
        with self._translated(), self._locked():
            if isinstance(file, CachedFile) and file.is_current:
                os.unlink(file.path)

    @contextmanager
    def _reserved(self, path: str, num_bytes: int) -> Iterator[int | None]:
        """Make room for a shard, and give the locked file to download it into; remove this unless it was published.

        Gives None if the shard is cached by now, or some process downloads it.
        """
        fd = None
        try:
            with self._locked():
                entries = self._without_leftovers()
                if all(entry.path.removesuffix(_PART) != path for entry in entries):
                    self._make_room(entries, num_bytes)
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    fd = os.open(path + _PART, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
                    fcntl.flock(fd, fcntl.LOCK_EX)
                    os.ftruncate(fd, num_bytes)
                    if num_bytes and hasattr(os, "posix_fallocate"):  # so that the disk cannot fill up meanwhile
                        try:
                            os.posix_fallocate(fd, 0, num_bytes)
                        except OSError as error:
                            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # of the file system
                                raise
            yield fd
        finally:
            if fd is not None:
                # Once published, the shard stays locked until here: nobody can have made another file of this name.
                with suppress(FileNotFoundError):
                    os.unlink(path + _PART)
                unlock(fd)

    def _shrink(self) -> None:
        """Evict entries beyond the size limit, once per process."""
        mine = str(self.folder), self.max_bytes
        if mine not in _shrunk:
            _shrunk.add(mine)
            if self.max_bytes is not None and self.folder.exists():
                with suppress(_NoRoomError), self._locked():
                    self._make_room(self._without_leftovers(), 0)

    def _make_room(self, entries: list[_Entry], num_bytes: int) -> None:
        """Evict the least recently used entries until there is room for `num_bytes` bytes."""
        disk = os.statvfs(self.folder)
        kept_free = disk.f_blocks * disk.f_frsize // _FREE_PART if self.max_bytes is None else 0
        room = (disk.f_bavail - 1) * disk.f_frsize - kept_free  # a file rounds up to blocks
        left = sum(entry.num_bytes for entry in entries)
        if self.max_bytes is not None:
            room = min(room, self.max_bytes - left)
        for entry in sorted(entries):
            if room >= num_bytes:
                return
            if entry.is_whole and _evict(entry):
                room += entry.num_bytes
                left -= entry.num_bytes
        if room < num_bytes:
            raise _NoRoomError("all cached shards are in use" if left else "the disk is full", url=str(self.folder))

    def _without_leftovers(self) -> list[_Entry]:
        """Remove the files of killed downloads; return the other entries."""
        entries = []
        for path in self.folder.glob(f"{_SUBFOLDER}/*"):
            name = _NAME.fullmatch(path.name)
            if name is not None and path.name.startswith(path.parent.name):
                with suppress(FileNotFoundError):
                    status = path.lstat()
                    entries.append(_Entry(status.st_mtime_ns, str(path), status.st_size, not name[1]))
        return [entry for entry in entries if entry.is_whole or not _evict(entry)]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the whole cache for the block."""
        fd = open_locked(self.folder / _LOCK, wait=True)
        try:
            yield
        finally:
            unlock(fd)

    def _check_apart(self, storage: ReadableStorage) -> None:
        """Refuse a folder inside the dataset: `wdsplit verify` would find files that are not the dataset's."""
        if isinstance(storage, LocalStorage):
            dataset, folder = os.path.realpath(storage.root), os.path.realpath(self.folder)
            if os.path.commonpath([dataset, folder]) == dataset:
                raise InputError(
                    "the cache folder is inside the dataset",
                    place=str(self.folder),
                    expected=f"a folder outside {storage.url}",
                    remedy="give another folder as cache_dir",
                )

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn errors of the operating system into wdsplit's; a full disk is a _NoRoomError."""
        try:
            yield
        except WdsplitError:
            raise
        except OSError as error:
            place = str(error.filename or self.folder)
            if error.errno in _FULL:
                raise _NoRoomError("the disk is full", place=place, url=str(self.folder)) from error
            raise StorageError(
                f"cannot use the cache: {error.strerror or error}",
                place=place,
                remedy="check permissions and the disk, or give another cache_dir",
                url=str(self.folder),
            ) from error

    def _warn(self, kind: str, text: str) -> None:
        """Warn once per process about one kind of problem with this cache."""
        mine = object()
        if _warned.setdefault((str(self.folder), kind), mine) is mine:
            logger.warning("cache %s: %s", self.folder, text)


def _copied(file: ReadableFile, fd: int, is_needed: Callable[[], bool]) -> str | None:
    """Copy all bytes of a tar into a file; return their checksum, or None once they are no longer needed."""
    buffer = memoryview(bytearray(min(_READ_BYTES, file.size)))
    digest = xxhash.xxh3_128()
    for offset in range(0, file.size, _READ_BYTES):
        if not is_needed():
            return None
        piece = buffer[: file.size - offset]
        file.read_into(piece, offset)
        digest.update(piece)
        _write(fd, piece, offset)
    return checksum_of(digest)


def _write(fd: int, data: memoryview, offset: int) -> None:
    """Write all bytes: the system may write a part of them."""
    while len(data):
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def _evict(entry: _Entry) -> bool:
    """Remove an entry unless it is in use; tell whether it was removed. The caller locks the cache."""
    with _try_lock(entry.path) as is_mine:
        if is_mine:
            with suppress(FileNotFoundError):
                os.unlink(entry.path)
        return is_mine


@contextmanager
def _try_lock(path: str) -> Iterator[bool]:
    """Try to lock a file for the block; give False if it is locked elsewhere. A missing file counts as locked by us."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError) as error:
        yield isinstance(error, FileNotFoundError)
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_mine = leads_to(Path(path), fd)
        except BlockingIOError:
            is_mine = False
        yield is_mine
    finally:
        unlock(fd)
