"""How a table is cut for the shuffle: into tasks by rows, into regions and buckets by places.

With few tasks, each sorts its rows, and the writer of a shard gathers from all tasks. T tasks make T * T reads. So with
many tasks there are two steps of about sqrt(T) reads each: tasks scatter to regions of places, then the runs of a chunk
of consecutive tasks in a region are merged into one.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import orjson
import xxhash

from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.record.notes import read_note_of_plan
from wdsplit.shards.manifest import RUN_FOLDER
from wdsplit.storage.interface import Storage
from wdsplit.tables.table import Table

__all__ = [
    "ROW_BYTES",
    "SPILL_FOLDER",
    "Cuts",
    "MergeTask",
    "ScatterTask",
    "Steps",
    "cut_into_steps",
    "cut_table",
    "read_cuts",
    "read_steps",
    "spilled_bytes",
    "write_cuts",
]

SPILL_FOLDER = f"{RUN_FOLDER}/spill"
_STEPS_NAME = f"{SPILL_FOLDER}/tasks.json"
_PLACES_NAME = f"{SPILL_FOLDER}/places.json"

ROW_BYTES = 64
"""Bytes of a row in memory besides its columns: its place, its number, and their sorting."""
_SPILLED_ROW_BYTES = 16
"""Bytes of a row in a spill file besides its columns: its place and its number."""
_BUCKETS_PER_TASK = 4
_MAX_GATHERED = 256
"""With more tasks, rows are merged: gathering from all tasks would cost more than reading all rows once more."""


def _scatter_name(number: int) -> str:
    return f"{number:08d}"


class ScatterTask(NamedTuple):
    """Scatter the rows at the places first, ..., stop - 1 of the table; the task's number is counted from 0."""

    number: int
    first: int
    stop: int

    @property
    def name(self) -> str:
        """The task's name, used in the names of its runs."""
        return _scatter_name(self.number)

    def __str__(self) -> str:
        """Return a text for messages: the rows."""
        return f"rows {self.first} to {self.stop - 1}"


class MergeTask(NamedTuple):
    """Merge the rows that the tasks of a chunk have scattered to a region."""

    chunk: int
    region: int

    @property
    def name(self) -> str:
        """The task's name, used in the names of its runs."""
        return f"region-{self.region:06d}-{self.chunk:06d}"

    def __str__(self) -> str:
        """Return a text for messages: region and chunk."""
        return f"region {self.region} of chunk {self.chunk}"


@dataclass(frozen=True)
class Steps:
    """The settings of the shuffle that all tasks of a conversion share, on any machine.

    Attributes:
        prefix: The prefix of its spill files' names. A late task of another run, or of a run that cut the same plan
            differently, has another prefix, so it replaces no file.
        num_tasks: Number of scatter tasks.
        num_regions: Number of regions; one if rows are not merged.
        region_rows: Places per region.
        bucket_rows: Places per bucket, the unit of reading when rows are gathered.
    """

    prefix: str
    num_tasks: int
    num_regions: int
    region_rows: int
    bucket_rows: int

    @property
    def merges(self) -> bool:
        """Whether scattered rows are merged before they are gathered."""
        return self.num_regions > 1

    @property
    def scattered_rows(self) -> int:
        """Number of places at whose multiples the scattered rows are cut."""
        return self.region_rows if self.merges else self.bucket_rows

    @property
    def num_chunks(self) -> int:
        """Number of chunks, with as many tasks as there are regions, so that a merged run is as large as a task."""
        return -(-self.num_tasks // self.num_regions) if self.merges else 1

    def scattered(self, chunk: int) -> list[str]:
        """Return the names of the tasks of a chunk."""
        size = self.num_regions if self.merges else self.num_tasks
        numbers = range(chunk * size, min(self.num_tasks, (chunk + 1) * size))
        return [_scatter_name(number) for number in numbers]

    def merged(self, region: int) -> list[str]:
        """Return the names of the tasks that merge a region."""
        return [MergeTask(chunk, region).name for chunk in range(self.num_chunks)]

    def merge_tasks(self) -> list[MergeTask]:
        """Return all merge tasks, chunk by chunk; empty if rows are not merged."""
        chunks = range(self.num_chunks) if self.merges else range(0)
        return [MergeTask(chunk, region) for chunk in chunks for region in range(self.num_regions)]


@dataclass(frozen=True)
class Cuts:
    """How a run scatters its rows.

    Attributes:
        places: The places at which the table is cut into tasks, from 0 to its number of rows.
        steps: The settings that the tasks share.
    """

    places: tuple[int, ...]
    steps: Steps

    @property
    def tasks(self) -> list[ScatterTask]:
        """All scatter tasks."""
        return [ScatterTask(number, *places) for number, places in enumerate(pairwise(self.places))]


def write_cuts(storage: Storage, plan: Plan, buffer_bytes: int) -> Cuts:
    """Decide how a run scatters its rows, with `buffer_bytes` for a task, and note it; remove older spill files."""
    storage.remove(SPILL_FOLDER)
    places = cut_table(plan.table, buffer_bytes)
    row_bytes = plan.table.data_bytes // plan.num_rows + ROW_BYTES
    bucket_rows = max(1, buffer_bytes // row_bytes // _BUCKETS_PER_TASK)
    prefix = f"{plan.hash[:8]}-{xxhash.xxh3_64_hexdigest(orjson.dumps([places, bucket_rows, _MAX_GATHERED]))[:8]}"
    steps = cut_into_steps(prefix, plan.num_rows, len(places) - 1, bucket_rows)
    for path, note in ((_PLACES_NAME, {"places": places}), (_STEPS_NAME, dataclasses.asdict(steps))):
        with storage.publish(path) as file:
            file.write([orjson.dumps({"plan": plan.hash, **note})])
    return Cuts(tuple(places), steps)


def cut_into_steps(prefix: str, num_rows: int, num_tasks: int, bucket_rows: int) -> Steps:
    """Return the settings of a run; the arguments are those of `Steps`, and the number of rows of the table."""
    num_regions = 1 if num_tasks <= _MAX_GATHERED else math.isqrt(num_tasks - 1) + 1
    region_rows = -(-num_rows // num_regions)
    return Steps(prefix, num_tasks, -(-num_rows // region_rows), region_rows, bucket_rows)


def cut_table(table: Table, task_bytes: int) -> list[int]:
    """Return the places at which to cut a table: at row groups, so that a task has about `task_bytes`, or one group."""
    cuts, place, num_bytes = [0], 0, 0.0
    for file in table.files:
        for rows in file.counts:
            place += rows
            num_bytes += rows * (file.row_bytes + ROW_BYTES)
            if num_bytes >= task_bytes:
                cuts.append(place)
                num_bytes = 0.0
    return cuts if cuts[-1] == place else [*cuts, place]


def spilled_bytes(plan: Plan, buffer_bytes: int) -> int:
    """Return the approximate bytes of spill files, with `buffer_bytes` for a task: twice all rows if merged."""
    num_tasks = len(cut_table(plan.table, buffer_bytes)) - 1
    copies = 2 if cut_into_steps("", plan.num_rows, num_tasks, 1).merges else 1
    return copies * (plan.table.data_bytes + plan.num_rows * _SPILLED_ROW_BYTES)


def read_steps(storage: Storage, plan: Plan) -> Steps | None:
    """Return the settings that a run's tasks share; None if they are not decided yet."""
    note = read_note_of_plan(storage, plan, _STEPS_NAME)
    types = {each.name: str if each.name == "prefix" else int for each in dataclasses.fields(Steps)}
    if not all(isinstance(note.get(name), kind) for name, kind in types.items()):
        return None
    return Steps(**{name: note[name] for name in types})


def read_cuts(storage: Storage, plan: Plan) -> Cuts | None:
    """Return how the run of a plan scatters its rows; None if it is not decided yet."""
    steps, places = read_steps(storage, plan), read_note_of_plan(storage, plan, _PLACES_NAME).get("places")
    if steps is None or not isinstance(places, list) or len(places) != steps.num_tasks + 1:
        return None
    return Cuts(tuple(places), steps)
