"""Locks between threads, file locks between processes, and forks while threads end."""

from __future__ import annotations

import fcntl
import os
import threading
import time
import weakref
from pathlib import Path

__all__ = ["ProcessLock", "end_before_forks", "leads_to", "open_locked", "unlock"]

_FORK_WAITS_S = 1.0
_threads: set[threading.Thread] = set()
"""Those for which forks wait, once they have begun to end."""
_locks: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


class ProcessLock:
    """A lock between the threads of a process. A forked process starts with it unlocked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def acquire(self, is_waiting: bool = True) -> bool:
        """Lock it; without waiting for another thread, tell whether that was possible."""
        return self._lock.acquire(is_waiting)

    def release(self) -> None:
        """Unlock it."""
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


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


def end_before_forks() -> None:
    """Let this process fork only before this thread begins to end, or after it has ended entirely. Linux only.

    A thread that has ended for Python still gives back what OpenSSL keeps for it, under a lock. A process that is
    forked just then would have that lock locked, and wait for it forever.
    """
    _threads.difference_update([thread for thread in _threads.copy() if not thread.is_alive() and not _exists(thread)])
    _threads.add(threading.current_thread())


def _exists(thread: threading.Thread) -> bool:
    """Tell whether the system still has a thread."""
    return os.path.exists(f"/proc/self/task/{thread.native_id}")


def _wait_for_ending_threads() -> None:
    deadline = time.monotonic() + _FORK_WAITS_S
    for thread in _threads.copy():
        while not thread.is_alive() and _exists(thread) and time.monotonic() < deadline:
            time.sleep(0.0001)


def _unlock_all() -> None:
    """Unlock all locks in a process that was just forked, while it has only one thread."""
    for lock in list(_locks):
        lock._lock = threading.Lock()


os.register_at_fork(before=_wait_for_ending_threads, after_in_child=_unlock_all)
