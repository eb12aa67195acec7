"""Gathering: sort the joined rows by sample, and write them as a table for each shard."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from wdsplit.annotating.job import ROW, SHARD, AnnotateJob
from wdsplit.annotating.scatter import read_partition
from wdsplit.conversion.shuffle.sorted_runs import SortedRun, damaged_spill
from wdsplit.engines.local import in_order, raise_if_cancelled
from wdsplit.shards.annotations import annotation_table_path
from wdsplit.shards.sample_tables import dump_samples
from wdsplit.storage.interface import Storage

__all__ = ["write_tables"]

_TABLES_AT_ONCE = 8


def write_tables(job: AnnotateJob, found: list[SortedRun], storage: Storage, groups: range) -> Iterator[int]:
    """Write the tables of groups of shards; yield the bytes of each group. Runs in a worker; may run twice."""
    for group in groups:
        yield _write_group(job, found, storage, group)


def _write_group(job: AnnotateJob, found: list[SortedRun], storage: Storage, group: int) -> int:
    first, stop = job.cuts.groups[group : group + 2]
    table = read_partition(storage, found, group, job.found_schema)
    counts = job.num_real[first:stop]
    starts = np.cumsum(counts) - counts
    places = starts[table.column(SHARD).to_numpy() - first] + table.column(ROW).to_numpy()
    order = np.full(int(counts.sum()), -1)
    order[places] = np.arange(len(table))
    if len(table) != len(order) or (order < 0).any():
        raise damaged_spill(f"{storage.url}/{job.spill_folder}", f"{len(table):,} samples for {len(order):,}")
    rows = table.select([field.name for field in job.joined_fields]).take(pa.array(order))
    rows = rows.rename_columns(job.schema.names)

    def write(number: int) -> int:
        raise_if_cancelled()
        shard, place = job.shards[number], number - first
        of_shard = rows.slice(int(starts[place]), int(counts[place])).cast(job.schema)
        data = dump_samples(of_shard, shard.checksum)
        with storage.publish(annotation_table_path(job.folder, shard.path)) as file:
            file.write([data])
        return len(data)

    numbers = range(first, stop)
    return sum(in_order(write, numbers, _TABLES_AT_ONCE) if storage.has_latency else map(write, numbers))
