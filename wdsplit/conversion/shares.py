"""Converting in shares, for clusters that start many numbered processes: SLURM arrays, indexed Jobs.

`plan_shares` starts a run and saves its plan, `convert_share` runs a share of a pass on any machine, `commit_shares`
finishes the run. Shares are independent: they take no lock, remove nothing, and may run again, even concurrently.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsplit.conversion.driver import Driver, Progress, spill_pass
from wdsplit.conversion.job import SHARDS_FOLDER, ConvertJob, Published
from wdsplit.conversion.plan.options import PASSES, ConvertOptions, PassName, chosen
from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.plan.saved_plan import SavedPlan, dump_plan, is_plan, parse_plan
from wdsplit.conversion.prepare import Endpoints, locked, prepare
from wdsplit.conversion.run import Run
from wdsplit.conversion.shuffle.needs import task_bytes
from wdsplit.conversion.shuffle.steps import Cuts, read_cuts, write_cuts
from wdsplit.conversion.task import named_shards
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import (
    ConvertError,
    CorruptDataError,
    DatasetNotFoundError,
    InputError,
    OutputExistsError,
    did_you_mean,
)
from wdsplit.jobs.notes import Notes
from wdsplit.jobs.run import Pass, Share, Tasks
from wdsplit.shards.manifest import Manifest
from wdsplit.storage.given import PathLike, divided_options, opening_options
from wdsplit.storage.interface import Storage
from wdsplit.storage.local import local_path
from wdsplit.storage.opening import is_remote, open_readable_storage, open_storage
from wdsplit.tables.table import InputFile, Remote
from wdsplit.texts import listed
from wdsplit.urls import divided_url, shown_url

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Progress", "commit_shares", "convert_share", "needed_passes", "plan_shares"]

logger = logging.getLogger(__name__)

_BEGINNING_BYTES = 64


def plan_shares(
    inputs: PathLike | Sequence[PathLike],
    output: PathLike,
    plan_path: PathLike,
    options: ConvertOptions | None = None,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    input_fs: AbstractFileSystem | None = None,
    **keywords: Any,
) -> dict[str, Plan]:
    """Start a conversion in shares: plan it as `wdsplit.convert` would, and save the plan.

        wdsplit.plan_shares("raw/*.parquet", "data/digits", "plan.json")

    Args:
        inputs: As for `wdsplit.convert`.
        output: The dataset's folder, at a path that all shares can access: a path, or `s3://bucket/folder`.
        plan_path: The plan file to write: a path, or `s3://bucket/file`. With splits, each split has its own plan file,
            with the split's name after a dot.
        options: The options; `jobs` is ignored, and `resume` is an error.
        storage_options: As for `wdsplit.convert`. Not saved: pass them to each share.
        fs: fsspec file system of the output, as for `wdsplit.convert`, and of the plan file if that is a URL of the
            same scheme. Not saved either.
        input_fs: fsspec file system of the inputs.
        **keywords: As for `wdsplit.convert`.

    Returns:
        The plans, by plan file.

    Raises:
        WdsplitError: As for `wdsplit.convert`; or the plan cannot be saved.
    """
    options = chosen(ConvertOptions, options, keywords)
    if options.resume:
        raise InputError("a plan starts a new run, so it cannot resume one", remedy="run the missing shares again")
    endpoints = Endpoints.of(inputs, output, storage_options, fs, input_fs)
    files = {}
    for split in options.splits or [""]:
        path, parent, name = _divided(f"{os.fspath(plan_path)}{'.' if split else ''}{split}")
        for folder in endpoints.folders(options.splits).values():
            Run(open_storage(folder, endpoints.output_options)).refuse_file_inside(path, "the plan file")
        files[split] = path, open_storage(parent, endpoints.output_options), name
        _refuse_existing(*files[split], options.overwrite)
    targets = prepare(endpoints, options, engine=None)
    with locked(targets):
        for target in targets:
            plan, run, base, (_, storage, name) = target.plan, target.run, os.getcwd(), files[target.split]
            folder = target.folder if is_remote(target.folder) else os.path.join(base, local_path(target.folder))
            saved = SavedPlan(plan, folder, base, target.needs.memory, tuple(run.emit), version("wdsplit"))
            data = dump_plan(saved)  # refuses credentials
            with storage.publish(name, durable=True) as file:  # before the run replaces anything
                file.write([data])
            try:
                run.start(plan)
                if plan.scatters:
                    write_cuts(run.storage, plan, target.needs.buffer_bytes)
            except BaseException:
                run.leave_resumable(plan)
                storage.with_short_deadline().remove(name)
                raise
    return {files[target.split][0]: target.plan for target in targets}


def _divided(plan_path: PathLike) -> tuple[str, str, str]:
    """Return the path of a plan file, its folder and its name; it need not exist."""
    given = os.fspath(plan_path)
    path = given if is_remote(given) else local_path(given)
    folder, name = divided_url(path)
    if not name or folder.endswith(":/"):
        expected = "a path, or s3://bucket/file"
        raise InputError("invalid path of a plan file", place=shown_url(given), expected=expected)
    return path, folder, name


def _refuse_existing(path: str, storage: Storage, name: str, overwrite: bool) -> None:
    """Refuse to replace a file, except for a plan that may be overwritten."""
    size = storage.size(name)
    if size is None:
        return
    ours = is_plan(storage.open(name).read(0, min(size, _BEGINNING_BYTES)))
    if not (overwrite and ours):
        raise OutputExistsError(
            "the plan file exists already" if ours else "another file exists at the path of the plan file",
            expected="no such file" + (", or a plan to replace" if overwrite else ""),
            found="the plan of another run, or of this one" if ours else "a file that is not a plan",
            remedy="choose another file" + (", or use --overwrite to start again" if ours else ""),
            url=path,
        )


def convert_share(
    plan_path: PathLike,
    share: int,
    num_shares: int,
    only: PassName | None = None,
    progress: Callable[[Progress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    fs: AbstractFileSystem | None = None,
    input_fs: AbstractFileSystem | None = None,
) -> Progress:
    """Write a share of the shards of a plan; work that this share has finished before is kept.

        for step in ("scatter", "write"):
            for share in range(4):  # each in its own job, such as a task of a SLURM array
                wdsplit.convert_share("plan.json", share, num_shares=4, only=step)

    Args:
        plan_path: The plan file.
        share: Number of the share: 0, 1, ..., num_shares - 1.
        num_shares: Total number of shares.
        only: The pass to run. A plan that shuffles rows needs all shares of `scatter`, then of `write`; large
            tables also need `merge` in between. Passes that are not needed do nothing.
        progress: Called with the progress so far, at the start and after each task.
        storage_options: Options for remote inputs and the output, as for `wdsplit.convert`.
        engine: Engine that runs the tasks; None for one job.
        fs: fsspec file system of the output, as for `plan_shares`.
        input_fs: fsspec file system of the inputs.

    Returns:
        The progress at the end.

    Raises:
        WdsplitError: The output has no run of the plan, reading or writing failed, or the previous pass is not
            complete.
    """
    if not 0 <= share < num_shares:
        raise InputError(
            f"there is no share {share}/{num_shares}",
            expected="a share I/N with 0 <= I < N: shares are counted from 0",
            remedy="use the index that SLURM (--array=0-15) and Kubernetes count from 0",
        )
    if only not in (None, *PASSES):
        expected, remedy = f"one of {', '.join(PASSES)}", did_you_mean([str(only)], PASSES)
        raise InputError("invalid pass (only)", expected=expected, found=repr(only), remedy=remedy)
    of_inputs, of_output = divided_options(storage_options, input_fs, fs)
    output_options, input_options = opening_options(of_output, fs), opening_options(of_inputs, input_fs)
    saved, run = _open_unfinished(plan_path, output_options)
    plan, engine, cuts = _located_plan(saved, input_options), engine or LocalEngine(), _cuts_of(run.storage, saved.plan)
    passes = _passes(cuts)
    if cuts is not None and only is None:
        raise InputError(
            "the plan shuffles rows, which needs several passes",
            place=os.fspath(plan_path),
            expected="a pass",
            remedy=f"run all shares with {_pass_options(passes)}, one after another",
        )
    job = ConvertJob(
        output=saved.output,
        storage_options=output_options,
        shared=True,
        plan=plan,
        buffer_bytes=task_bytes(saved.memory, engine.jobs_of_a_node),
        emit=saved.emit,
    )
    name, part = only or "write", Share(share, num_shares)
    last = Progress(name, 0, 0)

    def report(current: Progress) -> None:
        nonlocal last
        last = current
        if progress is not None:
            progress(current)

    driver = Driver(job, engine, report, part)
    if cuts is not None and name in passes[1:]:
        before = passes[passes.index(name) - 1]
        _require_complete(run.storage, spill_pass(job, cuts, before), before)
    if name == "write":
        driver.write(run.existing_shards(plan, part.of(plan.num_shards)), cuts)
    elif cuts is not None and name in passes:
        driver.spill(cuts, name)
    return last


def _require_complete(storage: Storage, each: Pass[Any], name: PassName) -> None:
    """Refuse to continue before all shares have finished a pass."""
    notes, items = Notes(storage, each.folder), range(each.num_items)
    done = dict(notes.read(each.name, items, each.parse))
    missing = [item for item in items if item not in done]
    if missing:
        tasks = listed(missing, show=lambda item: each.describe(range(item, item + 1)))
        raise ConvertError(
            f"the {name} pass is not complete",
            expected=f"the output of {each.num_items} tasks",
            found=f"{len(missing)} tasks are missing: {tasks}{_unfinished(notes, each.name)}",
            remedy=f"run the missing shares with --pass {name} again, then the next pass",
            url=storage.url,
        )


def _unfinished(notes: Notes, name: str) -> str:
    """Return which shares have not finished a pass, if any has: only their notes have the number of shares."""
    shares = notes.unfinished_shares(name)
    if shares is None:
        return "; no share has finished"
    return f"; unfinished shares: {listed(shares)}" if shares else ""


def needed_passes(
    plan_path: PathLike,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> tuple[PassName, ...]:
    """Return the passes that the shares of a plan need; the arguments are those of `commit_shares`.

    Raises:
        WdsplitError: The plan or its run does not exist, or the conversion is finished.
    """
    saved, run = _open_unfinished(plan_path, opening_options(storage_options, fs))
    return _passes(_cuts_of(run.storage, saved.plan))


def _open_run(plan_path: PathLike, storage_options: Mapping[str, Any] | None) -> tuple[SavedPlan, Run]:
    """Read a plan file; return the plan and the run in its output, which may not exist."""
    path, folder, name = _divided(plan_path)
    place = shown_url(path)
    try:
        saved = parse_plan(open_readable_storage(folder, storage_options).read(name), version("wdsplit"))
    except DatasetNotFoundError as error:
        raise DatasetNotFoundError(
            "plan file not found",
            expected="a file written by `wdsplit plan -o`",
            remedy="check the path, which all machines must be able to access",
            url=place,
        ) from error
    except (CorruptDataError, InputError) as error:
        raise error.at(place) from error
    return saved, Run(open_storage(saved.output, storage_options), saved.emit)


def _located_plan(saved: SavedPlan, storage_options: Mapping[str, Any] | None) -> Plan:
    """Return a plan whose inputs can be found from any folder, with this machine's storage options."""

    def placed(file: InputFile) -> InputFile:
        if file.remote is not None:
            return replace(file, remote=Remote(file.remote.url, storage_options))
        return replace(file, path=os.path.join(saved.folder, file.path))

    table = saved.plan.table
    return replace(saved.plan, table=replace(table, files=tuple(map(placed, table.files))))


def _open_unfinished(plan_path: PathLike, storage_options: Mapping[str, Any] | None) -> tuple[SavedPlan, Run]:
    """Read a plan file; return the plan and its run, which must not be finished."""
    saved, run = _open_run(plan_path, storage_options)
    if run.continued(saved.plan) is not None:
        again = "to convert again, plan again with --overwrite"
        run.refuse("the plan is already committed", "an unfinished run", "a finished dataset", again)
    return saved, run


def _cuts_of(storage: Storage, plan: Plan) -> Cuts | None:
    """Return how a run scatters its rows, None if it does not; refuse a run whose start was interrupted."""
    cuts = read_cuts(storage, plan) if plan.scatters else None
    if cuts is None and plan.scatters:
        raise ConvertError(
            "the run cannot start its scatter pass",
            expected="a run that `wdsplit plan -o` started",
            found="a run whose start was interrupted",
            remedy="plan again with --overwrite",
            url=storage.url,
        )
    return cuts


def _passes(cuts: Cuts | None) -> tuple[PassName, ...]:
    """Return the passes of a run, in order."""
    if cuts is None:
        return ("write",)
    return PASSES if cuts.merges else ("scatter", "write")


def _pass_options(passes: Sequence[PassName]) -> str:
    return ", ".join(f"--pass {name}" for name in passes)


def commit_shares(
    plan_path: PathLike,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> Manifest:
    """Finish a conversion in shares: write the manifest. If it exists already, only remove what the run has left.

        wdsplit.commit_shares("plan.json")
        dataset = wdsplit.Dataset("data/digits")

    Args:
        plan_path: The plan file.
        storage_options: Options for a remote output, as for `wdsplit.convert`.
        fs: fsspec file system of the output, as for `plan_shares`.

    Returns:
        The manifest.

    Raises:
        ConvertError: Shards are missing.
        CorruptDataError: The notes of the shards are invalid.
        WdsplitError: The output has no run of the plan, or is not writable.
    """
    saved, run = _open_run(plan_path, opening_options(storage_options, fs))
    plan, storage = saved.plan, run.storage
    run.continued(plan)  # else the lock would make the folder of a missing output
    with run.locked():
        finished = run.continued(plan)
        if finished is not None:
            run.finish()
            logger.warning("%s: already committed", storage.url)
            return finished
        rows, published = run.existing_shards(plan, range(plan.num_shards)), Published(plan)
        missing = np.array([number for number in range(plan.num_shards) if number not in rows], np.int64)
        if len(missing):
            passes = f", with {_pass_options(_passes(_cuts_of(storage, plan)))}" if plan.scatters else ""
            names = listed(Tasks(missing, plan.num_shards), show=named_shards)
            raise ConvertError(
                "cannot commit the dataset: shards are missing",
                expected=f"{plan.num_shards} shards",
                found=f"{len(missing)} missing: {names}{_unfinished(Notes(storage, SHARDS_FOLDER), plan.hash)}",
                remedy=f"run the unfinished shares again{passes}, then commit",
                url=storage.url,
            )
        for number, row in rows.items():
            published.add(number, row)
        return run.commit(plan, published)
