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

from wdsplit.annotating.job import AnnotateJob
from wdsplit.arrays import Int64
from wdsplit.conversion.shuffle.sorted_runs import OpenRun, RunWriter, SortedRun, read_runs
from wdsplit.engines.local import in_order, raise_if_cancelled
from wdsplit.errors import InputError
from wdsplit.fields.json_values import stored
from wdsplit.fields.keys import escape_keys, hash_keys, number_keys
from wdsplit.shards.sample_tables import KEY as SAMPLE_KEY
from wdsplit.shards.sample_tables import read_samples
from wdsplit.storage.interface import Storage
from wdsplit.tables.read import Rows, read_rows

__all__ = ["partitions_of", "read_partition", "run_writer", "scatter_keys", "scatter_rows"]

_TABLES_AT_ONCE = 16
_ESCAPE = re.compile(rb"_x([0-9A-F]{2})")


def run_writer(storage: Storage, job: AnnotateJob, name: str) -> RunWriter:
    """Return a writer of runs; `name` is the prefix of their names."""
    return RunWriter(storage, f"{job.spill_folder}/{name}", job.buffer_bytes)


def scatter_rows(job: AnnotateJob, storage: Storage, tasks: range) -> Iterator[list[SortedRun]]:
    """Scatter rows of the table; yield the runs of each task. Runs in a worker; may run twice."""
    names = list(dict.fromkeys([job.key, *job.columns]))
    for task in tasks:
        runs = run_writer(storage, job, f"rows-{task:06d}")
        for rows in read_rows(job.table, job.cuts.rows[task], job.cuts.rows[task + 1], names):
            raise_if_cancelled()
            keys, raw = _keys_of(job, rows)
            values = [
                stored(rows.columns[column]).cast(field.type)
                for column, field in zip(job.columns, job.joined_fields, strict=True)
            ]
            table = pa.Table.from_arrays([pa.array(rows.numbers), keys, raw, *values], schema=job.rows_schema)
            partitions = partitions_of(keys, job.cuts.num_partitions)
            runs.append(table, partitions, table.nbytes + partitions.nbytes)
        yield runs.end()


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


def scatter_keys(job: AnnotateJob, storage: Storage, tasks: range) -> Iterator[list[SortedRun]]:
    """Scatter the keys of the samples of some shards; yield the runs of each task. Runs in a worker; may run twice."""
    for task in tasks:
        runs = run_writer(storage, job, f"keys-{task:06d}")
        for shard, keys in _keys_of_shards(storage, job, range(*job.cuts.keys[task : task + 2])):
            raise_if_cancelled()
            numbers = pa.array(np.full(len(keys), shard)), pa.array(np.arange(len(keys)))
            table = pa.Table.from_arrays([*numbers, keys], schema=job.keys_schema)
            partitions = partitions_of(keys, job.cuts.num_partitions)
            runs.append(table, partitions, table.nbytes + partitions.nbytes)
        yield runs.end()


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
        return OpenRun(storage, run).read_buckets(bucket, bucket)

    return pa.Table.from_batches(list(read_runs(storage, runs, read)), schema)
