"""Hive partitions: columns in folder names, as in `year=2024/lang=en/part-0.parquet`.

Pure (no I/O). All consecutive `name=value` folders directly above a file count, so a file has the same columns whether
it is given by folder, pattern or path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import unquote

from wdsplit.errors import InputError
from wdsplit.tables.table import Value

__all__ = ["Partitions"]

_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
"""A 64-bit integer; `01` is one, as in Arrow."""


class Partitions:
    """The partitions that folders name.

    Args:
        folders: Absolute paths or URLs; empty for none.

    Attributes:
        are_integers: Column name to whether all of its values are integers, in the order of the folders.

    Raises:
        InputError: Two folders of a path name the same column, or a name is not UTF-8.
    """

    def __init__(self, folders: Iterable[str]) -> None:
        self._texts = {folder: _texts_of(folder) for folder in dict.fromkeys(folders)}
        self.are_integers: dict[str, bool] = {}
        found: dict[str, set[str | None]] = {}
        for texts in self._texts.values():
            for name, text in texts:
                found.setdefault(name, set()).add(text)
        for name, values in found.items():
            values.discard(None)
            self.are_integers[name] = bool(values) and all(_INTEGER.fullmatch(str(value)) for value in values)

    def values(self, folder: str) -> dict[str, Value]:
        """Return the value of each column in the files of a folder; None where the folder does not name the column."""
        texts = dict.fromkeys(self.are_integers) | dict(self._texts[folder])
        return {
            name: int(text) if text is not None and self.are_integers[name] else text for name, text in texts.items()
        }

    def notes(self) -> list[str]:
        """Return a note on each column, with its type and origin."""
        return [
            f"{name}: {'int64' if is_integer else 'string'}, from the names of folders"
            for name, is_integer in self.are_integers.items()
        ]


def _texts_of(folder: str) -> tuple[tuple[str, str | None], ...]:
    """Return the columns that the last folders of a path name, and their values as text."""
    names, texts = list[str](), list[str | None]()
    for part in reversed(folder.split("/")):
        name, equals, value = part.partition("=")
        if not (name and equals):
            break
        names.insert(0, unquote(name, errors="surrogateescape"))
        texts.insert(0, None if value == _NULL else unquote(value, errors="surrogateescape"))
    try:
        "".join([*names, *(text or "" for text in texts)]).encode()
    except UnicodeEncodeError as error:
        raise _unusable(folder, "folders whose percent-encoded names are UTF-8") from error
    if len({*names}) < len(names):
        raise _unusable(folder, "folders that name each column once")
    return tuple(zip(names, texts, strict=True))


def _unusable(folder: str, expected: str) -> InputError:
    return InputError(
        "the folder names cannot be read as columns",
        expected=expected,
        remedy="rename the folders, or use --no-hive to leave such columns out",
        url=folder,
    )
