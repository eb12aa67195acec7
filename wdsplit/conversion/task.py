"""The task of a worker: reads the rows of some shards, encodes them, and writes the shards."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from wdsplit.conversion.job import ConvertJob, ShardRow
from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.shuffle.gather import ShuffledRows
from wdsplit.conversion.shuffle.in_memory import MemoryRows
from wdsplit.conversion.shuffle.scatter import NUMBER
from wdsplit.conversion.shuffle.steps import BATCH_BYTES, Cuts
from wdsplit.engines.local import ahead, raise_if_cancelled
from wdsplit.fields.encode import encode_batch
from wdsplit.fields.keys import escape_keys, in_column, number_keys, number_width
from wdsplit.fields.sample_columns import sample_rows
from wdsplit.shards.files import write_shard
from wdsplit.shards.manifest import shard_path
from wdsplit.shards.sidecars import write_shard_sidecars
from wdsplit.storage.interface import Storage
from wdsplit.tables.formats.common import MAX_BATCH_ROWS
from wdsplit.tables.payloads import with_payloads
from wdsplit.tables.read import Rows, read_rows
from wdsplit.tar.members import Body, build_body
from wdsplit.tar.names import pad_key

__all__ = ["describe_rows", "describe_shards", "keys_of", "named_shards", "write_shards"]


def write_shards(
    job: ConvertJob, source: MemoryRows | Cuts | None, storage: Storage, shards: range
) -> Iterator[ShardRow]:
    """Write shards in one pass over their rows; yield what to note of each. Runs in a worker; may run twice.

    Args:
        job: The input of all tasks.
        source: Where rows that the plan reorders are: in memory, or scattered; None to read the table.
        storage: The output.
        shards: The numbers of consecutive shards.
    """
    plan = job.plan
    read = _reader(job, source, storage)
    stream = _Stream(map(partial(_encoded, plan), read(plan.rows(shards[0])[0], plan.rows(shards[-1])[1])))
    names = [field.name for field in plan.fields]
    for number in shards:
        tables = [plan.samples.empty_table()]
        bodies = _bodies(job, storage, number, stream, read, tables)
        table = partial(pa.concat_tables, tables)
        shard = write_shard(storage, shard_path(number), bodies, names, plan.num_pads_of(number), table)
        write_shard_sidecars(storage, shard, names, job.emit)
        yield ShardRow(shard.num_samples, shard.num_pads, shard.num_bytes, shard.checksum)


def named_shards(shards: range) -> str:
    """Return a text that names consecutive shards."""
    return shard_path(shards[0]) + (f" to {shard_path(shards[-1])}" if len(shards) > 1 else "")


def describe_shards(plan: Plan, shards: range) -> str:
    """Return a text that names the shards and inputs of a task."""
    text = named_shards(shards)
    first, stop = plan.rows(shards[0])[0], plan.rows(shards[-1])[1]
    return text if plan.scatters or first == stop else f"{text}, {describe_rows(plan, first, stop)}"


def describe_rows(plan: Plan, first: int, stop: int) -> str:
    """Return a text that names the rows at the places first, ..., stop - 1, and their files."""
    paths = [part.file.path for part in plan.table.ranges(first, stop)]
    return f"rows {first} to {stop - 1} of {paths[0]}" + (f" to {paths[-1]}" if paths[-1] != paths[0] else "")


def _reader(
    job: ConvertJob, source: MemoryRows | Cuts | None, storage: Storage
) -> Callable[[int, int], Iterator[Rows]]:
    """Return a function that reads rows by their places, with their payloads; it reads files ahead."""
    plan = job.plan
    read: Callable[[int, int], Iterator[Rows]] = partial(read_rows, plan.table, columns=plan.columns)
    if isinstance(source, MemoryRows):
        read = partial(_read_loaded, plan, source)
    elif source is not None:
        read = ShuffledRows(storage, plan, source, job.buffer_bytes).read
    if plan.table.names_files:
        return lambda first, stop: ahead(with_payloads(read(first, stop)))
    return read if source is not None else lambda first, stop: ahead(read(first, stop))


def _read_loaded(plan: Plan, rows: MemoryRows, first: int, stop: int) -> Iterator[Rows]:
    """Read the rows at the places first, ..., stop - 1, batch by batch, in order."""
    batch_rows = max(1, BATCH_BYTES // rows.row_bytes)
    for begin in range(first, stop, batch_rows):
        places = np.arange(begin, min(stop, begin + batch_rows))
        numbers, *columns = rows.take([NUMBER, *(f"c{i}" for i in range(len(plan.columns)))], places)
        found = Rows(dict(zip(plan.columns, columns, strict=True)), numbers.to_numpy(), plan.table)
        yield from found.batches(MAX_BATCH_ROWS)


@dataclass(frozen=True)
class _Samples:
    """A batch of samples, encoded together: this costs less per sample, also if shards are small."""

    keys: pa.LargeStringArray
    fields: dict[str, pa.LargeBinaryArray]
    body: Body
    table: pa.Table

    def __len__(self) -> int:
        return len(self.keys)

    def slice(self, low: int, high: int) -> _Samples:
        """Return the samples low, ..., high - 1 of the batch; nothing is copied."""
        fields = {name: payload[low:high] for name, payload in self.fields.items()}
        return _Samples(self.keys[low:high], fields, self.body.slice(low, high), self.table[low:high])


def _encoded(plan: Plan, rows: Rows) -> _Samples:
    raise_if_cancelled()
    keys, fields = keys_of(plan, rows), _fields_of(plan, rows)
    kept = {name: rows.columns[name] for name in plan.kept}
    table = sample_rows(plan.samples, plan.fields, keys, fields, kept, rows.where)
    return _Samples(keys, fields, build_body(keys, fields), table)


class _Stream:
    """Samples that are taken shard by shard from a stream of batches."""

    def __init__(self, batches: Iterator[_Samples]) -> None:
        self._batches = batches
        self._rest: _Samples | None = None

    def take(self, count: int) -> Iterator[_Samples]:
        """Yield the next `count` samples."""
        while count:
            samples = self._rest or next(self._batches)
            cut = min(len(samples), count)
            self._rest = samples.slice(cut, len(samples)) if cut < len(samples) else None
            yield samples.slice(0, cut) if cut < len(samples) else samples
            count -= cut


def _bodies(
    job: ConvertJob,
    storage: Storage,
    shard: int,
    stream: _Stream,
    read: Callable[[int, int], Iterator[Rows]],
    tables: list[pa.Table],
) -> Iterator[Body]:
    """Yield the samples of a shard, batch by batch, the pad last; add the rows of all but the pad to tables."""
    plan = job.plan
    first, stop = plan.rows(shard)
    begin: _Samples | None = None
    for samples in stream.take(stop - first):
        raise_if_cancelled()
        begin = begin or samples
        tables.append(samples.table)
        yield samples.body
    if plan.num_pads_of(shard):
        if begin is not None:
            fields = begin.slice(0, 1).fields
        else:  # a shard without rows repeats one of another
            place = shard % plan.num_rows
            [rows] = read(place, place + 1)
            fields = _fields_of(plan, rows)
        yield build_body(pa.array([pad_key(shard, 0)], pa.large_string()), fields)
    job.refuse_taken_over(storage)  # just before the shard is published


def keys_of(plan: Plan, rows: Rows) -> pa.LargeStringArray:
    """Return the escaped keys of a batch of rows, which must have the plan's key column, if there is one."""
    if plan.key is None:
        # Later numbers have at least the digits of earlier ones, so that no two keys are the same.
        return number_keys(rows.numbers + plan.first_key, number_width(plan.first_key or plan.table.total_rows))
    return escape_keys(rows.columns[plan.key], in_column(rows.where, plan.key))


def _fields_of(plan: Plan, rows: Rows) -> dict[str, pa.LargeBinaryArray]:
    return encode_batch(rows.columns, plan.fields, plan.options.null, rows.where)
