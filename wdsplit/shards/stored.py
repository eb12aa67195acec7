"""Views and annotations, stored by name beside the shards of a dataset; some may be damaged."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from wdsplit.errors import CorruptDataError, InputError, WdsplitError

__all__ = ["damaged", "intact", "scan", "warn_of_damaged"]

logger = logging.getLogger(__name__)

Stored = TypeVar("Stored")


def scan(names: Iterable[str], read: Callable[[str], Stored]) -> dict[str, Stored | WdsplitError]:
    """Return the stored objects by name, and the errors of damaged ones.

    Args:
        names: The names.
        read: Reads the object of a name.
    """
    found: dict[str, Stored | WdsplitError] = {}
    for name in names:
        try:
            found[name] = read(name)
        except (CorruptDataError, InputError) as error:
            found[name] = error
    return found


def intact(found: Mapping[str, Stored | WdsplitError]) -> dict[str, Stored]:
    """Return the objects that are not damaged, from the result of `scan`."""
    return {name: each for name, each in found.items() if not isinstance(each, WdsplitError)}


def damaged(found: Mapping[str, Any]) -> dict[str, WdsplitError]:
    """Return the errors of damaged objects, from the result of `scan`."""
    return {name: each for name, each in found.items() if isinstance(each, WdsplitError)}


def warn_of_damaged(found: Mapping[str, Any], what: str, place: str) -> None:
    """Warn of damaged objects in the result of `scan`; `what` names their kind."""
    for name, error in damaged(found).items():
        logger.warning("%s: %s %r left out: %s", place, what, name, error.cause)
