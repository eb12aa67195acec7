"""The driver of a conversion: finds the remaining tasks of each pass, and runs them on an engine.

A plain conversion is share 0 of 1. Start with `Driver.carry_out`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

from wdsplit.conversion.plan.options import Pass
from wdsplit.conversion.plan.plan import task_spans
from wdsplit.conversion.record.job import Job
from wdsplit.conversion.record.published import Published
from wdsplit.conversion.shuffle.in_memory import LoadedRows, load, loaded, plan_loading
from wdsplit.conversion.shuffle.merge import merge, remove_scattered
from wdsplit.conversion.shuffle.scatter import scatter, task_memory
from wdsplit.conversion.shuffle.sorted_runs import unfinished_tasks
from wdsplit.conversion.shuffle.steps import SPILL_FOLDER, Cuts, MergeTask, ScatterTask, read_cuts, write_cuts
from wdsplit.conversion.task import describe_rows, describe_span, write_shards
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.engines.private_memory import PrivateMemory
from wdsplit.engines.shared_memory import SharedMemory
from wdsplit.shards.manifest import Shard
from wdsplit.tables.read import check_files

__all__ = ["Driver", "Progress", "no_progress"]

Items = TypeVar("Items", list[ScatterTask], list[MergeTask], range)


@dataclass(frozen=True)
class Progress:
    """Progress of a pass of a conversion, or of a share of it.

    Attributes:
        name: The pass: scatter, merge or write; before them `read`, for rows from Python.
        done: Number of rows read or scattered, regions of chunks merged, or shards published.
        total: Their total number; 0 if unknown.
        samples: Number of samples in the published shards, including pads; 0 before the write pass.
        num_bytes: Bytes of the published shards.
        skipped: How many of `done` existed at the start.
        split: Name of the split; empty if there are none.
    """

    name: Pass | Literal["read"]
    done: int
    total: int
    samples: int = 0
    num_bytes: int = 0
    skipped: int = 0
    split: str = ""


class _TooLargeError(Exception):
    """The rows do not fit in memory, contrary to the estimate from their files."""


def no_progress(progress: Progress) -> None:
    """Ignore the progress."""


@dataclass(frozen=True)
class Driver:
    """Runs the passes of a conversion, or one share of each; published shards are kept.

    Attributes:
        job: The input of all tasks.
        engine: Engine that runs the tasks.
        report: Called with the progress so far, at the start of a pass and after each task.
        share: Number of the share: 0, 1, ..., num_shares - 1.
        num_shares: Total number of shares.
        split: Name of the split; empty if there are none.
        loadable_bytes: Bytes of rows that may be in memory, if all tasks run on this machine; else 0.
    """

    job: Job
    engine: Engine
    report: Callable[[Progress], None]
    share: int = 0
    num_shares: int = 1
    split: str = ""
    loadable_bytes: int = 0

    @property
    def own_shards(self) -> range:
        """The numbers of the share's own shards."""
        return self._own(range(self.job.plan.num_shards))

    def carry_out(self, published: Published) -> Published:
        """Run the remaining passes; add the new shards to the published ones, and return them."""
        plan, storage = self.job.plan, self.job.open_storage()
        rows = None
        if plan.scatters and len(published) < plan.num_shards:
            cuts = read_cuts(storage, plan)
            rows = None if cuts is not None else self.load()
            if rows is None:
                self._spill(cuts or write_cuts(storage, plan, self.job.buffer_bytes))
        self.write(published, rows)
        return published

    def _spill(self, cuts: Cuts) -> None:
        storage = self.job.open_storage()
        storage.remove_temporary(SPILL_FOLDER)
        self.scatter(cuts)
        if cuts.steps.merges:
            self.merge(cuts)
            remove_scattered(storage, cuts.steps)

    def load(self) -> LoadedRows | None:
        """Load all rows into memory; None if they do not fit."""
        plan, sizes = self.job.plan, dict[int, int]()
        is_private = isinstance(self.engine, LocalEngine) and self.engine.stays_in_process(self._may_use_threads)
        memory = PrivateMemory() if is_private else SharedMemory()
        loading = plan_loading(plan, self.loadable_bytes, self.engine.jobs, memory)
        if loading is None:
            return None
        check_files(plan.table, 0, plan.num_rows)

        def add_rows(so_far: Progress, found: tuple[ScatterTask, int]) -> Progress:
            task, sizes[task.number] = found
            if sizes[task.number] > loading.task_bytes or sum(sizes.values()) > loading.max_bytes:
                raise _TooLargeError
            return replace(so_far, done=so_far.done + task.stop - task.first)

        progress = self._begin("scatter", plan.num_rows, plan.num_rows)
        try:
            self._run_tasks(partial(load, self.job, loading), loading.tasks, progress, add_rows, self._describe_rows)
        except _TooLargeError:
            return None
        return loaded(plan, loading, [sizes[task.number] for task in loading.tasks])

    def scatter(self, cuts: Cuts) -> Progress:
        """Scatter the rows that are not scattered yet."""
        plan, tasks = self.job.plan, self._own(cuts.tasks)
        left = unfinished_tasks(self.job.open_storage(), cuts.steps, tasks)
        if left:
            check_files(plan.table, left[0].first, left[-1].stop)
        num_rows, num_left = (sum(task.stop - task.first for task in some) for some in (tasks, left))

        def add_rows(so_far: Progress, scattered: int) -> Progress:
            return replace(so_far, done=so_far.done + scattered)

        progress = self._begin("scatter", num_left, num_rows)
        return self._run_tasks(partial(scatter, self.job, cuts.steps), left, progress, add_rows, self._describe_rows)

    def merge(self, cuts: Cuts) -> Progress:
        """Run the remaining merges; all rows must be scattered."""
        tasks = self._own(cuts.steps.merge_tasks())
        left = unfinished_tasks(self.job.open_storage(), cuts.steps, tasks)

        def add_task(so_far: Progress, num_rows: int) -> Progress:
            return replace(so_far, done=so_far.done + 1)

        progress = self._begin("merge", len(left), len(tasks))
        return self._run_tasks(partial(merge, self.job, cuts.steps), left, progress, add_task, str)

    def write(self, published: Published, rows: LoadedRows | None = None) -> Progress:
        """Write the missing shards, and add them to the published ones; `rows` are rows in memory, if any."""
        plan, own = self.job.plan, self.own_shards
        left = published.missing(own.start, own.stop)
        if len(left) and not plan.scatters:
            check_files(plan.table, plan.rows(int(left[0]))[0], plan.rows(int(left[-1]))[1])
        max_gathered_rows = 0
        if plan.scatters:
            max_gathered_rows = self.job.buffer_bytes * plan.num_rows // max(1, plan.table.data_bytes)
        spans = task_spans(plan, self.engine.jobs, left, max_gathered_rows)

        def add_shards(so_far: Progress, shards: Mapping[int, Shard]) -> Progress:
            published.add(shards)
            done = so_far.done + len(shards)
            return replace(so_far, done=done, samples=published.num_samples, num_bytes=published.num_bytes)

        progress = self._begin("write", len(left), len(own))
        progress = replace(progress, samples=published.num_samples, num_bytes=published.num_bytes)
        task = partial(write_shards, self.job, loaded=rows)
        describe = partial(describe_span, plan)
        return self._run_tasks(task, spans, progress, add_shards, describe, self._may_use_threads)

    @property
    def _may_use_threads(self) -> bool:
        """Whether threads may write shards: not with JSON, whose encoding needs Python's global lock."""
        return all(field.encoding != "json" for field in self.job.plan.fields)

    def _describe_rows(self, task: ScatterTask) -> str:
        return describe_rows(self.job.plan, (task.first, task.stop))

    def _num_bytes(self) -> int | None:
        """Return about how many bytes a pass of the share processes; None if its tasks mostly wait for a store."""
        plan = self.job.plan
        if self.job.open_storage().has_latency or any(file.remote for file in plan.table.files[:1]):
            return None
        return plan.shard_bytes // self.num_shares

    def _own(self, items: Items) -> Items:
        """Return the share's part of all tasks or shards: a range, of the same size in all shares +-1."""
        first = len(items) * self.share // self.num_shares
        stop = len(items) * (self.share + 1) // self.num_shares
        return items[first:stop]

    def _begin(self, name: Pass, num_left: int, total: int) -> Progress:
        """Return the progress at the start of a pass."""
        return Progress(name, total - num_left, total, skipped=total - num_left, split=self.split)

    def _run_tasks(
        self,
        function: Callable[[Any], Any],
        tasks: Sequence[Any],
        progress: Progress,
        add: Callable[[Progress, Any], Progress],
        describe: Callable[[Any], str],
        threads: bool = True,
    ) -> Progress:
        """Run the tasks of a pass and report the progress; return the last progress."""
        memory_bytes = task_memory(self.job.plan, self.job.buffer_bytes)
        self.report(progress)
        results = self.engine.map(
            function,
            tasks,
            threads=threads,
            memory_bytes=memory_bytes,
            num_bytes=self._num_bytes(),
            describe=describe,
        )
        with closing(results):
            for result in results:
                progress = add(progress, result)
                self.report(progress)
        return progress
