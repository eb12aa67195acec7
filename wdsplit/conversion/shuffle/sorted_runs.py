"""Sorted runs: Arrow files with rows sorted by their places, one record batch for each bucket of places.

The file ends with a list of its batches, so that any number of files can be read, each by few requests: adjacent
batches are read together, only the list is kept in memory, and no file stays open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.engines.local import in_order
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, WdsplitError
from wdsplit.storage.interface import PendingFile, Storage

__all__ = ["ArrowSink", "OpenRun", "RunWriter", "SortedRun", "damaged_spill", "parse_runs", "read_runs"]

_REQUESTS_AT_ONCE = 8
_TAIL_BYTES = 64 * 1024
"""Bytes to read when a file is opened: they usually contain Arrow's footer and our list."""
_LENGTH_BYTES = 8


class SortedRun(NamedTuple):
    """A sorted run.

    Attributes:
        path: Its file.
        size: The file's size in bytes.
        num_rows: Number of its rows, including those that the plan leaves out.
        num_bytes: Their bytes in memory.
    """

    path: str
    size: int
    num_rows: int
    num_bytes: int


def parse_runs(note: Any) -> list[SortedRun]:
    """Return the runs that a task noted."""
    return [SortedRun(str(path), int(size), int(rows), int(num_bytes)) for path, size, rows, num_bytes in note]


class RunWriter:
    """Buffers rows, and writes them as sorted runs.

    Args:
        storage: The output.
        prefix: Path of the runs, without their numbers.
        buffer_bytes: A buffer of this size is written as a run.
        bucket_rows: Number of places of a bucket.
        num_places: Rows at later places are left out.
        check: Called before a run is written; it may raise.
    """

    def __init__(
        self,
        storage: Storage,
        prefix: str,
        buffer_bytes: int,
        bucket_rows: int = 1,
        num_places: int = 2**63 - 1,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._storage, self._prefix, self._buffer_bytes, self._check = storage, prefix, buffer_bytes, check
        self._bucket_rows, self._num_places = bucket_rows, num_places
        self._tables: list[pa.Table] = []
        self._places: list[Int64] = []
        self._num_bytes = 0
        self._runs: list[SortedRun] = []

    def append(self, table: pa.Table, places: Int64, num_bytes: int) -> None:
        """Add rows and the place of each; `num_bytes` are their bytes in memory."""
        self._tables.append(table)
        self._places.append(places)
        self._num_bytes += num_bytes
        if self._num_bytes >= self._buffer_bytes:
            self._flush()

    def end(self) -> list[SortedRun]:
        """Write the buffered rows, and return all runs."""
        if self._tables:
            self._flush()
        self._check()
        return self._runs

    def _flush(self) -> None:
        self._check()
        table, places = pa.concat_tables(self._tables), np.concatenate(self._places)
        num_rows = len(table)
        if (places[1:] < places[:-1]).any():
            order = np.argsort(places, kind="stable")
            order = order[: np.searchsorted(places, self._num_places, sorter=order)]
            table, places = table.take(pa.array(order)), places[order]
        else:
            places = places[: np.searchsorted(places, self._num_places)]
            table = table[: len(places)]
        if len(table):
            path = f"{self._prefix}-{len(self._runs):06d}.arrow"
            size = _write_run(self._storage, path, table, places // self._bucket_rows)
            self._runs.append(SortedRun(path, size, num_rows, self._num_bytes))
        self._tables, self._places, self._num_bytes = [], [], 0


def _write_run(storage: Storage, path: str, table: pa.Table, buckets: Int64) -> int:
    """Write sorted rows and the list of their batches; return the bytes of the file."""
    numbers, starts = np.unique(buckets, return_index=True)
    with storage.publish(path) as file:
        sink = ArrowSink(file)
        bounds = []
        with pa.ipc.new_file(sink, table.schema) as writer:
            for start, stop in pairwise([*starts.tolist(), len(buckets)]):
                bounds.append(sink.tell())
                writer.write_batch(table.slice(start, stop - start).combine_chunks().to_batches()[0])
            bounds.append(sink.tell())
        listed = orjson.dumps([numbers.tolist(), bounds])
        sink.write(listed + len(listed).to_bytes(_LENGTH_BYTES, "little"))
    return sink.tell()


class ArrowSink:
    """A file object for Arrow that passes bytes on to a pending file."""

    closed = False

    def __init__(self, file: PendingFile) -> None:
        self._file = file
        self._position = 0

    def write(self, data: bytes) -> int:
        """Append bytes; return how many."""
        view = memoryview(data).cast("B")
        self._file.write([view])
        self._position += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._position

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: the owner closes the pending file."""


class OpenRun:
    """A run, open for reading; a damaged or missing one raises CorruptDataError.

    Args:
        storage: The output.
        run: The run.
    """

    def __init__(self, storage: Storage, run: SortedRun) -> None:
        self._place = f"{storage.url}/{run.path}"
        with _name_damage(self._place):
            ranges = _Ranges(storage, run.path, run.size)
            ranges.fetch(max(0, run.size - _TAIL_BYTES), run.size)
            end = run.size - _LENGTH_BYTES
            begin = end - int.from_bytes(ranges.at(end, run.size), "little")
            buckets, bounds = orjson.loads(ranges.at(begin, end))
            self._buckets, self._bounds = np.asarray(buckets, np.int64), bounds
            ranges.size = begin  # Arrow looks for its footer at the end
            self._reader = pa.ipc.open_file(pa.PythonFile(ranges, mode="r"))
            ranges.fetch(0, 0)
        self._ranges = ranges

    def read_buckets(self, first: int, last: int) -> list[pa.RecordBatch]:
        """Read the batches of the buckets first, ..., last."""
        low, high = map(int, np.searchsorted(self._buckets, [first, last + 1]))
        if low == high:
            return []
        with _name_damage(self._place):
            self._ranges.fetch(self._bounds[low], self._bounds[high])
            batches = [self._reader.get_batch(number) for number in range(low, high)]
            self._ranges.fetch(0, 0)
        return batches


class _Ranges:
    """A file object for Arrow that serves a fetched range from memory. The file is open only during a read."""

    closed = False

    def __init__(self, storage: Storage, path: str, size: int) -> None:
        self.size = size
        self._storage, self._path, self._file_size = storage, path, size
        self._position = self._start = 0
        self._fetched = memoryview(b"")

    def fetch(self, start: int, stop: int) -> None:
        """Fetch a range with one read, and drop the one before; batches that use that keep its memory."""
        data = memoryview(pa.allocate_buffer(stop - start)).cast("B")  # Arrow's pool keeps its pages
        if start < stop:
            self._storage.open(self._path, self._file_size).read_into(data, start)
        self._start, self._fetched = start, data.toreadonly()

    def at(self, start: int, stop: int) -> memoryview:
        """Return the bytes start, ..., stop - 1 of the file."""
        if start < self._start or stop - self._start > len(self._fetched):
            return memoryview(self._storage.open(self._path, self._file_size).read(start, stop - start))
        return self._fetched[start - self._start : stop - self._start]

    def read(self, num_bytes: int) -> memoryview:
        start, self._position = self._position, min(self._position + num_bytes, self.size)
        return self.at(start, self._position)

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self.size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        """Do nothing: no file is open."""


def damaged_spill(place: str, found: str) -> CorruptDataError:
    """Return the error for spilled rows that are missing or changed."""
    return CorruptDataError(
        "a spill file is damaged",
        place=place,
        expected="the rows that were spilled",
        found=found,
        remedy="start again with --overwrite; a power failure may have damaged the file",
        url=place,
    )


@contextmanager
def _name_damage(place: str) -> Iterator[None]:
    try:
        yield
    except (CorruptDataError, DatasetNotFoundError) as error:
        raise damaged_spill(place, error.cause) from error
    except WdsplitError:
        raise
    except (pa.ArrowException, OSError, OverflowError, ValueError, KeyError, TypeError) as error:
        raise damaged_spill(place, str(error)) from error


def read_runs(
    storage: Storage, runs: Sequence[SortedRun], read: Callable[[SortedRun], list[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches that `read` returns for each run, in the order of the runs; remote runs are read ahead."""
    found = in_order(read, runs, _REQUESTS_AT_ONCE) if storage.is_remote else map(read, runs)
    for batches in found:
        yield from batches
