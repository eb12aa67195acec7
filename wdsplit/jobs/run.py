"""Runs the passes of a job on an engine: on this machine, on a cluster, or a share of each pass in each process.

A pass has items, counted from 0. A task carries out some consecutive items and notes their results; what has a note is
not done again. Tasks are independent and picklable, and write the same bytes when they run twice.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.engines.local import Engine
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, StorageError, UnansweredError
from wdsplit.jobs.notes import Notes
from wdsplit.jobs.record import Record
from wdsplit.storage.interface import Storage
from wdsplit.storage.opening import open_storage

__all__ = ["Job", "Pass", "Share", "Tasks", "Work", "run"]

Result = TypeVar("Result")
Work = Callable[[Storage, range], Iterable[Result]]


@dataclass(frozen=True, kw_only=True)
class Job(ABC):
    """The input of every task of a run; each worker process receives it once.

    Attributes:
        output: The folder of the output: a path or a URL.
        storage_options: Options for a remote store.
        shared: Whether other machines also write to the output, so that a local lock cannot exclude other runs.
    """

    output: str
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    shared: bool = False

    @property
    @abstractmethod
    def run(self) -> str:
        """The hash of the plan, which names the run."""

    @property
    @abstractmethod
    def run_folder(self) -> str:
        """The folder of the run's record in the output."""

    def open_storage(self) -> Storage:
        """Open the output."""
        return open_storage(self.output, self.storage_options)

    def refuse_taken_over(self, storage: Storage) -> None:
        """Refuse an output that another run has taken over; raises as `Record.refuse_taken_over` does."""
        Record(storage, self.run_folder).refuse_taken_over(self.run, self.shared)

    @contextmanager
    def opened(self) -> Iterator[Storage]:
        """Open the output for a task; report another run's takeover, rather than the missing files that it causes.

        Raises:
            ConvertError: The output belongs to another run, at the start or when an error occurs.
        """
        storage = self.open_storage()
        if self.shared:
            self.refuse_taken_over(storage)
        try:
            yield storage
        except UnansweredError:
            raise
        except (CorruptDataError, DatasetNotFoundError, StorageError):
            self.refuse_taken_over(storage)
            raise


@dataclass(frozen=True)
class Share:
    """A part of each pass, for a process that was started with a number: share `number` of `count`, counted from 0."""

    number: int
    count: int

    def of(self, num_items: int) -> range:
        """Return the share's own items: consecutive ones, as many as in other shares, +-1."""
        return range(num_items * self.number // self.count, num_items * (self.number + 1) // self.count)


@dataclass(frozen=True)
class Pass(Generic[Result]):
    """A pass: items, and how to carry them out.

    Attributes:
        name: The pass, in the names of its notes.
        num_items: Number of items.
        work: Yields the results of consecutive items, in their order; picklable, and runs in worker processes.
        parse: Returns a result from its JSON values in a note; raises TypeError or ValueError if they are invalid.
        folder: The folder of its notes; empty for a transient pass, which leaves none.
        amounts: int64 of shape (items,): what each item adds to the progress; None for 1.
        task_items: Returns the most items of a task, given how many are left.
        describe: Returns the name of a task, for errors.
        check: Called with the items that are left, int64 in ascending order, if there are any; it may raise.
        threads: As for `Engine.map`.
    """

    name: str
    num_items: int
    work: Work[Result]
    parse: Callable[[Any], Result]
    folder: str
    amounts: Int64 | None = None
    task_items: Callable[[int], int] = lambda num_left: 1
    describe: Callable[[range], str] = str
    check: Callable[[Int64], None] = lambda left: None
    threads: bool = True


def run(
    job: Job,
    each: Pass[Result],
    engine: Engine,
    collect: Callable[[int, Result], None],
    report: Callable[[int, int, int], None],
    *,
    share: Share | None = None,
    known: Mapping[int, Result] | None = None,
    memory_bytes: int = 0,
    num_bytes: int | None = None,
) -> None:
    """Run what is left of a pass, or of a share of it.

    Args:
        job: The job.
        each: The pass.
        engine: Engine that runs the tasks.
        collect: Called with each item and its result, in any order: first of those that are noted.
        report: Called with the amount that is done, the total, and how much of it was done before; at the start and
            after each task.
        share: The share; None for the whole pass. At the end of a share, all its results are noted in one note.
        known: The results that are known already; None to read them from the notes.
        memory_bytes: As for `Engine.map`.
        num_bytes: As for `Engine.map`.
    """
    own = range(each.num_items) if share is None else share.of(each.num_items)
    if known is None:
        known = dict(Notes(job.open_storage(), each.folder).read(each.name, own, each.parse)) if each.folder else {}
    of_share: dict[int, Result] = {}

    def take(item: int, result: Result) -> None:
        if share is not None:
            of_share[item] = result
        collect(item, result)

    for item, result in known.items():
        take(item, result)
    is_left = np.ones(len(own), np.bool_)
    is_left[np.fromiter(known, np.int64, len(known)) - own.start] = False
    left = own.start + np.flatnonzero(is_left)
    total = _amount(each, np.arange(own.start, own.stop))
    done = skipped = total - _amount(each, left)
    report(done, total, skipped)
    if len(left):
        each.check(left)
    mapped = engine.map(
        partial(_carry_out, job, each.folder, each.name, each.work),
        Tasks(left, each.task_items(len(left))),
        threads=each.threads,
        memory_bytes=memory_bytes,
        num_bytes=num_bytes,
        describe=each.describe,
    )
    with closing(mapped) as tasks:
        for items, found in tasks:
            for item, result in zip(items, found, strict=True):
                take(item, result)
            done += _amount(each, np.arange(items.start, items.stop))
            report(done, total, skipped)
    if share is not None and each.folder:
        storage = job.open_storage()
        job.refuse_taken_over(storage)
        marked = f"-share-{share.number}-of-{share.count}"
        Notes(storage, each.folder).write(each.name, own, [of_share[item] for item in own], marked)


def _amount(each: Pass[Any], items: Int64) -> int:
    return len(items) if each.amounts is None else int(each.amounts[items].sum())


def _carry_out(job: Job, folder: str, name: str, work: Work[Result], items: range) -> tuple[range, list[Result]]:
    """Carry out a task. Runs in a worker; may run twice."""
    with job.opened() as storage:
        results = work(storage, items)
        return items, Notes(storage, folder).write_each(name, items, results) if folder else list(results)


class Tasks(Sequence[range]):
    """The tasks of a pass, or other runs of consecutive items; created on access.

    Args:
        items: int64, ascending: the items.
        most: The most items of a task.
    """

    def __init__(self, items: Int64, most: int) -> None:
        places = np.arange(len(items))
        in_run = places - np.maximum.accumulate(np.where(np.diff(items, prepend=-2) != 1, places, 0))
        begins = np.flatnonzero(in_run % most == 0)
        self._firsts, self._stops = items[begins], items[np.append(begins[1:], len(items))[: len(begins)] - 1] + 1

    def __len__(self) -> int:
        return len(self._firsts)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            return [self[each] for each in range(len(self))[place]]
        return range(int(self._firsts[place]), int(self._stops[place]))
