"""Reads spill files: Arrow files with a record batch for each bucket of places.

Keeps only the footer and no open descriptor, so that a task can read any number of files. Adjacent batches are read
together, with one request to a store.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.storage.interface import Storage

__all__ = ["BUCKETS", "SpillFile", "open_spill"]

BUCKETS = "buckets"
"""The key in the schema's metadata for the number of each batch's bucket, as JSON."""

_TAIL_BYTES = 64 * 1024
"""Bytes to fetch when a file is opened: they usually contain the footer."""
_END_BYTES = 10
"""An Arrow file ends with the length of its footer, int32, and b"ARROW1"."""
_BLOCK = np.dtype([("offset", "<i8"), ("header_bytes", "<i4"), ("unused", "<i4"), ("body_bytes", "<i8")])


def open_spill(storage: Storage, path: str, size: int) -> SpillFile:
    """Open a spill file of `size` bytes; a damaged file raises pyarrow's ArrowInvalid."""
    ranges = _Ranges(storage, path, size)
    ranges.fetch(max(0, size - _TAIL_BYTES), size)
    reader = pa.ipc.open_file(pa.PythonFile(ranges, mode="r"))
    spill = SpillFile(reader, ranges, _blocks(ranges))
    ranges.drop()
    return spill


class SpillFile:
    """A spill file, open for reading.

    Args:
        reader: Reads its batches.
        ranges: The file object of the reader.
        bounds: int64 of shape (batches + 1,): where its batches begin, and where the last one ends.

    Attributes:
        buckets: int64 of shape (batches,), ascending: the bucket of each batch.
    """

    def __init__(self, reader: pa.RecordBatchFileReader, ranges: _Ranges, bounds: Int64) -> None:
        self.buckets: Int64 = np.asarray(orjson.loads(reader.schema.metadata[BUCKETS.encode()]), np.int64)
        self._reader = reader
        self._ranges = ranges
        self._bounds = bounds

    def read_buckets(self, first: int, last: int) -> list[pa.RecordBatch]:
        """Read the batches of the buckets first, ..., last."""
        low, high = map(int, np.searchsorted(self.buckets, [first, last + 1]))
        if low == high:
            return []
        self._ranges.fetch(int(self._bounds[low]), int(self._bounds[high]))
        batches = [self._reader.get_batch(number) for number in range(low, high)]
        self._ranges.drop()
        return batches


class _Ranges:
    """A file object for Arrow that serves fetched bytes from memory. The file is open only during a read."""

    closed = False

    def __init__(self, storage: Storage, path: str, size: int) -> None:
        self.size = size
        self._storage, self._path = storage, path
        self._position = 0
        self.drop()

    def fetch(self, start: int, stop: int) -> None:
        """Fetch a range with one read, and keep it until the next fetch."""
        data = memoryview(pa.allocate_buffer(stop - start)).cast("B")  # Arrow's pool keeps its pages
        self._storage.open(self._path, self.size).read_into(data, start)
        self._start, self._fetched = start, data.toreadonly()

    def drop(self) -> None:
        """Drop the fetched range; batches that use it keep its memory."""
        self._start, self._fetched = 0, memoryview(b"")

    def read(self, num_bytes: int) -> Any:
        begin = self._position - self._start
        stop = min(self._position + num_bytes, self.size)
        if begin < 0 or stop - self._start > len(self._fetched):
            file = self._storage.open(self._path, self.size)
            data = memoryview(file.read(self._position, stop - self._position))
        else:
            data = self._fetched[begin : stop - self._start]
        self._position = stop
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self.size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: no file is open."""


def _blocks(ranges: _Ranges) -> Int64:
    """Return where the batches of an Arrow file begin, and where the last one ends; pyarrow does not expose this.

    The footer is a flatbuffer. Its table has the list of record batches as fourth field (Arrow's File.fbs). Each batch
    directly follows the one before.
    """
    ranges.seek(-_END_BYTES, 2)
    footer_bytes = _number(ranges.read(4), 0, "<i4")
    ranges.seek(-_END_BYTES - footer_bytes, 2)
    footer = ranges.read(footer_bytes)
    table = _number(footer, 0, "<u4")
    fields = table - _number(footer, table, "<i4")
    listed = table + _number(footer, fields + 10, "<u2")
    first = listed + _number(footer, listed, "<u4")
    blocks = np.frombuffer(footer, _BLOCK, _number(footer, first, "<u4"), first + 4)
    ends = blocks["offset"] + blocks["header_bytes"] + blocks["body_bytes"]
    return np.append(blocks["offset"], ends[-1:]).astype(np.int64)


def _number(data: memoryview, offset: int, kind: str) -> int:
    return int(np.frombuffer(data, kind, 1, offset)[0])
