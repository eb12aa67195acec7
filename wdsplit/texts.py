"""Formats numbers, bytes, seconds, and untrusted texts of a dataset for display.

Pure (no I/O).
"""

from __future__ import annotations

import math
import re
import reprlib
import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

__all__ = [
    "Brief",
    *("class_name", "counted", "escaped", "human_bytes", "human_number", "human_seconds", "listed", "percent"),
    *("quoted", "safe_text"),
]

_KEPT = "\n\t"
_MAX_DIGITS = 10
"""Of the number of a class: `int` refuses texts of thousands of digits."""
_SHELL_SPECIAL = re.compile(r'["$`\\\\]|!(?![= ])')
"""Characters that a shell interprets inside double quotes."""


class Brief:
    """What a dataclass with `repr=False` inherits to show its fields in a line: long texts and lists are shortened."""

    def __repr__(self) -> str:
        shown = {each.name: reprlib.repr(getattr(self, each.name)) for each in fields(self)}  # type: ignore[arg-type]
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in shown.items())})"


def safe_text(text: str, limit: int, lines: bool = False) -> str:
    """Return a text of a dataset for display: shortened, and without invisible characters; `lines` as for `escaped`."""
    return escaped(text if len(text) <= limit else f"{text[: limit - 1]}…", lines)


def escaped(text: str, lines: bool = False) -> str:
    """Return a text with the code points of invisible characters, which may control a terminal or hide other text.

    Args:
        text: The text.
        lines: Keep line breaks and tabs.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or (lines and each in _KEPT) else f"\\u{ord(each):04x}" for each in text)


def class_name(text: str, names: Sequence[str]) -> str:
    """Return the name of a class: that of `names`, if the text is the number of one, else the text."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < _MAX_DIGITS else len(names)
    return names[number] if number < len(names) else text


def counted(number: int, one: str, many: str = "") -> str:
    """Return a number of things: `1 class`, `10 classes`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def listed(items: Iterable[Any], most: int = 8, show: Callable[[Any], str] = str) -> str:
    """Return the first few of some items, made texts by `show`, and how many more there are: `a, b, and 3 more`."""
    found = list(items)
    more = [f"and {len(found) - most:,} more"] if len(found) > most else []
    return ", ".join([*map(show, found[:most]), *more])


def human_bytes(size: float) -> str:
    """Return a number of bytes, in decimal units."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} PB"


def human_seconds(seconds: float) -> str:
    """Return a time: `12 ms`, `3.4 s`, `5 min`, `2.5 h`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def human_number(value: float) -> str:
    """Return a number with about three significant digits."""
    if not math.isfinite(value):
        return str(value)
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:,.3g}"


def percent(part: int, whole: int) -> str:
    """Return a share in per cent; it is 100 % only for all, and 0 % only for none."""
    if part in (0, whole):
        return "100 %" if part else "0 %"
    return f"{min(99.9, max(0.1, 100 * part / whole)):.1f} %"


def quoted(text: str) -> str:
    """Return a text quoted for a command line, in double quotes where they are easier to read."""
    word = shlex.quote(text)
    return word if word == text or _SHELL_SPECIAL.search(text) else f'"{text}"'
