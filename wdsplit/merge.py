"""Merging what was scattered, for tables of many tasks: of one region, the parts of a chunk of tasks become one.

What is read and written is the table once more; in turn, nothing is opened as often as there are tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from wdsplit.cuts import MergeTask, Steps
from wdsplit.engine import end_if_told
from wdsplit.plan import Plan
from wdsplit.spilled import SpilledRun, SpilledRuns, listed_runs, opened_run, parts_of
from wdsplit.storage import Storage
from wdsplit.stores import open_storage

__all__ = ["MergeJob", "chunk_runs", "merge", "region_runs", "remove_scattered"]


@dataclass(frozen=True)
class MergeJob:
    """What every task that merges needs; a worker process gets it once.

    Attributes:
        output: The dataset's folder.
        plan: The plan.
        steps: What all tasks agree on.
        held_bytes: Bytes of rows that may be held at a time.
        storage_options: How to reach a remote store.
    """

    output: str
    plan: Plan
    steps: Steps
    held_bytes: int
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)


def merge(job: MergeJob, task: MergeTask) -> int:
    """Merge what a chunk's tasks have scattered to a region; return its number of rows. May run twice."""
    storage, plan = open_storage(job.output, job.storage_options), job.plan
    merged = SpilledRuns(storage, plan, task.name, job.held_bytes, job.steps.bucket_rows)
    num_rows = 0

    def part_of(run: SpilledRun) -> list[pa.RecordBatch]:
        return list(opened_run(storage, run).buckets_between(task.region, task.region))

    for part in parts_of(storage, chunk_runs(storage, plan, job.steps, task.chunk), part_of):
        end_if_told()
        merged.append(pa.Table.from_batches([part]), part.nbytes)
        num_rows += len(part)
    merged.end()
    return num_rows


def chunk_runs(storage: Storage, plan: Plan, steps: Steps, chunk: int) -> list[SpilledRun]:
    """Return the runs of the tasks of a chunk."""
    return listed_runs(storage, plan, f"chunk-{chunk:06d}", steps.scattered(chunk))


def region_runs(storage: Storage, plan: Plan, steps: Steps, region: int) -> list[SpilledRun]:
    """Return the runs that hold the rows of a region, to be gathered from."""
    if not steps.merges:
        return chunk_runs(storage, plan, steps, 0)
    return listed_runs(storage, plan, f"region-{region:06d}", steps.merged(region))


def remove_scattered(storage: Storage, plan: Plan, steps: Steps) -> None:
    """Remove the runs that are merged, all of them; their notes stay, so that nobody scatters again."""
    for chunk in range(steps.num_chunks):
        storage.remove(*(run.path for run in chunk_runs(storage, plan, steps, chunk)))
