"""Converting in parts, for clusters that start many processes with a number each: SLURM's arrays, indexed Jobs.

`plan_parts` begins a run and saves its plan, `convert_part` writes a share of the shards, on any machine that reaches
the plan file, the inputs and the output, and `commit_parts` ends the run once all shards are there. Parts know nothing
of each other: they hold no lock, remove nothing, and write the same bytes however often they run, side by side too.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import pairwise
from typing import Any

from wdsplit.conversion.convert import commit, prepare
from wdsplit.conversion.part_share import PartProgress, Share, cuts_of
from wdsplit.conversion.passes import PASSES, Pass
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.plan.plan_file import SavedPlan, dump_plan, is_plan, parse_plan
from wdsplit.conversion.planning import PathLike
from wdsplit.conversion.record.notes import noted, some, unended_parts
from wdsplit.conversion.run import Run
from wdsplit.conversion.shuffle.scatter import task_bytes
from wdsplit.conversion.shuffle.steps import write_cuts
from wdsplit.conversion.task import Job
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import ConvertError, CorruptDataError, DatasetNotFoundError, InputError, OutputExistsError
from wdsplit.shards.manifest import Manifest, shard_path
from wdsplit.storage.interface import Storage
from wdsplit.storage.local import local_path
from wdsplit.storage.opening import is_remote, open_storage
from wdsplit.tables.table import InputFile, Remote
from wdsplit.urls import shown_url

__all__ = ["PASSES", "PartProgress", "Pass", "commit_parts", "convert_part", "needed_passes", "plan_parts"]

logger = logging.getLogger(__name__)

_JOBS_OF_A_PART = 4
"""How many jobs of a part share the memory, when rows are cut into what a task scatters; parts may have others."""
_BEGINNING_BYTES = 64


def plan_parts(
    inputs: PathLike | Sequence[PathLike],
    output: PathLike,
    plan_path: PathLike,
    options: ConvertOptions | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> dict[str, Plan]:
    """Begin a conversion in parts: plan it, as `wdsplit.convert` would, and save the plan.

    Args:
        inputs: As for `wdsplit.convert`.
        output: The dataset's folder, which all parts reach under the same path: a path, or `s3://bucket/folder`.
        plan_path: The file to save the plan in; a path, or `s3://bucket/file`. With splits each has a plan of its own,
            in a file with the split's name after a dot.
        options: What is wanted; `jobs` and `resume` have no meaning here.
        storage_options: As for `wdsplit.convert`. They are not saved: each part takes its own.

    Returns:
        The plan in each plan file.

    Raises:
        WdsplitError: As of `wdsplit.convert`; or the plan cannot be saved.
    """
    options = options or ConvertOptions()
    if options.resume:
        raise InputError("a plan begins a run, so it cannot resume one", remedy="run the parts that are missing again")
    path = _plain(os.fspath(plan_path))
    files = {name: f"{path}.{name}" for name in options.splits} or {"": path}
    for file in files.values():
        _refuse_plan_file(file, options.overwrite, storage_options)
    prepared = prepare(inputs, output, options, storage_options)
    for file in files.values():
        _refuse_inside(file, prepared.runs.values())
    with prepared.locked():
        for name, plan in prepared.plans.items():
            folder, target = os.getcwd(), prepared.folders[name]
            target = target if is_remote(target) else os.path.join(folder, local_path(target))
            saved = SavedPlan(plan, target, folder, options.memory, tuple(options.emit), version("wdsplit"))
            with _saved(files[name], saved, storage_options), _begun(prepared.runs[name], plan):
                prepared.runs[name].start(plan)
                if plan.scatters:
                    write_cuts(prepared.runs[name].storage, plan, task_bytes(options.memory, _JOBS_OF_A_PART))
    return {files[name]: plan for name, plan in prepared.plans.items()}


@contextmanager
def _begun(run: Run, plan: Plan) -> Iterator[None]:
    """Clear up if a run cannot begin."""
    try:
        yield
    except BaseException:
        run.leave_resumable(plan)
        raise


@contextmanager
def _saved(path: str, saved: SavedPlan, storage_options: Mapping[str, Any] | None) -> Iterator[None]:
    """Save a plan, before its run replaces anything; the file goes again if the run cannot begin."""
    storage, name = _opened(path, storage_options)
    data = dump_plan(saved)
    with storage.publish(name, durable=True) as file:
        file.write([data])
    try:
        yield
    except BaseException:
        storage.remove(name)
        raise


def _plain(path: str) -> str:
    return path if is_remote(path) else local_path(path)


def _opened(path: str, storage_options: Mapping[str, Any] | None) -> tuple[Storage, str]:
    """Return the folder of a plan file, and the file's name in it."""
    folder, separator, name = path.rpartition("/")
    if not name or folder.endswith(":/"):
        raise InputError("this names no plan file", place=shown_url(path), expected="a path, or s3://bucket/file")
    return open_storage(folder or separator or ".", storage_options), name


def _refuse_plan_file(path: str, overwrite: bool, storage_options: Mapping[str, Any] | None) -> None:
    """Refuse a plan file that cannot be written, or that is there already."""
    scheme = path.partition("://")[0].lower() if is_remote(path) else "file"
    if scheme not in ("file", "s3"):
        raise InputError(
            "a plan cannot be saved there",
            place=shown_url(path),
            expected="a local file, or s3://bucket/file",
            remedy="choose a file that all parts reach",
        )
    storage, name = _opened(path, storage_options)
    size = storage.size(name)
    if size is None:
        return
    ours = is_plan(storage.open(name).read(0, min(size, _BEGINNING_BYTES)))
    if not (overwrite and ours):
        raise OutputExistsError(
            "the plan file exists already" if ours else "there is another file where the plan shall be saved",
            place=path,
            expected="no such file" + (", or a plan to be replaced" if overwrite else ""),
            found="the plan of another run, or of this one" if ours else "a file that is no plan",
            remedy="choose another file" + (", or use --overwrite to begin anew" if ours else ""),
            url=path,
        )


def _refuse_inside(path: str, runs: Collection[Run]) -> None:
    for run in runs:
        if run.holds(path):
            raise InputError(
                "the plan file lies inside the output",
                place=path,
                expected=f"a file outside {run.storage.url}",
                remedy="choose another file: what is in the output is removed when the run begins",
                url=path,
            )


def convert_part(
    plan_path: PathLike,
    part: int,
    num_parts: int,
    only: Pass | None = None,
    progress: Callable[[PartProgress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
) -> PartProgress:
    """Write a part of the shards of a plan; what the part has written before is kept.

    Args:
        plan_path: The plan file.
        part: Which part: 0, 1, ..., num_parts - 1.
        num_parts: Parts in all.
        only: The pass. A plan that puts rows into another order takes two, all parts of `scatter`, then of `write`; or
            three, if the table is large, `merge` between them. Where a pass is not needed, nothing is done.
        progress: Called with the progress so far, at the beginning and after each task.
        storage_options: How to reach remote inputs and the output, as for `wdsplit.convert`.
        engine: What carries the tasks out; None for one job.

    Returns:
        What is done.

    Raises:
        WdsplitError: The output does not hold the plan's run, something cannot be read or written, or the pass
            before is not complete.
    """
    if not 0 <= part < num_parts:
        raise InputError(
            f"there is no part {part}/{num_parts}",
            expected=f"parts are counted from 0: 0/{num_parts} to {num_parts - 1}/{num_parts}" if num_parts > 0 else "",
            remedy="use the index that SLURM (--array=0-15) and Kubernetes count from 0",
        )
    saved, run = _open_run(plan_path, storage_options)
    run.require(saved.plan)
    plan, engine = _placed(saved, storage_options), engine or LocalEngine()
    if plan.scatters and only is None:
        raise InputError(
            "the plan puts rows into another order, which takes several passes",
            place=os.fspath(plan_path),
            expected="a pass",
            remedy=f"run all parts with {_each_pass(run, plan)}, one after the other",
        )
    job = Job(
        saved.output, plan, task_bytes(saved.memory, engine.jobs_of_a_node), saved.emit, storage_options, shared=True
    )
    share = Share(run, job, engine, part, num_parts, progress or _no_progress)
    return share.take(only or "write")


def needed_passes(plan_path: PathLike, storage_options: Mapping[str, Any] | None = None) -> tuple[Pass, ...]:
    """Return the passes that the parts of a plan take.

    Raises:
        WdsplitError: There is no such plan, or its run is not there.
    """
    saved, run = _open_run(plan_path, storage_options)
    run.require(saved.plan)
    return _passes(run, saved.plan)


def _passes(run: Run, plan: Plan) -> tuple[Pass, ...]:
    if not plan.scatters:
        return ("write",)
    return PASSES if cuts_of(run.storage, plan).steps.merges else ("scatter", "write")


def _each_pass(run: Run, plan: Plan) -> str:
    return ", ".join(f"--pass {name}" for name in _passes(run, plan))


def _no_progress(progress: PartProgress) -> None:
    """Show nothing."""


def _open_run(plan_path: PathLike, storage_options: Mapping[str, Any] | None) -> tuple[SavedPlan, Run]:
    path = _plain(os.fspath(plan_path))
    storage, name = _opened(path, storage_options)
    try:
        saved = parse_plan(storage.read(name), version("wdsplit"))
    except DatasetNotFoundError as error:
        raise DatasetNotFoundError(
            "there is no such plan file",
            place=shown_url(path),
            expected="a file that `wdsplit plan -o` has written",
            remedy="check the path: all machines must reach it",
            url=shown_url(path),
        ) from error
    except (CorruptDataError, InputError) as error:
        raise error.at(shown_url(path)) from error
    return saved, Run(open_storage(saved.output, storage_options), saved.emit)


def _placed(saved: SavedPlan, storage_options: Mapping[str, Any] | None) -> Plan:
    """Return a plan whose inputs are found from any folder, by this machine's own means."""

    def placed(file: InputFile) -> InputFile:
        if file.remote is not None:
            return dataclasses.replace(file, remote=Remote(file.remote.url, storage_options))
        return dataclasses.replace(file, path=os.path.join(saved.folder, file.path))

    table = saved.plan.table
    return dataclasses.replace(saved.plan, table=dataclasses.replace(table, files=tuple(map(placed, table.files))))


def commit_parts(plan_path: PathLike, storage_options: Mapping[str, Any] | None = None) -> Manifest:
    """End a conversion in parts: from then on the dataset exists. One that has ended already is left as it is.

    Args:
        plan_path: The plan file.
        storage_options: How to reach a remote output, as for `wdsplit.convert`.

    Returns:
        The manifest.

    Raises:
        ConvertError: Some shards are not there.
        CorruptDataError: What was noted of them was changed.
        WdsplitError: The output does not hold the plan's run, or cannot be written.
    """
    saved, run = _open_run(plan_path, storage_options)
    plan = saved.plan
    if not run.is_begun:
        run.require(plan)
    with run.locked():
        finished = run.finished(plan)
        if finished is not None:
            logger.warning("%s: committed already", run.storage.url)
            return finished
        run.require(plan)
        published = noted(run.storage, plan)
        lacking = run.lacking(published)
        missing = sorted({*published.missing().tolist(), *lacking})
        if missing:
            raise _incomplete(run, plan, missing)
        return commit(run, plan, saved.emit, published)


def _incomplete(run: Run, plan: Plan, missing: Sequence[int]) -> ConvertError:
    storage, remedy = run.storage, "run the parts that have not ended again, then commit"
    if plan.scatters:
        remedy = f"run the parts that have not ended again, with {_each_pass(run, plan)}, then commit"
    return ConvertError(
        "the dataset cannot be committed: not all shards are there",
        place=storage.url,
        expected=f"{plan.num_shards} shards",
        found=f"{len(missing)} missing: {some(_stretches(missing))}{unended_parts(storage, 'write')}",
        remedy=remedy,
        url=storage.url,
    )


def _stretches(shards: Sequence[int]) -> list[str]:
    """Return the paths of shards; of neighbours the first and the last."""
    begins = [0, *(place + 1 for place, (one, other) in enumerate(pairwise(shards)) if other != one + 1), len(shards)]
    ends = [(shards[first], shards[stop - 1]) for first, stop in pairwise(begins)]
    return [shard_path(first) + (f" to {shard_path(last)}" if last > first else "") for first, last in ends]
