"""What a worker does: read the rows of some shards, encode them, write the shards.

Tasks are independent of each other, picklable, and may run twice with the same result. When a shard is published, what
it holds is noted in the run's folder, so that a later run can skip it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import orjson
import pyarrow as pa

from wdsplit.emit import write_shard_sidecars
from wdsplit.encode import encode_batch
from wdsplit.keys import escape_keys, number_keys, number_width
from wdsplit.manifest import RUN_FOLDER, Shard, shard_path
from wdsplit.parquet import Rows, read_rows
from wdsplit.plan import Plan, Span
from wdsplit.sample import pad_key
from wdsplit.shards import write_shard
from wdsplit.shuffle import SpilledRows
from wdsplit.sidecars import CatalogBuilder, needs_catalogs
from wdsplit.storage import open_storage
from wdsplit.tar import Body, build_body

__all__ = ["DONE_FOLDER", "Task", "keys_of", "run_task"]

DONE_FOLDER = f"{RUN_FOLDER}/shards"


@dataclass(frozen=True)
class Task:
    """What a worker process needs to write some shards.

    Attributes:
        output: The dataset's folder.
        plan: The plan.
        span: The shards.
        held_bytes: Bytes of rows that may be held at a time, if they are shuffled.
        emit: The sidecars to write.
    """

    output: str
    plan: Plan
    span: Span
    held_bytes: int
    emit: tuple[str, ...] = ()


def run_task(task: Task) -> dict[int, Shard]:
    """Write the shards of a span in one pass over their rows. Runs in a worker process; may run twice."""
    storage, plan = open_storage(task.output), task.plan
    read = _reader(task)
    written: dict[int, Shard] = {}
    stream = _Stream(read(plan.rows(task.span.first)[0], plan.rows(task.span.stop - 1)[1]))
    for shard in range(task.span.first, task.span.stop):
        pad = plan.pad_row(shard)
        catalog = CatalogBuilder() if needs_catalogs(task.emit) else None
        bodies = _bodies(plan, shard, stream, None if pad is None else next(read(pad, pad + 1)), catalog)
        written[shard] = write_shard(storage, shard_path(shard), bodies, int(pad is not None))
        if catalog is not None:
            write_shard_sidecars(storage, written[shard], catalog.build(), task.emit)
        with storage.publish(f"{DONE_FOLDER}/{shard:06d}.json") as file:
            file.write([orjson.dumps(written[shard])])
    return written


def _reader(task: Task) -> Callable[[int, int], Iterator[Rows]]:
    """Return what reads rows by their places: as they stand in the inputs, or as they were shuffled."""
    plan = task.plan
    if plan.options.shuffle:
        return SpilledRows(task.output, plan, task.held_bytes).read
    return lambda first, stop: read_rows(plan.inputs, first, stop, plan.columns)


class _Stream:
    """Rows, handed out in consecutive parts."""

    def __init__(self, batches: Iterator[Rows]) -> None:
        self._batches = batches
        self._held: Rows | None = None

    def take(self, count: int) -> Iterator[Rows]:
        """Give the next `count` rows."""
        while count:
            rows = self._held or next(self._batches)
            cut = min(len(rows), count)
            self._held = rows.slice(cut, len(rows)) if cut < len(rows) else None
            yield rows.slice(0, cut) if cut < len(rows) else rows
            count -= cut


def _bodies(
    plan: Plan, shard: int, stream: _Stream, pad: Rows | None, catalog: CatalogBuilder | None
) -> Iterator[Body]:
    """Give the samples of a shard, batch by batch, its pad at the end; the catalog takes all but the pad."""
    first, stop = plan.rows(shard)
    for rows in stream.take(stop - first):
        keys, fields = keys_of(plan, rows), _encoded(plan, rows)
        if catalog is not None:
            catalog.append(keys, fields)
        yield build_body(keys, fields)
    if pad is not None:
        yield build_body(pa.array([pad_key(shard, 0)], pa.large_string()), _encoded(plan, pad))


def keys_of(plan: Plan, rows: Rows) -> pa.LargeStringArray:
    """Return the keys of a batch of rows, escaped; they must come with the plan's key column, if it has one."""
    if plan.key is None:
        return number_keys(rows.numbers, number_width(plan.num_rows))
    return escape_keys(rows.columns[plan.key], lambda row: f"{rows.where(row)}, column {plan.key!r}")


def _encoded(plan: Plan, rows: Rows) -> dict[str, pa.LargeBinaryArray]:
    return encode_batch(rows.columns, plan.fields, plan.options.null, rows.where)
