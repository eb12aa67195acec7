"""The share of a part of a conversion, pass by pass; what is there already is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

from wdsplit.conversion.passes import Pass, merge_pass, scatter_pass, write_pass
from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.record.notes import note_part, some, unended_parts
from wdsplit.conversion.run import Run
from wdsplit.conversion.shuffle.runs import not_spilled, unspilled
from wdsplit.conversion.shuffle.steps import Cuts, ScatterTask, read_cuts
from wdsplit.conversion.task import Job, refuse_taken
from wdsplit.engines.local import Engine
from wdsplit.errors import ConvertError
from wdsplit.shards.manifest import Shard
from wdsplit.storage.interface import Storage
from wdsplit.tables.read import check_files

__all__ = ["PartProgress", "Share", "cuts_of"]

Item = TypeVar("Item")


@dataclass(frozen=True)
class PartProgress:
    """How far a part has got.

    Attributes:
        name: The pass.
        done: Rows that are scattered, parts of regions that are merged, or shards that are published.
        total: How many of them the part has.
        samples: Samples in the shards that are published, pads included.
        num_bytes: Their bytes.
        skipped: How many of what is done was there already when the part began.
    """

    name: Pass
    done: int
    total: int
    samples: int = 0
    num_bytes: int = 0
    skipped: int = 0


@dataclass(frozen=True)
class Share:
    """What a part does.

    Attributes:
        run: The run.
        job: What all its tasks need.
        engine: What carries the part's tasks out.
        part: Which part: 0, 1, ..., num_parts - 1.
        num_parts: Parts in all.
        progress: Called with the progress so far, at the beginning and after each task.
    """

    run: Run
    job: Job
    engine: Engine
    part: int
    num_parts: int
    progress: Callable[[PartProgress], None]

    def take(self, name: Pass) -> PartProgress:
        """Do what a pass asks of the part; a plan that keeps the order of rows has nothing to scatter or to merge."""
        if name == "write":
            return self._write()
        cuts = cuts_of(self.run.storage, self.job.plan) if self.job.plan.scatters else None
        if cuts is not None and name == "scatter":
            return self._scatter(cuts)
        if cuts is not None and cuts.steps.merges:
            return self._merge(cuts)
        return PartProgress(name, 0, 0)

    def _scatter(self, cuts: Cuts) -> PartProgress:
        plan, storage = self.job.plan, self.run.storage
        tasks = self._of(cuts.tasks)
        left = unspilled(storage, cuts.steps, tasks)
        total = _num_rows(tasks)
        so_far = PartProgress("scatter", total - _num_rows(left), total, skipped=total - _num_rows(left))
        self.progress(so_far)
        if left:
            check_files(plan.table, left[0].first, left[-1].stop)
        with closing(scatter_pass(self.job, cuts.steps, left).run(self.engine)) as results:
            for rows in results:
                so_far = dataclasses.replace(so_far, done=so_far.done + rows)
                self.progress(so_far)
        self._note("scatter")
        return so_far

    def _merge(self, cuts: Cuts) -> PartProgress:
        self._refuse_unspilled("scatter", cuts, "merged")
        tasks = self._of(cuts.steps.merge_tasks())
        left = unspilled(self.run.storage, cuts.steps, tasks)
        so_far = PartProgress("merge", len(tasks) - len(left), len(tasks), skipped=len(tasks) - len(left))
        self.progress(so_far)
        with closing(merge_pass(self.job, cuts.steps, left).run(self.engine)) as results:
            for _ in results:
                so_far = dataclasses.replace(so_far, done=so_far.done + 1)
                self.progress(so_far)
        self._note("merge")
        return so_far

    def _write(self) -> PartProgress:
        plan = self.job.plan
        if plan.scatters:
            cuts = cuts_of(self.run.storage, plan)
            self._refuse_unspilled("merge" if cuts.steps.merges else "scatter", cuts, "written")
        mine = self._of(range(plan.num_shards))
        written = self.run.found(mine)
        so_far = _more(PartProgress("write", 0, len(mine), skipped=len(written)), written)
        self.progress(so_far)
        left = [shard for shard in mine if shard not in written]
        if left and not plan.scatters:
            check_files(plan.table, plan.rows(left[0])[0], plan.rows(left[-1])[1])
        with closing(write_pass(self.job, self.engine.jobs, left).run(self.engine)) as results:
            for shards in results:
                written.update(shards)
                so_far = _more(so_far, shards)
                self.progress(so_far)
        self._note("write", written)
        return so_far

    def _of(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return the part's own of all tasks or shards: neighbours, and as many as other parts have, +-1."""
        return items[len(items) * self.part // self.num_parts : len(items) * (self.part + 1) // self.num_parts]

    def _note(self, name: Pass, shards: Mapping[int, Shard] | None = None) -> None:
        """Note that the part has ended a pass."""
        refuse_taken(self.run.storage, self.job.plan, shared=True)
        note_part(self.run.storage, self.job.plan, name, self.part, self.num_parts, shards)

    def _refuse_unspilled(self, name: Pass, cuts: Cuts, wanted: str) -> None:
        """Refuse to go on before all parts have ended a pass."""
        storage = self.run.storage
        tasks: Sequence[Any] = cuts.tasks if name == "scatter" else cuts.steps.merge_tasks()
        missing = not_spilled(storage, cuts.steps, tasks)
        if missing:
            raise ConvertError(
                f"the {name} pass is not complete, so nothing can be {wanted} yet",
                place=storage.url,
                expected=f"what {len(tasks)} tasks leave",
                found=f"{len(missing)} tasks are missing: {some([str(task) for task in missing])}"
                + unended_parts(storage, name),
                remedy=f"run the missing parts with --pass {name} again, then the next pass",
                url=storage.url,
            )


def cuts_of(storage: Storage, plan: Plan) -> Cuts:
    """Return how the run scatters its rows.

    Raises:
        ConvertError: It has not: it ended while it began.
    """
    cuts = read_cuts(storage, plan)
    if cuts is None:
        raise ConvertError(
            "the run lacks what its scatter pass needs",
            place=storage.url,
            expected="a run that `wdsplit plan -o` has begun",
            found="one whose beginning was interrupted",
            remedy="plan again with --overwrite",
            url=storage.url,
        )
    return cuts


def _num_rows(tasks: Sequence[ScatterTask]) -> int:
    return sum(task.stop - task.first for task in tasks)


def _more(so_far: PartProgress, shards: Mapping[int, Shard]) -> PartProgress:
    return dataclasses.replace(
        so_far,
        done=so_far.done + len(shards),
        samples=so_far.samples + sum(shard.num_samples for shard in shards.values()),
        num_bytes=so_far.num_bytes + sum(shard.num_bytes for shard in shards.values()),
    )
