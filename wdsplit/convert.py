"""Converting: plan, write the shards, commit.

Composition of the planner, the encoder, the tar codec and the storage. Each task writes its shards and returns their
rows of the manifest; the driver alone commits. A run keeps its plan and the rows of the shards it has published in a
folder of the output, so that it can be continued; the folder goes when the manifest is there.
"""

from __future__ import annotations

import dataclasses
import logging
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from wdsplit.encode import encode_batch, infer_fields
from wdsplit.engine import run_tasks
from wdsplit.errors import CorruptDataError, InputError, OutputExistsError, WdsplitError
from wdsplit.keys import escape_keys, hash_keys, is_key_type, number_keys, number_width
from wdsplit.manifest import (
    HEADER_NAME,
    SHARDS_NAME,
    Manifest,
    Shards,
    dump_manifest,
    index_path,
    parse_manifest,
    shard_path,
)
from wdsplit.parquet import Rows, find_inputs, first_payloads, open_inputs, read_rows
from wdsplit.plan import Plan, PlanOptions, Span, default_window, make_plan, task_spans
from wdsplit.sample import pad_key
from wdsplit.shards import write_shard
from wdsplit.storage import Storage, local_path, open_storage
from wdsplit.tar import Body, build_body

__all__ = ["ConvertOptions", "Progress", "convert", "plan_conversion", "read_manifest"]

logger = logging.getLogger(__name__)

RUN_FOLDER = ".wdsplit-run"
_PLAN_NAME = f"{RUN_FOLDER}/plan.json"
_LOCK_NAME = f"{RUN_FOLDER}/lock"
_ROWS_FOLDER = f"{RUN_FOLDER}/shards"
_HASHES_AT_ONCE = 32_000_000


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


def plan_conversion(inputs: Sequence[str], options: ConvertOptions) -> Plan:
    """Decide a conversion: read the footers of the inputs, infer the fields, cut the rows into shards.

    Args:
        inputs: Parquet files, folders of them, globs or brace expressions.
        options: What is wanted.

    Raises:
        InputError: The inputs cannot be read, or cannot be converted so.
    """
    files, schema = open_inputs(find_inputs(inputs))
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
    inputs: Sequence[str],
    output: str,
    options: ConvertOptions | None = None,
    progress: Callable[[Plan, Progress], None] | None = None,
) -> Manifest:
    """Convert parquet tables into a dataset of shards.

    The dataset exists when this returns; until then the output holds published shards without a manifest, and can be
    continued with `resume`.

    Args:
        inputs: Parquet files, folders of them, globs or brace expressions.
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
    _refuse_existing(storage, options)
    plan = plan_conversion(inputs, options)
    _refuse_inside(plan, output)
    if plan.key is not None and not options.resume:
        _check_unique_keys(plan)
    with storage.lock(_LOCK_NAME):
        _refuse_existing(storage, options)
        done = _prepare(storage, plan, options)
        try:
            rows = _write(storage, plan, options, done, progress or _no_progress)
            manifest = _commit(storage, plan, rows)
        except BaseException:
            _leave_resumable(storage)
            raise
        storage.remove(RUN_FOLDER)
    return manifest


def read_manifest(storage: Storage) -> Manifest:
    """Read the manifest of a dataset.

    Raises:
        DatasetNotFoundError: There is none, so there is no dataset.
        CorruptDataError: It is damaged.
        InputError: It is of another version.
    """
    try:
        return parse_manifest(storage.read(HEADER_NAME), storage.read(SHARDS_NAME))
    except (CorruptDataError, InputError) as error:
        raise error.at(storage.url) from error


def _no_progress(plan: Plan, progress: Progress) -> None:
    """Show nothing."""


def _refuse_existing(storage: Storage, options: ConvertOptions) -> None:
    """Refuse an output that holds anything, unless it may be overwritten or continued."""
    names = [name for name in storage.list() if name != RUN_FOLDER]
    finished, started = HEADER_NAME in names, storage.size(_PLAN_NAME) is not None
    if options.overwrite or not (names or started or options.resume):
        return
    if options.resume and started and not finished:
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
        found=", ".join(names[:5]) + (", ..." if len(names) > 5 else "") or "nothing",
        remedy=remedy,
        url=storage.url,
    )


def _refuse_inside(plan: Plan, output: str) -> None:
    """Refuse an output that holds an input: overwriting would remove it, and folders would be read again."""
    folder = Path(local_path(output)).resolve()
    for file in plan.inputs:
        if folder in Path(file.path).resolve().parents:
            raise InputError(
                "an input lies inside the output",
                place=file.path,
                expected=f"inputs outside {output}",
                remedy="choose another output folder",
                url=file.path,
            )


def _prepare(storage: Storage, plan: Plan, options: ConvertOptions) -> dict[int, dict[str, Any]]:
    """Bring the output into the state from which shards are written; return the rows of those that are there."""
    names = storage.list()
    if options.resume:
        return _published(storage, plan)
    foreign = [name for name in names if not _is_ours(name)]
    if foreign:
        raise OutputExistsError(
            "the output holds files that wdsplit did not write",
            place=storage.url,
            expected="a dataset, an unfinished run, or nothing",
            found=", ".join(foreign[:5]) + (", ..." if len(foreign) > 5 else ""),
            remedy="choose another folder, or remove them yourself",
            url=storage.url,
        )
    for name in sorted(names, key=lambda name: name != HEADER_NAME):
        if name != RUN_FOLDER:
            storage.remove(name)
    for name in (_ROWS_FOLDER, _PLAN_NAME):
        storage.remove(name)
    with storage.publish(_PLAN_NAME) as file:
        file.write([orjson.dumps(plan.summary(), option=orjson.OPT_INDENT_2)])
    return {}


def _leave_resumable(storage: Storage) -> None:
    """Clear up after an error: no temporary files, and nothing at all if no shard was published."""
    storage.remove_temporary()
    if not storage.list(_ROWS_FOLDER):
        storage.remove(RUN_FOLDER)


def _is_ours(name: str) -> bool:
    """Tell whether wdsplit may have written a file of this name into its output."""
    stem = name.removesuffix(".idx").removesuffix(".tar")
    temporary = name.startswith(".") and name.endswith(".tmp")
    return name in (HEADER_NAME, SHARDS_NAME, RUN_FOLDER) or temporary or (stem != name and stem.isdigit())


def _published(storage: Storage, plan: Plan) -> dict[int, dict[str, Any]]:
    """Return the manifest rows of the shards that an earlier run of the same plan has published."""
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
    storage.remove_temporary(_ROWS_FOLDER)
    done = {}
    for name in storage.list(_ROWS_FOLDER):
        row = orjson.loads(storage.read(f"{_ROWS_FOLDER}/{name}"))
        if storage.size(row["path"]) == row["num_bytes"] and storage.size(index_path(row["path"])) is not None:
            done[int(name.removesuffix(".json"))] = row
    logger.info("resuming: %d of %d shards are there already", len(done), plan.num_shards)
    return done


@dataclass(frozen=True)
class _Task:
    """What a worker process needs to write some shards."""

    output: str
    plan: Plan
    span: Span


def _write(
    storage: Storage,
    plan: Plan,
    options: ConvertOptions,
    done: Mapping[int, dict[str, Any]],
    progress: Callable[[Plan, Progress], None],
) -> dict[int, dict[str, Any]]:
    """Write the shards that are not there yet; return the rows of all."""
    rows = dict(done)
    samples = sum(row["num_samples"] for row in done.values())
    num_bytes = sum(row["num_bytes"] for row in done.values())
    left = [shard for shard in range(plan.num_shards) if shard not in rows]
    tasks = [_Task(storage.url, plan, span) for span in task_spans(plan, options.jobs, left)]

    progress(plan, Progress(len(rows), samples, num_bytes, len(done)))
    for written in run_tasks(_run_task, tasks, options.jobs):
        rows.update(written)
        samples += sum(row["num_samples"] for row in written.values())
        num_bytes += sum(row["num_bytes"] for row in written.values())
        progress(plan, Progress(len(rows), samples, num_bytes, len(done)))
    return rows


def _run_task(task: _Task) -> dict[int, dict[str, Any]]:
    """Write the shards of a span in one pass over their rows. Runs in a worker process; may run twice."""
    storage, plan = open_storage(task.output), task.plan
    rows = {}
    stream = _Stream(plan, plan.rows(task.span.first)[0], plan.rows(task.span.stop - 1)[1])
    for shard in range(task.span.first, task.span.stop):
        pad = plan.pad_row(shard)
        row = write_shard(storage, shard_path(shard), _bodies(plan, shard, stream), int(pad is not None))
        with storage.publish(f"{_ROWS_FOLDER}/{shard:06d}.json") as file:
            file.write([orjson.dumps(row)])
        rows[shard] = row
    return rows


class _Stream:
    """The rows of a span, handed out in consecutive parts."""

    def __init__(self, plan: Plan, first: int, stop: int) -> None:
        self._batches = read_rows(plan.inputs, first, stop, _columns(plan))
        self._held: Rows | None = None

    def take(self, first: int, stop: int) -> Iterator[Rows]:
        """Give the rows first, ..., stop - 1: those that follow what was taken before."""
        while first < stop:
            rows = self._held or next(self._batches)
            cut = min(len(rows), stop - rows.first_row)
            self._held = _slice(rows, cut, len(rows)) if cut < len(rows) else None
            yield _slice(rows, 0, cut) if cut < len(rows) else rows
            first += cut


def _slice(rows: Rows, low: int, high: int) -> Rows:
    columns = {name: array.slice(low, high - low) for name, array in rows.columns.items()}
    return Rows(columns, rows.path, rows.first + low, rows.first_row + low)


def _columns(plan: Plan) -> list[str]:
    return list(dict.fromkeys([field.column for field in plan.fields] + ([plan.key] if plan.key else [])))


def _bodies(plan: Plan, shard: int, stream: _Stream) -> Iterator[Body]:
    """Give the samples of a shard, batch by batch, its pad at the end."""
    for rows in stream.take(*plan.rows(shard)):
        yield build_body(_keys(plan, rows), _encoded(plan, rows))
    pad = plan.pad_row(shard)
    if pad is not None:
        rows = next(read_rows(plan.inputs, pad, pad + 1, _columns(plan)))
        yield build_body(pa.array([pad_key(shard, 0)], pa.large_string()), _encoded(plan, rows))


def _keys(plan: Plan, rows: Rows) -> pa.LargeStringArray:
    if plan.key is None:
        return number_keys(rows.first_row, len(rows), number_width(plan.num_rows))
    column = rows.columns[plan.key]
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return escape_keys(column, lambda row: f"{rows.where(row)}, column {plan.key!r}")


def _encoded(plan: Plan, rows: Rows) -> dict[str, pa.LargeBinaryArray]:
    return encode_batch(rows.columns, plan.fields, plan.options.null, rows.where)


def _check_unique_keys(plan: Plan) -> None:
    """Refuse a key that stands twice in the whole dataset, before anything is written.

    Keys are compared by 64-bit hashes, in as many passes as memory asks for; where two hashes are equal, the keys
    themselves are looked at.
    """
    passes = -(-plan.num_rows // _HASHES_AT_ONCE)
    for number in range(passes):
        hashes = [_hashes_of_pass(plan, rows, passes, number) for rows in _key_rows(plan)]
        ordered = np.sort(np.concatenate(hashes))
        equal = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        if len(equal):
            _look_at_keys(plan, equal)


def _key_rows(plan: Plan) -> Iterator[Rows]:
    return read_rows(plan.inputs, 0, plan.num_rows, [plan.key] if plan.key else [])


def _hashes_of_pass(plan: Plan, rows: Rows, passes: int, number: int) -> npt.NDArray[np.uint64]:
    hashes = hash_keys(_keys(plan, rows))
    return hashes[hashes % np.uint64(passes) == number] if passes > 1 else hashes


def _look_at_keys(plan: Plan, suspects: npt.NDArray[np.uint64]) -> None:
    """Read the keys whose hashes stand twice, and refuse the first that really does."""
    seen: dict[str, str] = {}
    for rows in _key_rows(plan):
        keys = _keys(plan, rows)
        for row in np.flatnonzero(np.isin(hash_keys(keys), suspects)).tolist():
            key = keys[row].as_py()
            if key in seen:
                raise InputError(
                    "a key stands twice",
                    place=rows.where(row),
                    expected="each key once in the whole dataset",
                    found=f"{key!r}, which is also the key of {seen[key]}",
                    remedy="choose another key column, remove the duplicate, or leave out --key to number the rows",
                    key=key,
                )
            seen[key] = rows.where(row)


def _commit(storage: Storage, plan: Plan, rows: Mapping[int, dict[str, Any]]) -> Manifest:
    """Check that every shard is there and write the manifest, the header last."""
    for shard in range(plan.num_shards):
        row, path = rows[shard], shard_path(shard)
        first, stop = plan.rows(shard)
        num_pads = int(plan.pad_row(shard) is not None)
        if (row["path"], row["num_samples"], row["num_pads"]) != (path, stop - first + num_pads, num_pads):
            raise WdsplitError(
                "a task wrote another shard than was planned",
                place=path,
                expected=f"{stop - first} samples and {num_pads} pads",
                found=str(row),
                remedy="convert again with --overwrite; if it happens again, please report it",
            )
    shards = Shards.from_rows([rows[shard] for shard in range(plan.num_shards)])
    window = default_window(int(shards.column("num_bytes").sum()), int(shards.column("num_samples").sum()))
    manifest = Manifest(
        shards,
        plan.fields,
        plan.lanes,
        plan.options.window or window,
        plan.options.pad,
        _provenance(plan),
    )
    header, table = dump_manifest(manifest)
    for path, data in ((SHARDS_NAME, table), (HEADER_NAME, header)):
        with storage.publish(path, durable=True) as file:
            file.write([data])
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
