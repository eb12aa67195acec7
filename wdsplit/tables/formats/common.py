"""What the formats share: the size of batches, checksums, and the check that a file has not changed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import pyarrow as pa
import xxhash

from wdsplit.errors import InputError
from wdsplit.tables.formats.opening import RemoteInput
from wdsplit.tables.table import InputFile, Remote

__all__ = [
    "BATCH_BYTES",
    "MAX_BATCH_ROWS",
    "changed",
    "check_names",
    "check_unchanged",
    "checksum",
    "matching_groups",
    "open_unchanged",
    "sliced",
    "stat_of",
]

BATCH_BYTES = 16 * 1024**2
MAX_BATCH_ROWS = 8192


def checksum(data: bytes | memoryview) -> str:
    """Return a checksum of some content."""
    return xxhash.xxh3_128_hexdigest(data)


def stat_of(path: str, remote: Remote | None = None) -> tuple[int, int]:
    """Return the size of a file in bytes, and when it was last written, in nanoseconds; see `InputFile.modified_ns`."""
    if remote is not None:
        source = RemoteInput(remote)
        return source.size, source.modified_ns
    found = os.stat(path)
    return found.st_size, found.st_mtime_ns


def changed(file: InputFile, found: str) -> InputError:
    """Return the error for a file that is not what it was when it was opened first."""
    return InputError(
        "an input has changed since it was planned",
        place=file.path,
        expected=f"the file of {file.num_bytes} bytes and {file.num_rows} rows",
        found=found,
        remedy="leave the inputs alone while they are converted; start again with --overwrite",
        url=file.path,
    )


def check_unchanged(file: InputFile, source: RemoteInput | None = None) -> None:
    """Refuse a file that was written since it was opened first; nothing of it is read.

    Args:
        file: The file.
        source: What it is read from, if it is remote.

    Raises:
        InputError: Its size or its time of writing is another.
    """
    num_bytes, modified_ns = stat_of(file.path) if source is None else (source.size, source.modified_ns)
    if num_bytes != file.num_bytes:
        raise changed(file, f"{num_bytes} bytes")
    if modified_ns != file.modified_ns:
        raise changed(file, "as many bytes, but written later")


def open_unchanged(file: InputFile) -> IO[bytes] | RemoteInput:
    """Open a file for reading bytes; refuse it as `check_unchanged` does."""
    if file.remote is None:
        check_unchanged(file)
        return open(file.path, "rb")
    source = RemoteInput(file.remote)
    check_unchanged(file, source)
    return source


def check_names(fields: Iterable[pa.Field]) -> None:
    """Refuse names that are not UTF-8, as those of a damaged file.

    Raises:
        UnicodeDecodeError: There is one.
    """
    for field in fields:
        field.name.encode()
        if pa.types.is_struct(field.type):
            check_names(field.type)


def matching_groups(file: InputFile, expression: Any) -> Sequence[int]:
    """Return all row groups: the `matching_groups` of formats without statistics."""
    return range(len(file.row_groups))


def sliced(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Cut a batch into slices of about 16 MiB and at most 8,192 rows; nothing is copied."""
    row_bytes = max(1, batch.nbytes // max(1, len(batch)))
    rows = min(MAX_BATCH_ROWS, max(1, BATCH_BYTES // row_bytes))
    for first in range(0, len(batch), rows):
        yield batch.slice(first, rows)
