"""The registry of input formats. Each is a module with the functions of `Format`.

All formats share the rest, such as selecting rows, in `wdsplit.tables.read`. A new format needs a module and its
suffixes here.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator, Sequence
from typing import Protocol, cast

import pyarrow as pa

from wdsplit.errors import InputError
from wdsplit.fields.infer import MEDIA_SUFFIXES
from wdsplit.tables.formats.opening import open_input
from wdsplit.tables.table import InputFile, Remote
from wdsplit.urls import shown_url

__all__ = [
    "FOLDER_SUFFIXES",
    "Format",
    "format_by_content",
    "format_named",
    "is_compressed",
    "is_media",
    "is_table",
    "name_of_format",
]


FOLDER_SUFFIXES = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".csv": "csv",
    ".tsv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".tar": "tar",
}
"""The suffixes of tables in folders: suffix to name of the format."""

_SUFFIXES = FOLDER_SUFFIXES | {".pq": "parquet", ".json": "jsonl"}
"""With those of files that must be named themselves."""

_MAGIC = {b"PAR1": "parquet", b"PARE": "parquet", b"ARROW1": "arrow"}
"""First bytes to name of the format; `PARE` begins parquet with an encrypted footer."""

_COMPRESSED = (".gz", ".bz2", ".zst", ".xz", ".lz4", ".tgz")


class Format(Protocol):
    """What a module of a format offers.

    Two more functions are optional. `common_schema(schemas)`, for files that do not say the types of their columns,
    returns the columns of all files, given each file's path and columns; else types are promoted.
    `matching_groups(file, expression, schema, known)`, for files with statistics, returns the row groups that may have
    rows that meet a condition, given one that all rows meet (or None).
    """

    WHAT: str
    """What its files are called in a message, such as `parquet`."""

    def open_file(self, path: str, remote: Remote | None = None) -> tuple[InputFile, pa.Schema]:
        """Read the parts of a file that a plan needs: its footer, or the whole file if it has none.

        Args:
            path: The file, or what to call it if it is remote.
            remote: How it is read, if it is remote.

        Raises:
            pa.ArrowException, OSError, ValueError: It cannot be read; the caller names the file.
        """

    def read_batches(
        self, file: InputFile, groups: Sequence[int], columns: Sequence[str], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some row groups in order, in batches of about 16 MiB that may span row groups.

        Args:
            file: The file.
            groups: The row groups, in ascending order.
            columns: Names of columns that the file has, in the order requested, at least one.
            schema: The columns of the whole input, which give the types if files have none.

        Raises:
            InputError: The file has changed since it was opened.
            pa.ArrowException, OSError, ValueError: It cannot be read; the caller names the file.
        """


def is_compressed(path: str) -> bool:
    """Return whether a path is that of a compressed table, by its suffix."""
    lower = path.lower()
    return lower.endswith((".tgz", *(f"{suffix}{more}" for suffix in _SUFFIXES for more in _COMPRESSED)))


def is_media(path: str) -> bool:
    """Return whether a path is that of an image, audio or video file, by its suffix."""
    return os.path.splitext(shown_url(path))[1].lower() in MEDIA_SUFFIXES


def is_table(path: str) -> bool:
    """Return whether a path is that of a table of a known format, by its suffix."""
    return shown_url(path).lower().endswith(tuple(_SUFFIXES))


def format_named(name: str) -> Format:
    """Return the module of a format, imported when it is first used."""
    return cast(Format, importlib.import_module(f"wdsplit.tables.formats.{name}"))


def name_of_format(path: str, remote: Remote | None = None) -> str:
    """Return the name of a file's format: by its suffix, else by its first bytes. The arguments are `open_file`'s.

    Raises:
        InputError: Neither belongs to a known format.
    """
    lower = path.lower()
    for suffix, name in _SUFFIXES.items():
        if lower.endswith(suffix):
            return name
    found = format_by_content(path, remote)
    if found is not None:
        return found
    compressed = lower.endswith(_COMPRESSED)
    raise InputError(
        "unknown input format",
        expected=f"a file that ends in one of {', '.join(_SUFFIXES)}",
        found="a compressed file" if compressed else "another extension, and unknown first bytes",
        remedy="decompress it first" if compressed else "rename the file",
        url=path,
    )


def format_by_content(path: str, remote: Remote | None) -> str | None:
    """Return the format that a file's first bytes identify; None if they do not. The arguments are `open_file`'s."""
    with open_input(path, remote) as file:
        first = file.read(8)
    return next((name for magic, name in _MAGIC.items() if first.startswith(magic)), None)
