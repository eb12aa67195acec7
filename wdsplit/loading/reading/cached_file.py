"""A cached shard as an open file: the lock that prevents eviction, and the note that it was checked."""

from __future__ import annotations

import fcntl
import functools
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import xxhash

from wdsplit.shards.places import places_path
from wdsplit.storage.local_file import LocalFile
from wdsplit.storage.locks import leads_to, unlock

__all__ = ["NOTE_BYTES", "CachedFile", "try_lock"]

NOTE_BYTES = 16
"""Size of the note at the end of an entry's places: the proof that its tar was checked."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

_proven: set[bytes] = set()
"""Proofs of the entries that this process checked, but may not write to."""


class CachedFile(LocalFile):
    """A shard in a cache, open for reading; it is not evicted before it is closed.

    Attributes:
        path: Its tar.
        places: Its places, which end with a note.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path, self.places = path, Path(places_path(str(path)))
        fcntl.flock(self._fd, fcntl.LOCK_SH)  # an exclusive lock lasts for a moment only

    @property
    def is_current(self) -> bool:
        """Whether its path still leads to it: it may have been removed before it was locked."""
        return leads_to(self.path, self._fd)

    def touch(self) -> None:
        """Record the time of use as the places' mtime: the tar's mtime proves that the tar is unchanged."""
        now = time.time_ns()
        with suppress(PermissionError, FileNotFoundError):  # another user's file; one that was discarded
            os.utime(self.places, ns=(now, now))

    def proof(self) -> bytes:
        """Return a hash that changes if the file is written to, or the node reboots, as a disk may have lost data."""
        status = os.fstat(self._fd)
        parts = _boot_id(), status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        return xxhash.xxh3_128_digest(repr(parts).encode())

    @property
    def is_checked(self) -> bool:
        """Whether it is unchanged since some process of this node checked it; FileNotFoundError if it has no places."""
        proof = self.proof()
        if proof in _proven:
            return True
        return self.places.read_bytes()[-NOTE_BYTES:] == proof

    def note_checked(self, proof: bytes) -> None:
        """Record for all processes of the node that it was right when it had this proof."""
        try:
            with open(self.places, "r+b") as places:
                places.seek(-NOTE_BYTES, os.SEEK_END)
                places.write(proof)
        except OSError:
            _proven.add(proof)


@contextmanager
def try_lock(path: Path) -> Iterator[bool]:
    """Try to lock a file for the block; give whether it is locked: not if it is missing, or locked elsewhere."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        yield False
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            has_lock = leads_to(path, fd)
        except BlockingIOError:
            has_lock = False
        yield has_lock
    finally:
        unlock(fd)


@functools.cache
def _boot_id() -> str:
    """Return an id of this boot of the node; without one, an id of this process, which then checks entries again."""
    try:
        return _BOOT_ID.read_text("ascii")
    except OSError:
        return os.urandom(16).hex()
