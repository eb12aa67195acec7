"""The passes of an annotation, and how it is cut into tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np

from wdsplit.annotating.gather import write_tables
from wdsplit.annotating.job import AnnotateCuts, AnnotateJob
from wdsplit.annotating.join import Counted, Joined, join, parse_joined
from wdsplit.annotating.scatter import scatter_keys, scatter_rows
from wdsplit.arrays import Int64
from wdsplit.conversion.shuffle.scatter import BATCH_BYTES
from wdsplit.conversion.shuffle.sorted_runs import SortedRun, parse_runs
from wdsplit.conversion.shuffle.steps import ROW_BYTES, cut_table
from wdsplit.engines.local import Engine
from wdsplit.jobs.notes import Notes
from wdsplit.jobs.run import Pass, run
from wdsplit.storage.interface import Storage
from wdsplit.tables.read import check_files
from wdsplit.tables.table import Table

__all__ = ["AnnotateDriver", "AnnotateProgress", "cut_run", "table_bytes"]

Result = TypeVar("Result")

_KEY_BYTES = 96
"""Approximate bytes of a key of the dataset, with its shard and sample."""
_FILE_BYTES = 64 * 1024
"""Bytes that a file counts as, in addition to its content, because opening or publishing it takes time."""
_ITEMS = {"rows": "rows", "keys": "the keys of shards", "join": "partitions", "write": "the tables of shards"}
_TASKS_PER_JOB = 4
_LIBRARY_BYTES, _COPIES = 128 * 1024**2, 6
"""Bytes that a task needs besides its rows, and the number of copies of its rows in memory."""


@dataclass(frozen=True)
class AnnotateProgress:
    """Progress of a pass of a run.

    Attributes:
        name: The pass: `rows` and `keys` are scattered, partitions joined (`join`), tables written (`write`). Before
            them, `read` for rows from Python.
        done: Number of rows, samples, partitions or tables that are done.
        total: Their total number; 0 if unknown.
        skipped: How many of `done` existed at the start.
    """

    name: Literal["read", "rows", "keys", "join", "write"]
    done: int
    total: int
    skipped: int = 0


def table_bytes(table: Table, num_samples: int) -> int:
    """Return the approximate bytes of the rows and keys during a join."""
    return table.data_bytes + table.num_rows * ROW_BYTES + num_samples * _KEY_BYTES


def cut_run(table: Table, num_real: Int64, jobs: int, buffer_bytes: int) -> AnnotateCuts:
    """Cut a run into tasks that each fit their buffer, and into at least one task per job if possible.

    Args:
        table: The table.
        num_real: Samples of each shard.
        jobs: Number of parallel tasks.
        buffer_bytes: Bytes of rows that a task may buffer.
    """
    num_samples = int(num_real.sum())
    num_bytes = table_bytes(table, num_samples)
    size = min(buffer_bytes, max(BATCH_BYTES, num_bytes // (_TASKS_PER_JOB * jobs)))
    row_bytes = (table.data_bytes + num_samples * ROW_BYTES) // max(1, table.num_rows)
    return AnnotateCuts(
        tuple(cut_table(table, size)),
        _cut(num_real * _KEY_BYTES + _FILE_BYTES, size),
        _cut(num_real * min(row_bytes, buffer_bytes) + _FILE_BYTES, size),
        -(-num_bytes // size),
    )


def _cut(sizes: Int64, size: int) -> tuple[int, ...]:
    """Cut shards into groups of about the same size; a larger shard is a group of its own."""
    ends = np.cumsum(sizes)
    total = int(ends[-1]) if len(ends) else 0
    cuts = np.searchsorted(ends, np.arange(size, total, size)) + 1
    return tuple(np.unique([0, *cuts.tolist(), len(sizes)]).tolist())


@dataclass(frozen=True)
class AnnotateDriver:
    """Runs the passes of a run, without the tasks that are already done.

    Attributes:
        job: The input of all tasks.
        engine: Engine that runs the tasks.
        report: Called with the progress so far, at the start of a pass and after each task.
    """

    job: AnnotateJob
    engine: Engine
    report: Callable[[AnnotateProgress], None]

    def join(self) -> Joined:
        """Scatter rows and keys, and join them; return the combined result of all partitions."""
        job, cuts, storage = self.job, self.job.cuts, self.job.open_storage()
        notes = Notes(storage, job.spill_folder)
        known = dict(notes.read("join", range(cuts.num_partitions), parse_joined))
        rows: list[SortedRun] = []
        keys: list[SortedRun] = []
        if len(known) < cuts.num_partitions:
            check_files(job.table, 0, job.table.num_rows)
            num_keys = np.add.reduceat(job.num_real, cuts.keys[:-1]) if len(cuts.keys) > 1 else np.zeros(0, np.int64)
            self._run("rows", partial(scatter_rows, job), parse_runs, rows.extend, np.diff(cuts.rows))
            self._run("keys", partial(scatter_keys, job), parse_runs, keys.extend, num_keys)
        found = [Joined([], *(Counted(0, []),) * 3)]

        def add(other: Joined) -> None:
            found[0] = found[0].plus(other)

        amounts = np.ones(cuts.num_partitions, np.int64)
        self._run("join", partial(join, job, rows, keys), parse_joined, add, amounts, known)
        storage.remove(*(run.path for run in (*rows, *keys)))
        return found[0]

    def write(self, runs: list[SortedRun]) -> int:
        """Write the joined rows as tables of all shards; return the number of bytes."""
        sizes: list[int] = []
        amounts = np.diff(self.job.cuts.groups)
        self._run("write", partial(write_tables, self.job, runs), int, sizes.append, amounts)
        return sum(sizes)

    def _run(
        self,
        name: Literal["rows", "keys", "join", "write"],
        work: Callable[[Storage, range], Iterable[Result]],
        parse: Callable[[Any], Result],
        collect: Callable[[Result], None],
        amounts: Int64,
        known: dict[int, Result] | None = None,
    ) -> None:
        """Run what is left of a pass."""
        job, table = self.job, self.job.table
        is_near = not (job.open_storage().has_latency or any(file.remote for file in table.files[:1]))

        def describe(task: range) -> str:
            items = {"rows": job.cuts.rows, "keys": job.cuts.keys, "write": job.cuts.groups}.get(name)
            first, stop = (task.start, task.stop) if items is None else (items[task.start], items[task.stop])
            return f"{_ITEMS[name]} {first} to {stop - 1}"

        run(
            job,
            Pass(name, len(amounts), work, parse, job.spill_folder, amounts, describe=describe),
            self.engine,
            lambda _, result: collect(result),
            lambda done, total, skipped: self.report(AnnotateProgress(name, done, total, skipped)),
            known=known,
            memory_bytes=_LIBRARY_BYTES + _COPIES * job.buffer_bytes,
            num_bytes=table_bytes(table, int(job.num_real.sum())) if is_near else None,
        )
