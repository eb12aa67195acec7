"""Locks that a fork does not break."""

from __future__ import annotations

import os
import threading

__all__ = ["ProcessLock"]


class ProcessLock:
    """A lock between the threads of a process. In a forked process it is free, whatever it was before."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        if self._pid != os.getpid():
            self._lock, self._pid = threading.Lock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
