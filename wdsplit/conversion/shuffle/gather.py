"""Gathers scattered rows: for any range of places, the rows of all sorted runs in it.

Gathers and sorts as many rows at a time as fit into the buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache, partial

import numpy as np
import pyarrow as pa

from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.shuffle.scatter import NUMBER, PLACE, region_runs
from wdsplit.conversion.shuffle.sorted_runs import OpenRun, SortedRun, damaged_spill, read_runs
from wdsplit.conversion.shuffle.steps import BATCH_BYTES, SPILL_FOLDER, Cuts
from wdsplit.storage.interface import Storage
from wdsplit.tables.formats.common import MAX_BATCH_ROWS
from wdsplit.tables.read import Rows

__all__ = ["ShuffledRows"]

_MAX_OPEN = 2048
"""Maximum number of runs whose footers are kept in memory."""


class ShuffledRows:
    """The shuffled table, read by places.

    Args:
        storage: The output.
        plan: The plan.
        cuts: How the run scattered its rows.
        buffer_bytes: Bytes of rows to buffer.
    """

    def __init__(self, storage: Storage, plan: Plan, cuts: Cuts, buffer_bytes: int) -> None:
        self._storage, self._plan, self._cuts, self._buffer_bytes = storage, plan, cuts, buffer_bytes
        self._runs_of = cache(partial(region_runs, storage, cuts))
        self._opened = lru_cache(_MAX_OPEN)(partial(OpenRun, storage))

    def read(self, first: int, stop: int) -> Iterator[Rows]:
        """Read the rows at the places first, ..., stop - 1, batch by batch, in order."""
        if first >= stop:
            return
        runs = self._runs(first, stop)
        row_bytes = max(1, sum(run.num_bytes for run in runs) // max(1, sum(run.num_rows for run in runs)))
        max_rows = max(1, self._buffer_bytes // row_bytes)
        batch_rows = min(MAX_BATCH_ROWS, max(1, min(self._buffer_bytes, BATCH_BYTES) // row_bytes))
        for begin in range(first, stop, max_rows):
            yield from self._gather(begin, min(stop, begin + max_rows)).batches(batch_rows)

    def _gather(self, first: int, stop: int) -> Rows:
        runs = self._runs(first, stop)
        batches = list(read_runs(self._storage, runs, lambda run: list(self._read_range(run, first, stop))))
        table = pa.Table.from_batches(batches) if batches else None
        places = table.column(PLACE).to_numpy() if table is not None else np.empty(0, np.int64)
        order = np.argsort(places)
        if table is None or not np.array_equal(places[order], np.arange(first, stop)):
            raise damaged_spill(
                f"{self._storage.url}/{SPILL_FOLDER}", f"missing or extra rows at the places {first} to {stop - 1}"
            )
        table = table.take(pa.array(order)).combine_chunks()
        columns = {name: table.column(f"c{i}").chunk(0) for i, name in enumerate(self._plan.columns)}
        return Rows(columns, table.column(NUMBER).to_numpy(), self._plan.table)

    def _runs(self, first: int, stop: int) -> list[SortedRun]:
        """Return the runs that may have rows of a range of places."""
        regions = range(first // self._cuts.region_rows, (stop - 1) // self._cuts.region_rows + 1)
        return [run for region in regions for run in self._runs_of(region)]

    def _read_range(self, run: SortedRun, first: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a run whose places are first, ..., stop - 1."""
        bucket_rows = self._cuts.bucket_rows
        buckets = first // bucket_rows, (stop - 1) // bucket_rows
        for batch in self._opened(run).read_buckets(*buckets):
            places = batch.column(PLACE).to_numpy()
            begin, end = np.searchsorted(places, [first, stop])
            if begin < end:
                yield batch.slice(begin, end - begin)
