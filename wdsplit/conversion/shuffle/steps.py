"""How a table is cut for the shuffle: into tasks by rows, into regions and buckets by places.

With few tasks, each sorts its rows, and the writer of a shard gathers from all tasks. T tasks make T * T reads. So with
many tasks there are two steps of about sqrt(T) reads each: tasks scatter to regions of places, then the runs of a chunk
of consecutive tasks in a region are merged into one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import orjson
import xxhash

from wdsplit.conversion.plan.plan import Plan
from wdsplit.jobs.notes import Notes
from wdsplit.shards.manifest import RUN_FOLDER
from wdsplit.storage.interface import Storage
from wdsplit.tables.table import Table

__all__ = [
    "BATCH_BYTES",
    "ROW_BYTES",
    "SPILL_FOLDER",
    "Cuts",
    "cut_into_regions",
    "cut_table",
    "read_cuts",
    "write_cuts",
]

SPILL_FOLDER = f"{RUN_FOLDER}/spill"

ROW_BYTES = 64
"""Bytes of a row in memory besides its columns: its place, its number, and their sorting."""
BATCH_BYTES = 16 * 1024**2
"""Maximum bytes of a batch of rows."""
_BUCKETS_PER_TASK = 4
_MAX_GATHERED = 256
"""With more tasks, rows are merged: gathering from all tasks would cost more than reading all rows once more."""


@dataclass(frozen=True)
class Cuts:
    """How a run scatters its rows: the same for all tasks, on any machine.

    Attributes:
        prefix: The prefix of its spill files' names. A late task of another run, or of a run that cut the same plan
            differently, has another prefix, so it replaces no file.
        places: The places at which the table is cut into scatter tasks, from 0 to its number of rows.
        num_regions: Number of regions; one if rows are not merged.
        region_rows: Places per region.
        bucket_rows: Places per bucket, the unit of reading when rows are gathered.
    """

    prefix: str
    places: Sequence[int]
    num_regions: int
    region_rows: int
    bucket_rows: int

    @property
    def num_tasks(self) -> int:
        """Number of scatter tasks."""
        return len(self.places) - 1

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

    @property
    def num_merges(self) -> int:
        """Number of merges, chunk by chunk; 0 if rows are not merged."""
        return self.num_chunks * self.num_regions if self.merges else 0

    def scattered(self, chunk: int) -> range:
        """Return the scatter tasks of a chunk."""
        size = self.num_regions if self.merges else self.num_tasks
        return range(chunk * size, min(self.num_tasks, (chunk + 1) * size))

    def merged(self, region: int) -> range:
        """Return the merges of a region."""
        return range(region, self.num_merges, self.num_regions)


def write_cuts(storage: Storage, plan: Plan, buffer_bytes: int) -> Cuts:
    """Decide how a run scatters its rows, with `buffer_bytes` for a task, and note it; remove older spill files."""
    storage.remove(SPILL_FOLDER)
    places = cut_table(plan.table, buffer_bytes)
    row_bytes = plan.table.data_bytes // plan.num_rows + ROW_BYTES
    bucket_rows = max(1, buffer_bytes // row_bytes // _BUCKETS_PER_TASK)
    prefix = f"{plan.hash[:8]}-{xxhash.xxh3_64_hexdigest(orjson.dumps([places, bucket_rows, _MAX_GATHERED]))[:8]}"
    cuts = Cuts(prefix, places, *cut_into_regions(plan.num_rows, len(places) - 1), bucket_rows)
    Notes(storage, SPILL_FOLDER).write(f"{plan.hash}-cuts", range(1), [asdict(cuts)])
    return cuts


def read_cuts(storage: Storage, plan: Plan) -> Cuts | None:
    """Return how the run of a plan scatters its rows; None if it is not decided yet."""
    noted = Notes(storage, SPILL_FOLDER).read(f"{plan.hash}-cuts", range(1), lambda note: Cuts(**note))
    return dict(noted).get(0)


def cut_into_regions(num_rows: int, num_tasks: int) -> tuple[int, int]:
    """Return the number of regions, and the places per region, for so many scatter tasks."""
    num_regions = 1 if num_tasks <= _MAX_GATHERED else math.isqrt(num_tasks - 1) + 1
    region_rows = -(-num_rows // num_regions)
    return -(-num_rows // region_rows), region_rows


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
