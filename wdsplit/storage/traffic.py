"""Counts of the bytes and retries from remote storages, for each reader.

Storages call `count`. `Traffic.counting` sets a reader's counter, so that no counter is passed to every file.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar
from typing import TypeVar

from wdsplit.arrays import Int64
from wdsplit.storage.locks import ProcessLock

__all__ = ["Traffic", "count"]

Item = TypeVar("Item")


class Traffic:
    """Bytes and retries of one reader, and of the threads that it starts with a copy of its context.

    Args:
        cells: int64 of shape (2,): the counts of bytes and retries.
    """

    def __init__(self, cells: Int64) -> None:
        self._cells = cells
        self._lock = ProcessLock()

    def move(self, cells: Int64) -> None:
        """Count in other cells from now on."""
        with self._lock:
            self._cells = cells

    def add(self, num_bytes: int, retries: int) -> None:
        """Add to the counts."""
        with self._lock:
            self._cells[0] += num_bytes
            self._cells[1] += retries

    def counting(self, items: Iterator[Item]) -> Iterator[Item]:
        """Yield items, and count what is read to make them, but not what their consumer reads meanwhile."""
        while True:
            token = _current.set(self)
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                _current.reset(token)
            yield item


_current: ContextVar[Traffic | None] = ContextVar("wdsplit_traffic", default=None)


def count(num_bytes: int = 0, retries: int = 0) -> None:
    """Count bytes from a remote storage, or retries, for the current reader, if there is one."""
    traffic = _current.get()
    if traffic is not None:
        traffic.add(num_bytes, retries)
