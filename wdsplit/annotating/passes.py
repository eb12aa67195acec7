"""The passes of an annotation: a join by key of a table and a dataset of any size, with bounded memory.

The passes `rows` and `keys` spill the rows of the table and the keys of the samples by partition, a hash of the
unescaped key. So a sample and its row are in the same partition whether the table has escaped keys or not. `join` finds
the row of each sample in a partition, and spills its values by group of shards. `write` sorts a group by sample.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.annotating.match import Counted, examples_of, match
from wdsplit.annotating.options import Duplicates
from wdsplit.arrays import Int64
from wdsplit.conversion.shuffle.sorted_runs import OpenRun, RunWriter, SortedRun, damaged_spill, parse_runs, read_runs
from wdsplit.conversion.shuffle.steps import BATCH_BYTES, ROW_BYTES, cut_table
from wdsplit.engines.local import Engine, in_order, raise_if_cancelled
from wdsplit.errors import InputError
from wdsplit.fields.encode import encode_batch
from wdsplit.fields.json_values import stored
from wdsplit.fields.keys import escape_keys, hash_keys, number_keys
from wdsplit.jobs.notes import Notes
from wdsplit.jobs.run import Job, Pass, run
from wdsplit.loading.reading.open_shard import open_shard
from wdsplit.loading.reading.windows import read_window
from wdsplit.shards.annotations import MISSING, RUN_SUFFIX, annotation_table_path, side_shard_path
from wdsplit.shards.files import write_shard
from wdsplit.shards.manifest import Field, Shard, Shards
from wdsplit.shards.sample_tables import KEY as SAMPLE_KEY
from wdsplit.shards.sample_tables import dump_samples, read_samples
from wdsplit.storage.interface import Storage
from wdsplit.tables.read import Rows, check_files, read_rows
from wdsplit.tables.table import Table
from wdsplit.tar.members import Body, build_body

__all__ = [
    "AnnotateJob",
    "AnnotateProgress",
    "Joined",
    "join_partitions",
    "table_bytes",
    "task_bytes_of",
    "write_shards",
]

Result = TypeVar("Result")

_KEY, _RAW, _NUMBER, _SHARD, _ROW = "key", "raw", "number", "shard", "row"
"""Columns of spill files: the key as in the tar, the key as in the table if that differs, the row number in the table,
the shard, the sample in the shard. The joined columns are c0, c1, ..."""
_TEXT, _BINARY = pa.large_string(), pa.large_binary()
_ROWS = pa.schema([(_NUMBER, pa.int64()), (_KEY, _TEXT), (_RAW, _TEXT)])
_PLACES = pa.schema([(_SHARD, pa.int64()), (_ROW, pa.int64())])
_KEYS = _PLACES.append(pa.field(_KEY, _TEXT))
_KEY_BYTES = 96
"""Approximate bytes of a key of the dataset, with its shard and sample."""
_FILE_BYTES = 64 * 1024
"""Bytes that a file counts as, in addition to its content, because opening or publishing it takes time."""
_TASKS_PER_JOB = 4
_LIBRARY_BYTES, _COPIES = 128 * 1024**2, 6
"""Bytes that a task needs besides its rows, and the number of copies of its rows in memory."""
_READ_AT_ONCE, _WRITTEN_AT_ONCE = 16, 8
_SAMPLES_AT_ONCE = 1024
_ITEMS = {"rows": "rows", "keys": "the keys of shards", "join": "partitions", "write": "the tables of shards"}
_ESCAPE = re.compile(rb"_x([0-9A-F]{2})")


@dataclass(frozen=True)
class AnnotateProgress:
    """Progress of a pass of a run.

    Attributes:
        name: The pass: `rows` and `keys` are spilled, partitions joined (`join`), tables written (`write`). Before
            them, `read` for rows from Python.
        done: Number of rows, samples, partitions or tables that are done.
        total: Their total number; 0 if unknown.
        skipped: How many of `done` existed at the start.
    """

    name: Literal["read", "rows", "keys", "join", "write"]
    done: int
    total: int
    skipped: int = 0


@dataclass(frozen=True, kw_only=True)
class AnnotateJob(Job):
    """The input of every task of an annotation; each worker process receives it once.

    Attributes:
        table: The table.
        key: Its key column.
        number_width: Number of digits of the dataset's keys if they are row numbers, else 0. Integer keys are then
            written with this many digits.
        schema: The joined columns, with the names and types that the dataset gets.
        columns: The table's column for each of them.
        fields: The joined fields.
        shards: The dataset's shards.
        names: The dataset's fields, in the order of their members.
        duplicates: Which of several rows with the same key to use.
        folder: Folder for the tables of the shards, and for side shards.
        task_bytes: Bytes of rows of a task. The cuts of all passes follow from it.
        buffer_bytes: Bytes of rows that a task may buffer.
    """

    table: Table
    key: str
    number_width: int
    schema: pa.Schema
    columns: tuple[str, ...]
    fields: tuple[Field, ...]
    shards: Shards
    names: tuple[str, ...]
    duplicates: Duplicates
    folder: str
    task_bytes: int
    buffer_bytes: int

    @property
    def run(self) -> str:
        """The hash that names the run."""
        return self.folder.rpartition("-")[2]

    @property
    def run_folder(self) -> str:
        """The folder of the run's record in the dataset."""
        return self.folder.rpartition("-")[0] + RUN_SUFFIX

    @property
    def spill_folder(self) -> str:
        """The folder of spill files and notes; late tasks of another run, or of one with other cuts, have another."""
        return f"{self.run_folder}/{self.run}-{self.task_bytes}"

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

    @property
    def values(self) -> pa.Schema:
        """Columns, then encoded fields in spill files; with large strings, as all strings may exceed 2 GiB together."""
        kinds = [_TEXT if kind == pa.string() else kind for kind in self.schema.types]
        kinds += [_BINARY] * len(self.fields)
        return pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])


class Joined(NamedTuple):
    """The result of joining a partition.

    Attributes:
        runs: The values of its samples, by groups of shards.
        kinds: Samples without a row, rows without a sample, and rows that lost to another row with the same key.
    """

    runs: list[SortedRun]
    kinds: list[Counted]


class Written(NamedTuple):
    """What was written for a group of shards.

    Attributes:
        num_bytes: Bytes of tables and side shards.
        side_shards: The size and the checksum of the side shard of each shard; empty without joined fields.
    """

    num_bytes: int
    side_shards: list[tuple[int, str]]


def table_bytes(table: Table, shards: Shards) -> int:
    """Return the approximate bytes of the rows and keys during a join."""
    return table.data_bytes + table.num_rows * ROW_BYTES + int(shards.num_real.sum()) * _KEY_BYTES


def task_bytes_of(num_bytes: int, jobs: int, buffer_bytes: int) -> int:
    """Return the bytes of a task: it fits its buffer, and each job has at least one if possible."""
    return min(buffer_bytes, max(BATCH_BYTES, num_bytes // (_TASKS_PER_JOB * jobs)))


# The driver


def join_partitions(job: AnnotateJob, engine: Engine, report: Callable[[AnnotateProgress], None]) -> list[Joined]:
    """Spill rows and keys, and join them; return the results of the partitions that exist or are made now."""
    storage, partitions = job.open_storage(), range(job.num_partitions)
    known = dict(Notes(storage, job.spill_folder).read("join", partitions, _parse_joined))
    rows: list[SortedRun] = []
    keys: list[SortedRun] = []
    if len(known) < len(partitions):
        check_files(job.table, 0, job.table.num_rows)
        num_keys = np.diff(np.append(0, np.cumsum(job.shards.num_real))[job.key_cuts])
        of_rows = _run(job, engine, report, "rows", partial(_spill_rows, job), parse_runs, np.diff(job.row_cuts))
        of_keys = _run(job, engine, report, "keys", partial(_spill_keys, job), parse_runs, num_keys)
        rows, keys = ([run for runs in found for run in runs] for found in (of_rows, of_keys))
    ones = np.ones(len(partitions), np.int64)
    found = _run(job, engine, report, "join", partial(_join, job, rows, keys), _parse_joined, ones, known)
    storage.remove(*(run.path for run in (*rows, *keys)))
    return found


def write_shards(
    job: AnnotateJob, engine: Engine, report: Callable[[AnnotateProgress], None], found: Iterable[Joined]
) -> tuple[int, Shards]:
    """Write the joined rows as tables and side shards; return the number of bytes, and the side shards."""
    runs = [run for joined in found for run in joined.runs]
    work, amounts = partial(write_groups, job, runs), np.diff(job.shard_cuts)
    groups = _run(job, engine, report, "write", work, _parse_written, amounts)
    sides = [side for group in groups for side in group.side_shards]
    shards = job.shards.table.slice(0, len(sides))
    columns = {
        "path": [side_shard_path(job.folder, path) for path in shards.column("path").to_pylist()],
        "num_samples": shards.column("num_samples"),
        "num_pads": shards.column("num_pads"),
        "num_bytes": [num_bytes for num_bytes, _ in sides],
        "checksum": [checksum for _, checksum in sides],
    }
    return sum(group.num_bytes for group in groups), Shards.of_columns(columns)


def _run(
    job: AnnotateJob,
    engine: Engine,
    report: Callable[[AnnotateProgress], None],
    name: Literal["rows", "keys", "join", "write"],
    work: Callable[[Storage, range], Iterable[Result]],
    parse: Callable[[Any], Result],
    amounts: Int64,
    known: dict[int, Result] | None = None,
) -> list[Result]:
    """Run what is left of a pass; return the results of all its tasks, in their order."""
    is_near = not (job.open_storage().has_latency or any(file.remote for file in job.table.files[:1]))
    results: dict[int, Result] = {}

    def describe(task: range) -> str:
        return f"{_ITEMS[name]}, task {task.start + 1} of {len(amounts)}"

    run(
        job,
        Pass(name, len(amounts), work, parse, job.spill_folder, amounts, describe=describe),
        engine,
        results.__setitem__,
        lambda done, total, skipped: report(AnnotateProgress(name, done, total, skipped)),
        known=known,
        memory_bytes=_LIBRARY_BYTES + _COPIES * job.buffer_bytes,
        num_bytes=table_bytes(job.table, job.shards) if is_near else None,
    )
    return [results[task] for task in sorted(results)]


def _parse_written(note: Any) -> Written:
    num_bytes, sides = note
    return Written(int(num_bytes), [(int(size), str(checksum)) for size, checksum in sides])


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
            values = [
                stored(rows.columns[column]).cast(kind)
                for column, kind in zip(job.columns, job.values.types, strict=False)
            ]
            values += encode_batch(rows.columns, job.fields, "omit", rows.where, may_be_empty=True).values()
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
        joined = pa.Table.from_arrays([*samples.columns[:2], *values.columns], schema=_with(_PLACES, job.values))
        groups = np.searchsorted(job.shard_cuts, samples.column(_SHARD).to_numpy(), side="right") - 1
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


def write_groups(job: AnnotateJob, found: list[SortedRun], storage: Storage, groups: range) -> Iterator[Written]:
    """Write the tables and side shards of groups of shards. Runs in a worker; may run twice."""
    for group in groups:
        first, stop = job.shard_cuts[group : group + 2].tolist()
        table = _read(storage, found, group, _with(_PLACES, job.values))
        counts = job.shards.num_real[first:stop]
        starts = np.cumsum(counts) - counts
        order = np.full(int(counts.sum()), -1)
        order[starts[table.column(_SHARD).to_numpy() - first] + table.column(_ROW).to_numpy()] = np.arange(len(table))
        if len(table) != len(order) or (order < 0).any():
            raise damaged_spill(f"{storage.url}/{job.spill_folder}", f"{len(table):,} samples for {len(order):,}")
        values, num_columns = table.select(job.values.names), len(job.schema.names)
        columns = values.select(range(num_columns)).take(pa.array(order)).rename_columns(job.schema.names)
        payloads = [column.combine_chunks() for column in values.columns[num_columns:]]

        write = partial(_write_shard, job, storage, columns, payloads, order)
        pairs = list(zip(range(first, stop), starts.tolist(), strict=True))
        written = list(in_order(write, pairs, _WRITTEN_AT_ONCE) if storage.has_latency else map(write, pairs))
        yield Written(sum(each.num_bytes for each in written), [side for each in written for side in each.side_shards])


def _write_shard(
    job: AnnotateJob,
    storage: Storage,
    columns: pa.Table,
    payloads: list[pa.LargeBinaryArray],
    order: Int64,
    shard_and_start: tuple[int, int],
) -> Written:
    """Write the table and the side shard of a shard, given its number and where its samples begin in the group."""
    raise_if_cancelled()
    number, start = shard_and_start
    shard, num_bytes, sides = job.shards[number], 0, list[tuple[int, str]]()
    own = slice(start, start + shard.num_samples - shard.num_pads)
    if columns.num_columns:
        data = dump_samples(columns[own].cast(job.schema), shard.checksum)
        with storage.publish(annotation_table_path(job.folder, shard.path)) as file:
            file.write([data])
        num_bytes += len(data)
    if payloads:
        side = _write_side_shard(job, storage, shard, payloads, order[own])
        num_bytes += side.num_bytes
        sides.append((side.num_bytes, side.checksum))
    return Written(num_bytes, sides)


def _write_side_shard(
    job: AnnotateJob, storage: Storage, shard: Shard, payloads: list[pa.LargeBinaryArray], rows: Int64
) -> Shard:
    """Write the side shard of a shard, and its places.

    Args:
        job: The annotation.
        storage: The dataset.
        shard: The shard.
        payloads: The encoded fields, of any samples.
        rows: int64 of shape (n,): the row of each of the shard's samples without pads.
    """
    keys = read_samples(storage, shard, [SAMPLE_KEY]).column(0)
    if shard.num_pads:
        # A pad repeats the samples of its shard, from the first on. In a shard without any it has none of the fields.
        pads = np.arange(len(rows), shard.num_samples)
        names = read_window(open_shard(storage, shard, job.names).narrowed(()), pads).keys
        keys = pa.chunked_array([*keys.chunks, pa.array(names, keys.type)])
        rows = np.resize(rows, shard.num_samples) if len(rows) else np.full(shard.num_samples, -1)

    def bodies() -> Iterator[Body]:
        mean = max(1, sum(each.nbytes for each in payloads) // max(1, len(payloads[0])))
        at_once = max(1, min(_SAMPLES_AT_ONCE, BATCH_BYTES // mean))
        for begin in range(0, shard.num_samples, at_once):
            raise_if_cancelled()
            some = rows[begin : begin + at_once]
            chosen = pa.array(some, mask=some < 0)
            fields = {field.name: each.take(chosen) for field, each in zip(job.fields, payloads, strict=True)}
            is_there = np.any([each.is_valid().to_numpy(zero_copy_only=False) for each in fields.values()], axis=0)
            fields[MISSING] = pa.array([b""] * len(some), _BINARY, mask=is_there)
            yield build_body(keys.slice(begin, len(some)).combine_chunks(), fields)

    fields = [*(field.name for field in job.fields), MISSING]
    return write_shard(storage, side_shard_path(job.folder, shard.path), bodies(), fields, shard.num_pads)
