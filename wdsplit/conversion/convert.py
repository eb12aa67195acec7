"""Converting: plan, write the shards, commit.

Composition of the planner, the tasks and an engine. Each task writes its shards and says what it wrote; the driver
alone commits. What a run needs to be continued is the matter of `run`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import platform
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa

from wdsplit.conversion.duplicate_keys import check_unique_keys
from wdsplit.conversion.passes import merge_pass, scatter_pass, write_pass
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.plan.plan import Plan, default_window
from wdsplit.conversion.planning import PathLike, input_paths, plan_files, refuse_splits
from wdsplit.conversion.record.published import Published
from wdsplit.conversion.run import Run
from wdsplit.conversion.shuffle.merge import remove_scattered
from wdsplit.conversion.shuffle.runs import left_to_spill
from wdsplit.conversion.shuffle.scatter import task_bytes
from wdsplit.conversion.shuffle.steps import SPILL_FOLDER, read_cuts, write_cuts
from wdsplit.conversion.task import Job
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import InputError
from wdsplit.shards.files import write_manifest
from wdsplit.shards.manifest import HEADER_NAME, Manifest, Shard
from wdsplit.shards.sidecar_files import write_sidecars
from wdsplit.storage.interface import Storage
from wdsplit.storage.opening import open_storage
from wdsplit.tables.find import find_inputs
from wdsplit.tables.table import joined
from wdsplit.urls import shown_url

__all__ = ["Prepared", "Progress", "commit", "convert", "convert_splits", "prepare"]

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
        merged: Rows of it that were merged, about, as is done with large tables; None before, and after.
        split: The split that is written; empty if there are none.
    """

    shards: int
    samples: int
    num_bytes: int
    skipped: int
    scattered: int | None = None
    merged: int | None = None
    split: str = ""


def convert(
    inputs: PathLike | Sequence[PathLike],
    output: PathLike,
    options: ConvertOptions | None = None,
    progress: Callable[[Plan, Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
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
        engine: What carries the tasks out, such as `wdsplit.RayEngine`; None for `options.jobs` jobs of this machine.

    Returns:
        The manifest.

    Raises:
        WdsplitError: The inputs cannot be read or converted, or the output exists or cannot be written.
    """
    options = options or ConvertOptions()
    refuse_splits(options)
    return _convert(inputs, output, options, progress or _no_progress, storage_options, engine)[""]


def convert_splits(
    inputs: PathLike | Sequence[PathLike],
    output: PathLike,
    options: ConvertOptions,
    progress: Callable[[Plan, Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
) -> dict[str, Manifest]:
    """Convert tables into a dataset for each split, in folders below the output that are called after the splits.

    Args:
        inputs: As for `convert`.
        output: The folder of the datasets.
        options: What is wanted; with splits.
        progress: As for `convert`.
        storage_options: As for `convert`.
        engine: As for `convert`.

    Returns:
        The manifest of each split.

    Raises:
        WdsplitError: As for `convert`.
    """
    if not options.splits:
        raise InputError("there are no splits", remedy="use wdsplit.convert")
    return _convert(inputs, output, options, progress or _no_progress, storage_options, engine)


def _convert(
    inputs: PathLike | Sequence[PathLike],
    output: PathLike,
    options: ConvertOptions,
    progress: Callable[[Plan, Progress], None],
    storage_options: Mapping[str, Any] | None,
    engine: Engine | None,
) -> dict[str, Manifest]:
    """Convert; nothing is written, of no split, before all that can be refused has been looked at."""
    engine = engine or LocalEngine(options.jobs)
    prepared = prepare(inputs, output, options, storage_options)
    folders, runs, plans, resumed = prepared.folders, prepared.runs, prepared.plans, prepared.resumed
    held_bytes = task_bytes(options.memory, engine.jobs_of_a_node)
    with prepared.locked():
        finished = {name: runs[name].finished(plans[name]) for name in runs if name in resumed}
        done = {name: runs[name].resume(plans[name]) for name in runs if name in resumed and not finished[name]}
        done.update({name: runs[name].start(plans[name]) for name in runs if name not in resumed})
        try:
            return {
                name: _write_dataset(run, job, engine, finished.get(name), done.get(name, {}), _named(progress, name))
                for name, run in runs.items()
                for job in [
                    Job(folders[name], plans[name], held_bytes, options.emit, storage_options, not engine.is_local)
                ]
            }
        except BaseException:
            for name in done:
                runs[name].leave_resumable(plans[name])
            raise


@dataclass(frozen=True)
class Prepared:
    """A conversion that may begin: nothing of it is written yet. All is named by the splits; without any by "".

    Attributes:
        folders: The folders of the datasets.
        runs: Their runs.
        plans: Their plans.
        resumed: Which of them go on with a run that is there.
        overwrite: Whether a dataset, or another run, may be replaced.
    """

    folders: Mapping[str, str]
    runs: Mapping[str, Run]
    plans: Mapping[str, Plan]
    resumed: Collection[str]
    overwrite: bool

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep every other run out of the outputs, and refuse what others have put there meanwhile."""
        with ExitStack() as locks:
            for name, run in self.runs.items():
                locks.enter_context(run.locked())
                run.refuse_output(self.overwrite, name in self.resumed)
            yield


def prepare(
    inputs: PathLike | Sequence[PathLike],
    output: PathLike,
    options: ConvertOptions,
    storage_options: Mapping[str, Any] | None,
) -> Prepared:
    """Plan a conversion, and refuse all that can be refused before anything is written. The arguments are `convert`'s.

    Raises:
        WdsplitError: As for `convert`.
    """
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
    return Prepared(folders, runs, plans, resumed, options.overwrite)


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
    engine: Engine,
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
    shards = _write(job, engine, done, progress)
    return commit(run, plan, job.emit, shards)


def commit(run: Run, plan: Plan, emit: tuple[str, ...], shards: Published) -> Manifest:
    """End a run whose shards are all there: from then on the dataset exists.

    Raises:
        WdsplitError: The output lacks a file, or cannot be written.
    """
    manifest = _manifest(plan, emit, shards)
    write_sidecars(run.storage, manifest, emit)
    run.refuse_incomplete(plan, shards)
    write_manifest(run.storage, manifest)
    run.end()
    return manifest


def _no_progress(plan: Plan, progress: Progress) -> None:
    """Show nothing."""


def _write(
    job: Job, engine: Engine, done: Mapping[int, Shard], progress: Callable[[Plan, Progress], None]
) -> Published:
    """Write the shards that are not there yet; return all."""
    plan, published = job.plan, Published(job.plan, done)

    def report(scattered: int | None = None, merged: int | None = None) -> None:
        there = len(published), published.num_samples, published.num_bytes, len(done)
        progress(plan, Progress(*there, scattered, merged))

    left = published.missing()
    if plan.scatters and len(left):
        _shuffle(job, engine, report)
    report()
    with closing(write_pass(job, engine.jobs, left).run(engine)) as results:
        for written in results:
            published.add(written)
            report()
    return published


def _shuffle(job: Job, engine: Engine, report: Callable[[int, int | None], None]) -> None:
    """Scatter the rows that are not scattered yet, and merge what needs it; report how many were, of each."""
    storage, plan = open_storage(job.output, job.storage_options), job.plan
    cuts = read_cuts(storage, plan) or write_cuts(storage, plan, job.held_bytes)
    storage.remove_temporary(SPILL_FOLDER)
    left = left_to_spill(storage, cuts.steps, cuts.tasks)
    scattered = plan.num_rows - sum(task.stop - task.first for task in left)
    report(scattered, None)
    scattering = scatter_pass(job, cuts.steps, left)
    with closing(scattering.run(engine)) as results:
        for rows in results:
            scattered += rows
            report(scattered, None)
    if not cuts.steps.merges:
        return
    tasks = cuts.steps.merge_tasks()
    to_merge = left_to_spill(storage, cuts.steps, tasks)
    done = len(tasks) - len(to_merge)
    report(scattered, plan.num_samples * done // len(tasks))
    with closing(merge_pass(job, cuts.steps, to_merge).run(engine)) as results:
        for _ in results:
            done += 1
            report(scattered, plan.num_samples * done // len(tasks))
    remove_scattered(storage, cuts.steps)


def _manifest(plan: Plan, emit: tuple[str, ...], published: Published) -> Manifest:
    """Return the manifest of all shards."""
    shards = published.table()
    window = default_window(published.num_bytes, published.num_samples)
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
