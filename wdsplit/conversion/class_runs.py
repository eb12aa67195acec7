"""Detects whether a table looks sorted by a column of classes.

Reads a bounded number of rows from places spread over the table. The result depends only on the table.
"""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.engines.local import in_order
from wdsplit.fields.json_values import stored
from wdsplit.tables.read import read_rows
from wdsplit.tables.table import Table

__all__ = ["spread_places", "warn_of_runs"]

logger = logging.getLogger(__name__)

_MAX_PLACES, _MIN_PLACES = 16, 4
_MAX_VALUES = 2**20
_MAX_BLOCK_BYTES = 64 * 1024**2
_THREADS = 8
_MIN_RUN, _TIMES_CHANCE = 8, 4
"""A column looks sorted if its runs have at least this many rows, and this many times the rows of random runs."""
_MAX_CLASSES = 10_000


def warn_of_runs(table: Table, column: str) -> None:
    """Warn if a table that keeps its order looks sorted by its column of classes: the loader mixes windows only.

    Raises:
        InputError: A file cannot be read.
    """

    def values(place: tuple[int, int]) -> pa.Array:
        return pa.concat_arrays([stored(rows.columns[column]) for rows in read_rows(table, *place, [column])])

    parts = list(in_order(values, spread_places(table), _THREADS))
    codes = pa.concat_arrays(parts).dictionary_encode("encode").indices.to_numpy()
    num_pairs = len(codes) - len(parts)
    changes = np.diff(codes, prepend=-1) != 0
    changes[np.cumsum([0, *map(len, parts)])[:-1]] = False  # a range may start within a run
    run_rows = (num_pairs + 1) / (1 + int(changes.sum()))
    shares = np.bincount(codes) / len(codes)
    chance_rows = (num_pairs + 1) / (1 + num_pairs * (1 - float((shares**2).sum())))
    if run_rows >= max(_MIN_RUN, _TIMES_CHANCE * chance_rows) and 1 < len(shares) <= _MAX_CLASSES:
        logger.warning(
            "column %r has runs of about %s rows (%.1f if shuffled; %s values seen), and the order is kept: batches "
            "will hold few of its classes, which harms training; %s",
            column,
            f"{run_rows:,.0f}",
            chance_rows,
            f"{len(shares):,}",
            "use --shuffle" if table.files[0].format == "tar" else "leave out --no-shuffle",
        )


def spread_places(table: Table) -> list[tuple[int, int]]:
    """Return ranges of rows, as first and stop, that start with row groups spread over the table.

    For formats that cannot read single columns there are fewer ranges, each of at most one row group.
    """
    ends = np.cumsum(np.concatenate([np.asarray(file.counts, np.int64) for file in table.files]))
    begins = np.concatenate([[0], ends[:-1]])[np.diff(ends, prepend=0) > 0]
    num_places, rows = _MAX_PLACES, max(1, _MAX_VALUES // min(_MAX_PLACES, len(begins)))
    blocks = [(file.offsets[-1] - file.offsets[0]) // len(file.row_groups) for file in table.files if file.offsets[1:]]
    block_bytes = max(blocks, default=0)
    if block_bytes:
        num_places = min(max(_MIN_PLACES, _MAX_BLOCK_BYTES // block_bytes), _MAX_PLACES)
        rows = min(rows, int(ends[-1]) // len(begins))
    targets = np.arange(num_places) * int(ends[-1]) // num_places
    firsts: Int64 = np.unique(begins[np.searchsorted(begins, targets, side="right") - 1])
    stops = np.minimum(np.append(firsts[1:], ends[-1]), firsts + rows)
    is_apart = np.append(stops[:-1] < firsts[1:], True)
    return list(zip(firsts[np.append(True, is_apart[:-1])].tolist(), stops[is_apart].tolist(), strict=True))
