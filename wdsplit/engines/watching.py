"""How far a preparation has got, such as reading footers or counting rows: a command shows it, the library need not.

Passes over tasks report their progress by their arguments; this is for what comes before them, deep inside.
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
    """Have a function called, while the block runs, with what is being done, how much of it is done, and of how much.

    Args:
        watcher: Called in the thread that runs the block.
    """
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def watched(
    what: str, items: Iterable[Item], total: int | None = None, count: Callable[[Item], int] = lambda item: 1
) -> Iterator[Item]:
    """Give what an iterable gives, and say how much of it has come.

    Args:
        what: What is being done, for people: "counting rows".
        items: The steps of it.
        total: How many items there are; None if nobody knows.
        count: Says how many an item counts as.
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
