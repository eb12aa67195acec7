"""Shuffling a table that does not fit into memory: rows are scattered to spill files, and gathered place by place.

`permute` says where each row goes. Scattering reads the inputs once, and writes runs: Arrow files whose rows are sorted
by their places and cut where places reach a multiple of the bucket. Gathering reads, for any range of places, the
parts of all runs that lie in it. How the runs were cut changes nothing about what is gathered.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import orjson
import pyarrow as pa

from wdsplit.manifest import RUN_FOLDER
from wdsplit.parquet import Rows, read_rows
from wdsplit.permute import RowPermutation
from wdsplit.plan import Plan
from wdsplit.storage import PendingFile, Storage, open_storage

__all__ = ["SPILL_FOLDER", "ScatterTask", "SpilledRows", "scatter", "scatter_tasks", "task_bytes"]

SPILL_FOLDER = f"{RUN_FOLDER}/spill"
_TASKS_NAME = f"{SPILL_FOLDER}/tasks.json"

_PLACE, _NUMBER = "place", "number"
"""Columns of a run besides those of the table, which are numbered c0, c1, ..."""

_PROCESS_BYTES = 160 * 1024**2
"""What a process needs before it holds any row."""
_COPIES = 5
"""How often a task holds its rows at the most: as read, sorted, encoded, laid out and written."""
_LEAST_BYTES, _MOST_BYTES = 8 * 1024**2, 1024**3
_BATCH_BYTES = 16 * 1024**2
_BUCKETS_PER_TASK = 4
_MAX_OPEN = 256


def task_bytes(memory_bytes: int, jobs: int) -> int:
    """Return how many bytes of rows a task may hold so that all jobs together keep to a memory bound."""
    free = (memory_bytes - _PROCESS_BYTES * (jobs + (jobs > 1))) // (jobs * _COPIES)
    return min(_MOST_BYTES, max(_LEAST_BYTES, free))


@dataclass(frozen=True)
class ScatterTask:
    """What a worker process needs to scatter the rows first, ..., stop - 1 of the inputs."""

    output: str
    plan: Plan
    first: int
    stop: int
    bucket_rows: int
    held_bytes: int

    @property
    def name(self) -> str:
        """What its runs are called after."""
        return f"{self.first:012d}"


def scatter_tasks(output: str, plan: Plan, held_bytes: int) -> list[ScatterTask]:
    """Return the tasks that are still to be run; a run that is resumed keeps the cuts that it began with.

    Args:
        output: The dataset's folder.
        plan: The plan.
        held_bytes: Bytes of rows that a task may hold.
    """
    storage = open_storage(output)
    if storage.size(_TASKS_NAME) is None:
        storage.remove(SPILL_FOLDER)
        row_bytes = max(1, sum(file.data_bytes for file in plan.inputs) // plan.num_rows)
        bucket_rows = max(1, held_bytes // row_bytes // _BUCKETS_PER_TASK)
        cuts = {"cuts": _cuts(plan, held_bytes), "bucket_rows": bucket_rows}
        with storage.publish(_TASKS_NAME) as file:
            file.write([orjson.dumps(cuts)])
    storage.remove_temporary(SPILL_FOLDER)
    cuts = orjson.loads(storage.read(_TASKS_NAME))
    tasks = [
        ScatterTask(output, plan, first, stop, cuts["bucket_rows"], held_bytes)
        for first, stop in zip(cuts["cuts"], cuts["cuts"][1:], strict=False)
    ]
    done = set(storage.list(SPILL_FOLDER))
    return [task for task in tasks if f"{task.name}.json" not in done]


def _cuts(plan: Plan, held_bytes: int) -> list[int]:
    """Cut the inputs at row groups, so that a task has about as many rows as it may hold, or one row group."""
    cuts, row, held = [0], 0, 0.0
    for file in plan.inputs:
        row_bytes = file.data_bytes / max(1, file.num_rows)
        for rows in file.row_groups:
            row += rows
            held += rows * row_bytes
            if held >= held_bytes:
                cuts.append(row)
                held = 0.0
    return cuts if cuts[-1] == row else [*cuts, row]


def scatter(task: ScatterTask) -> int:
    """Write the runs of a task; return its number of rows. Runs in a worker process; may run twice."""
    storage, plan = open_storage(task.output), task.plan
    permutation = RowPermutation(plan.num_rows, plan.options.seed)
    runs: list[dict[str, int]] = []
    held: list[Rows] = []
    held_bytes = 0

    def flush() -> None:
        path = f"{SPILL_FOLDER}/{task.name}-{len(runs):06d}.arrow"
        runs.append({"rows": sum(map(len, held)), "bytes": held_bytes})
        _write_run(storage, path, plan, held, permutation, task.bucket_rows)

    for rows in read_rows(plan.inputs, task.first, task.stop, plan.columns):
        held.append(rows)
        held_bytes += sum(array.nbytes for array in rows.columns.values())
        if held_bytes >= task.held_bytes:
            flush()
            held, held_bytes = [], 0
    if held:
        flush()
    with storage.publish(f"{SPILL_FOLDER}/{task.name}.json") as file:
        file.write([orjson.dumps(runs)])
    return task.stop - task.first


def _write_run(
    storage: Storage, path: str, plan: Plan, held: Sequence[Rows], permutation: RowPermutation, bucket_rows: int
) -> None:
    """Sort rows by their places and write them, a record batch a bucket."""
    numbers = np.concatenate([rows.numbers for rows in held])
    places = permutation.positions(numbers)
    keep = np.flatnonzero(places < plan.num_samples)
    order = keep[np.argsort(places[keep])]
    places, numbers = places[order], numbers[order]
    columns = {f"c{i}": pa.chunked_array([rows.columns[name] for rows in held]) for i, name in enumerate(plan.columns)}
    table = pa.table({_PLACE: places, _NUMBER: numbers, **{n: c.take(pa.array(order)) for n, c in columns.items()}})
    buckets, starts = np.unique(places // bucket_rows, return_index=True)
    schema = table.schema.with_metadata({"buckets": orjson.dumps(buckets.tolist())})
    with storage.publish(path) as file, pa.ipc.new_file(_Sink(file), schema) as writer:
        for start, stop in zip(starts, [*starts[1:], len(places)], strict=True):
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
    """

    def __init__(self, output: str, plan: Plan, held_bytes: int) -> None:
        self._storage = open_storage(output)
        self._plan = plan
        runs = [
            (name.removesuffix(".json"), number, run)
            for name in self._storage.list(SPILL_FOLDER)
            if name.endswith(".json") and f"{SPILL_FOLDER}/{name}" != _TASKS_NAME
            for number, run in enumerate(orjson.loads(self._storage.read(f"{SPILL_FOLDER}/{name}")))
        ]
        self._paths = [f"{SPILL_FOLDER}/{task}-{number:06d}.arrow" for task, number, _ in runs]
        self._bucket_rows = orjson.loads(self._storage.read(_TASKS_NAME))["bucket_rows"]
        row_bytes = max(1, sum(run["bytes"] for _, _, run in runs) // plan.num_rows)
        self._gathered_rows = max(1, held_bytes // row_bytes)
        self._batch_rows = max(1, min(held_bytes, _BATCH_BYTES) // row_bytes)
        self._open: OrderedDict[str, pa.RecordBatchFileReader] = OrderedDict()

    def read(self, first: int, stop: int) -> Iterator[Rows]:
        """Read the rows at the places first, ..., stop - 1, batch by batch, in order."""
        for begin in range(first, stop, self._gathered_rows):
            rows = self._gather(begin, min(stop, begin + self._gathered_rows))
            for low in range(0, len(rows), self._batch_rows):
                yield rows.slice(low, min(len(rows), low + self._batch_rows))

    def _gather(self, first: int, stop: int) -> Rows:
        parts = [part for path in self._paths for part in self._parts_of(path, first, stop)]
        table = pa.Table.from_batches(parts)
        places = table.column(_PLACE).to_numpy()
        order = np.argsort(places)
        if len(order) != stop - first or not np.array_equal(places[order], np.arange(first, stop)):
            raise AssertionError(f"the spill files hold {len(order)} rows for the places {first} to {stop - 1}")
        table = table.take(pa.array(order)).combine_chunks()
        columns = {name: table.column(f"c{i}").chunk(0) for i, name in enumerate(self._plan.columns)}
        return Rows(columns, table.column(_NUMBER).to_numpy(), self._plan.inputs)

    def _parts_of(self, path: str, first: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Give the parts of a run whose places lie in a range."""
        reader = self._opened(path)
        buckets = np.asarray(orjson.loads(reader.schema.metadata[b"buckets"]), np.int64)
        low = int(np.searchsorted(buckets, first // self._bucket_rows))
        high = int(np.searchsorted(buckets, (stop - 1) // self._bucket_rows, side="right"))
        for number in range(low, high):
            batch = reader.get_batch(number)
            places = batch.column(_PLACE).to_numpy()
            begin, end = np.searchsorted(places, [first, stop])
            if begin < end:
                yield batch.slice(begin, end - begin)

    def _opened(self, path: str) -> pa.RecordBatchFileReader:
        """Return a run, mapped; those used last are kept open."""
        if path not in self._open:
            self._open[path] = pa.ipc.open_file(pa.py_buffer(self._storage.map(path)))
            if len(self._open) > _MAX_OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(path)
        return self._open[path]
