"""Merges scattered rows of tables with many tasks: the runs of a chunk of tasks in a region become one run.

This reads and writes the table once more, but then no reader has to open the runs of all tasks.
"""

from __future__ import annotations

import pyarrow as pa

from wdsplit.conversion.record.job import Job, open_output
from wdsplit.conversion.shuffle.sorted_runs import (
    SortedRun,
    SortedRunWriter,
    listed_runs,
    open_run,
    read_buckets,
    read_runs,
)
from wdsplit.conversion.shuffle.steps import MergeTask, Steps
from wdsplit.engines.local import raise_if_cancelled
from wdsplit.storage.interface import Storage

__all__ = ["chunk_runs", "merge", "region_runs", "remove_scattered"]


def merge(job: Job, steps: Steps, task: MergeTask) -> int:
    """Merge the rows that a chunk's tasks have scattered to a region; return their number. May run twice."""
    num_rows = 0
    with open_output(job) as storage:
        merged = SortedRunWriter(storage, job, steps.prefix, task.name, steps.bucket_rows)

        def read_region(run: SortedRun) -> list[pa.RecordBatch]:
            return read_buckets(storage, run, open_run(storage, run), task.region, task.region)

        for batch in read_runs(storage, chunk_runs(storage, steps, task.chunk), read_region):
            raise_if_cancelled()
            merged.append(pa.Table.from_batches([batch]), batch.nbytes)
            num_rows += len(batch)
        merged.end()
    return num_rows


def chunk_runs(storage: Storage, steps: Steps, chunk: int) -> list[SortedRun]:
    """Return the runs of the tasks of a chunk."""
    return listed_runs(storage, steps, f"chunk-{chunk:06d}", steps.scattered(chunk))


def region_runs(storage: Storage, steps: Steps, region: int) -> list[SortedRun]:
    """Return the runs to gather the rows of a region from."""
    if not steps.merges:
        return chunk_runs(storage, steps, 0)
    return listed_runs(storage, steps, f"region-{region:06d}", steps.merged(region))


def remove_scattered(storage: Storage, steps: Steps) -> None:
    """Remove all runs that were merged; their notes stay, so that no task scatters again."""
    for chunk in range(steps.num_chunks):
        storage.remove(*(run.path for run in chunk_runs(storage, steps, chunk)))
