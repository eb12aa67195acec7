"""Parses sizes such as "256MB". Pure (no I/O)."""

from __future__ import annotations

import re

from wdsplit.errors import InputError

__all__ = ["parse_size"]

_SIZE = re.compile(r"\s*(\d{1,15}(?:\.\d+)?)\s*([kmgtp]?)(i?)b?\s*")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}


def parse_size(size: int | str) -> int:
    """Return a number of bytes.

    Args:
        size: The number, or a text such as "256MB", "1.5GiB" or "500000".

    Raises:
        InputError: The size is invalid, or less than a byte.
    """
    match = _SIZE.fullmatch(size.lower()) if isinstance(size, str) else None
    if match is not None:
        num_bytes = int(float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2]])
    else:
        num_bytes = size if type(size) is int else 0
    if num_bytes < 1:
        raise InputError("invalid size", expected="bytes, or a text such as '256MB' or '1GiB'", found=repr(size))
    return num_bytes
