"""The passes of an annotation: a join by key of a table and a dataset of any size, with bounded memory.

The passes `rows` and `keys` spill the rows of the table and the keys of the samples by partition, a hash of the
unescaped key. So a sample and its row are in the same partition whether the table has escaped keys or not. `join` finds
the row of each sample in a partition, and spills its values by group of shards. `write` sorts a group by sample.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.annotating.match import Counted, examples_of, match
from wdsplit.annotating.options import Duplicates
from wdsplit.annotating.writing import PLACES, SHARD, Report, WriteJob, run_pass, values_of
from wdsplit.arrays import Int64
from wdsplit.conversion.shuffle.sorted_runs import OpenRun, RunWriter, SortedRun, parse_runs, read_runs
from wdsplit.conversion.shuffle.steps import BATCH_BYTES, ROW_BYTES, cut_table
from wdsplit.engines.local import Engine, in_order, raise_if_cancelled
from wdsplit.errors import InputError
from wdsplit.fields.json_values import stored
from wdsplit.fields.keys import escape_keys, hash_keys, number_keys
from wdsplit.jobs.notes import Notes
from wdsplit.shards.manifest import Shards
from wdsplit.shards.sample_tables import KEY as SAMPLE_KEY
from wdsplit.shards.sample_tables import read_samples
from wdsplit.storage.interface import Storage
from wdsplit.tables.read import Rows, check_files, read_rows
from wdsplit.tables.table import Table

__all__ = [
    "AnnotateJob",
    "Joined",
    "join_partitions",
    "read_group",
    "table_bytes",
    "task_bytes_of",
]

_KEY, _RAW, _NUMBER = "key", "raw", "number"
"""Columns of spill files, besides PLACES: the key as in the tar, the key as in the table if that differs, the row
number in the table."""
_TEXT = pa.large_string()
_ROWS = pa.schema([(_NUMBER, pa.int64()), (_KEY, _TEXT), (_RAW, _TEXT)])
_KEYS = PLACES.append(pa.field(_KEY, _TEXT))
_KEY_BYTES = 96
"""Approximate bytes of a key of the dataset, with its shard and sample."""
_FILE_BYTES = 64 * 1024
"""Bytes that a file counts as, in addition to its content, because opening or publishing it takes time."""
_TASKS_PER_JOB = 4
_READ_AT_ONCE = 16
_ESCAPE = re.compile(rb"_x([0-9A-F]{2})")


@dataclass(frozen=True, kw_only=True)
class AnnotateJob(WriteJob):
    """The input of every task of the join of a table.

    Attributes:
        table: The table.
        key: Its key column.
        number_width: Number of digits of the dataset's keys if they are row numbers, else 0. Integer keys are then
            written with this many digits.
        duplicates: Which of several rows with the same key to use.
    """

    table: Table
    key: str
    number_width: int
    duplicates: Duplicates

    @property
    def near_bytes(self) -> int | None:
        """Bytes of rows and keys; None if tasks wait for a store."""
        is_far = self.open_storage().has_latency or any(file.remote for file in self.table.files[:1])
        return None if is_far else table_bytes(self.table, self.shards)

    @cached_property
    def row_cuts(self) -> Int64:
        """Boundaries between the tasks that spill rows: row numbers, from 0 to the number of rows."""
        return np.asarray(cut_table(self.table, self.task_bytes))

    @cached_property
    def key_cuts(self) -> Int64:
        """Boundaries between the tasks that spill keys: shard numbers, from 0 to the number of shards."""
        return self._cut_shards(_KEY_BYTES)

    @cached_property
    def shard_cuts(self) -> Int64:
        """Boundaries between the groups of shards whose tables a task writes, as in `key_cuts`."""
        num_samples = int(self.shards.num_real.sum())
        row_bytes = (self.table.data_bytes + num_samples * ROW_BYTES) // max(1, self.table.num_rows)
        return self._cut_shards(min(row_bytes, self.task_bytes))

    def _cut_shards(self, sample_bytes: int) -> Int64:
        num_real = self.shards.num_real
        ends = np.cumsum(num_real * sample_bytes + _FILE_BYTES)
        total = int(ends[-1]) if len(ends) else 0
        cuts = np.searchsorted(ends, np.arange(self.task_bytes, total, self.task_bytes)) + 1
        return np.unique([0, *cuts.tolist(), len(num_real)])  # a larger shard is a group of its own

    @property
    def num_partitions(self) -> int:
        """Number of partitions; one task joins each."""
        return -(-table_bytes(self.table, self.shards) // self.task_bytes)


class Joined(NamedTuple):
    """The result of joining a partition.

    Attributes:
        runs: The values of its samples, by groups of shards.
        kinds: Samples without a row, rows without a sample, and rows that lost to another row with the same key.
    """

    runs: list[SortedRun]
    kinds: list[Counted]


def table_bytes(table: Table, shards: Shards) -> int:
    """Return the approximate bytes of the rows and keys during a join."""
    return table.data_bytes + table.num_rows * ROW_BYTES + int(shards.num_real.sum()) * _KEY_BYTES


def task_bytes_of(num_bytes: int, jobs: int, buffer_bytes: int) -> int:
    """Return the bytes of a task: it fits its buffer, and each job has at least one if possible."""
    return min(buffer_bytes, max(BATCH_BYTES, num_bytes // (_TASKS_PER_JOB * jobs)))


# The driver


def join_partitions(job: AnnotateJob, engine: Engine, report: Report) -> list[Joined]:
    """Spill rows and keys, and join them; return the results of the partitions that exist or are made now."""
    storage, partitions = job.open_storage(), range(job.num_partitions)
    known = dict(Notes(storage, job.spill_folder).read("join", partitions, _parse_joined))
    rows: list[SortedRun] = []
    keys: list[SortedRun] = []
    if len(known) < len(partitions):
        check_files(job.table, 0, job.table.num_rows)
        num_keys = np.diff(np.append(0, np.cumsum(job.shards.num_real))[job.key_cuts])
        of_rows = run_pass(job, engine, report, "rows", partial(_spill_rows, job), parse_runs, np.diff(job.row_cuts))
        of_keys = run_pass(job, engine, report, "keys", partial(_spill_keys, job), parse_runs, num_keys)
        rows, keys = ([run for runs in found for run in runs] for found in (of_rows, of_keys))
    ones = np.ones(len(partitions), np.int64)
    found = run_pass(job, engine, report, "join", partial(_join, job, rows, keys), _parse_joined, ones, known)
    storage.remove(*(run.path for run in (*rows, *keys)))
    return found


def _parse_joined(note: Any) -> Joined:
    runs, kinds = note
    return Joined(parse_runs(runs), [Counted(int(total), list(examples)) for total, examples in kinds])


# The tasks: they run in workers, and may run twice


def _spill_rows(job: AnnotateJob, storage: Storage, tasks: range) -> Iterator[list[SortedRun]]:
    names = list(dict.fromkeys([job.key, *job.columns, *(field.column for field in job.fields)]))
    for task in tasks:
        runs = RunWriter(storage, f"{job.spill_folder}/rows-{task:06d}", job.buffer_bytes)
        first, stop = job.row_cuts[task : task + 2].tolist()
        for rows in read_rows(job.table, first, stop, names):
            raise_if_cancelled()
            keys, raw = _keys_of(job, rows)
            values = values_of(job, rows.columns, rows.where)
            table = pa.Table.from_arrays([pa.array(rows.numbers), keys, raw, *values], schema=_with(_ROWS, job.values))
            _append(runs, table, partitions_of(keys, job.num_partitions))
        yield runs.end()


def _with(own: pa.Schema, values: pa.Schema) -> pa.Schema:
    return pa.schema([*own, *values])


def _append(runs: RunWriter, table: pa.Table, places: Int64) -> None:
    runs.append(table, places, table.nbytes + places.nbytes)


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
    nothing = pa.nulls(len(column), _TEXT)
    if job.number_width and pa.types.is_integer(column.type):
        return number_keys(np.asarray(column.cast(pa.int64())), job.number_width), nothing
    try:
        keys = escape_keys(column, lambda row: f"{rows.where(row)}, column {job.key!r}")
    except InputError as error:
        error.remedy = "no sample can have this key: check --key, or remove such rows"
        raise
    texts = column.cast(_TEXT)
    return keys, nothing if keys.equals(texts) else pc.if_else(pc.equal(keys, texts), nothing, texts)


def _spill_keys(job: AnnotateJob, storage: Storage, tasks: range) -> Iterator[list[SortedRun]]:
    def read(shard: int) -> pa.LargeStringArray:
        raise_if_cancelled()
        table = read_samples(storage, job.shards[shard], [SAMPLE_KEY])
        return pa.concat_arrays([pa.array([], pa.string()), *table.column(0).chunks]).cast(_TEXT)

    for task in tasks:
        runs = RunWriter(storage, f"{job.spill_folder}/keys-{task:06d}", job.buffer_bytes)
        shards = range(*job.key_cuts[task : task + 2].tolist())
        read_keys = in_order(read, shards, _READ_AT_ONCE) if storage.has_latency else map(read, shards)
        for shard, keys in zip(shards, read_keys, strict=True):
            numbers = pa.array(np.full(len(keys), shard)), pa.array(np.arange(len(keys)))
            table = pa.Table.from_arrays([*numbers, keys], schema=_KEYS)
            _append(runs, table, partitions_of(keys, job.num_partitions))
        yield runs.end()


def partitions_of(keys: pa.LargeStringArray, num_partitions: int) -> Int64:
    """Return the partition of each key: int64 of shape (n,), the same for a key and its escaped form."""
    if num_partitions == 1:
        return np.zeros(len(keys), np.int64)
    escaped = np.flatnonzero(pc.match_substring(keys, "_x").to_numpy(zero_copy_only=False))
    if len(escaped):
        texts = keys.to_pylist()
        for row in escaped.tolist():
            texts[row] = _original(texts[row])
        keys = pa.array(texts, _TEXT)
    partitions: Int64 = (hash_keys(keys) % np.uint64(num_partitions)).astype(np.int64)
    return partitions


def _original(key: str) -> str:
    """Return a key with all escapes undone, also nested ones; invalid UTF-8 counts as one character."""
    data, before = key.encode(), b""
    while data != before:
        before, data = data, _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), data)
    return data.decode(errors="replace")


def _join(
    job: AnnotateJob, rows: list[SortedRun], keys: list[SortedRun], storage: Storage, partitions: range
) -> Iterator[Joined]:
    for partition in partitions:
        table = _read(storage, rows, partition, _with(_ROWS, job.values))
        samples = _read(storage, keys, partition, _KEYS)
        found = match(table.column(_KEY), table.column(_RAW), samples.column(_KEY), job.duplicates)
        values = table.select(job.values.names).take(pa.array(found.rows, mask=found.rows < 0))
        joined = pa.Table.from_arrays([*samples.columns[:2], *values.columns], schema=_with(PLACES, job.values))
        groups = np.searchsorted(job.shard_cuts, samples.column(SHARD).to_numpy(), side="right") - 1
        runs = RunWriter(storage, f"{job.spill_folder}/found-{partition:06d}", job.buffer_bytes)
        _append(runs, joined, groups)
        listed = table.select([_NUMBER, _KEY, _RAW])
        lost = listed.take(pa.array(found.duplicates))
        lost = lost.add_column(1, "used", listed.column(_NUMBER).take(pa.array(found.used)))
        kinds = (samples, np.flatnonzero(found.rows < 0)), (listed, found.extra), (lost, np.arange(len(lost)))
        yield Joined(runs.end(), [examples_of(table, places) for table, places in kinds])


def _read(storage: Storage, runs: list[SortedRun], bucket: int, schema: pa.Schema) -> pa.Table:
    """Read a bucket of all runs, in the order of the runs."""

    def read(run: SortedRun) -> list[pa.RecordBatch]:
        raise_if_cancelled()
        return OpenRun(storage, run).read_buckets(bucket, bucket)

    return pa.Table.from_batches(list(read_runs(storage, runs, read)), schema)


def read_group(job: AnnotateJob, found: list[SortedRun], storage: Storage, group: int) -> pa.Table:
    """Read the joined rows of a group of shards. Runs in a worker; may run twice."""
    return _read(storage, found, group, _with(PLACES, job.values))
