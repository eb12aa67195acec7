"""The driver of a run: its passes, and the tasks of each that an engine still has to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from typing import Any, Literal, TypeVar

import numpy as np

from wdsplit.annotating.gather import write_tables
from wdsplit.annotating.job import AnnotateJob, Cuts, Span
from wdsplit.annotating.join import Counted, Joined, join
from wdsplit.annotating.run import AnnotationRun, noted
from wdsplit.annotating.scatter import scatter_keys, scatter_rows
from wdsplit.arrays import Int64
from wdsplit.conversion.shuffle.scatter import BATCH_BYTES
from wdsplit.conversion.shuffle.sorted_runs import SortedRun
from wdsplit.conversion.shuffle.steps import ROW_BYTES, cut_table
from wdsplit.engines.local import Engine
from wdsplit.tables.read import check_files
from wdsplit.tables.table import Table

__all__ = ["AnnotateProgress", "Driver", "cut_run", "table_bytes"]

Result = TypeVar("Result")

_KEY_BYTES = 96
"""Approximate bytes of a key of the dataset, with its shard and sample."""
_FILE_BYTES = 64 * 1024
"""Bytes that a file counts as, in addition to its content, because opening or publishing it takes time."""
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


def cut_run(table: Table, num_real: Int64, jobs: int, buffer_bytes: int) -> Cuts:
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
    return Cuts(
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
class Driver:
    """Runs the passes of a run, without the tasks that are already done.

    Attributes:
        job: The input of all tasks.
        run: The run.
        engine: Engine that runs the tasks.
        report: Called with the progress so far, at the start of a pass and after each task.
    """

    job: AnnotateJob
    run: AnnotationRun
    engine: Engine
    report: Callable[[AnnotateProgress], None]

    def join(self) -> Joined:
        """Scatter rows and keys, and join them; return the combined result of all partitions."""
        job, cuts = self.job, self.job.cuts
        partitions = [Span(number, number, number + 1) for number in range(cuts.num_partitions)]
        work = _Join([], [])
        if len(self.run.done(job, "join", partitions)) < len(partitions):
            check_files(job.table, 0, job.table.num_rows)
            rows = self._pass("rows", scatter_rows, _spans(cuts.rows), _restored_runs)
            keys = self._pass("keys", scatter_keys, _spans(cuts.keys), _restored_runs)
            work = _Join([run for runs in rows for run in runs], [run for runs in keys for run in runs])
        found = reduce(_together, self._pass("join", work, partitions, _restored_joined))
        job.open_storage().remove(*(run.path for run in (*work.rows, *work.keys)))
        return found

    def write(self, runs: Sequence[SortedRun]) -> int:
        """Write the joined rows as tables of all shards; return the number of bytes."""
        return sum(self._pass("write", _Write(list(runs)), _spans(self.job.cuts.groups), int))

    def _pass(
        self,
        name: Literal["rows", "keys", "join", "write"],
        work: Callable[[AnnotateJob, Span], Any],
        tasks: Sequence[Span],
        restored: Callable[[Any], Result],
    ) -> list[Result]:
        """Run the remaining tasks of a pass; return the results of all tasks, in order."""
        results = {number: restored(note) for number, note in self.run.done(self.job, name, tasks).items()}
        left = [task for task in tasks if task.number not in results]
        amounts = self._amounts(name, tasks)
        done = skipped = sum(amounts[number] for number in results)
        self.report(AnnotateProgress(name, done, sum(amounts), skipped))
        found = self.engine.map(
            partial(noted, self.job, name, work),
            left,
            threads=True,
            memory_bytes=_LIBRARY_BYTES + _COPIES * self.job.buffer_bytes,
            num_bytes=self._num_bytes(),
            describe=partial(_describe, name),
        )
        with closing(found):
            for task, result in found:
                results[task.number] = result
                done += amounts[task.number]
                self.report(AnnotateProgress(name, done, sum(amounts), skipped))
        return [results[task.number] for task in tasks]

    def _amounts(self, name: str, tasks: Sequence[Span]) -> list[int]:
        """Return how much each task adds to the progress of a pass."""
        if name != "keys":
            return [task.stop - task.first for task in tasks]
        return [int(self.job.num_real[task.first : task.stop].sum()) for task in tasks]

    def _num_bytes(self) -> int | None:
        """Return about how many bytes a pass processes; None if its tasks mostly wait for a store."""
        table = self.job.table
        if self.job.open_storage().has_latency or any(file.remote for file in table.files[:1]):
            return None
        return table_bytes(table, int(self.job.num_real.sum()))


@dataclass(frozen=True)
class _Join:
    """Joins a partition of the scattered rows and keys."""

    rows: list[SortedRun]
    keys: list[SortedRun]

    def __call__(self, job: AnnotateJob, task: Span) -> Joined:
        return join(job, self.rows, self.keys, task)


@dataclass(frozen=True)
class _Write:
    """Writes the tables of a group of shards from the joined rows."""

    found: list[SortedRun]

    def __call__(self, job: AnnotateJob, task: Span) -> int:
        return write_tables(job, self.found, task)


def _spans(cuts: Sequence[int]) -> list[Span]:
    return [Span(number, *bounds) for number, bounds in enumerate(pairwise(cuts))]


def _describe(name: str, task: Span) -> str:
    what = {"rows": "rows", "keys": "the keys of shards", "join": "partitions", "write": "the tables of shards"}[name]
    return f"{what} {task.first} to {task.stop - 1}"


def _restored_runs(note: Any) -> list[SortedRun]:
    return [SortedRun(*run) for run in note]


def _restored_joined(note: Any) -> Joined:
    runs, *counted = note
    return Joined(_restored_runs(runs), *(Counted(*each) for each in counted))


def _together(one: Joined, other: Joined) -> Joined:
    counted = (mine.plus(its) for mine, its in zip(one[1:], other[1:], strict=True))
    return Joined([*one.runs, *other.runs], *counted)
