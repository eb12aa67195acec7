"""Integers that users give as arguments: of any kind, such as numpy's. Pure (no I/O)."""

from __future__ import annotations

import operator
from typing import Any

from wdsplit.errors import InputError

__all__ = ["at_least", "whole"]


def whole(value: Any) -> Any:
    """Return any kind of integer (numpy's, say) as an int, and other values unchanged, for the checks to refuse."""
    return operator.index(value) if hasattr(value, "__index__") and not isinstance(value, bool) else value


def at_least(low: int, name: str, value: Any, also: str = "") -> int:
    """Return an argument that must be an integer of at least `low`; any kind of integer becomes an int.

    Raises:
        InputError: It is none, or less; `also` says what else would be valid.
    """
    number = whole(value)
    if type(number) is not int or number < low:
        raise InputError(f"invalid {name}", expected=f"an integer of at least {low}{also}", found=repr(value)[:100])
    return number
