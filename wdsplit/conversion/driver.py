"""The passes of a conversion, or a share of one of them: scatter rows, merge the scattered ones, write shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.conversion.job import SHARDS_FOLDER, ConvertJob, Published, ShardRow, parse_row
from wdsplit.conversion.plan.options import PassName
from wdsplit.conversion.plan.plan import task_shards
from wdsplit.conversion.shuffle.in_memory import MemoryRows, load_table
from wdsplit.conversion.shuffle.needs import task_memory
from wdsplit.conversion.shuffle.scatter import PLACE, merge, placed_rows, scatter
from wdsplit.conversion.shuffle.sorted_runs import SortedRun, parse_runs
from wdsplit.conversion.shuffle.steps import SPILL_FOLDER, Cuts, read_cuts, write_cuts
from wdsplit.conversion.task import describe_rows, describe_shards, write_shards
from wdsplit.engines.local import Engine
from wdsplit.jobs.run import Pass, Share, Work, run
from wdsplit.tables.read import check_files

__all__ = ["Driver", "Progress", "spill_pass"]


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

    name: PassName | Literal["read"]
    done: int
    total: int
    samples: int = 0
    num_bytes: int = 0
    skipped: int = 0
    split: str = ""


def spill_pass(job: ConvertJob, cuts: Cuts, name: PassName) -> Pass[list[SortedRun]]:
    """Return the pass that scatters rows, or merges the scattered ones."""
    plan, places = job.plan, cuts.places
    if name == "merge":
        return Pass(
            f"{cuts.prefix}-merge",
            cuts.num_merges,
            partial(merge, job, cuts),
            parse_runs,
            SPILL_FOLDER,
            describe=lambda task: f"merge {task.start} of {cuts.num_merges}",
        )
    return Pass(
        f"{cuts.prefix}-scatter",
        cuts.num_tasks,
        partial(scatter, job, cuts),
        parse_runs,
        SPILL_FOLDER,
        amounts=np.diff(np.asarray(places)),
        describe=lambda task: describe_rows(plan, places[task.start], places[task.stop]),
        check=lambda left: check_files(plan.table, places[left[0]], places[left[-1] + 1]),
    )


@dataclass(frozen=True)
class Driver:
    """Runs the passes of a conversion, or one share of each; published shards are kept.

    Attributes:
        job: The input of all tasks.
        engine: Engine that runs the tasks.
        report: Called with the progress so far, at the start of a pass and after each task.
        share: The share; None for the whole conversion.
        split: Name of the split; empty if there are none.
        loadable_bytes: Bytes of rows that may be in memory, if all tasks run on this machine; else 0.
    """

    job: ConvertJob
    engine: Engine
    report: Callable[[Progress], None]
    share: Share | None = None
    split: str = ""
    loadable_bytes: int = 0

    def carry_out(self, known: Mapping[int, ShardRow]) -> Published:
        """Run the passes; `known` are the shards that exist already. Return all shards."""
        plan, storage = self.job.plan, self.job.open_storage()
        source: MemoryRows | Cuts | None = None
        if plan.scatters and len(known) < plan.num_shards:
            source = read_cuts(storage, plan) or self._load() or write_cuts(storage, plan, self.job.buffer_bytes)
            if isinstance(source, Cuts):
                runs = self.spill(source, "scatter")
                if source.merges:
                    self.spill(source, "merge")
                    storage.remove(*(run.path for run in runs))  # their notes stay, so that no task scatters again
        return self.write(known, source)

    def _load(self) -> MemoryRows | None:
        """Load all rows into memory, where no notes are needed; None if they do not fit."""
        plan = self.job.plan

        def load(work: Work[int], amounts: Int64, collect: Callable[[int, int], None]) -> None:
            places = np.append(0, np.cumsum(amounts)).tolist()

            def describe(task: range) -> str:
                return describe_rows(plan, places[task.start], places[task.stop])

            self._run("scatter", Pass("", len(amounts), work, int, "", amounts, describe=describe), collect)

        def order_of(batches: Sequence[pa.RecordBatch]) -> Int64:
            places = np.concatenate([batch.column(PLACE).to_numpy() for batch in batches])
            order = np.empty_like(places)
            order[places] = np.arange(len(places))
            return order

        read, threads = partial(placed_rows, plan), self._may_use_threads
        return load_table(plan.table, read, order_of, self.engine, threads, self.loadable_bytes, load)

    def spill(self, cuts: Cuts, name: PassName) -> list[SortedRun]:
        """Run what is left of the pass that scatters rows, or that merges them; return the runs."""
        runs: list[SortedRun] = []
        self._run(name, spill_pass(self.job, cuts, name), lambda _, found: runs.extend(found))
        return runs

    def write(self, known: Mapping[int, ShardRow], source: MemoryRows | Cuts | None = None) -> Published:
        """Write the missing shards, from rows in memory, scattered rows, or the table; return all shards."""
        plan, published = self.job.plan, Published(self.job.plan)
        max_rows = 0
        if plan.scatters:
            max_rows = self.job.buffer_bytes * plan.num_rows // max(1, plan.table.data_bytes)

        def check(left: Int64) -> None:
            if not plan.scatters:
                check_files(plan.table, plan.rows(int(left[0]))[0], plan.rows(int(left[-1]))[1])

        each = Pass(
            plan.hash,
            plan.num_shards,
            partial(write_shards, self.job, source),
            parse_row,
            SHARDS_FOLDER,
            task_items=lambda num_left: task_shards(plan, self.engine.jobs, num_left, max_rows),
            describe=partial(describe_shards, plan),
            check=check,
            threads=self._may_use_threads,
        )
        self._run("write", each, published.add, known, published)
        return published

    @property
    def _may_use_threads(self) -> bool:
        """Whether threads may write shards: not with JSON, whose encoding needs Python's global lock."""
        return all(field.encoding != "json" for field in self.job.plan.fields)

    def _run(
        self,
        name: PassName,
        each: Pass[Any],
        collect: Callable[[int, Any], None],
        known: Mapping[int, Any] | None = None,
        published: Published | None = None,
    ) -> None:
        """Run a pass, and report its progress, with the samples and bytes of published shards."""
        plan, num_bytes = self.job.plan, None
        if not (self.job.open_storage().has_latency or any(file.remote for file in plan.table.files[:1])):
            num_bytes = plan.shard_bytes // (self.share.count if self.share is not None else 1)

        def report(done: int, total: int, skipped: int) -> None:
            progress = Progress(name, done, total, skipped=skipped, split=self.split)
            if published is not None:
                progress = replace(progress, samples=published.num_samples, num_bytes=published.num_bytes)
            self.report(progress)

        run(
            self.job,
            each,
            self.engine,
            collect,
            report,
            share=self.share,
            known=known,
            memory_bytes=task_memory(plan, self.job.buffer_bytes),
            num_bytes=num_bytes,
        )
