"""Converting: plan, write the shards, commit.

Composition of the planner, the encoder, the tar codec and the storage. Each task writes its shards and says what it
wrote; the driver alone commits. A run keeps its plan and what it has published in a folder of the output, so that it
can be continued; the folder goes when the manifest is there.
"""

from __future__ import annotations

import dataclasses
import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from wdsplit.encode import infer_fields
from wdsplit.engine import run_tasks
from wdsplit.errors import InputError, OutputExistsError, WdsplitError
from wdsplit.keys import is_key_type
from wdsplit.manifest import (
    HEADER_NAME,
    SHARDS_NAME,
    Manifest,
    Shard,
    Shards,
    index_path,
    shard_path,
)
from wdsplit.parquet import find_inputs, first_payloads, open_inputs
from wdsplit.plan import Plan, PlanOptions, default_window, make_plan, task_spans
from wdsplit.shards import write_manifest
from wdsplit.storage import Storage, is_temporary, local_path, open_storage
from wdsplit.task import DONE_FOLDER, RUN_FOLDER, Task, run_task
from wdsplit.unique import check_unique_keys

__all__ = ["ConvertOptions", "Progress", "convert", "plan_conversion"]

logger = logging.getLogger(__name__)

_PLAN_NAME = f"{RUN_FOLDER}/plan.json"
_LOCK_NAME = f"{RUN_FOLDER}/lock"


@dataclass(frozen=True)
class ConvertOptions:
    """How to convert tables into shards.

    Attributes:
        plan: How many shards there shall be, and what goes into them.
        mapping: Field name to column name; if empty, fields are inferred from the columns.
        key: The column that holds the keys; None numbers the rows.
        jobs: Processes.
        overwrite: Remove a dataset, or an unfinished run, that is in the output already.
        resume: Continue an unfinished run of the same plan.
    """

    plan: PlanOptions = field(default_factory=PlanOptions)
    mapping: Mapping[str, str] = field(default_factory=dict)
    key: str | None = None
    jobs: int = 1
    overwrite: bool = False
    resume: bool = False

    def __post_init__(self) -> None:
        if self.jobs < 1:
            raise InputError("the number of jobs cannot be", expected="at least 1", found=str(self.jobs))
        if self.overwrite and self.resume:
            raise InputError("overwrite and resume contradict each other", remedy="give one of the two")


@dataclass(frozen=True)
class Progress:
    """How far a conversion has got.

    Attributes:
        shards: Shards that are published.
        samples: Samples in them, pads included.
        num_bytes: Bytes of them.
        skipped: How many of the shards were there already when the run was resumed.
    """

    shards: int
    samples: int
    num_bytes: int
    skipped: int


def plan_conversion(inputs: str | Sequence[str], options: ConvertOptions) -> Plan:
    """Decide a conversion: read the footers of the inputs, infer the fields, cut the rows into shards.

    Args:
        inputs: One or several of: a parquet file, a folder of them, a glob, a brace expression.
        options: What is wanted.

    Raises:
        InputError: The inputs cannot be read, or cannot be converted so.
    """
    files, schema = open_inputs(find_inputs([inputs] if isinstance(inputs, str) else inputs))
    if options.key in schema.names and not is_key_type(schema.field(options.key).type):
        raise InputError(
            f"column {options.key!r} cannot hold keys",
            expected="strings or integers",
            found=str(schema.field(options.key).type),
            remedy="choose another --key column, or leave it out to number the rows",
        )
    fields = infer_fields(schema, options.mapping, options.key, first_payloads(files, schema))
    unused = [name for name in schema.names if name not in {field.column for field in fields} | {options.key}]
    if unused:
        logger.info("columns that are not written: %s", ", ".join(unused))
    return make_plan(files, fields, options.key, options.plan)


def convert(
    inputs: str | Sequence[str],
    output: str,
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
    storage = open_storage(output)
    paths = find_inputs([inputs] if isinstance(inputs, str) else inputs)
    _refuse_inside(paths, output)
    _refuse_existing(storage, options)
    plan = plan_conversion(paths, options)
    if plan.key is not None and not options.resume:
        check_unique_keys(plan)
    with storage.lock(_LOCK_NAME):
        _refuse_existing(storage, options)
        done = _prepare(storage, plan, options)
        try:
            shards = _write(storage, plan, options, done, progress or _no_progress)
            manifest = _commit(storage, plan, shards)
        except BaseException:
            _leave_resumable(storage)
            raise
        storage.remove(RUN_FOLDER)
    return manifest


def _no_progress(plan: Plan, progress: Progress) -> None:
    """Show nothing."""


def _refuse_existing(storage: Storage, options: ConvertOptions) -> None:
    """Refuse an output that holds anything, unless it is ours and may be overwritten or continued."""
    names = [name for name in storage.list() if name != RUN_FOLDER]
    finished, started = HEADER_NAME in names, storage.size(_PLAN_NAME) is not None
    if options.overwrite:
        ours = _is_ours if finished or started else lambda name: False
        _refuse_foreign(storage, [name for name in names if not ours(name) or storage.size(name) is None])
        return
    if not (names or started or options.resume) or (options.resume and started and not finished):
        return
    if finished:
        cause, remedy = "the output is a finished dataset already", "use --overwrite to replace it"
    elif started:
        cause, remedy = "the output is an unfinished run", "use --resume to continue it, or --overwrite to start anew"
    elif names:
        cause, remedy = "the output is not empty", "choose a folder that is empty or does not exist yet"
    else:
        cause, remedy = "there is no unfinished run to resume", "leave out --resume"
    raise OutputExistsError(
        cause,
        place=storage.url,
        expected="an unfinished run" if options.resume else "no such folder, or an empty one",
        found=_some(names) or "nothing",
        remedy=remedy,
        url=storage.url,
    )


def _refuse_foreign(storage: Storage, foreign: Sequence[str]) -> None:
    """Refuse to overwrite files that wdsplit did not write."""
    if foreign:
        raise OutputExistsError(
            "the output holds files that wdsplit did not write",
            place=storage.url,
            expected="a dataset, an unfinished run, or nothing",
            found=_some(foreign),
            remedy="choose another folder, or remove them yourself",
            url=storage.url,
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")


def _refuse_inside(paths: Sequence[str], output: str) -> None:
    """Refuse an output that holds an input: overwriting would remove it, and folders would be read again."""
    folder = Path(local_path(output)).resolve()
    for path in paths:
        if folder in Path(path).resolve().parents:
            raise InputError(
                "an input lies inside the output",
                place=path,
                expected=f"inputs outside {output}",
                remedy="choose another output folder",
                url=path,
            )


def _prepare(storage: Storage, plan: Plan, options: ConvertOptions) -> dict[int, Shard]:
    """Bring the output into the state from which shards are written; return the shards that are there."""
    names = storage.list()
    if options.resume:
        return _published(storage, plan)
    for name in sorted(names, key=lambda name: name != HEADER_NAME):
        if name != RUN_FOLDER:
            storage.remove(name)
    for name in (DONE_FOLDER, _PLAN_NAME):
        storage.remove(name)
    with storage.publish(_PLAN_NAME) as file:
        file.write([orjson.dumps(plan.summary(), option=orjson.OPT_INDENT_2)])
    return {}


def _leave_resumable(storage: Storage) -> None:
    """Clear up after an error: no temporary files, and nothing at all if nothing was published."""
    storage.remove_temporary()
    if storage.list() == [RUN_FOLDER]:
        storage.remove(RUN_FOLDER)


def _is_ours(name: str) -> bool:
    """Tell whether wdsplit may have written a file of this name into its output."""
    stem = name.removesuffix(".idx").removesuffix(".tar")
    return name in (HEADER_NAME, SHARDS_NAME) or is_temporary(name) or (stem != name and stem.isdigit())


def _published(storage: Storage, plan: Plan) -> dict[int, Shard]:
    """Return the shards that an earlier run of the same plan has published."""
    found = str(orjson.loads(storage.read(_PLAN_NAME)).get("plan"))
    if found != plan.hash:
        raise OutputExistsError(
            "the unfinished run was made by another plan",
            place=storage.url,
            expected=f"plan {plan.hash}",
            found=found,
            remedy="use the inputs and options of that run, or --overwrite to start anew",
            url=storage.url,
        )
    storage.remove_temporary()
    storage.remove_temporary(DONE_FOLDER)
    done = {}
    for name in storage.list(DONE_FOLDER):
        shard = Shard(**orjson.loads(storage.read(f"{DONE_FOLDER}/{name}")))
        if storage.size(shard.path) == shard.num_bytes and storage.size(index_path(shard.path)) is not None:
            done[int(name.removesuffix(".json"))] = shard
    logger.info("resuming: %d of %d shards are there already", len(done), plan.num_shards)
    return done


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
    tasks = [Task(storage.url, plan, span) for span in task_spans(plan, options.jobs, left)]

    progress(plan, Progress(len(published), samples, num_bytes, len(done)))
    for written in run_tasks(run_task, tasks, options.jobs):
        published.update(written)
        samples += sum(shard.num_samples for shard in written.values())
        num_bytes += sum(shard.num_bytes for shard in written.values())
        progress(plan, Progress(len(published), samples, num_bytes, len(done)))
    return published


def _commit(storage: Storage, plan: Plan, written: Mapping[int, Shard]) -> Manifest:
    """Check that every shard is there and write the manifest, the header last."""
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
        _provenance(plan),
    )
    write_manifest(storage, manifest)
    return manifest


def _provenance(plan: Plan) -> dict[str, Any]:
    return {
        "plan": plan.hash,
        "inputs": [{"path": file.path, "num_bytes": file.num_bytes, "num_rows": file.num_rows} for file in plan.inputs],
        "num_dropped": plan.num_dropped,
        "key": plan.key,
        "options": dataclasses.asdict(plan.options),
        "versions": {
            "wdsplit": version("wdsplit"),
            "pyarrow": pa.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
    }
