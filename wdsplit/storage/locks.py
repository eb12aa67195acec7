"""Locks between threads, and file locks between processes."""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

__all__ = ["ProcessLock", "leads_to", "open_locked", "unlock"]


class ProcessLock:
    """A lock between the threads of a process. A forked process starts with it unlocked."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if self._pid != os.getpid():
            self._lock, self._pid = threading.Lock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def open_locked(path: Path, wait: bool) -> int:
    """Create, open and lock a file, and return its descriptor. Repeat if the last owner has removed it meanwhile.

    Raises:
        BlockingIOError: Another process has locked it, and `wait` is False.
    """
    while True:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            if leads_to(path, fd):
                return fd
        except OSError:
            os.close(fd)
            raise
        os.close(fd)


def unlock(fd: int) -> None:
    """Unlock and close a file. Closing alone would leave it locked by processes forked meanwhile, which have a copy."""
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


def leads_to(path: Path, fd: int) -> bool:
    """Tell whether a path names the file with this descriptor."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
