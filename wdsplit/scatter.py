"""Putting a table that does not fit into memory into another order: rows are scattered to spill files, then gathered.

`permute` says where each row goes, or `grouping` where its group does. Scattering reads the inputs once, and writes
runs: Arrow files whose rows are sorted by their places and cut where places reach a multiple of the bucket. Gathering
reads, for any range of places, the parts of all runs that lie in it. How the runs were cut changes nothing about what
is gathered.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from wdsplit.engine import end_if_told, in_order
from wdsplit.errors import CorruptDataError
from wdsplit.formats.common import MAX_BATCH_ROWS
from wdsplit.inputs import Rows, read_rows
from wdsplit.manifest import RUN_FOLDER
from wdsplit.order import Int64
from wdsplit.permute import RowPermutation
from wdsplit.plan import Plan
from wdsplit.select import hash_groups
from wdsplit.spill import BUCKETS, SpillFile, open_spill
from wdsplit.storage import PendingFile, Storage
from wdsplit.stores import open_storage

__all__ = [
    "SPILL_FOLDER",
    "Cuts",
    "ScatterJob",
    "SpilledRows",
    "is_scattered",
    "not_scattered",
    "note_runs",
    "read_cuts",
    "scatter",
    "scatter_tasks",
    "task_bytes",
    "task_memory",
    "write_cuts",
]

SPILL_FOLDER = f"{RUN_FOLDER}/spill"
_TASKS_NAME = f"{SPILL_FOLDER}/tasks.json"

_PLACE, _NUMBER = "place", "number"
"""Columns of a run besides those of the table, which are numbered c0, c1, ..."""

_BASE_BYTES = 256 * 1024**2
_JOB_BYTES = 128 * 1024**2
"""What all jobs together, and each of them, need besides the rows they hold: libraries, pages being decoded."""
_COPIES = 6
"""How often a task holds its rows at the most: as read, sorted, encoded, laid out and written."""
_ROW_BYTES = 64
"""What a row takes besides its columns: its place, its number, and their sorting."""
_FILE_BYTES, _ROW_GROUP_BYTES = 1024, 64
"""What a file of the input, and a row group of it, take in a plan, about."""
_LEAST_BYTES, _MOST_BYTES = 8 * 1024**2, 1024**3
_BATCH_BYTES = 16 * 1024**2
_BUCKETS_PER_TASK = 4
_MAX_OPEN = 256
_REQUESTS_AT_ONCE = 8


def task_bytes(memory_bytes: int, jobs: int) -> int:
    """Return how many bytes of rows a task may hold so that all jobs together keep to a memory bound."""
    free = (memory_bytes - _BASE_BYTES - _JOB_BYTES * jobs) // (jobs * _COPIES)
    return min(_MOST_BYTES, max(_LEAST_BYTES, free))


def task_memory(plan: Plan, held_bytes: int) -> int:
    """Return how many bytes a task of a conversion needs, about, libraries included.

    Args:
        plan: The plan.
        held_bytes: Bytes of rows that it may hold if they stand in another order than in the table.
    """
    if plan.scatters:
        return _JOB_BYTES + _COPIES * held_bytes + _plan_bytes(plan)
    row_group = max(max(file.row_groups, default=0) * file.row_bytes for file in plan.table.files)
    return _JOB_BYTES + _COPIES * _BATCH_BYTES + int(row_group) + _plan_bytes(plan)


def _plan_bytes(plan: Plan) -> int:
    """Return what a plan takes in each process, about."""
    return sum(_FILE_BYTES + _ROW_GROUP_BYTES * len(file.row_groups) for file in plan.table.files)


@dataclass(frozen=True)
class ScatterJob:
    """What every task that scatters needs; a worker process gets it once.

    Attributes:
        output: The dataset's folder.
        plan: The plan.
        bucket_rows: Places of a bucket.
        held_bytes: Bytes of rows that may be held at a time.
        storage_options: How to reach a remote store.
    """

    output: str
    plan: Plan
    bucket_rows: int
    held_bytes: int
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)


def scatter_tasks(
    output: str, plan: Plan, held_bytes: int, storage_options: Mapping[str, Any] | None = None
) -> tuple[ScatterJob, list[tuple[int, int]]]:
    """Return the job, and the places first, ..., stop - 1 of each task that is still to be run.

    A run that is resumed keeps the cuts that it began with.

    Args:
        output: The dataset's folder.
        plan: The plan.
        held_bytes: Bytes of rows that a task may hold.
        storage_options: How to reach a remote store.
    """
    storage = open_storage(output, storage_options)
    cuts = read_cuts(storage, plan)
    if cuts is None:
        cuts = write_cuts(storage, plan, held_bytes)
    storage.remove_temporary(SPILL_FOLDER)
    missing = not_scattered(storage, plan, cuts.tasks)
    tasks = [task for task in cuts.tasks if task in missing or not is_scattered(storage, plan, task)]
    return ScatterJob(output, plan, cuts.bucket_rows, held_bytes, storage_options), tasks


@dataclass(frozen=True)
class Cuts:
    """How a run scatters its rows: all its tasks must agree on it, whoever runs them.

    Attributes:
        places: Where the table is cut into tasks, from 0 to its rows.
        bucket_rows: Places of a bucket.
    """

    places: tuple[int, ...]
    bucket_rows: int

    @property
    def tasks(self) -> list[tuple[int, int]]:
        """The places first, ..., stop - 1 of each task."""
        return list(pairwise(self.places))


def write_cuts(storage: Storage, plan: Plan, held_bytes: int) -> Cuts:
    """Decide how a run scatters its rows, and note it; what was spilled before is removed.

    Args:
        storage: The output.
        plan: The plan.
        held_bytes: Bytes of rows that a task may hold.
    """
    storage.remove(SPILL_FOLDER)
    row_bytes = plan.table.data_bytes // plan.num_rows + _ROW_BYTES
    bucket_rows = max(1, held_bytes // row_bytes // _BUCKETS_PER_TASK)
    cuts = Cuts(tuple(_cuts(plan, held_bytes)), bucket_rows)
    with storage.publish(_TASKS_NAME) as file:
        file.write([orjson.dumps({"plan": plan.hash, "cuts": cuts.places, "bucket_rows": bucket_rows})])
    return cuts


def read_cuts(storage: Storage, plan: Plan) -> Cuts | None:
    """Return how the run of a plan scatters its rows; None if that is not decided yet."""
    note = _note(storage, _TASKS_NAME)
    if not isinstance(note, dict) or note.get("plan") != plan.hash:
        return None
    return Cuts(tuple(note["cuts"]), note["bucket_rows"])


def not_scattered(storage: Storage, plan: Plan, tasks: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
    """Return the tasks that have left no note; the folder is listed once."""
    names = set(storage.list(SPILL_FOLDER))
    return {task for task in tasks if f"{_task_name(plan, task[0])}.json" not in names}


def note_runs(storage: Storage, plan: Plan) -> None:
    """Note all runs in one file, once the last task that scatters has ended: who gathers reads no other note."""
    with storage.publish(_runs_name(plan)) as file:
        file.write([orjson.dumps(_runs(storage, plan))])


def _runs_name(plan: Plan) -> str:
    return f"{SPILL_FOLDER}/runs-{plan.hash}.json"


def _runs(storage: Storage, plan: Plan) -> list[dict[str, Any]]:
    """Return the runs that all notes name, in their order: the file's name and size, and the bytes of its rows."""
    sizes = storage.sizes(SPILL_FOLDER)
    names = [name for name in sorted(sizes) if name.endswith(".json") and name.startswith(_prefix(plan))]
    notes = in_order(lambda name: orjson.loads(storage.read(f"{SPILL_FOLDER}/{name}")), names, _REQUESTS_AT_ONCE)
    return [{**run, "size": sizes.get(run["name"])} for runs in notes for run in runs]


def is_scattered(storage: Storage, plan: Plan, task: tuple[int, int]) -> bool:
    """Tell whether a task has left its note, whole."""
    return isinstance(_note(storage, f"{SPILL_FOLDER}/{_task_name(plan, task[0])}.json"), list)


def _note(storage: Storage, path: str) -> Any:
    """Return a note; None if it is not there, or was damaged as by a power failure."""
    if storage.size(path) is None:
        return None
    try:
        return orjson.loads(storage.read(path))
    except orjson.JSONDecodeError:
        return None


def _damaged(place: str, found: str) -> CorruptDataError:
    return CorruptDataError(
        "a spill file is damaged",
        place=place,
        expected="the rows that were spilled",
        found=found,
        remedy="start anew with --overwrite; the disk may have lost it in a power failure",
        url=place,
    )


def _prefix(plan: Plan) -> str:
    """Return what the names of all spill files of a plan begin with: a late task of another one takes no place."""
    return f"{plan.hash[:8]}-"


def _task_name(plan: Plan, first: int) -> str:
    """Return what the runs of a task are called after."""
    return f"{_prefix(plan)}{first:012d}"


def _cuts(plan: Plan, held_bytes: int) -> list[int]:
    """Cut the table at row groups, so that a task has about as many rows as it may hold, or one row group."""
    cuts, place, held = [0], 0, 0.0
    for file in plan.table.files:
        for rows in file.counts:
            place += rows
            held += rows * (file.row_bytes + _ROW_BYTES)
            if held >= held_bytes:
                cuts.append(place)
                held = 0.0
    return cuts if cuts[-1] == place else [*cuts, place]


def scatter(job: ScatterJob, task: tuple[int, int]) -> int:
    """Write the runs of a task; return its number of rows. Runs in a worker process; may run twice."""
    storage, plan = open_storage(job.output, job.storage_options), job.plan
    places_of = _places(plan, task[0])
    name = _task_name(plan, task[0])
    runs: list[dict[str, Any]] = []
    held: list[Rows] = []
    places: list[Int64] = []
    held_bytes = 0

    def flush() -> None:
        run = f"{name}-{job.held_bytes}-{len(runs):06d}.arrow"
        runs.append({"name": run, "bytes": held_bytes})
        _write_run(storage, f"{SPILL_FOLDER}/{run}", plan, held, np.concatenate(places), job.bucket_rows)

    columns = [*plan.columns, *([plan.options.group_by] if plan.options.group_by is not None else [])]
    for rows in read_rows(plan.table, *task, list(dict.fromkeys(columns))):
        end_if_told()
        held.append(rows)
        places.append(places_of(rows))
        held_bytes += rows.nbytes + len(rows) * _ROW_BYTES
        if held_bytes >= job.held_bytes:
            flush()
            held, places, held_bytes = [], [], 0
    if held:
        flush()
    with storage.publish(f"{SPILL_FOLDER}/{name}.json") as file:
        file.write([orjson.dumps(runs)])
    return task[1] - task[0]


def _places(plan: Plan, first: int) -> Callable[[Rows], Int64]:
    """Return what says where the rows go that are read one batch after another from the place `first` on.

    Rows of one group all go to the place of its first row, and stand there in the order of their numbers.
    """
    groups, group_by = plan.groups, plan.options.group_by
    if groups is not None and group_by is not None:

        def group_places(rows: Rows) -> Int64:
            return groups.starts_of(hash_groups(rows.columns[group_by], rows.numbers, plan.table, group_by))

        return group_places
    permutation = RowPermutation(plan.num_rows, plan.options.seed)
    read = 0

    def shuffled_places(rows: Rows) -> Int64:
        nonlocal read
        read += len(rows)
        return permutation.positions(np.arange(first + read - len(rows), first + read))

    return shuffled_places


def _write_run(storage: Storage, path: str, plan: Plan, held: Sequence[Rows], places: Int64, bucket_rows: int) -> None:
    """Sort rows by their places and write them, a record batch a bucket."""
    numbers = np.concatenate([rows.numbers for rows in held])
    keep = np.flatnonzero(places < plan.num_samples)
    order = keep[np.argsort(places[keep], kind="stable")]
    places, numbers = places[order], numbers[order]
    columns = {f"c{i}": pa.chunked_array([rows.columns[name] for rows in held]) for i, name in enumerate(plan.columns)}
    table = pa.table({_PLACE: places, _NUMBER: numbers, **{n: c.take(pa.array(order)) for n, c in columns.items()}})
    buckets, starts = np.unique(places // bucket_rows, return_index=True)
    schema = table.schema.with_metadata({BUCKETS: orjson.dumps(buckets.tolist())})
    with storage.publish(path) as file, pa.ipc.new_file(_Sink(file), schema) as writer:
        for start, stop in zip(starts, [*starts[1:], *([len(places)] if len(places) else [])], strict=True):
            part = table.slice(int(start), int(stop - start)).combine_chunks()
            writer.write_batch(part.to_batches()[0].replace_schema_metadata(schema.metadata))


class _Sink:
    """A file object, as far as Arrow needs one, over a pending file."""

    closed = False

    def __init__(self, file: PendingFile) -> None:
        self._file = file
        self._position = 0

    def write(self, data: bytes) -> int:
        view = memoryview(data)
        self._file.write([view])
        self._position += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        return self._position

    def flush(self) -> None:
        """Have nothing to flush."""

    def close(self) -> None:
        """Leave closing to the storage."""


class SpilledRows:
    """The shuffled table, read by places.

    Args:
        output: The dataset's folder.
        plan: The plan.
        held_bytes: Bytes of rows that a batch may have.
        storage_options: How to reach a remote store.
    """

    def __init__(
        self, output: str, plan: Plan, held_bytes: int, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self._storage = open_storage(output, storage_options)
        self._plan = plan
        self._starts = None if plan.groups is None else np.append(np.sort(plan.groups.starts), plan.num_rows)
        noted = _note(self._storage, _runs_name(plan))
        runs = noted if isinstance(noted, list) else _runs(self._storage, plan)
        self._sizes = {f"{SPILL_FOLDER}/{run['name']}": run["size"] for run in runs}
        self._paths = list(self._sizes)
        self._bucket_rows = orjson.loads(self._storage.read(_TASKS_NAME))["bucket_rows"]
        row_bytes = max(1, sum(run["bytes"] for run in runs) // plan.num_rows)
        self._gathered_rows = max(1, held_bytes // row_bytes)
        self._batch_rows = min(MAX_BATCH_ROWS, max(1, min(held_bytes, _BATCH_BYTES) // row_bytes))
        self._open: OrderedDict[str, SpillFile] = OrderedDict()
        self._opening = threading.Lock()

    def read(self, first: int, stop: int) -> Iterator[Rows]:
        """Read the rows at the places first, ..., stop - 1, batch by batch, in order."""
        for begin, end in self._stretches(first, stop):
            place = begin
            for rows in self._stretch(begin, end):
                wanted = rows.slice(min(len(rows), max(0, first - place)), max(0, min(len(rows), stop - place)))
                place += len(rows)
                for low in range(0, len(wanted), self._batch_rows):
                    yield wanted.slice(low, min(len(wanted), low + self._batch_rows))
                if place >= stop:
                    return
            self._check_count(place - begin, begin, end)

    def _stretch(self, begin: int, end: int) -> Iterator[Rows]:
        """Give the rows of a stretch; one group of more rows than may be held comes run by run, which is its order."""
        if end - begin <= self._gathered_rows:
            yield self._gather(begin, end)
            return
        for path in self._paths:
            for part in self._parts_of(path, begin, end):
                yield self._rows(pa.Table.from_batches([part]), part.column(_NUMBER).to_numpy())

    def _stretches(self, first: int, stop: int) -> Iterator[tuple[int, int]]:
        """Cut places into stretches of as many rows as may be held; groups stay whole, also at both ends."""
        if self._starts is None:
            for begin in range(first, stop, self._gathered_rows):
                yield begin, min(stop, begin + self._gathered_rows)
            return
        low = int(np.searchsorted(self._starts, first, side="right")) - 1
        while self._starts[low] < stop:
            begin = int(self._starts[low])
            fits = int(np.searchsorted(self._starts, begin + self._gathered_rows, side="right")) - 1
            needed = int(np.searchsorted(self._starts, stop))
            low = max(low + 1, min(fits, needed))
            yield begin, int(self._starts[low])

    def _gather(self, first: int, stop: int) -> Rows:
        def parts_of(path: str) -> list[pa.RecordBatch]:
            return list(self._parts_of(path, first, stop))

        remote = self._storage.is_remote
        found = in_order(parts_of, self._paths, _REQUESTS_AT_ONCE) if remote else map(parts_of, self._paths)
        parts = [part for several in found for part in several]
        table = pa.Table.from_batches(parts)
        places, numbers = table.column(_PLACE).to_numpy(), table.column(_NUMBER).to_numpy()
        order = np.argsort(places) if self._starts is None else np.lexsort((numbers, places))
        whole = self._starts is not None or np.array_equal(places[order], np.arange(first, stop))
        self._check_count(len(order) if whole else -1, first, stop)
        return self._rows(table.take(pa.array(order)).combine_chunks(), numbers[order])

    def _check_count(self, count: int, first: int, stop: int) -> None:
        """Refuse spill files that do not hold the rows of a range of places."""
        if count != stop - first:
            raise _damaged(f"{self._storage.url}/{SPILL_FOLDER}", f"other rows for the places {first} to {stop - 1}")

    def _rows(self, table: pa.Table, numbers: Int64) -> Rows:
        columns = {name: table.column(f"c{i}").chunk(0) for i, name in enumerate(self._plan.columns)}
        return Rows(columns, numbers, self._plan.table)

    def _parts_of(self, path: str, first: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Give the parts of a run whose places lie in a range."""
        file = self._opened(path)
        low = int(np.searchsorted(file.buckets, first // self._bucket_rows))
        high = int(np.searchsorted(file.buckets, (stop - 1) // self._bucket_rows, side="right"))
        for batch in file.batches(low, high):
            places = batch.column(_PLACE).to_numpy()
            begin, end = np.searchsorted(places, [first, stop])
            if begin < end:
                yield batch.slice(begin, end - begin)

    def _opened(self, path: str) -> SpillFile:
        """Return a run; those used last are kept open."""
        with self._opening:
            file = self._open.get(path)
        if file is None:
            try:
                file = open_spill(self._storage, path, self._sizes[path])
            except pa.ArrowInvalid as error:
                raise _damaged(f"{self._storage.url}/{path}", str(error)) from error
        with self._opening:
            self._open[path] = file
            self._open.move_to_end(path)
            if len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)
        return file
