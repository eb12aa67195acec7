"""The task of a worker: reads the rows of some shards, encodes them, and writes the shards.

Tasks are independent and picklable, and give the same result when they run twice. Published shards are noted in the
run's folder, so that a later run can skip them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from wdsplit.conversion.plan.plan import Plan, Span
from wdsplit.conversion.record.job import Job, open_output, refuse_taken_over
from wdsplit.conversion.record.notes import note_shard
from wdsplit.conversion.shuffle.gather import ShuffledRows
from wdsplit.conversion.shuffle.in_memory import LoadedRows, MemoryRows
from wdsplit.engines.local import ahead, raise_if_cancelled
from wdsplit.fields.encode import encode_batch
from wdsplit.fields.keys import escape_keys, number_keys, number_width
from wdsplit.fields.sample_columns import sample_rows
from wdsplit.shards.files import write_shard
from wdsplit.shards.manifest import Shard, shard_path
from wdsplit.shards.sidecar_files import write_shard_sidecars
from wdsplit.storage.interface import Storage
from wdsplit.tables.payloads import with_payloads
from wdsplit.tables.read import Rows, read_rows
from wdsplit.tar.members import Body, build_body
from wdsplit.tar.names import pad_key

__all__ = ["describe_rows", "describe_span", "keys_of", "write_shards"]


def write_shards(job: Job, span: Span, loaded: LoadedRows | None = None) -> dict[int, Shard]:
    """Write the shards of a span in one pass over their rows. Runs in a worker process; may run twice."""
    plan = job.plan
    written: dict[int, Shard] = {}
    with open_output(job) as storage:
        read = _reader(job, loaded)
        rows = read(plan.rows(span.first)[0], plan.rows(span.stop - 1)[1])
        stream = _Stream(map(partial(_encoded, plan), rows))
        for shard in range(span.first, span.stop):
            tables: list[pa.Table] = []
            bodies = _checked_at_the_end(storage, job, _bodies(plan, shard, stream, read, tables))
            samples = partial(_joined, plan.samples, tables)
            names = [field.name for field in plan.fields]
            num_pads = plan.num_pads_of(shard)
            written[shard] = write_shard(storage, shard_path(shard), bodies, names, num_pads, samples)
            write_shard_sidecars(storage, written[shard], names, job.emit)
            note_shard(storage, shard, written[shard])
    return written


def describe_span(plan: Plan, span: Span) -> str:
    """Return a text that names the shards and inputs of a task."""
    shards = shard_path(span.first)
    if span.stop - span.first > 1:
        shards += f" to {shard_path(span.stop - 1)}"
    rows = plan.rows(span.first)[0], plan.rows(span.stop - 1)[1]
    return shards if plan.scatters or rows[0] == rows[1] else f"{shards}, {describe_rows(plan, rows)}"


def describe_rows(plan: Plan, rows: tuple[int, int]) -> str:
    """Return a text that names the files with the rows at the places first, ..., stop - 1."""
    ranges = list(plan.table.ranges(*rows))
    first, last = ranges[0].file.path, ranges[-1].file.path
    return f"rows of {first}" + (f" to {last}" if last != first else "")


def _checked_at_the_end(storage: Storage, job: Job, bodies: Iterator[Body]) -> Iterator[Body]:
    """Yield the samples of a shard; just before it is published, refuse an output that another run has taken over."""
    yield from bodies
    refuse_taken_over(storage, job.plan, job.shared)


def _reader(job: Job, loaded: LoadedRows | None) -> Callable[[int, int], Iterator[Rows]]:
    """Return a function that reads rows by their places, with their payloads; it reads files ahead."""
    plan, read = job.plan, _row_reader(job, loaded)
    if plan.table.names_files:
        return lambda first, stop: ahead(with_payloads(read(first, stop)))
    return read if plan.scatters else lambda first, stop: ahead(read(first, stop))


def _row_reader(job: Job, loaded: LoadedRows | None) -> Callable[[int, int], Iterator[Rows]]:
    """Return a function that reads rows: from memory, from spill files, or in the order of the table."""
    if loaded is not None:
        return MemoryRows(job, loaded).read
    if job.plan.scatters:
        return ShuffledRows(job).read
    return partial(read_rows, job.plan.table, columns=job.plan.columns)


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


def _joined(schema: pa.Schema, tables: list[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _bodies(
    plan: Plan,
    shard: int,
    stream: _Stream,
    read: Callable[[int, int], Iterator[Rows]],
    tables: list[pa.Table],
) -> Iterator[Body]:
    """Yield the samples of a shard, batch by batch, pads last; add the rows of all but the pads to tables."""
    first, stop = plan.rows(shard)
    begin: _Samples | None = None
    for samples in stream.take(stop - first):
        raise_if_cancelled()
        begin = begin or samples
        tables.append(samples.table)
        yield samples.body
    number = 0
    for fields in _pads(plan, shard, begin, read):
        raise_if_cancelled()
        count = len(next(iter(fields.values())))
        keys = pa.array([pad_key(shard, number + row) for row in range(count)], pa.large_string())
        yield build_body(keys, fields)
        number += count


def _pads(
    plan: Plan, shard: int, begin: _Samples | None, read: Callable[[int, int], Iterator[Rows]]
) -> Iterator[dict[str, pa.LargeBinaryArray]]:
    """Yield the fields of the pads; reuses the first batch if it suffices, because rereading a row group is slow."""
    count = plan.num_pads_of(shard)
    if count and begin is not None and count <= len(begin):
        yield begin.slice(0, count).fields
    else:
        yield from (_fields_of(plan, rows) for first, stop in plan.pads(shard) for rows in read(first, stop))


def keys_of(plan: Plan, rows: Rows) -> pa.LargeStringArray:
    """Return the escaped keys of a batch of rows, which must have the plan's key column, if there is one."""
    if plan.key is None:
        return number_keys(rows.numbers, number_width(plan.table.total_rows))
    return escape_keys(rows.columns[plan.key], lambda row: f"{rows.where(row)}, column {plan.key!r}")


def _fields_of(plan: Plan, rows: Rows) -> dict[str, pa.LargeBinaryArray]:
    return encode_batch(rows.columns, plan.fields, plan.options.null, rows.where)
