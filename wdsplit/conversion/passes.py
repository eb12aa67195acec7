"""The passes of a conversion: the tasks of each, and how an engine carries them out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from wdsplit.conversion.plan.plan import Span, task_spans
from wdsplit.conversion.shuffle.merge import merge
from wdsplit.conversion.shuffle.scatter import scatter, task_memory
from wdsplit.conversion.shuffle.steps import MergeTask, ScatterTask, SpillJob, Steps
from wdsplit.conversion.task import Job, describe_rows, describe_span, guarded, write_shards
from wdsplit.engines.local import Engine
from wdsplit.order.epoch import Int64
from wdsplit.shards.manifest import Shard

__all__ = ["PASSES", "Pass", "TaskPass", "merge_pass", "scatter_pass", "write_pass"]

Task = TypeVar("Task")
Result = TypeVar("Result")
Pass = Literal["scatter", "merge", "write"]
PASSES: tuple[Pass, ...] = ("scatter", "merge", "write")


@dataclass(frozen=True)
class TaskPass(Generic[Task, Result]):
    """A pass: tasks of one kind.

    Attributes:
        function: Carries a task out, given the job and the task; picklable. It must do the same when it runs again.
        job: What all tasks need; a worker process gets it once.
        tasks: The tasks that are left.
        describe: Says what a task is, for errors.
        memory_bytes: What a task needs, about.
        threads: Whether jobs may be threads, as `Engine.map` has it.
    """

    function: Callable[[Any, Task], Result]
    job: Any
    tasks: Sequence[Task]
    describe: Callable[[Task], str]
    memory_bytes: int
    threads: bool

    def carry_out(self, engine: Engine) -> Generator[Result, None, None]:
        """Carry the tasks out, and give the results as they are ready: as `Engine.map` does."""
        return engine.map(
            partial(self.function, self.job),
            self.tasks,
            threads=self.threads,
            memory_bytes=self.memory_bytes,
            describe=self.describe,
        )


def scatter_pass(job: Job, steps: Steps, tasks: Sequence[ScatterTask]) -> TaskPass[ScatterTask, int]:
    """Return the pass that scatters rows; a task gives their number.

    Args:
        job: The conversion's.
        steps: What its tasks agree on.
        tasks: The tasks that are left.
    """
    plan = job.plan
    return TaskPass(
        _guarded(scatter, job),
        SpillJob(job.output, plan, steps, job.buffer_bytes, job.storage_options),
        tasks,
        lambda task: describe_rows(plan, (task.first, task.stop)),
        task_memory(plan, job.buffer_bytes),
        threads=True,
    )


def merge_pass(job: Job, steps: Steps, tasks: Sequence[MergeTask]) -> TaskPass[MergeTask, int]:
    """Return the pass that merges what was scattered; a task gives the number of its rows.

    Args:
        job: The conversion's.
        steps: What its tasks agree on.
        tasks: The tasks that are left.
    """
    return TaskPass(
        _guarded(merge, job),
        SpillJob(job.output, job.plan, steps, job.buffer_bytes, job.storage_options),
        tasks,
        str,
        task_memory(job.plan, job.buffer_bytes),
        threads=True,
    )


def _max_gathered_rows(job: Job) -> int:
    """Return how many rows a task may gather at a time; 0 if it reads them in the order of the table."""
    return job.buffer_bytes * job.plan.num_rows // max(1, job.plan.table.data_bytes) if job.plan.scatters else 0


def _guarded(function: Callable[..., Result], job: Job) -> Callable[[Any, Task], Result]:
    return partial(guarded, function) if job.shared else function


def write_pass(job: Job, jobs: int, shards: Sequence[int] | Int64) -> TaskPass[Span, dict[int, Shard]]:
    """Return the pass that writes shards; a task gives those that it has published, by their numbers.

    Args:
        job: The conversion's.
        jobs: Tasks at a time.
        shards: The shards to write, rising.
    """
    plan = job.plan
    return TaskPass(
        write_shards,
        job,
        task_spans(plan, jobs, shards, _max_gathered_rows(job)),
        partial(describe_span, plan),
        task_memory(plan, job.buffer_bytes),
        threads=all(field.encoding != "json" for field in plan.fields),
    )
