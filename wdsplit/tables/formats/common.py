"""What the formats share: batches of a good size, and what cannot be read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

import pyarrow as pa

from wdsplit.errors import InputError, first_line

__all__ = ["BATCH_BYTES", "MAX_BATCH_ROWS", "check_names", "grouped", "sliced", "unreadable"]

Item = TypeVar("Item")

BATCH_BYTES = 16 * 1024**2
MAX_BATCH_ROWS = 8192


def check_names(fields: Iterable[pa.Field]) -> None:
    """Refuse names that are not UTF-8, as in a damaged file.

    Raises:
        UnicodeDecodeError: A name is not UTF-8.
    """
    for field in fields:
        field.name.encode()
        if pa.types.is_struct(field.type):
            check_names(field.type)


def sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into slices of about 16 MiB and at most 8,192 rows; nothing is copied."""
    row_bytes = max(1, batch.nbytes // max(1, len(batch)))
    rows = min(MAX_BATCH_ROWS, max(1, BATCH_BYTES // row_bytes))
    for first in range(0, len(batch), rows):
        yield batch.slice(first, rows)


def grouped(items: Iterable[Item], size_of: Callable[[Item], float], enough: float) -> Iterator[list[Item]]:
    """Group consecutive items until their sizes add up to `enough`; only the last group may have less."""
    group, size = list[Item](), 0.0
    for item in items:
        group.append(item)
        size += size_of(item)
        if size >= enough:
            yield group
            group, size = [], 0.0
    if group:
        yield group


def unreadable(path: str, what: str, error: Exception) -> InputError:
    """Return the error for an input that a library, or the system, could not read.

    Args:
        path: What to call the input.
        what: The format it was read as, such as `parquet`.
        error: The error of the library or system.
    """
    found = first_line(error)
    cause = f"an input cannot be read as {what}"
    remedy = "check that the file is whole; download or write it again"
    if isinstance(error, PermissionError):
        cause, remedy = "an input cannot be read: permission denied", "check the permissions of the file"
    elif "crypt" in found:
        cause = "an input is encrypted"
        remedy = "decrypt it first: read it with its keys (pyarrow.parquet.encryption), and write it without encryption"
    elif isinstance(error, pa.ArrowNotImplementedError) or re.search(
        r"not (currently |yet )*(support|impl|built)", found
    ):
        cause = f"an input is {what} of a kind that pyarrow {pa.__version__} cannot read"
        remedy = "write it again by the program that wrote it, with other compression or encodings; or update pyarrow"
    return InputError(cause, found=found, remedy=remedy, url=path)
