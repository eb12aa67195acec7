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
from wdsplit.storage.interface import Storage

__all__ = ["OpenRun", "RunWriter", "SortedRun", "damaged_spill", "parse_runs", "read_runs"]

_REQUESTS_AT_ONCE = 8
_TAIL_BYTES = 64 * 1024
"""Bytes to read when a file is opened: they usually contain the list of its buckets."""
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
    """Write sorted rows, a message of Arrow for each bucket, then their schema and places; return the file's bytes."""
    numbers, starts = np.unique(buckets, return_index=True)
    bounds = [0]
    with storage.publish(path) as file:
        for start, stop in pairwise([*starts.tolist(), len(buckets)]):
            message = table.slice(start, stop - start).combine_chunks().to_batches()[0].serialize()
            file.write([memoryview(message)])
            bounds.append(bounds[-1] + len(message))
        schema, listed = table.schema.serialize().to_pybytes(), orjson.dumps([numbers.tolist(), bounds])
        end = schema + listed + len(listed).to_bytes(_LENGTH_BYTES, "little")
        file.write([end])
    return bounds[-1] + len(end)


class OpenRun:
    """A run, open for reading; a damaged or missing one raises CorruptDataError. Its file is open only in a read."""

    def __init__(self, storage: Storage, run: SortedRun) -> None:
        self._storage, self._run, self._place = storage, run, f"{storage.url}/{run.path}"
        with _name_damage(self._place):
            tail = self._read(max(0, run.size - _TAIL_BYTES), run.size)
            list_bytes = _LENGTH_BYTES + int.from_bytes(tail[-_LENGTH_BYTES:], "little")
            if list_bytes > len(tail):
                tail = self._read(max(0, run.size - list_bytes), run.size)
            buckets, self._bounds = orjson.loads(tail[-list_bytes:-_LENGTH_BYTES])
            self._buckets = np.asarray(buckets, np.int64)
            self._schema = pa.ipc.read_schema(pa.py_buffer(self._read(self._bounds[-1], run.size - list_bytes)))

    def read_buckets(self, first: int, last: int) -> list[pa.RecordBatch]:
        """Read the batches of the buckets first, ..., last, with one request."""
        low, high = map(int, np.searchsorted(self._buckets, [first, last + 1]))
        if low == high:
            return []
        with _name_damage(self._place):
            bounds = self._bounds[low : high + 1]
            data = pa.py_buffer(self._read(bounds[0], bounds[-1]))
            messages = [data.slice(begin - bounds[0], end - begin) for begin, end in pairwise(bounds)]
            return [pa.ipc.read_record_batch(message, self._schema) for message in messages]

    def _read(self, start: int, stop: int) -> memoryview:
        data = memoryview(pa.allocate_buffer(stop - start)).cast("B")  # Arrow's pool keeps its pages
        self._storage.open(self._run.path, self._run.size).read_into(data, start)
        return data


def damaged_spill(place: str, found: str) -> CorruptDataError:
    """Return the error for spilled rows that are missing or changed."""
    return CorruptDataError(
        "a spill file is damaged",
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
    except (pa.ArrowException, EOFError, OSError, OverflowError, ValueError, KeyError, TypeError) as error:
        raise damaged_spill(place, str(error)) from error


def read_runs(
    storage: Storage, runs: Sequence[SortedRun], read: Callable[[SortedRun], list[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches that `read` returns for each run, in the order of the runs; remote runs are read ahead."""
    found = in_order(read, runs, _REQUESTS_AT_ONCE) if storage.is_remote else map(read, runs)
    for batches in found:
        yield from batches
