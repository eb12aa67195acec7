"""The progress of preparation steps, such as reading footers or counting rows; commands show it.

Passes over tasks report their progress through arguments. This is for steps before them, deep inside the library.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

__all__ = ["watched", "watching"]

Item = TypeVar("Item")
Watcher = Callable[[str, int, int | None], None]

_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Report preparation steps to a function while the block runs.

    Args:
        watcher: Called with the step, the units done, and their total or None; in the thread that runs the block.
    """
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def watched(
    what: str, items: Iterable[Item], total: int | None = None, count: Callable[[Item], int] = lambda item: 1
) -> Iterator[Item]:
    """Yield the items of an iterable, and report the progress to the watcher, if there is one.

    Args:
        what: The step, for display: "counting rows".
        items: The items.
        total: Total number of units; None if unknown.
        count: Returns the number of units of an item.
    """
    watcher = _watcher.get()
    done = 0
    if watcher is not None:
        watcher(what, done, total)
    for item in items:
        yield item
        done += count(item)
        if watcher is not None:
            watcher(what, done, total)
