"""The join of a table and the samples of a dataset by key.

A table in the order of the samples is read by the tasks that write. Another one is loaded into memory (`load`) if it
fits there. Of a larger one, the passes `rows` and `keys` spill its rows and the keys of the samples by partition, a
hash of the unescaped key. So a sample and its row are in the same partition whether the table has escaped keys or not.
`join` finds the row of each sample in a partition, and spills its values by group of shards. `write` sorts a group by
sample.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.annotating.match import Counted, Matches, examples_of, match
from wdsplit.annotating.options import Duplicates
from wdsplit.annotating.writing import AnnotateProgress, Read, Report, Take, WriteJob, run_pass, values_of
from wdsplit.arrays import Int64
from wdsplit.conversion.shuffle.in_memory import MemoryRows, load_table
from wdsplit.conversion.shuffle.needs import loadable_bytes, memory_budget, task_bytes
from wdsplit.conversion.shuffle.sorted_runs import OpenRun, RunWriter, SortedRun, damaged_spill, parse_runs, read_runs
from wdsplit.conversion.shuffle.steps import BATCH_BYTES, ROW_BYTES, cut_table
from wdsplit.engines.local import Engine, in_order, raise_if_cancelled
from wdsplit.errors import InputError
from wdsplit.fields.json_values import stored
from wdsplit.fields.keys import escape_keys, hash_keys, in_column, number_keys
from wdsplit.jobs.notes import Notes
from wdsplit.jobs.run import Work
from wdsplit.shards.manifest import Shards
from wdsplit.shards.sample_tables import KEY as SAMPLE_KEY
from wdsplit.shards.sample_tables import read_samples
from wdsplit.storage.interface import Storage
from wdsplit.tables.read import Rows, check_files, read_rows
from wdsplit.tables.table import Table

__all__ = ["AnnotateJob", "join_table", "sizes_of"]

_SHARD, _ROW = "shard", "row"
_KEY, _RAW, _NUMBER = "key", "raw", "number"
"""Columns of rows and samples: the shard, the sample in it, the key as in the tar, the key as in the table if that
differs, and the row number in the table. The values are c0, c1, ..."""
_TEXT = pa.large_string()
_ROWS = pa.schema([(_NUMBER, pa.int64()), (_KEY, _TEXT), (_RAW, _TEXT)])
_PLACES = pa.schema([(_SHARD, pa.int64()), (_ROW, pa.int64())])
_KEYS = _PLACES.append(pa.field(_KEY, _TEXT))
_KEY_BYTES = 96
"""Approximate bytes of a key of the dataset, with its shard and sample."""
_KEY_COPIES = 2
"""Copies of keys in memory while all of them are joined: as they were read, and as numbers in a dictionary."""
_FILE_BYTES = 64 * 1024
"""Bytes that a file counts as, in addition to its content, because opening or publishing it takes time."""
_TASKS_PER_JOB = 4
_READ_AT_ONCE = 16
_MOST_READ = 2
"""How often the rows of a table in the order of the samples may be read, as tasks read whole row groups."""
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
        return None if is_far else _num_bytes(self.table, self.shards)

    @cached_property
    def row_cuts(self) -> Int64:
        """Boundaries between the tasks that read rows: row numbers, from 0 to the number of rows."""
        return np.asarray(cut_table(self.table, self.task_bytes))

    @cached_property
    def key_cuts(self) -> Int64:
        """Boundaries between the tasks that read keys: shard numbers, from 0 to the number of shards."""
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
    def amounts(self) -> tuple[Int64, Int64]:
        """Number of rows of each task that reads rows, and of samples of each task that reads keys."""
        return np.diff(self.row_cuts), np.diff(np.append(0, np.cumsum(self.shards.num_real))[self.key_cuts])

    @property
    def num_partitions(self) -> int:
        """Number of partitions; one task joins each."""
        return -(-_num_bytes(self.table, self.shards) // self.task_bytes)


class _Joined(NamedTuple):
    """The result of joining a partition.

    Attributes:
        runs: The values of its samples, by groups of shards.
        kinds: Samples without a row, rows without a sample, and rows that lost to another row with the same key.
    """

    runs: list[SortedRun]
    kinds: list[Counted]


def _num_bytes(table: Table, shards: Shards) -> int:
    """Return the approximate bytes of the rows and keys during a join."""
    return table.data_bytes + table.num_rows * ROW_BYTES + int(shards.num_real.sum()) * _KEY_BYTES


def sizes_of(table: Table, shards: Shards, memory: int | None, engine: Engine, is_near: bool) -> tuple[int, int]:
    """Return `task_bytes` and `buffer_bytes`: each job of the engine has a task if possible, in its share of memory.

    Args:
        table: The table.
        shards: The shards.
        memory: Bytes of memory, as for `AnnotateOptions`.
        engine: The engine.
        is_near: Whether the dataset is on a disk of this machine.
    """
    num_bytes, budget = _num_bytes(table, shards), memory_budget(memory, engine.is_local)
    buffer_bytes = task_bytes(budget, engine.jobs_of_a_node, num_bytes if is_near else None)
    least = max(BATCH_BYTES, num_bytes // (_TASKS_PER_JOB * engine.jobs))
    return min(buffer_bytes, least), buffer_bytes


# The driver


def join_table(
    job: AnnotateJob, engine: Engine, report: Report, memory: int | None, refuse: Callable[[list[Counted]], None]
) -> tuple[Read, list[Counted]]:
    """Find the row of each sample; return how tasks read the rows, and what does not match, as `_Joined.kinds`.

    Args:
        job: The job.
        engine: The engine.
        report: Called with the progress.
        memory: Bytes of memory, as for `AnnotateOptions`.
        refuse: Given what does not match, raises the error if it must match.
    """
    if engine.is_local:
        joined_in_memory = _join_in_memory(job, engine, report, memory_budget(memory, is_local=True), refuse)
        if joined_in_memory is not None:
            return joined_in_memory
    storage, partitions = job.open_storage(), range(job.num_partitions)
    known = dict(Notes(storage, job.spill_folder).read("join", partitions, _parse_joined))
    rows: list[SortedRun] = []
    keys: list[SortedRun] = []
    if len(known) < len(partitions):
        check_files(job.table, 0, job.table.num_rows)
        num_rows, num_keys = job.amounts
        of_rows = run_pass(job, engine, report, "rows", partial(_spill_rows, job), parse_runs, num_rows)
        of_keys = run_pass(job, engine, report, "keys", partial(_spill_keys, job), parse_runs, num_keys)
        rows, keys = ([run for runs in found for run in runs] for found in (of_rows, of_keys))
    ones = np.ones(len(partitions), np.int64)
    joined = run_pass(job, engine, report, "join", partial(_join, job, rows, keys), _parse_joined, ones, known)
    storage.remove(*(run.path for run in (*rows, *keys)))
    kinds = [Counted.sum(each.kinds[kind] for each in joined) for kind in range(3)]
    refuse(kinds)
    return partial(_read_group, job, [run for each in joined for run in each.runs]), kinds


def _join_in_memory(
    job: AnnotateJob, engine: Engine, report: Report, memory: int, refuse: Callable[[list[Counted]], None]
) -> tuple[Read, list[Counted]] | None:
    """Do the same in `memory` bytes, without a spill; None if the keys or the values do not fit.

    Values are loaded unless the rows of each group of shards are near each other in the table: tasks read those.
    """
    max_bytes, num_samples = loadable_bytes(memory, engine.jobs), int(job.shards.num_real.sum())
    if _KEY_COPIES * _KEY_BYTES * (num_samples + job.table.num_rows) > max_bytes:
        return None
    check_files(job.table, 0, job.table.num_rows)
    read_keys, open_samples = partial(_rows, job, has_values=False), partial(_samples, job, job.open_storage())
    rows = _collected("rows", read_keys, job.row_cuts, job.amounts[0], engine.jobs, report)
    samples = _collected("keys", open_samples, job.key_cuts, job.amounts[1], engine.jobs, report)
    found, kinds = _matched(job, pa.concat_tables([_ROWS.empty_table(), *rows]), pa.concat_tables(samples))
    refuse(kinds)
    del rows, samples  # their memory is used for the values
    row_groups, num_read = np.asarray(cut_table(job.table, 1)), 0
    for group in range(len(job.shard_cuts) - 1):
        first, stop = _span_of(found.rows[slice(*_samples_of(job, group))])
        low, high = np.searchsorted(row_groups, first, "right") - 1, np.searchsorted(row_groups, stop)
        num_read += int(row_groups[high] - row_groups[low]) if first < stop else 0
    if num_read <= _MOST_READ * job.table.num_rows:
        return partial(_open_in_order, job, found.rows), kinds

    def load(work: Work[int], amounts: Int64, collect: Callable[[int, int], None]) -> None:
        run_pass(job, engine, report, "load", work, int, amounts, collect=collect, is_noted=False)

    read = partial(_rows, job, has_keys=False)
    loaded = load_table(job.table, read, lambda _: found.rows, engine, True, max_bytes, load)
    return None if loaded is None else (partial(_open_loaded, job, loaded), kinds)


def _collected(
    name: Literal["rows", "keys"],
    read: Callable[[int, int], Iterable[pa.Table]],
    cuts: Int64,
    amounts: Int64,
    jobs: int,
    report: Report,
) -> list[pa.Table]:
    """Return what `read` gives for all spans between cuts; threads read them."""
    found, total = list[pa.Table](), int(amounts.sum())
    report(AnnotateProgress(name, 0, total))
    for number, tables in enumerate(in_order(lambda span: list(read(*span)), pairwise(cuts.tolist()), jobs), 1):
        found += tables
        report(AnnotateProgress(name, int(amounts[:number].sum()), total))
    return found


def _samples_of(job: AnnotateJob, group: int) -> tuple[int, int]:
    """Return the samples of a group of shards: first, stop."""
    first, stop = np.append(0, np.cumsum(job.shards.num_real))[job.shard_cuts[group : group + 2]].tolist()
    return first, stop


def _span_of(rows: Int64) -> tuple[int, int]:
    """Return the span of a table with some rows, of which -1 is none."""
    there = rows[rows >= 0]
    return (int(there.min()), int(there.max()) + 1) if len(there) else (0, 0)


def _open_in_order(job: AnnotateJob, rows: Int64, storage: Storage, group: int) -> Take:
    """Read the rows of a group of shards from the table."""
    own = rows[slice(*_samples_of(job, group))]
    first, stop = _span_of(own)
    batches = [batch for table in _rows(job, first, stop, has_keys=False) for batch in table.to_batches()]
    return MemoryRows(job.values, batches, np.where(own < 0, -1, own - first)).take


def _open_loaded(job: AnnotateJob, loaded: MemoryRows, storage: Storage, group: int) -> Take:
    """Open the rows of a group of shards in memory."""
    first = _samples_of(job, group)[0]
    return lambda names, places: loaded.take(names, np.where(places < 0, -1, places + first))


def _parse_joined(note: Any) -> _Joined:
    runs, kinds = note
    return _Joined(parse_runs(runs), [Counted(int(total), list(examples)) for total, examples in kinds])


# The tasks: they run in workers, and may run twice


def _rows(
    job: AnnotateJob, first: int, stop: int, has_keys: bool = True, has_values: bool = True
) -> Iterator[pa.Table]:
    """Give the rows first, ..., stop - 1: `_ROWS`, then `WriteJob.values`."""
    sources = [job.key] if has_keys else []
    sources += [*job.columns, *(field.column for field in job.fields)] if has_values else []
    for rows in read_rows(job.table, first, stop, list(dict.fromkeys(sources))):
        raise_if_cancelled()
        own = [pa.array(rows.numbers), *_keys_of(job, rows)] if has_keys else []
        values = values_of(job, rows.columns, rows.where) if has_values else []
        schema = _with(_ROWS if has_keys else pa.schema([]), job.values if has_values else pa.schema([]))
        yield pa.Table.from_arrays([*own, *values], schema=schema)


def _samples(job: AnnotateJob, storage: Storage, first: int, stop: int) -> Iterator[pa.Table]:
    """Give the samples of the shards first, ..., stop - 1: their places and keys."""

    def read(shard: int) -> pa.Table:
        raise_if_cancelled()
        keys = read_samples(storage, job.shards[shard], [SAMPLE_KEY]).column(0).cast(_TEXT)
        return pa.table([np.full(len(keys), shard), np.arange(len(keys)), keys], schema=_KEYS)

    shards = range(first, stop)
    yield from in_order(read, shards, _READ_AT_ONCE) if storage.has_latency else map(read, shards)


def _spill_rows(job: AnnotateJob, storage: Storage, tasks: range) -> Iterator[list[SortedRun]]:
    for task in tasks:
        tables = _rows(job, *job.row_cuts[task : task + 2].tolist())
        yield _spilled(job, storage, f"rows-{task:06d}", tables)


def _spill_keys(job: AnnotateJob, storage: Storage, tasks: range) -> Iterator[list[SortedRun]]:
    for task in tasks:
        tables = _samples(job, storage, *job.key_cuts[task : task + 2].tolist())
        yield _spilled(job, storage, f"keys-{task:06d}", tables)


def _spilled(job: AnnotateJob, storage: Storage, name: str, tables: Iterable[pa.Table]) -> list[SortedRun]:
    """Spill tables by the partition of their keys."""
    runs = RunWriter(storage, f"{job.spill_folder}/{name}", job.buffer_bytes)
    for table in tables:
        partitions = partitions_of(table.column(_KEY).combine_chunks(), job.num_partitions)
        runs.append(table, partitions, table.nbytes + partitions.nbytes)
    return runs.end()


def _with(own: pa.Schema, values: pa.Schema) -> pa.Schema:
    return pa.schema([*own, *values])


def _keys_of(job: AnnotateJob, rows: Rows) -> tuple[pa.LargeStringArray, pa.LargeStringArray]:
    """Return the escaped keys of rows, and the keys as in the table where that differs, else null."""
    column, where = stored(rows.columns[job.key]), in_column(rows.where, job.key)
    if column.null_count:
        row = int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise InputError(
            "a key is null",
            place=where(row),
            expected="a key in each row",
            remedy="fill the key column, or remove such rows",
        )
    nothing = pa.nulls(len(column), _TEXT)
    if job.number_width and pa.types.is_integer(column.type):
        return number_keys(np.asarray(column.cast(pa.int64())), job.number_width), nothing
    try:
        keys = escape_keys(column, where)
    except InputError as error:
        error.remedy = "no sample can have this key: check --key, or remove such rows"
        raise
    texts = column.cast(_TEXT)
    return keys, nothing if keys.equals(texts) else pc.if_else(pc.equal(keys, texts), nothing, texts)


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
) -> Iterator[_Joined]:
    for partition in partitions:
        table = _read(storage, rows, partition, _with(_ROWS, job.values))
        samples = _read(storage, keys, partition, _KEYS)
        found, kinds = _matched(job, table, samples)
        values = table.select(job.values.names).take(pa.array(found.rows, mask=found.rows < 0))
        joined = pa.Table.from_arrays([*samples.columns[:2], *values.columns], schema=_with(_PLACES, job.values))
        groups = np.searchsorted(job.shard_cuts, samples.column(_SHARD).to_numpy(), side="right") - 1
        runs = RunWriter(storage, f"{job.spill_folder}/found-{partition:06d}", job.buffer_bytes)
        runs.append(joined, groups, joined.nbytes + groups.nbytes)
        yield _Joined(runs.end(), kinds)


def _matched(job: AnnotateJob, table: pa.Table, samples: pa.Table) -> tuple[Matches, list[Counted]]:
    """Find the row of each sample; return the matches and `_Joined.kinds`."""
    found = match(table.column(_KEY), table.column(_RAW), samples.column(_KEY), job.duplicates)
    listed = table.select([_NUMBER, _KEY, _RAW])
    lost = listed.take(pa.array(found.duplicates))
    lost = lost.add_column(1, "used", listed.column(_NUMBER).take(pa.array(found.used)))
    kinds = (samples, np.flatnonzero(found.rows < 0)), (listed, found.extra), (lost, np.arange(len(lost)))
    return found, [examples_of(each, places) for each, places in kinds]


def _read(storage: Storage, runs: list[SortedRun], bucket: int, schema: pa.Schema) -> pa.Table:
    """Read a bucket of all runs, in the order of the runs."""

    def read(run: SortedRun) -> list[pa.RecordBatch]:
        raise_if_cancelled()
        return OpenRun(storage, run).read_buckets(bucket, bucket)

    return pa.Table.from_batches(list(read_runs(storage, runs, read)), schema)


def _read_group(job: AnnotateJob, found: list[SortedRun], storage: Storage, group: int) -> Take:
    """Read the joined rows of a group of shards."""
    table = _read(storage, found, group, _with(_PLACES, job.values))
    first, stop = job.shard_cuts[group : group + 2].tolist()
    counts = job.shards.num_real[first:stop]
    rows = np.full(int(counts.sum()), -1)
    places = (np.cumsum(counts) - counts)[table.column(_SHARD).to_numpy() - first] + table.column(_ROW).to_numpy()
    rows[places] = np.arange(len(table))
    if len(table) != len(rows) or (rows < 0).any():
        raise damaged_spill(f"{storage.url}/{job.spill_folder}", f"{len(table):,} samples for {len(rows):,}")
    return MemoryRows(table.schema, table.to_batches(), rows).take
