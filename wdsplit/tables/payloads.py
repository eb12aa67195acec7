"""Reads the media files of rows into memory, some MiB at a time, without decoding."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.engines.local import in_order, raise_if_cancelled
from wdsplit.errors import DatasetNotFoundError, InputError
from wdsplit.storage.opening import is_remote, open_object
from wdsplit.tables.formats.common import BATCH_BYTES
from wdsplit.tables.formats.media import REFERENCE
from wdsplit.tables.read import Rows
from wdsplit.urls import shown_url

__all__ = ["with_payloads"]

_THREADS = 8


def with_payloads(batches: Iterator[Rows]) -> Iterator[Rows]:
    """Yield the same rows with the bytes of their media files, in batches of about 16 MiB.

    Raises:
        InputError: A file is missing, has changed since it was listed, or cannot be read.
    """
    for rows in batches:
        options = next((file.remote.options for file in rows.table.files if file.remote is not None), None)
        references = {name: array for name, array in rows.columns.items() if array.type.equals(REFERENCE)}
        if not references:
            yield rows
            continue
        ((name, column),) = references.items()
        sizes = column.field("size").to_numpy()
        ends = np.cumsum(sizes)
        first = 0
        while first < len(rows):
            begin = int(ends[first] - sizes[first])
            stop = max(first + 1, int(np.searchsorted(ends, begin + BATCH_BYTES, side="right")))
            part = rows.slice(first, stop)
            payloads = _read(column.slice(first, stop - first), options)
            yield Rows({**part.columns, name: payloads}, part.numbers, part.table)
            first = stop


def _read(references: pa.StructArray, options: Mapping[str, Any] | None) -> pa.LargeBinaryArray:
    """Return the bytes of files, read into one buffer, several files at once."""
    paths, sizes, times = (part.to_pylist() for part in references.flatten())
    ends: Int64 = np.cumsum([0, *sizes])
    buffer = pa.allocate_buffer(int(ends[-1]))
    view = memoryview(buffer).cast("B")
    bounds = ends.tolist()

    def read_some(first: int) -> None:
        for row in range(first, len(paths), _THREADS):
            raise_if_cancelled()
            into = view[bounds[row] : bounds[row + 1]]
            if not is_remote(paths[row]):
                _read_file(paths[row], into, times[row])
                continue
            try:
                open_object(paths[row], options, len(into)).read_into(into, 0)
            except DatasetNotFoundError as error:
                raise _changed(shown_url(paths[row]), len(into), "no such object") from error

    for _ in in_order(read_some, range(_THREADS), _THREADS):
        pass
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(paths), [None, pa.py_buffer(ends), buffer])


def _read_file(path: str, into: memoryview, modified_ns: int) -> None:
    """Fill a buffer with the bytes of a file; refuse a file that has changed since it was listed."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            found, count = os.fstat(file), 0
            while count < len(into) and (more := os.readv(file, [into[count:]])):
                count += more
        finally:
            os.close(file)
    except FileNotFoundError as error:
        raise _changed(path, len(into), "no such file") from error
    except OSError as error:
        raise InputError(
            "a media file cannot be read",
            found=error.strerror or type(error).__name__,
            remedy="check its permissions, then convert again; --resume keeps the shards that are published",
            url=path,
        ) from error
    if found.st_size != len(into) or count != len(into):
        raise _changed(path, len(into), f"{found.st_size} bytes")
    if found.st_mtime_ns != modified_ns:
        raise _changed(path, len(into), "the same size, but another modification time")


def _changed(path: str, num_bytes: int, found: str) -> InputError:
    return InputError(
        "a media file has changed since the folder was listed",
        expected=f"a file of {num_bytes} bytes",
        found=found,
        remedy="do not change inputs during a conversion; start again with --overwrite",
        url=path,
    )
