"""What is stored beside the shards of a dataset under names, views and annotations: some of it may be damaged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from wdsplit.errors import CorruptDataError, InputError, WdsplitError

__all__ = ["damaged", "intact", "scan", "warn_of_damaged"]

logger = logging.getLogger(__name__)

Stored = TypeVar("Stored")


def scan(names: Iterable[str], read: Callable[[str], Stored]) -> dict[str, Stored | WdsplitError]:
    """Return what is stored, by its names; the error of what is damaged.

    Args:
        names: The names.
        read: Reads what is stored under a name.
    """
    found: dict[str, Stored | WdsplitError] = {}
    for name in names:
        try:
            found[name] = read(name)
        except (CorruptDataError, InputError) as error:
            found[name] = error
    return found


def intact(found: Mapping[str, Stored | WdsplitError]) -> dict[str, Stored]:
    """Return what is not damaged, of what `scan` has found."""
    return {name: each for name, each in found.items() if not isinstance(each, WdsplitError)}


def damaged(found: Mapping[str, Any]) -> dict[str, WdsplitError]:
    """Return the errors of what is damaged, of what `scan` has found."""
    return {name: each for name, each in found.items() if isinstance(each, WdsplitError)}


def warn_of_damaged(found: Mapping[str, Any], what: str, place: str) -> None:
    """Warn of what is damaged, of what `scan` has found; `what` says what it is."""
    for name, error in damaged(found).items():
        logger.warning("%s: %s %r left out: %s", place, what, name, error.cause)
