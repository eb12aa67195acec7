"""The driver of a conversion: which tasks of each pass are left, and how far an engine has got with them.

A plain conversion is share 0 of 1. Begin with `Driver`; what the tasks of a pass are is in `passes`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from wdsplit.conversion.passes import Pass, TaskPass, merge_pass, scatter_pass, write_pass
from wdsplit.conversion.record.published import Published
from wdsplit.conversion.shuffle.merge import remove_scattered
from wdsplit.conversion.shuffle.sorted_runs import unfinished_tasks
from wdsplit.conversion.shuffle.steps import SPILL_FOLDER, Cuts, MergeTask, ScatterTask, read_cuts, write_cuts
from wdsplit.conversion.task import Job
from wdsplit.engines.local import Engine
from wdsplit.shards.manifest import Shard
from wdsplit.storage.interface import Storage
from wdsplit.storage.opening import open_storage
from wdsplit.tables.read import check_files

__all__ = ["Driver", "Progress", "no_progress"]

Items = TypeVar("Items", list[ScatterTask], list[MergeTask], range)
Result = TypeVar("Result")


@dataclass(frozen=True)
class Progress:
    """How far a conversion, or a share of it, has got with a pass.

    Attributes:
        name: The pass: scatter, merge or write.
        done: Rows that are scattered, regions of chunks that are merged, or shards that are published.
        total: How many of them there are.
        samples: Samples in the published shards, pads included; 0 before the write pass.
        num_bytes: Bytes of the published shards.
        skipped: How many of `done` were there already at the beginning.
        split: The split that is written; empty if there are none.
    """

    name: Pass
    done: int
    total: int
    samples: int = 0
    num_bytes: int = 0
    skipped: int = 0
    split: str = ""


def no_progress(progress: Progress) -> None:
    """Show nothing."""


@dataclass(frozen=True)
class Driver:
    """Carries out the passes of a conversion, or one share of each; what is there already is kept.

    Attributes:
        job: What all tasks need.
        engine: What carries the tasks out.
        report: Called with the progress so far, at the beginning of a pass and after each task.
        share: Which share: 0, 1, ..., num_shares - 1.
        num_shares: Shares in all.
        split: The split that is written; empty if there are none.
    """

    job: Job
    engine: Engine
    report: Callable[[Progress], None]
    share: int = 0
    num_shares: int = 1
    split: str = ""

    @property
    def own_shards(self) -> range:
        """The numbers of the share's own shards."""
        return self._own(range(self.job.plan.num_shards))

    def carry_out(self, published: Published) -> Published:
        """Carry out all passes that are left; return all shards.

        Args:
            published: The shards that are published already; it is changed.
        """
        plan, storage = self.job.plan, self._open_storage()
        if plan.scatters and len(published) < plan.num_shards:
            cuts = read_cuts(storage, plan) or write_cuts(storage, plan, self.job.buffer_bytes)
            storage.remove_temporary(SPILL_FOLDER)
            self.scatter(cuts)
            if cuts.steps.merges:
                self.merge(cuts)
                remove_scattered(storage, cuts.steps)
        self.write(published)
        return published

    def scatter(self, cuts: Cuts) -> Progress:
        """Scatter the rows that are not scattered yet."""
        tasks = self._own(cuts.tasks)
        left = unfinished_tasks(self._open_storage(), cuts.steps, tasks)
        if left:
            check_files(self.job.plan.table, left[0].first, left[-1].stop)
        num_there = _num_rows(tasks) - _num_rows(left)
        progress = Progress("scatter", num_there, _num_rows(tasks), skipped=num_there, split=self.split)
        return self._run_tasks(scatter_pass(self.job, cuts.steps, left), progress, _add_rows)

    def merge(self, cuts: Cuts) -> Progress:
        """Merge what is not merged yet; all rows must be scattered."""
        tasks = self._own(cuts.steps.merge_tasks())
        left = unfinished_tasks(self._open_storage(), cuts.steps, tasks)
        num_there = len(tasks) - len(left)
        progress = Progress("merge", num_there, len(tasks), skipped=num_there, split=self.split)
        return self._run_tasks(merge_pass(self.job, cuts.steps, left), progress, _add_task)

    def write(self, published: Published) -> Progress:
        """Write the shards that are not published yet, and add them to those that are."""
        plan = self.job.plan
        own = self.own_shards
        left = published.missing(own.start, own.stop)
        if len(left) and not plan.scatters:
            check_files(plan.table, plan.rows(int(left[0]))[0], plan.rows(int(left[-1]))[1])

        def add_shards(so_far: Progress, shards: Mapping[int, Shard]) -> Progress:
            published.add(shards)
            done = so_far.done + len(shards)
            return replace(so_far, done=done, samples=published.num_samples, num_bytes=published.num_bytes)

        num_there = len(own) - len(left)
        amounts = published.num_samples, published.num_bytes
        progress = Progress("write", num_there, len(own), *amounts, skipped=num_there, split=self.split)
        return self._run_tasks(write_pass(self.job, self.engine.jobs, left), progress, add_shards)

    def _open_storage(self) -> Storage:
        return open_storage(self.job.output, self.job.storage_options)

    def _own(self, items: Items) -> Items:
        """Return the share's own of all tasks or shards: neighbours, and as many as other shares have, +-1."""
        first = len(items) * self.share // self.num_shares
        stop = len(items) * (self.share + 1) // self.num_shares
        return items[first:stop]

    def _run_tasks(
        self,
        tasks: TaskPass[Any, Result],
        progress: Progress,
        add: Callable[[Progress, Result], Progress],
    ) -> Progress:
        """Carry the tasks of a pass out, reporting the progress so far; return the last progress."""
        self.report(progress)
        with closing(tasks.carry_out(self.engine)) as results:
            for result in results:
                progress = add(progress, result)
                self.report(progress)
        return progress


def _num_rows(tasks: Sequence[ScatterTask]) -> int:
    return sum(task.stop - task.first for task in tasks)


def _add_rows(progress: Progress, num_rows: int) -> Progress:
    return replace(progress, done=progress.done + num_rows)


def _add_task(progress: Progress, num_rows: int) -> Progress:
    return replace(progress, done=progress.done + 1)
