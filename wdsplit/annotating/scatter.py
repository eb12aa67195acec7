"""Scattering: write the rows of a table and the keys of a dataset as runs that are sorted by partition.

The partition is a hash of the unescaped key, so that a sample and its row are in the same partition whether the table
has escaped keys or not.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.annotating.job import AnnotateJob, Span
from wdsplit.arrays import Int64
from wdsplit.conversion.shuffle.sorted_runs import SortedRun, open_run, read_buckets, read_runs, write_run
from wdsplit.engines.local import in_order, raise_if_cancelled
from wdsplit.errors import InputError
from wdsplit.fields.json_values import stored
from wdsplit.fields.keys import escape_keys, hash_keys, number_keys
from wdsplit.shards.sample_tables import KEY as SAMPLE_KEY
from wdsplit.shards.sample_tables import read_samples
from wdsplit.storage.interface import Storage
from wdsplit.tables.read import Rows, read_rows

__all__ = ["RunWriter", "partitions_of", "read_partition", "scatter_keys", "scatter_rows"]

_TABLES_AT_ONCE = 16
_ESCAPE = re.compile(rb"_x([0-9A-F]{2})")


class RunWriter:
    """Buffers rows, and writes them as runs: Arrow files with a record batch for each bucket.

    Args:
        storage: The dataset.
        job: The input of all tasks.
        name: Prefix of the names of the runs.
    """

    def __init__(self, storage: Storage, job: AnnotateJob, name: str) -> None:
        self._storage, self._job, self._name = storage, job, name
        self._tables: list[pa.Table] = []
        self._buckets: list[Int64] = []
        self._num_bytes = 0
        self._runs: list[SortedRun] = []

    def append(self, table: pa.Table, buckets: Int64) -> None:
        """Add rows and the bucket of each; a full buffer is written as a run."""
        self._tables.append(table)
        self._buckets.append(buckets)
        self._num_bytes += table.nbytes + buckets.nbytes
        if self._num_bytes >= self._job.buffer_bytes:
            self._flush()

    def end(self) -> list[SortedRun]:
        """Write the buffered rows, and return all runs."""
        if self._tables:
            self._flush()
        return self._runs

    def _flush(self) -> None:
        table, buckets = pa.concat_tables(self._tables), np.concatenate(self._buckets)
        if len(table) and (buckets[1:] < buckets[:-1]).any():
            order = np.argsort(buckets, kind="stable")
            table, buckets = table.take(pa.array(order)), buckets[order]
        if len(table):
            path = f"{self._job.spill_folder}/{self._name}-{len(self._runs):06d}.arrow"
            size = write_run(self._storage, path, table, buckets)
            self._runs.append(SortedRun(path, size, len(table), self._num_bytes))
        self._tables, self._buckets, self._num_bytes = [], [], 0


def scatter_rows(job: AnnotateJob, task: Span) -> list[SortedRun]:
    """Scatter rows of the table. Runs in a worker process; may run twice."""
    runs = RunWriter(job.open_storage(), job, f"rows-{task.number:06d}")
    for rows in read_rows(job.table, task.first, task.stop, list(dict.fromkeys([job.key, *job.columns]))):
        raise_if_cancelled()
        keys, raw = _keys_of(job, rows)
        values = [
            stored(rows.columns[column]).cast(field.type)
            for column, field in zip(job.columns, job.joined_fields, strict=True)
        ]
        table = pa.Table.from_arrays([pa.array(rows.numbers), keys, raw, *values], schema=job.rows_schema)
        runs.append(table, partitions_of(keys, job.cuts.num_partitions))
    return runs.end()


def _keys_of(job: AnnotateJob, rows: Rows) -> tuple[pa.LargeStringArray, pa.LargeStringArray]:
    """Return the escaped keys of rows, and the keys as in the table where that differs, else null."""
    column = stored(rows.columns[job.key])
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(
            "a key is null",
            place=f"{rows.where(row)}, column {job.key!r}",
            expected="a key in each row",
            remedy="fill the key column, or remove such rows",
        )
    nothing = pa.nulls(len(column), pa.large_string())
    if job.number_width and pa.types.is_integer(column.type):
        return number_keys(np.asarray(column.cast(pa.int64())), job.number_width), nothing
    try:
        keys = escape_keys(column, lambda row: f"{rows.where(row)}, column {job.key!r}")
    except InputError as error:
        error.remedy = "no sample can have this key: check --key, or remove such rows"
        raise
    texts = column.cast(pa.large_string())
    return keys, nothing if keys.equals(texts) else pc.if_else(pc.equal(keys, texts), nothing, texts)


def scatter_keys(job: AnnotateJob, task: Span) -> list[SortedRun]:
    """Scatter the keys of the samples of some shards. Runs in a worker process; may run twice."""
    storage = job.open_storage()
    runs = RunWriter(storage, job, f"keys-{task.number:06d}")
    for shard, keys in _keys_of_shards(storage, job, range(task.first, task.stop)):
        raise_if_cancelled()
        numbers = pa.array(np.full(len(keys), shard)), pa.array(np.arange(len(keys)))
        table = pa.Table.from_arrays([*numbers, keys], schema=job.keys_schema)
        runs.append(table, partitions_of(keys, job.cuts.num_partitions))
    return runs.end()


def _keys_of_shards(storage: Storage, job: AnnotateJob, shards: range) -> Iterator[tuple[int, pa.LargeStringArray]]:
    """Yield the keys of each shard; remote shards are read several at once."""

    def read(shard: int) -> pa.LargeStringArray:
        table = read_samples(storage, job.shards[shard], [SAMPLE_KEY])
        return pa.concat_arrays([pa.array([], pa.string()), *table.column(0).chunks]).cast(pa.large_string())

    found = in_order(read, shards, _TABLES_AT_ONCE) if storage.has_latency else map(read, shards)
    yield from zip(shards, found, strict=True)


def partitions_of(keys: pa.LargeStringArray, num_partitions: int) -> Int64:
    """Return the partition of each key: int64 of shape (n,), the same for a key and its escaped form."""
    if num_partitions == 1:
        return np.zeros(len(keys), np.int64)
    escaped = np.flatnonzero(pc.match_substring(keys, "_x").to_numpy(zero_copy_only=False))
    if len(escaped):
        texts = keys.to_pylist()
        for row in escaped.tolist():
            texts[row] = _original(texts[row])
        keys = pa.array(texts, pa.large_string())
    partitions: Int64 = (hash_keys(keys) % np.uint64(num_partitions)).astype(np.int64)
    return partitions


def _original(key: str) -> str:
    """Return a key with all escapes undone, also nested ones; invalid UTF-8 counts as one character."""
    data, before = key.encode(), b""
    while data != before:
        before, data = data, _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), data)
    return data.decode(errors="replace")


def read_partition(storage: Storage, runs: list[SortedRun], bucket: int, schema: pa.Schema) -> pa.Table:
    """Read a bucket of all runs, in the order of the runs."""

    def read(run: SortedRun) -> list[pa.RecordBatch]:
        raise_if_cancelled()
        return read_buckets(storage, run, open_run(storage, run), bucket, bucket)

    return pa.Table.from_batches(list(read_runs(storage, runs, read)), schema)
