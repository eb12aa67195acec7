"""Converting in parts, for clusters that start many processes with a number each: SLURM's arrays, indexed Jobs.

`plan_parts` begins a run and saves its plan, `convert_part` writes a share of the shards, on any machine that reaches
the plan file, the inputs and the output, and `commit_parts` ends the run once all shards are there. Parts know nothing
of each other: they hold no lock, remove nothing, and write the same bytes however often they run, side by side too.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from typing import Any, Literal, TypeVar

import orjson

from wdsplit.converter import commit, prepare
from wdsplit.engine import Engine, LocalEngine, in_order
from wdsplit.errors import ConvertError, CorruptDataError, DatasetNotFoundError, InputError, OutputExistsError
from wdsplit.inputs import check_files
from wdsplit.manifest import RUN_FOLDER, Manifest, Shard, shard_path
from wdsplit.options import ConvertOptions
from wdsplit.plan import Plan, task_spans
from wdsplit.planfile import SavedPlan, dump_plan, is_plan, parse_plan
from wdsplit.planning import PathLike
from wdsplit.published import Published
from wdsplit.run import Run
from wdsplit.scatter import (
    Cuts,
    ScatterJob,
    is_scattered,
    not_scattered,
    read_cuts,
    task_bytes,
    task_memory,
    write_cuts,
)
from wdsplit.storage import Storage, local_path
from wdsplit.stores import is_remote, open_storage
from wdsplit.table import InputFile, Remote
from wdsplit.task import DONE_FOLDER, Job, describe_rows, describe_span, refuse_taken, scatter_shared, write_shards
from wdsplit.urls import shown_url

__all__ = ["PASSES", "PartProgress", "Pass", "commit_parts", "convert_part", "plan_parts"]

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Pass = Literal["scatter", "write"]
PASSES: tuple[Pass, ...] = ("scatter", "write")

_PARTS_FOLDER = f"{RUN_FOLDER}/parts"
_WRITTEN = re.compile(r"(\d+)-of-(\d+)\.json")
_SCATTERED = re.compile(r"scatter-(\d+)-of-(\d+)\.json")
_JOBS_OF_A_PART = 4
"""How many jobs of a part share the memory, when rows are cut into what a task scatters; parts may have others."""
_NOTES_AT_ONCE = 16
_BEGINNING_BYTES = 64
_TOLD = 8


@dataclass(frozen=True)
class PartProgress:
    """How far a part has got.

    Attributes:
        scatters: Whether rows are scattered; else shards are written.
        done: Rows that are scattered, or shards that are published.
        total: Rows, or shards, of the part.
        samples: Samples in the shards that are published, pads included.
        num_bytes: Their bytes.
        skipped: How many of what is done was there already when the part began.
    """

    scatters: bool
    done: int
    total: int
    samples: int = 0
    num_bytes: int = 0
    skipped: int = 0


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
        only: The pass. A plan that puts rows into another order takes two: all parts of `scatter`, then of `write`.
            Other plans have nothing to scatter.
        progress: Called with the progress so far, at the beginning and after each task.
        storage_options: How to reach remote inputs and the output, as for `wdsplit.convert`.
        engine: What carries the tasks out; None for one job.

    Returns:
        What is done.

    Raises:
        WdsplitError: The output does not hold the plan's run, something cannot be read or written, or the scatter
            pass is not complete.
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
            "the plan puts rows into another order, which takes two passes",
            place=os.fspath(plan_path),
            expected="a pass",
            remedy="run all parts with --pass scatter, and when they have ended all parts with --pass write",
        )
    job = Job(
        saved.output, plan, task_bytes(saved.memory, engine.jobs_of_a_node), saved.emit, storage_options, shared=True
    )
    share = _Share(run, job, engine, part, num_parts, progress or _no_progress)
    return share.scatter() if only == "scatter" else share.write()


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


@dataclass(frozen=True)
class _Share:
    """What a part does."""

    run: Run
    job: Job
    engine: Engine
    part: int
    num_parts: int
    progress: Callable[[PartProgress], None]

    def scatter(self) -> PartProgress:
        """Scatter the part's rows; a plan that keeps their order has none to scatter."""
        plan, storage = self.job.plan, self.run.storage
        if not plan.scatters:
            return PartProgress(True, 0, 0)
        cuts = _cuts(storage, plan)
        tasks = self._of(cuts.tasks)
        have = in_order(partial(is_scattered, storage, plan), tasks, _NOTES_AT_ONCE)
        left = [task for task, has in zip(tasks, have, strict=True) if not has]
        total, done = _num_rows(tasks), _num_rows(tasks) - _num_rows(left)
        so_far = PartProgress(True, done, total, skipped=done)
        self.progress(so_far)
        if left:
            check_files(plan.table, left[0][0], left[-1][1])
        job = ScatterJob(self.job.output, plan, cuts.bucket_rows, self.job.held_bytes, self.job.storage_options)
        for rows in self._run(partial(scatter_shared, job), left, threads=True, describe=partial(describe_rows, plan)):
            so_far = dataclasses.replace(so_far, done=so_far.done + rows)
            self.progress(so_far)
        self._note("scatter-", [])
        return so_far

    def write(self) -> PartProgress:
        """Write the part's shards."""
        plan = self.job.plan
        if plan.scatters:
            self._refuse_unscattered()
        mine = self._of(range(plan.num_shards))
        written = self.run.found(mine)
        so_far = _more(PartProgress(False, 0, len(mine), skipped=len(written)), written)
        self.progress(so_far)
        left = [shard for shard in mine if shard not in written]
        if left and not plan.scatters:
            check_files(plan.table, plan.rows(left[0])[0], plan.rows(left[-1])[1])
        tasks = task_spans(plan, self.engine.jobs, left)
        threads = all(field.encoding != "json" for field in plan.fields)
        describe = partial(describe_span, plan)
        for shards in self._run(partial(write_shards, self.job), tasks, threads=threads, describe=describe):
            written.update(shards)
            so_far = _more(so_far, shards)
            self.progress(so_far)
        self._note("", [_row(number, shard) for number, shard in sorted(written.items())])
        return so_far

    def _of(self, items: Sequence[Item]) -> Sequence[Item]:
        """Return the part's own of all tasks or shards: neighbours, and as many as other parts have, +-1."""
        return items[len(items) * self.part // self.num_parts : len(items) * (self.part + 1) // self.num_parts]

    def _run(self, function: Callable[[Any], Any], tasks: Sequence[Any], **more: Any) -> Iterator[Any]:
        memory_bytes = task_memory(self.job.plan, self.job.held_bytes)
        return self.engine.run(function, tasks, memory_bytes=memory_bytes, **more)

    def _note(self, prefix: str, shards: list[Any]) -> None:
        """Note that the part has ended, and what it has written: one note for the commit, in place of many."""
        refuse_taken(self.run.storage, self.job.plan, shared=True)
        path = f"{_PARTS_FOLDER}/{prefix}{self.part}-of-{self.num_parts}.json"
        with self.run.storage.publish(path) as file:
            file.write([orjson.dumps({"plan": self.job.plan.hash, "shards": shards})])

    def _refuse_unscattered(self) -> None:
        plan, storage = self.job.plan, self.run.storage
        tasks = _cuts(storage, plan).tasks
        missing = not_scattered(storage, plan, tasks)
        if missing:
            rows = [f"{first} to {stop - 1}" for first, stop in sorted(missing)]
            raise ConvertError(
                "the scatter pass is not complete, so no shard can be written yet",
                place=storage.url,
                expected=f"the rows of {len(tasks)} tasks",
                found=f"{len(missing)} tasks are missing: the rows {_some(rows)}"
                + _unended(storage.list(_PARTS_FOLDER), _SCATTERED),
                remedy="run the missing parts with --pass scatter again, then --pass write",
                url=storage.url,
            )


def _cuts(storage: Storage, plan: Plan) -> Cuts:
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


def _num_rows(tasks: Sequence[tuple[int, int]]) -> int:
    return sum(stop - first for first, stop in tasks)


def _more(so_far: PartProgress, shards: Mapping[int, Shard]) -> PartProgress:
    return dataclasses.replace(
        so_far,
        done=so_far.done + len(shards),
        samples=so_far.samples + sum(shard.num_samples for shard in shards.values()),
        num_bytes=so_far.num_bytes + sum(shard.num_bytes for shard in shards.values()),
    )


def _row(number: int, shard: Shard) -> list[Any]:
    return [number, shard.num_samples, shard.num_pads, shard.num_bytes, shard.checksum]


def commit_parts(plan_path: PathLike, storage_options: Mapping[str, Any] | None = None) -> Manifest:
    """End a conversion in parts: from then on the dataset exists. One that has ended already is left as it is.

    Args:
        plan_path: The plan file.
        storage_options: How to reach a remote output, as for `wdsplit.convert`.

    Returns:
        The manifest.

    Raises:
        ConvertError: Some shards are not there.
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
        published = _published(run, plan)
        lacking = run.lacking(published)
        missing = sorted({*published.missing().tolist(), *lacking})
        if missing:
            raise _incomplete(run, plan, missing)
        return commit(run, plan, saved.emit, published)


def _published(run: Run, plan: Plan) -> Published:
    """Return the shards that are noted: by the parts that have ended, else one by one."""
    published = Published(plan)
    names = [name for name in run.storage.list(_PARTS_FOLDER) if _WRITTEN.fullmatch(name)]
    for note in run.notes(_PARTS_FOLDER, names):
        if note.get("plan") == plan.hash:
            published.add({number: Shard(shard_path(number), *rest) for number, *rest in note["shards"]})
    if len(published) < plan.num_shards:
        noted = {int(name.removesuffix(".json")): name for name in run.storage.list(DONE_FOLDER) if name[0] != "."}
        left = sorted(noted.keys() & set(published.missing().tolist()))
        for number, note in zip(left, run.notes(DONE_FOLDER, [noted[number] for number in left]), strict=True):
            if note:
                published.add({number: Shard(**note)})
    return published


def _incomplete(run: Run, plan: Plan, missing: Sequence[int]) -> ConvertError:
    storage, remedy = run.storage, "run the parts that have not ended again, then commit"
    if plan.scatters:
        remedy = "run the parts that have not ended again, with --pass scatter and then --pass write, then commit"
    return ConvertError(
        "the dataset cannot be committed: not all shards are there",
        place=storage.url,
        expected=f"{plan.num_shards} shards",
        found=f"{len(missing)} missing: {_some(_stretches(missing))}{_unended(storage.list(_PARTS_FOLDER), _WRITTEN)}",
        remedy=remedy,
        url=storage.url,
    )


def _unended(names: Sequence[str], pattern: re.Pattern[str]) -> str:
    """Say which parts have not ended, if those that have tell how many there are."""
    ended: dict[int, set[int]] = {}
    for match in filter(None, map(pattern.fullmatch, names)):
        ended.setdefault(int(match[2]), set()).add(int(match[1]))
    if not ended:
        return "; no part has ended"
    num_parts = max(ended, key=lambda count: (len(ended[count]), count))
    left = sorted(set(range(num_parts)) - ended[num_parts])
    return f"; parts that have not ended: {_some([f'{part}/{num_parts}' for part in left])}" if left else ""


def _stretches(shards: Sequence[int]) -> list[str]:
    """Return the paths of shards; of neighbours the first and the last."""
    begins = [0, *(place + 1 for place, (one, other) in enumerate(pairwise(shards)) if other != one + 1), len(shards)]
    ends = [(shards[first], shards[stop - 1]) for first, stop in pairwise(begins)]
    return [shard_path(first) + (f" to {shard_path(last)}" if last > first else "") for first, last in ends]


def _some(texts: Sequence[str]) -> str:
    return ", ".join(texts[:_TOLD]) + (f", and {len(texts) - _TOLD} more" if len(texts) > _TOLD else "")
