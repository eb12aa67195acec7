"""What a worker does: read the rows of some shards, encode them, write the shards.

Tasks are independent of each other, picklable, and may run twice with the same result. When a shard is published, what
it holds is noted in the run's folder, so that a later run can skip it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import orjson
import pyarrow as pa

from wdsplit.encode import encode_batch
from wdsplit.keys import escape_keys, number_keys, number_width
from wdsplit.manifest import Shard, shard_path
from wdsplit.parquet import Rows, read_rows
from wdsplit.plan import Plan, Span
from wdsplit.sample import pad_key
from wdsplit.shards import write_shard
from wdsplit.storage import open_storage
from wdsplit.tar import Body, build_body

__all__ = ["DONE_FOLDER", "RUN_FOLDER", "Task", "keys_of", "run_task"]

RUN_FOLDER = ".wdsplit-run"
DONE_FOLDER = f"{RUN_FOLDER}/shards"


@dataclass(frozen=True)
class Task:
    """What a worker process needs to write some shards."""

    output: str
    plan: Plan
    span: Span


def run_task(task: Task) -> dict[int, Shard]:
    """Write the shards of a span in one pass over their rows. Runs in a worker process; may run twice."""
    storage, plan = open_storage(task.output), task.plan
    written: dict[int, Shard] = {}
    stream = _Stream(plan, plan.rows(task.span.first)[0], plan.rows(task.span.stop - 1)[1])
    for shard in range(task.span.first, task.span.stop):
        pad = plan.pad_row(shard)
        written[shard] = write_shard(storage, shard_path(shard), _bodies(plan, shard, stream), int(pad is not None))
        with storage.publish(f"{DONE_FOLDER}/{shard:06d}.json") as file:
            file.write([orjson.dumps(written[shard])])
    return written


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
        yield build_body(keys_of(plan, rows), _encoded(plan, rows))
    pad = plan.pad_row(shard)
    if pad is not None:
        rows = next(read_rows(plan.inputs, pad, pad + 1, _columns(plan)))
        yield build_body(pa.array([pad_key(shard, 0)], pa.large_string()), _encoded(plan, rows))


def keys_of(plan: Plan, rows: Rows) -> pa.LargeStringArray:
    """Return the keys of a batch of rows, escaped; they must come with the plan's key column, if it has one."""
    if plan.key is None:
        return number_keys(rows.first_row, len(rows), number_width(plan.num_rows))
    column = rows.columns[plan.key]
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return escape_keys(column, lambda row: f"{rows.where(row)}, column {plan.key!r}")


def _encoded(plan: Plan, rows: Rows) -> dict[str, pa.LargeBinaryArray]:
    return encode_batch(rows.columns, plan.fields, plan.options.null, rows.where)
