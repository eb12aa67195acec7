"""The folder of a cache of shards: its files, their locks, and eviction.

An entry is named by the checksum and the size of a shard's bytes, in a subfolder by its first two digits.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from wdsplit.errors import InputError, StorageError, WdsplitError
from wdsplit.loading.reading.cached_file import CachedFile, try_lock
from wdsplit.shards.places import places_path
from wdsplit.storage.local import LocalStorage
from wdsplit.storage.locks import open_locked, unlock

__all__ = [
    "CacheFolder",
    "CacheUsage",
    "Cleared",
    "NoRoomError",
    "PartialShard",
    "is_downloading",
]

_MARKER, _LOCK = "wdsplit-cache", "lock"
_MARKER_TEXT = b"This folder is a cache of wdsplit: `wdsplit cache` shows what is in it, and clears it.\n"
_SUBFOLDER = re.compile(r"[0-9a-f]{2}")
_NAME = re.compile(r"([0-9a-f]{32}-[0-9]+\.tar)((?:\.places)?(?:\.part)?)")
_TAR, _PLACES, _PART, _PLACES_PART = "", ".places", ".part", ".places.part"
_FREE_PART = 10
"""A tenth of the disk is left free if there is no size limit."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_STAT_BLOCK_BYTES = 512


@dataclass(frozen=True)
class CacheUsage:
    """The contents of a cache.

    Attributes:
        num_shards: Shards that are whole.
        num_bytes: Bytes of all files.
        num_in_use: Shards that some process has open.
        num_downloads: Shards that are being downloaded.
        num_leftovers: Shards whose download was killed.
        first_used_ns: When the shard that is evicted next was used last, in ns since 1970; None if there is no shard.
        last_used_ns: When any shard was used last; None if there is no shard.
    """

    num_shards: int
    num_bytes: int
    num_in_use: int
    num_downloads: int
    num_leftovers: int
    first_used_ns: int | None
    last_used_ns: int | None


@dataclass(frozen=True)
class Cleared:
    """The result of clearing a cache.

    Attributes:
        num_removed: Shards that were removed, leftovers included.
        removed_bytes: Their bytes.
        num_kept: Shards that are in use, or being downloaded.
        kept_bytes: Their bytes.
    """

    num_removed: int
    removed_bytes: int
    num_kept: int
    kept_bytes: int


class NoRoomError(StorageError):
    """There is no room for a shard, and nothing more can be evicted."""


class PartialShard:
    """A shard that is being downloaded: files of full size, and a lock. On exit they are removed, unless published.

    Args:
        path: The path that its tar will have.
        num_bytes: The size of its tar.
        places_bytes: The size of its places, the note at its end included.
    """

    def __init__(self, path: Path, num_bytes: int, places_bytes: int) -> None:
        self.path = path
        self._is_published = False
        self._fd = os.open(_with(path, _PART), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            os.ftruncate(self._fd, num_bytes)
            with open(_with(path, _PLACES_PART), "wb") as places:
                places.truncate(places_bytes)
        except BaseException:
            self._leave()
            raise

    def __enter__(self) -> PartialShard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._leave()

    def _leave(self) -> None:
        try:
            if not self._is_published:
                _remove(self.path, _PLACES_PART, _PLACES, _PART)
        finally:
            unlock(self._fd)

    def write(self, data: memoryview, offset: int) -> None:
        """Write bytes of the tar, repeating partial writes."""
        while len(data):
            written = os.pwrite(self._fd, data, offset)
            data, offset = data[written:], offset + written

    def finish(self, places: bytes | memoryview) -> None:
        """Write the places, and flush both files to disk."""
        with open(_with(self.path, _PLACES_PART), "r+b") as file:
            file.write(places)
            file.flush()
            os.fsync(file.fileno())
        os.fsync(self._fd)

    def publish(self) -> None:
        """Give the files their final names, the tar's last, and release the lock. The caller locks the cache."""
        os.replace(_with(self.path, _PLACES_PART), _with(self.path, _PLACES))
        os.replace(_with(self.path, _PART), self.path)
        self._is_published = True
        fcntl.flock(self._fd, fcntl.LOCK_UN)


class CacheFolder:
    """The entries of a cache. No file is touched before the first call.

    `NAME.tar` is complete and verified; `NAME.tar.places` are its places, with a note that the tar was checked. During
    the download both end in `.part`, and have their full size from the start.

    The locks are those of the operating system, which releases them however a process ends:

    - `lock`, exclusive: while entries are counted, made, named or removed;
    - the `.part` of a tar, exclusive: while it is downloaded;
    - a tar, shared: while it is open;
    - places, exclusive: while their tar is checked.

    Args:
        path: The folder; created if missing.
        max_bytes: Size limit for all entries together; None to keep a tenth of the disk free.
    """

    def __init__(self, path: Path, max_bytes: int | None) -> None:
        self.path = path
        self.max_bytes = max_bytes

    def reserve(self, path: Path, num_bytes: int, places_bytes: int) -> PartialShard | None:
        """Make room for a shard to download; None if it is cached, or some process downloads it.

        Raises:
            NoRoomError: Too much is in use, or the disk is full.
            InputError: The folder contains other files.
        """
        with self._locked():
            entries = self._without_leftovers(self._entries())
            if any(entry.name == str(path) for entry in entries):
                return None
            self._make_room(entries, num_bytes + places_bytes)
            path.parent.mkdir(exist_ok=True)
            return PartialShard(path, num_bytes, places_bytes)

    def publish(self, part: PartialShard) -> CachedFile:
        """Make a shard that was downloaded an entry, and open it."""
        with self._locked():
            part.publish()
            file = CachedFile(part.path)
            file.note_checked(file.proof())  # it was verified during the download
            file.touch()  # the time of its last write is the system's, which is some milliseconds behind
            return file

    def shrink(self) -> None:
        """Evict entries that are not in use until the rest are within the size limit."""
        if self.max_bytes is None or not (self.path / _MARKER).exists():
            return
        with self.translated(), self._locked():
            entries = self._without_leftovers(self._entries())
            left = sum(entry.num_bytes for entry in entries)
            for entry in _by_use(entries):
                if left <= self.max_bytes:
                    break
                left -= entry.num_bytes if _evict(entry) else 0

    def tars(self) -> list[Path]:
        """Return the tars of all shards that are whole, sorted."""
        self._check_is_cache()
        with self.translated():
            return [entry.path for entry in self._entries() if entry.is_whole]

    def discard(self, file: CachedFile) -> None:
        """Remove a damaged entry; processes that have it open keep it."""
        with self.translated(), self._locked():
            if file.is_current:
                _remove(file.path, _TAR, _PLACES)

    def usage(self) -> CacheUsage:
        """Return the entries of the cache; other processes may change it meanwhile."""
        self._check_is_cache()
        with self.translated():
            entries = self._entries()
            whole = [entry for entry in entries if entry.is_whole]
            parts = [entry for entry in entries if not entry.is_whole]
            num_in_use = sum(_is_locked(entry.path) for entry in whole)
            num_downloads = sum(is_downloading(entry.path) for entry in parts)
        used = [entry.used_ns for entry in whole]
        return CacheUsage(
            num_shards=len(whole),
            num_bytes=sum(entry.num_bytes for entry in entries),
            num_in_use=num_in_use,
            num_downloads=num_downloads,
            num_leftovers=len(parts) - num_downloads,
            first_used_ns=min(used, default=None),
            last_used_ns=max(used, default=None),
        )

    def clear(self) -> Cleared:
        """Remove all entries that are not in use."""
        self._check_is_cache()
        with self.translated(), self._locked():
            before = self._entries()
            kept = [entry for entry in self._without_leftovers(before) if not (entry.is_whole and _evict(entry))]
            for folder in self._subfolders():
                with suppress(OSError):  # it is not empty
                    folder.rmdir()
        before_bytes, kept_bytes = (sum(entry.num_bytes for entry in entries) for entries in (before, kept))
        return Cleared(len(before) - len(kept), before_bytes - kept_bytes, len(kept), kept_bytes)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Turn errors of the operating system into wdsplit's; a full disk is a NoRoomError."""
        try:
            yield
        except WdsplitError:
            raise
        except OSError as error:
            place = str(error.filename or self.path)
            if error.errno in _FULL:
                raise NoRoomError("the disk is full", place=place, url=str(self.path)) from error
            raise StorageError(
                f"cannot use the cache: {error.strerror or error}",
                place=place,
                remedy="check permissions and the disk, or give another cache_dir",
                url=str(self.path),
            ) from error

    def _make_room(self, entries: list[_Entry], num_bytes: int) -> None:
        """Evict the least recently used entries until there is room for `num_bytes` bytes."""
        disk = os.statvfs(self.path)
        kept_free = disk.f_blocks * disk.f_frsize // _FREE_PART if self.max_bytes is None else 0
        unwritten = sum(entry.unwritten_bytes for entry in entries)
        rounding = 2 * disk.f_frsize * (1 + sum(not entry.is_whole for entry in entries))
        room = disk.f_bavail * disk.f_frsize - kept_free - unwritten - rounding
        left = sum(entry.num_bytes for entry in entries)
        if self.max_bytes is not None:
            room = min(room, self.max_bytes - left)
        for entry in _by_use(entries):
            if room >= num_bytes:
                return
            if _evict(entry):
                room += entry.num_bytes
                left -= entry.num_bytes
        if room < num_bytes:
            raise NoRoomError("all cached shards are in use" if left else "the disk is full", url=str(self.path))

    def _without_leftovers(self, entries: list[_Entry]) -> list[_Entry]:
        """Remove the files of killed downloads; return the other entries."""
        kept = []
        for entry in entries:
            if not entry.is_whole:
                with try_lock(_with(entry.path, _PART)) as has_lock:
                    if has_lock or _PART not in entry.files:
                        _remove(entry.path, _PLACES_PART, _PLACES, _PART)
                        continue
            kept.append(entry)
        return kept

    def _entries(self) -> list[_Entry]:
        """Return the entries, sorted by path."""
        found: dict[str, dict[str, os.stat_result]] = {}
        for folder in self._subfolders():
            for item in os.scandir(folder):
                name = _NAME.fullmatch(item.name)
                if name is not None and item.name.startswith(folder.name):
                    try:
                        status = item.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue
                    found.setdefault(f"{folder}/{name[1]}", {})[name[2]] = status
        return [_Entry(name, files) for name, files in sorted(found.items())]

    def _subfolders(self) -> list[Path]:
        return [self.path / name for name in sorted(os.listdir(self.path)) if _SUBFOLDER.fullmatch(name)]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the whole cache for the block."""
        self._make()
        fd = open_locked(self.path / _LOCK, wait=True)
        try:
            yield
        finally:
            unlock(fd)

    def _make(self) -> None:
        """Make the folder, and mark it as a cache."""
        marker = self.path / _MARKER
        if marker.exists():
            return
        self.path.mkdir(parents=True, exist_ok=True)
        known = {_MARKER, _LOCK, "indexes", "lost+found"}
        others = [name for name in sorted(os.listdir(self.path)) if not (name in known or _SUBFOLDER.fullmatch(name))]
        if others:
            raise InputError(
                "the cache folder contains other files",
                place=str(self.path),
                expected="a new or empty folder, or a wdsplit cache",
                found=", ".join(others[:5]),
                remedy="give a folder of its own as cache_dir",
            )
        marker.write_bytes(_MARKER_TEXT)

    def _check_is_cache(self) -> None:
        if not (self.path / _MARKER).is_file():
            raise InputError(
                "not a wdsplit cache folder",
                place=str(self.path),
                expected=f"the cache_dir of a dataset: a folder with a file {_MARKER}",
                found=LocalStorage(str(self.path)).describe_contents(),
                remedy="check the path",
            )


@dataclass(frozen=True)
class _Entry:
    """The files of a shard.

    Attributes:
        name: The path of its tar, as text: there may be many entries.
        files: The status of each file, by the suffix that follows the tar's name.
    """

    name: str
    files: dict[str, os.stat_result]

    @property
    def path(self) -> Path:
        return Path(self.name)

    @property
    def is_whole(self) -> bool:
        return _TAR in self.files

    @property
    def num_bytes(self) -> int:
        return sum(file.st_size for file in self.files.values())

    @property
    def unwritten_bytes(self) -> int:
        """Bytes that are not written yet, and take no room on the disk."""
        parts = [file for suffix, file in self.files.items() if suffix.endswith(_PART)]
        return sum(max(0, file.st_size - _STAT_BLOCK_BYTES * file.st_blocks) for file in parts)

    @property
    def used_ns(self) -> int:
        """When it was used last; 0 while it is downloaded."""
        return self.files[_PLACES].st_mtime_ns if self.is_whole and _PLACES in self.files else 0


def is_downloading(path: Path) -> bool:
    """Tell whether some process downloads the shard whose tar will have this path."""
    return _is_locked(_with(path, _PART))


def _by_use(entries: list[_Entry]) -> list[_Entry]:
    """Return the whole entries, the least recently used first."""
    return sorted((entry for entry in entries if entry.is_whole), key=lambda entry: (entry.used_ns, entry.name))


def _evict(entry: _Entry) -> bool:
    """Remove an entry unless it is in use; tell whether it was removed. The caller locks the cache."""
    with try_lock(entry.path) as has_lock:
        if has_lock:
            _remove(entry.path, _TAR, _PLACES)
        return has_lock


def _remove(path: Path, *suffixes: str) -> None:
    for suffix in suffixes:
        _with(path, suffix).unlink(missing_ok=True)


def _with(path: Path, suffix: str) -> Path:
    return Path(places_path(str(path))) if suffix == _PLACES else path.with_name(path.name + suffix)


def _is_locked(path: Path) -> bool:
    """Tell whether some process has locked a file."""
    with try_lock(path) as has_lock:
        return not has_lock and path.exists()
