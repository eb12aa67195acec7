"""Converting: plan, write the shards, commit.

Composition of the planner, the tasks and an engine. Each task writes its shards and says what it wrote; the driver
alone commits. What a run needs to be continued is the matter of `run`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa

from wdsplit.emit import write_sidecars
from wdsplit.engine import run_tasks
from wdsplit.errors import InputError, WdsplitError
from wdsplit.fields import infer_fields
from wdsplit.keys import is_key_type
from wdsplit.manifest import Manifest, Shard, Shards, shard_path
from wdsplit.parquet import find_inputs, first_payloads, open_inputs
from wdsplit.plan import Plan, PlanOptions, default_window, make_plan, task_spans
from wdsplit.run import Run
from wdsplit.shards import write_manifest
from wdsplit.shuffle import scatter, scatter_tasks, task_bytes
from wdsplit.sidecars import check_emit
from wdsplit.storage import Storage, open_storage
from wdsplit.task import Task, run_task
from wdsplit.unique import check_unique_keys

__all__ = ["ConvertOptions", "Progress", "convert", "plan_conversion"]

logger = logging.getLogger(__name__)

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class ConvertOptions:
    """How to convert tables into shards.

    Attributes:
        plan: How many shards there shall be, and what goes into them.
        mapping: Field name to column name; if empty, fields are inferred from the columns.
        key: The column that holds the keys; None numbers the rows.
        jobs: Processes.
        overwrite: Remove a dataset, or an unfinished run, that is in the output already.
        resume: Continue an unfinished run of the same plan; one that is finished is left as it is.
        memory: Bytes that all processes together may hold while they shuffle.
        emit: What to write for other readers beside the shards: some of dali, energon and wids.
        class_names: Write the names of classes beside their numbers, where the table has them.
    """

    plan: PlanOptions = field(default_factory=PlanOptions)
    mapping: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    jobs: int = 1
    overwrite: bool = False
    resume: bool = False
    memory: int = 1024**3
    emit: tuple[str, ...] = ()
    class_names: bool = False

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise InputError("the number of jobs cannot be", expected="at least 1", found=str(self.jobs))
        if self.overwrite and self.resume:
            raise InputError("overwrite and resume contradict each other", remedy="give one of the two")
        object.__setattr__(self, "emit", check_emit(self.emit))


@dataclass(frozen=True)
class Progress:
    """How far a conversion has got.

    Attributes:
        shards: Shards that are published.
        samples: Samples in them, pads included.
        num_bytes: Bytes of them.
        skipped: How many of the shards were there already when the run was resumed.
        scattered: Rows that were put where the shuffle wants them; None once that is done, or if there is none.
    """

    shards: int
    samples: int
    num_bytes: int
    skipped: int
    scattered: int | None = None


def plan_conversion(inputs: PathLike | Sequence[PathLike], options: ConvertOptions) -> Plan:
    """Decide a conversion: read the footers of the inputs, infer the fields, cut the rows into shards.

    Args:
        inputs: One or several of: a parquet file, a folder of them, a glob, a brace expression.
        options: What is wanted.

    Raises:
        InputError: The inputs cannot be read, or cannot be converted so.
    """
    files, schema = open_inputs(find_inputs(_paths(inputs)))
    if options.key in schema.names and not is_key_type(schema.field(options.key).type):
        raise InputError(
            f"column {options.key!r} cannot hold keys",
            expected="strings or integers",
            found=str(schema.field(options.key).type),
            remedy="choose another --key column, or leave it out to number the rows",
        )
    fields = infer_fields(schema, options.mapping, options.key, first_payloads(files, schema), options.class_names)
    unused = [name for name in schema.names if name not in {field.column for field in fields} | {options.key}]
    if unused:
        logger.info("columns that are not written: %s", ", ".join(unused))
    return make_plan(files, fields, options.key, options.plan)


def convert(
    inputs: PathLike | Sequence[PathLike],
    output: PathLike,
    options: ConvertOptions | None = None,
    progress: Callable[[Plan, Progress], None] | None = None,
) -> Manifest:
    """Convert parquet tables into a dataset of shards.

    The dataset exists when this returns; until then the output holds published shards without a manifest, and can be
    continued with `resume`.

    Args:
        inputs: One or several of: a parquet file, a folder of them, a glob, a brace expression.
        output: The dataset's folder.
        options: What is wanted.
        progress: Called with the plan and the progress so far, at the beginning and after each task.

    Returns:
        The manifest.

    Raises:
        WdsplitError: The inputs cannot be read or converted, or the output exists or cannot be written.
    """
    options = options or ConvertOptions()
    progress = progress or _no_progress
    paths = find_inputs(_paths(inputs))
    run = Run(open_storage(os.fspath(output)), options.emit)
    run.refuse_inputs_inside(paths)
    run.refuse_output(options.overwrite, options.resume)
    plan = plan_conversion(paths, options)
    if plan.key is not None and not options.resume:
        check_unique_keys(plan)
    with run.locked():
        run.refuse_output(options.overwrite, options.resume)
        finished = run.finished(plan) if options.resume else None
        if finished is not None:
            return _nothing_to_do(plan, finished, progress)
        done = run.resume(plan) if options.resume else run.start(plan)
        try:
            shards = _write(run.storage, plan, options, done, progress)
            manifest = _commit(run.storage, plan, options.emit, shards)
        except BaseException:
            run.leave_resumable()
            raise
        run.end()
    return manifest


def _paths(inputs: PathLike | Sequence[PathLike]) -> list[str]:
    several = [inputs] if isinstance(inputs, (str, os.PathLike)) else inputs
    return [os.fspath(path) for path in several]


def _nothing_to_do(plan: Plan, manifest: Manifest, progress: Callable[[Plan, Progress], None]) -> Manifest:
    """Resume a run that was finished."""
    num_samples = manifest.num_samples + manifest.num_pads
    progress(plan, Progress(plan.num_shards, num_samples, manifest.num_bytes, plan.num_shards))
    return manifest


def _no_progress(plan: Plan, progress: Progress) -> None:
    """Show nothing."""


def _write(
    storage: Storage,
    plan: Plan,
    options: ConvertOptions,
    done: Mapping[int, Shard],
    progress: Callable[[Plan, Progress], None],
) -> dict[int, Shard]:
    """Write the shards that are not there yet; return all."""
    published = dict(done)
    samples = sum(shard.num_samples for shard in done.values())
    num_bytes = sum(shard.num_bytes for shard in done.values())
    left = [shard for shard in range(plan.num_shards) if shard not in published]
    held_bytes = task_bytes(options.memory, options.jobs)
    if plan.options.shuffle and left:
        scattered = 0
        for rows in run_tasks(scatter, scatter_tasks(storage.url, plan, held_bytes), options.jobs):
            scattered += rows
            progress(plan, Progress(len(published), samples, num_bytes, len(done), scattered))
    tasks = [Task(storage.url, plan, span, held_bytes, options.emit) for span in task_spans(plan, options.jobs, left)]

    progress(plan, Progress(len(published), samples, num_bytes, len(done)))
    for written in run_tasks(run_task, tasks, options.jobs):
        published.update(written)
        samples += sum(shard.num_samples for shard in written.values())
        num_bytes += sum(shard.num_bytes for shard in written.values())
        progress(plan, Progress(len(published), samples, num_bytes, len(done)))
    return published


def _commit(storage: Storage, plan: Plan, emit: tuple[str, ...], written: Mapping[int, Shard]) -> Manifest:
    """Check that every shard is there and write the sidecars and the manifest, the header last."""
    for shard in range(plan.num_shards):
        found, path = written[shard], shard_path(shard)
        first, stop = plan.rows(shard)
        num_pads = int(plan.pad_row(shard) is not None)
        if (found.path, found.num_samples, found.num_pads) != (path, stop - first + num_pads, num_pads):
            raise WdsplitError(
                "a task wrote another shard than was planned",
                place=path,
                expected=f"{stop - first} samples and {num_pads} pads",
                found=str(found),
                remedy="convert again with --overwrite; if it happens again, please report it",
            )
    shards = Shards.of([written[shard] for shard in range(plan.num_shards)])
    window = default_window(int(shards.column("num_bytes").sum()), int(shards.column("num_samples").sum()))
    manifest = Manifest(
        shards,
        plan.fields,
        plan.lanes,
        plan.options.window or window,
        plan.options.pad,
        _provenance(plan, emit),
    )
    write_sidecars(storage, manifest, emit)
    write_manifest(storage, manifest)
    return manifest


def _provenance(plan: Plan, emit: tuple[str, ...]) -> dict[str, Any]:
    return {
        "plan": plan.hash,
        "inputs": [{"path": file.path, "num_bytes": file.num_bytes, "num_rows": file.num_rows} for file in plan.inputs],
        "num_dropped": plan.num_dropped,
        "key": plan.key,
        "options": dataclasses.asdict(plan.options),
        "emit": list(emit),
        "versions": {
            "wdsplit": version("wdsplit"),
            "pyarrow": pa.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
