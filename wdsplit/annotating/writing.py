"""Writing the tables and side shards of an annotation, whatever its rows come from; and the passes of its run.

Rows come by groups of shards: from the join of a table (`passes`), or from a function (`mapping`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.conversion.shuffle.steps import BATCH_BYTES
from wdsplit.engines.local import Engine, in_order, raise_if_cancelled
from wdsplit.fields.encode import encode_batch
from wdsplit.fields.json_values import stored
from wdsplit.fields.keys import Locate
from wdsplit.jobs.run import Job, Pass, run
from wdsplit.loading.reading.open_shard import open_shard
from wdsplit.loading.reading.windows import read_window
from wdsplit.shards.annotations import MISSING, RUN_SUFFIX, annotation_table_path
from wdsplit.shards.files import write_shard
from wdsplit.shards.manifest import Field, Shard, Shards
from wdsplit.shards.sample_tables import KEY as SAMPLE_KEY
from wdsplit.shards.sample_tables import dump_samples, read_samples
from wdsplit.storage.interface import Storage
from wdsplit.tar.members import Body, build_body

__all__ = [
    "AnnotateProgress",
    "Read",
    "Report",
    "Take",
    "WriteJob",
    "run_pass",
    "values_of",
    "write_groups",
    "write_shards",
]

Result = TypeVar("Result")

_LIBRARY_BYTES, _COPIES = 128 * 1024**2, 6
"""Bytes that a task needs besides its rows, and the number of copies of its rows in memory."""
_WRITTEN_AT_ONCE, _SAMPLES_AT_ONCE, _GROWTH = 8, 1024, 32
"""Shards that are written at a time in a store, samples that are encoded at a time at most, and in terms of those
before: the bytes of samples are known once some were read."""
_TEXT, _BINARY = pa.large_string(), pa.large_binary()
_ITEMS = {
    "rows": "rows",
    "load": "rows",
    "keys": "the keys of shards",
    "join": "partitions",
    "map": "the samples of shards",
    "write": "the tables of shards",
}
_PassName = Literal["rows", "keys", "load", "join", "map", "write"]


@dataclass(frozen=True)
class AnnotateProgress:
    """Progress of a pass of a run.

    Attributes:
        name: The pass: `rows` and `keys` are read, rows kept in memory (`load`) or spilled and partitions joined
            (`join`), or samples given to a function (`map`); then tables are written (`write`). Before them, `read`
            for rows from Python.
        done: Number of rows, samples, partitions or tables that are done.
        total: Their total number; 0 if unknown.
        skipped: How many of `done` existed at the start.
    """

    name: Literal["read", "rows", "keys", "load", "join", "map", "write"]
    done: int
    total: int
    skipped: int = 0


Report = Callable[[AnnotateProgress], None]
Take = Callable[[Sequence[str], Int64], list[pa.Array]]
"""Returns columns of `WriteJob.values` for samples of a group of shards; null for the sample -1, or without a row."""
Read = Callable[[Storage, int], Take]
"""Opens the rows of a group of shards."""


@dataclass(frozen=True, kw_only=True)
class WriteJob(Job):
    """The input of the tasks that write an annotation; each worker process receives it once.

    Attributes:
        schema: The columns, with the names and types that the dataset gets.
        columns: The source's column for each of them.
        fields: The fields.
        shards: The shards that get tables and side shards.
        names: The dataset's fields, in the order of their members.
        folder: Folder for the tables of the shards, and for side shards.
        task_bytes: Bytes of rows of a task. The cuts of all passes follow from it.
        buffer_bytes: Bytes of rows that a task may buffer.
    """

    schema: pa.Schema
    columns: tuple[str, ...]
    fields: tuple[Field, ...]
    shards: Shards
    names: tuple[str, ...]
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

    @property
    @abstractmethod
    def shard_cuts(self) -> Int64:
        """Boundaries between the groups of shards whose tables a task writes: from 0 to the number of shards."""

    @property
    @abstractmethod
    def near_bytes(self) -> int | None:
        """Approximate bytes of all rows; None if tasks wait for a store."""

    @property
    def value_names(self) -> list[str]:
        """The names of columns and fields."""
        return [*self.schema.names, *(field.name for field in self.fields)]

    @property
    def values(self) -> pa.Schema:
        """Columns, then encoded fields in spill files; with large strings, as all strings may exceed 2 GiB together."""
        kinds = [_TEXT if kind == pa.string() else kind for kind in self.schema.types]
        kinds += [_BINARY] * len(self.fields)
        return pa.schema([(f"c{number}", kind) for number, kind in enumerate(kinds)])


class Written(NamedTuple):
    """What was written for a group of shards.

    Attributes:
        num_bytes: Bytes of tables and side shards.
        side_shards: The size and the checksum of the side shard of each shard; empty without joined fields.
    """

    num_bytes: int
    side_shards: list[tuple[int, str]]


def values_of(job: WriteJob, columns: Mapping[str, pa.Array], where: Locate) -> list[pa.Array]:
    """Return rows of the source as `WriteJob.values`; `where` returns the place of a row, for an error."""
    values = [stored(columns[column]).cast(kind) for column, kind in zip(job.columns, job.values.types, strict=False)]
    return [*values, *encode_batch(columns, job.fields, "omit", where, may_be_empty=True).values()]


def write_shards(job: WriteJob, engine: Engine, report: Report, read: Read) -> tuple[int, Shards]:
    """Write rows as tables and side shards; return the number of bytes, and the side shards."""
    work = partial(write_groups, job, read)
    groups = run_pass(job, engine, report, "write", work, _parse_written, np.diff(job.shard_cuts))
    sides = [side for group in groups for side in group.side_shards]
    shards = job.shards.table.slice(0, len(sides))
    columns = {
        "path": [f"{job.folder}/{path}" for path in shards.column("path").to_pylist()],
        "num_samples": shards.column("num_samples"),
        "num_pads": shards.column("num_pads"),
        "num_bytes": [num_bytes for num_bytes, _ in sides],
        "checksum": [checksum for _, checksum in sides],
    }
    return sum(group.num_bytes for group in groups), Shards.of_columns(columns)


def run_pass(
    job: WriteJob,
    engine: Engine,
    report: Report,
    name: _PassName,
    work: Callable[[Storage, range], Iterable[Result]],
    parse: Callable[[Any], Result],
    amounts: Int64,
    known: dict[int, Result] | None = None,
    collect: Callable[[int, Result], None] = lambda task, result: None,
    threads: bool = True,
    is_noted: bool = True,
) -> list[Result]:
    """Run what is left of a pass; return the results of all its tasks, in their order.

    The arguments are those of `Pass` and of `run`. A pass that is not noted is transient.
    """
    results, folder = dict[int, Result](), job.spill_folder if is_noted else ""

    def add(task: int, result: Result) -> None:
        results[task] = result
        collect(task, result)

    def describe(task: range) -> str:
        return f"{_ITEMS[name]}, task {task.start + 1} of {len(amounts)}"

    run(
        job,
        Pass(name, len(amounts), work, parse, folder, amounts, describe=describe, threads=threads),
        engine,
        add,
        lambda done, total, skipped: report(AnnotateProgress(name, done, total, skipped)),
        known=known,
        memory_bytes=_LIBRARY_BYTES + _COPIES * job.buffer_bytes,
        num_bytes=job.near_bytes if threads else None,
    )
    return [results[task] for task in sorted(results)]


def _parse_written(note: Any) -> Written:
    num_bytes, sides = note
    return Written(int(num_bytes), [(int(size), str(checksum)) for size, checksum in sides])


# The tasks: they run in workers, and may run twice


def write_groups(job: WriteJob, read: Read, storage: Storage, groups: range) -> Iterator[Written]:
    """Write the tables and side shards of groups of shards. Runs in a worker; may run twice."""
    for group in groups:
        first, stop = job.shard_cuts[group : group + 2].tolist()
        write, counts = partial(_write_shard, job, storage, read(storage, group)), job.shards.num_real[first:stop]
        pairs = list(zip(range(first, stop), (np.cumsum(counts) - counts).tolist(), strict=True))
        written = list(in_order(write, pairs, _WRITTEN_AT_ONCE) if storage.has_latency else map(write, pairs))
        yield Written(sum(each.num_bytes for each in written), [side for each in written for side in each.side_shards])


def _write_shard(job: WriteJob, storage: Storage, take: Take, number_and_start: tuple[int, int]) -> Written:
    """Write the table and the side shard of a shard, given its number and where its samples begin in the group."""
    raise_if_cancelled()
    number, start = number_and_start
    shard, num_bytes, sides = job.shards[number], 0, list[tuple[int, str]]()
    own, names = start + np.arange(shard.num_samples - shard.num_pads), job.schema.names
    if names:
        columns = pa.table(take(job.values.names[: len(names)], own), names)
        data = dump_samples(columns.cast(job.schema), shard.checksum)
        with storage.publish(annotation_table_path(job.folder, shard.path)) as file:
            file.write([data])
        num_bytes += len(data)
    if job.fields:
        side = _write_side_shard(job, storage, shard, partial(take, job.values.names[len(names) :]), own)
        num_bytes += side.num_bytes
        sides.append((side.num_bytes, side.checksum))
    return Written(num_bytes, sides)


def _write_side_shard(
    job: WriteJob, storage: Storage, shard: Shard, take: Callable[[Int64], list[pa.Array]], samples: Int64
) -> Shard:
    """Write the side shard of a shard, given its samples in the group, without pads; `take` returns encoded fields."""
    keys = read_samples(storage, shard, [SAMPLE_KEY]).column(0)
    if shard.num_pads:
        # A pad repeats the samples of its shard, from the first on. In a shard without any it has none of the fields.
        pads = np.arange(len(samples), shard.num_samples)
        names = read_window(open_shard(storage, shard, job.names).narrowed(()), pads).keys
        keys = pa.chunked_array([*keys.chunks, pa.array(names, keys.type)])
        samples = np.resize(samples, shard.num_samples) if len(samples) else np.full(shard.num_samples, -1)

    def bodies() -> Iterator[Body]:
        begin, at_once = 0, 1
        while begin < shard.num_samples:
            raise_if_cancelled()
            payloads = take(samples[begin : begin + at_once])
            count = len(payloads[0])
            fields = {field.name: each for field, each in zip(job.fields, payloads, strict=True)}
            is_there = np.any([each.is_valid().to_numpy(zero_copy_only=False) for each in payloads], axis=0)
            fields[MISSING] = pa.array([b""] * count, _BINARY, mask=is_there)
            yield build_body(keys.slice(begin, count).combine_chunks(), fields)
            mean = 1 + sum(each.nbytes for each in payloads) // count
            begin, at_once = begin + count, min(_SAMPLES_AT_ONCE, _GROWTH * at_once, 1 + BATCH_BYTES // mean)

    fields = [*(field.name for field in job.fields), MISSING]
    return write_shard(storage, f"{job.folder}/{shard.path}", bodies(), fields, shard.num_pads)
