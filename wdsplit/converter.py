"""Converting: plan, write the shards, commit.

Composition of the planner, the tasks and an engine. Each task writes its shards and says what it wrote; the driver
alone commits. What a run needs to be continued is the matter of `run`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import platform
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa

from wdsplit.emit import write_sidecars
from wdsplit.engine import run_tasks
from wdsplit.errors import InputError, WdsplitError
from wdsplit.finding import find_inputs
from wdsplit.manifest import HEADER_NAME, Manifest, Shard, Shards, shard_path
from wdsplit.options import ConvertOptions
from wdsplit.plan import Plan, default_window, task_spans
from wdsplit.planning import PathLike, input_paths, plan_files, refuse_splits
from wdsplit.run import Run
from wdsplit.scatter import scatter, scatter_tasks, task_bytes
from wdsplit.shards import write_manifest
from wdsplit.storage import Storage
from wdsplit.stores import open_storage
from wdsplit.table import joined
from wdsplit.task import Job, write_shards
from wdsplit.unique import check_unique_keys
from wdsplit.urls import shown_url

__all__ = ["Progress", "convert", "convert_splits"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """How far a conversion has got.

    Attributes:
        shards: Shards that are published.
        samples: Samples in them, pads included.
        num_bytes: Bytes of them.
        skipped: How many of the shards were there already when the run was resumed.
        scattered: Rows that were put where the shuffle wants them; None once that is done, or if there is none.
        split: The split that is written; empty if there are none.
    """

    shards: int
    samples: int
    num_bytes: int
    skipped: int
    scattered: int | None = None
    split: str = ""


def convert(
    inputs: PathLike | Sequence[PathLike],
    output: PathLike,
    options: ConvertOptions | None = None,
    progress: Callable[[Plan, Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Manifest:
    """Convert tables into a dataset of shards.

    The dataset exists when this returns; until then the output holds published shards without a manifest, and can be
    continued with `resume`.

    Args:
        inputs: One or several of: a file, a folder of them, a glob, a brace expression.
        output: The dataset's folder: a path, or `s3://bucket/folder`.
        options: What is wanted; without splits.
        progress: Called with the plan and the progress so far, at the beginning and after each task.
        storage_options: How to reach a remote store, as for `wdsplit.Dataset`.

    Returns:
        The manifest.

    Raises:
        WdsplitError: The inputs cannot be read or converted, or the output exists or cannot be written.
    """
    options = options or ConvertOptions()
    refuse_splits(options)
    return _convert(inputs, output, options, progress or _no_progress, storage_options)[""]


def convert_splits(
    inputs: PathLike | Sequence[PathLike],
    output: PathLike,
    options: ConvertOptions,
    progress: Callable[[Plan, Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, Manifest]:
    """Convert tables into a dataset for each split, in folders below the output that are called after the splits.

    Args:
        inputs: As for `convert`.
        output: The folder of the datasets.
        options: What is wanted; with splits.
        progress: As for `convert`.
        storage_options: As for `convert`.

    Returns:
        The manifest of each split.

    Raises:
        WdsplitError: As for `convert`.
    """
    if not options.splits:
        raise InputError("there are no splits", remedy="use wdsplit.convert")
    return _convert(inputs, output, options, progress or _no_progress, storage_options)


def _convert(
    inputs: PathLike | Sequence[PathLike],
    output: PathLike,
    options: ConvertOptions,
    progress: Callable[[Plan, Progress], None],
    storage_options: Mapping[str, Any] | None,
) -> dict[str, Manifest]:
    """Convert; nothing is written, of no split, before all that can be refused has been looked at."""
    _refuse_read_only(os.fspath(output))
    paths = find_inputs(input_paths(inputs), storage_options)
    folders = {name: os.path.join(output, name) for name in options.splits} or {"": os.fspath(output)}
    if options.splits:
        _look_around(open_storage(os.fspath(output), storage_options), options)
    runs = {name: Run(open_storage(folder, storage_options), options.emit) for name, folder in folders.items()}
    resumed = {name for name, run in runs.items() if options.resume and (len(runs) == 1 or run.is_begun)}
    if options.resume and not resumed:
        resumed = set(runs)
    for name, run in runs.items():
        run.refuse_inputs_inside(paths)
        run.refuse_output(options.overwrite, name in resumed)
    plans = plan_files(paths, options, storage_options)
    _check_keys(plans, resumed)
    held_bytes = task_bytes(options.memory, options.jobs)
    with ExitStack() as locks:
        for name, run in runs.items():
            locks.enter_context(run.locked())
            run.refuse_output(options.overwrite, name in resumed)
        finished = {name: runs[name].finished(plans[name]) for name in runs if name in resumed}
        done = {name: runs[name].resume(plans[name]) for name in runs if name in resumed and not finished[name]}
        done.update({name: runs[name].start(plans[name]) for name in runs if name not in resumed})
        try:
            return {
                name: _write_dataset(run, job, options, finished.get(name), done.get(name, {}), _named(progress, name))
                for name, run in runs.items()
                for job in [Job(folders[name], plans[name], held_bytes, options.emit, storage_options)]
            }
        except BaseException:
            for name in done:
                runs[name].leave_resumable(plans[name])
            raise


def _refuse_read_only(output: str) -> None:
    """Refuse an output in a store that is only read."""
    scheme, separator, _ = output.partition("://")
    if separator and scheme.lower() not in ("file", "s3"):
        raise InputError(
            f"{scheme}:// can only be read",
            place=shown_url(output),
            expected="a local folder, or s3://bucket/folder, to write to",
            remedy="write to a local folder, and copy it with the tools of your store",
        )


def _look_around(storage: Storage, options: ConvertOptions) -> None:
    """Refuse an output of splits that is a dataset itself, and warn of a dataset in it that is none of the splits."""
    Run(storage).refuse_dataset_around()
    others = [name for name in storage.list() if name not in options.splits]
    others = [name for name in others if storage.size(f"{name}/{HEADER_NAME}") is not None]
    if others:
        logger.warning(
            "%s: not among the splits, and left as it is: %s (its rows may be in other splits now)",
            storage.url,
            ", ".join(others),
        )


def _check_keys(plans: Mapping[str, Plan], resumed: Collection[str]) -> None:
    """Refuse keys that stand twice, in one split or in two."""
    plan = next(iter(plans.values()))
    if plan.key is not None and set(plans) - set(resumed):
        check_unique_keys(dataclasses.replace(plan, table=joined([other.table for other in plans.values()])))


def _named(progress: Callable[[Plan, Progress], None], split: str) -> Callable[[Plan, Progress], None]:
    return lambda plan, so_far: progress(plan, dataclasses.replace(so_far, split=split))


def _write_dataset(
    run: Run,
    job: Job,
    options: ConvertOptions,
    finished: Manifest | None,
    done: Mapping[int, Shard],
    progress: Callable[[Plan, Progress], None],
) -> Manifest:
    """Write one dataset, or what is left of it to be written."""
    plan = job.plan
    if finished is not None:
        num_samples = finished.num_samples + finished.num_pads
        progress(plan, Progress(plan.num_shards, num_samples, finished.num_bytes, plan.num_shards))
        return finished
    shards = _write(job, options.jobs, done, progress)
    manifest = _checked(plan, options.emit, shards)
    write_sidecars(run.storage, manifest, options.emit)
    run.refuse_incomplete(plan, shards)
    write_manifest(run.storage, manifest)
    run.end()
    return manifest


def _no_progress(plan: Plan, progress: Progress) -> None:
    """Show nothing."""


def _write(
    job: Job, jobs: int, done: Mapping[int, Shard], progress: Callable[[Plan, Progress], None]
) -> dict[int, Shard]:
    """Write the shards that are not there yet; return all."""
    plan, published = job.plan, dict(done)
    samples = sum(shard.num_samples for shard in done.values())
    num_bytes = sum(shard.num_bytes for shard in done.values())
    left = [shard for shard in range(plan.num_shards) if shard not in published]
    if plan.scatters and left:
        scattering, tasks = scatter_tasks(job.output, plan, job.held_bytes, job.storage_options)
        scattered = 0
        for rows in run_tasks(partial(scatter, scattering), tasks, jobs, threads=True):
            scattered += rows
            progress(plan, Progress(len(published), samples, num_bytes, len(done), scattered))
    threads = all(field.encoding != "json" for field in plan.fields)
    spans = task_spans(plan, jobs, left)

    progress(plan, Progress(len(published), samples, num_bytes, len(done)))
    for written in run_tasks(partial(write_shards, job), spans, jobs, threads):
        published.update(written)
        samples += sum(shard.num_samples for shard in written.values())
        num_bytes += sum(shard.num_bytes for shard in written.values())
        progress(plan, Progress(len(published), samples, num_bytes, len(done)))
    return published


def _checked(plan: Plan, emit: tuple[str, ...], written: Mapping[int, Shard]) -> Manifest:
    """Check that every shard is the planned one; return the manifest."""
    for shard in range(plan.num_shards):
        found, path = written[shard], shard_path(shard)
        first, stop = plan.rows(shard)
        num_pads = plan.num_pads_of(shard)
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
    return Manifest(
        shards,
        plan.fields,
        plan.lanes,
        plan.options.window or window,
        plan.options.pad,
        _provenance(plan, emit),
    )


def _provenance(plan: Plan, emit: tuple[str, ...]) -> dict[str, Any]:
    return {
        "plan": plan.hash,
        "inputs": [
            {"path": file.path, "num_bytes": file.num_bytes, "num_rows": file.num_rows} for file in plan.table.files
        ],
        "num_rows": plan.table.total_rows,
        "num_selected": plan.num_rows,
        "selection": _selection(plan),
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


def _selection(plan: Plan) -> dict[str, Any]:
    """Return what was selected; hashes as texts, because they may be larger than JSON's numbers."""
    selection = plan.table.selection
    part = selection.part
    bounds = None if part is None else {"column": part.column, "low": str(part.low), "high": str(part.high)}
    return {"where": selection.where, "limit": selection.limit, "part": bounds}
