"""Sorted runs: files with rows sorted by their places, and the notes of the tasks that wrote them.

A run is cut at multiples of a number of places. A task notes its runs when all are written. The first task that reads
the runs of several tasks lists them in one file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeVar

import numpy as np
import orjson
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.conversion.record.job import Job, refuse_taken_over
from wdsplit.conversion.record.notes import read_note
from wdsplit.conversion.shuffle.spill_file import BUCKETS, SpillFile, open_spill
from wdsplit.conversion.shuffle.steps import SPILL_FOLDER, MergeTask, ScatterTask, Steps
from wdsplit.engines.local import in_order
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, WdsplitError
from wdsplit.storage.interface import PendingFile, Storage

__all__ = [
    "NUMBER",
    "PLACE",
    "ArrowSink",
    "SortedRun",
    "SortedRunWriter",
    "damaged_spill",
    "listed_runs",
    "open_run",
    "read_buckets",
    "read_runs",
    "tasks_without_note",
    "unfinished_tasks",
    "write_run",
]

Task = TypeVar("Task", ScatterTask, MergeTask)

PLACE, NUMBER = "place", "number"
"""Columns of a run besides those of the table, which are numbered c0, c1, ..."""

_REQUESTS_AT_ONCE = 8


class SortedRun(NamedTuple):
    """A sorted run.

    Attributes:
        path: Its file.
        size: The file's size in bytes.
        num_rows: Number of its rows, including those that the plan leaves out.
        num_bytes: Their bytes in memory.
    """

    path: str
    size: int
    num_rows: int
    num_bytes: int


@dataclass
class SortedRunWriter:
    """Writes the runs of a task.

    Attributes:
        storage: The output.
        job: The input of all tasks of the conversion.
        prefix: The prefix of all spill files' names.
        name: The task's name.
        cut_rows: Number of places; runs are cut at multiples of it.
    """

    storage: Storage
    job: Job
    prefix: str
    name: str
    cut_rows: int
    _buffered: list[pa.Table] = field(default_factory=list)
    _num_buffered: int = 0
    _runs: list[SortedRun] = field(default_factory=list)

    def append(self, rows: pa.Table, num_bytes: int) -> None:
        """Add rows, with their places and numbers; write a run when the buffer is full."""
        self._buffered.append(rows)
        self._num_buffered += num_bytes
        if self._num_buffered >= self.job.buffer_bytes:
            self._flush()

    def end(self) -> None:
        """Write the buffered rows, and note all runs: the task is done."""
        if self._buffered:
            self._flush()
        self._refuse_taken_over()
        _write_runs(self.storage, self.prefix, self.name, self._runs)

    def _refuse_taken_over(self) -> None:
        """Refuse an output that another run has taken over."""
        if self.job.shared:
            refuse_taken_over(self.storage, self.job.plan, shared=True)

    def _flush(self) -> None:
        self._refuse_taken_over()
        table = pa.concat_tables(self._buffered)
        places = table.column(PLACE).to_numpy()
        keep = np.flatnonzero(places < self.job.plan.num_samples)
        order = keep[np.argsort(places[keep], kind="stable")]
        path = f"{SPILL_FOLDER}/{self.prefix}-{self.name}-{self.job.buffer_bytes}-{len(self._runs):06d}.arrow"
        size = write_run(self.storage, path, table.take(pa.array(order)), places[order] // self.cut_rows)
        self._runs.append(SortedRun(path, size, len(table), self._num_buffered))
        self._buffered, self._num_buffered = [], 0


def write_run(storage: Storage, path: str, table: pa.Table, buckets: Int64) -> int:
    """Write sorted rows, one record batch per bucket; return the bytes of the file."""
    numbers, starts = np.unique(buckets, return_index=True)
    schema = table.schema.with_metadata({BUCKETS: orjson.dumps(numbers.tolist())})
    with storage.publish(path) as file:
        sink = ArrowSink(file)
        with pa.ipc.new_file(sink, schema) as writer:
            for start, stop in pairwise([*starts.tolist(), len(buckets)]):
                batch = table.slice(start, stop - start).combine_chunks()
                writer.write_batch(batch.to_batches()[0].replace_schema_metadata(schema.metadata))
    return sink.tell()


class ArrowSink:
    """A file object for Arrow that passes bytes on to a pending file."""

    closed = False

    def __init__(self, file: PendingFile) -> None:
        self._file = file
        self._position = 0

    def write(self, data: bytes) -> int:
        """Append bytes; return how many."""
        view = memoryview(data).cast("B")
        self._file.write([view])
        self._position += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """Return how many bytes were written."""
        return self._position

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing: the owner closes the pending file."""


def _note_path(prefix: str, name: str) -> str:
    return f"{SPILL_FOLDER}/{prefix}-{name}.json"


def _write_runs(storage: Storage, prefix: str, name: str, runs: Sequence[SortedRun]) -> None:
    """Note the runs of a task, or of a list."""
    with storage.publish(_note_path(prefix, name)) as file:
        file.write([orjson.dumps([[*run] for run in runs])])


def tasks_without_note(storage: Storage, steps: Steps, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks that have left no note; the folder is listed once."""
    existing = set(storage.list(SPILL_FOLDER))
    return [task for task in tasks if f"{steps.prefix}-{task.name}.json" not in existing]


def unfinished_tasks(storage: Storage, steps: Steps, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks that are not finished; the folder is listed once."""
    unfinished = set(tasks_without_note(storage, steps, tasks))
    if not storage.is_remote:  # a power failure may tear notes on a disk, so they are read
        noted = [task for task in tasks if task not in unfinished]
        notes = in_order(lambda task: _runs(storage, steps, task.name), noted, _REQUESTS_AT_ONCE)
        unfinished.update(task for task, runs in zip(noted, notes, strict=True) if runs is None)
    return [task for task in tasks if task in unfinished]


def _runs(storage: Storage, steps: Steps, name: str) -> list[SortedRun] | None:
    """Return the runs of a task, or of a list; None if its note is missing or damaged."""
    note = read_note(storage, _note_path(steps.prefix, name))
    if not isinstance(note, list) or not all(isinstance(run, list) and len(run) == 4 for run in note):
        return None
    return [SortedRun(*run) for run in note]


def listed_runs(storage: Storage, steps: Steps, title: str, names: Sequence[str]) -> list[SortedRun]:
    """Return the runs of tasks that are read together, in the order of the tasks.

    The first reader lists them in one file, so that others read one note instead of many. `title` names this file, and
    is not the name of a task.

    Raises:
        CorruptDataError: The note of a task is missing.
    """
    listed = _runs(storage, steps, title)
    if listed is not None:
        return listed
    found: list[SortedRun] = []
    noted = in_order(lambda name: _runs(storage, steps, name), names, _REQUESTS_AT_ONCE)
    for name, runs in zip(names, noted, strict=True):
        if runs is None:
            raise CorruptDataError(
                "the note of a scatter task is missing or damaged",
                place=f"{storage.url}/{_note_path(steps.prefix, name)}",
                expected="a note that lists the runs of the task",
                remedy="continue with --resume; with a plan, run the shares again, pass by pass",
                url=f"{storage.url}/{_note_path(steps.prefix, name)}",
            )
        found += runs
    _write_runs(storage, steps.prefix, title, found)
    return found


def damaged_spill(place: str, found: str) -> CorruptDataError:
    """Return the error for spilled rows that are missing or changed."""
    return CorruptDataError(
        "a spill file is damaged",
        place=place,
        expected="the rows that were spilled",
        found=found,
        remedy="start again with --overwrite; a power failure may have damaged the file",
        url=place,
    )


def open_run(storage: Storage, run: SortedRun) -> SpillFile:
    """Open a run.

    Raises:
        CorruptDataError: It is damaged or missing.
    """
    with _name_damage(storage, run):
        return open_spill(storage, run.path, run.size)


def read_buckets(storage: Storage, run: SortedRun, file: SpillFile, first: int, last: int) -> list[pa.RecordBatch]:
    """Read the buckets first, ..., last of a run; raises as `open_run` does."""
    with _name_damage(storage, run):
        return file.read_buckets(first, last)


@contextmanager
def _name_damage(storage: Storage, run: SortedRun) -> Iterator[None]:
    place = f"{storage.url}/{run.path}"
    try:
        yield
    except (CorruptDataError, DatasetNotFoundError) as error:
        raise damaged_spill(place, error.cause) from error
    except WdsplitError:
        raise
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise damaged_spill(place, str(error)) from error


def read_runs(
    storage: Storage, runs: Sequence[SortedRun], read: Callable[[SortedRun], list[pa.RecordBatch]]
) -> Iterator[pa.RecordBatch]:
    """Yield the batches that `read` returns for each run, in the order of the runs; remote runs are read ahead."""
    found = in_order(read, runs, _REQUESTS_AT_ONCE) if storage.is_remote else map(read, runs)
    for batches in found:
        yield from batches
