"""Detects whether a table looks sorted by a column of classes.

Reads a bounded number of rows from places spread over the table. The result depends only on the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.engines.local import in_order
from wdsplit.fields.infer import class_names
from wdsplit.fields.json_values import stored
from wdsplit.fields.rules import is_text, unwrap
from wdsplit.shards.manifest import Field
from wdsplit.tables.read import read_rows
from wdsplit.tables.table import Table

__all__ = ["ClassRuns", "find_class_runs", "spread_places"]

_MAX_PLACES, _MIN_PLACES = 16, 4
_MAX_VALUES = 2**20
_MAX_BLOCK_BYTES = 64 * 1024**2
_MAX_COLUMNS, _MAX_TEXT_BYTES = 32, 64
_THREADS = 8
_MIN_RUN, _TIMES_CHANCE = 8, 4
"""A column looks sorted if its runs have at least this many rows, and this many times the rows of random runs."""
_MAX_CLASSES = 10_000
_TAR_CLASSES = ("cls", "txt")


@dataclass(frozen=True)
class ClassRuns:
    """A column that looks sorted.

    Attributes:
        column: The column.
        num_classes: Number of different values in the rows that were read.
        run_rows: Mean number of rows per run of equal values.
        chance_rows: The same, if these rows were shuffled.
    """

    column: str
    num_classes: int
    run_rows: float
    chance_rows: float


def find_class_runs(table: Table, fields: Sequence[Field]) -> ClassRuns | None:
    """Return the column of classes by which the table most likely is sorted.

    Args:
        table: The input, with its selected rows.
        fields: The fields of each sample; only their columns are checked.

    Returns:
        A column of integers, booleans or strings with few different values in long runs; None if there is none.

    Raises:
        InputError: A file cannot be read.
    """
    columns = _candidates(table, fields)
    if not columns or table.num_rows < 2 * _MIN_RUN:
        return None
    places = spread_places(table, len(columns))
    parts = list(in_order(partial(_values, table, columns), places, _THREADS))
    found = [_found(name, values) for name, values in zip(columns, zip(*parts, strict=True), strict=True)]
    named, mapped = class_names(table.schema), {field.column for field in fields if field.name == "cls"}
    return max(
        (each for each in found if each is not None),
        key=lambda each: (each.column in named, each.column in mapped, each.run_rows / each.chance_rows),
        default=None,
    )


def _candidates(table: Table, fields: Sequence[Field]) -> list[str]:
    """Return the columns that may contain classes: not long strings; in tars, decided by their names."""
    sizes: dict[str, int] = {}
    for file in table.files:
        for name, size in file.column_bytes:
            sizes[name] = sizes.get(name, 0) + size
    columns = []
    for field in fields:
        kind = unwrap(table.schema.field(field.column).type)
        if table.files[0].format == "tar":
            is_class = field.column.rpartition(".")[2] in _TAR_CLASSES
        else:
            is_short = sizes.get(field.column, 0) <= _MAX_TEXT_BYTES * table.total_rows
            is_class = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or (is_text(kind) and is_short)
        if is_class:
            columns.append(field.column)
    return list(dict.fromkeys(columns))[:_MAX_COLUMNS]


def spread_places(table: Table, num_columns: int) -> list[tuple[int, int]]:
    """Return ranges of rows, as first and stop, that start with row groups spread over the table.

    For formats that cannot read single columns there are fewer ranges, each of at most one row group.
    """
    ends = np.cumsum(np.concatenate([np.asarray(file.counts, np.int64) for file in table.files]))
    begins = np.concatenate([[0], ends[:-1]])[np.diff(ends, prepend=0) > 0]
    num_places, rows = _MAX_PLACES, max(1, _MAX_VALUES // (num_columns * min(_MAX_PLACES, len(begins))))
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


def _values(table: Table, columns: Sequence[str], place: tuple[int, int]) -> list[pa.Array]:
    """Return the values of columns in a range of rows."""
    batches = [[stored(rows.columns[name]) for name in columns] for rows in read_rows(table, *place, columns)]
    return [pa.concat_arrays(parts) for parts in zip(*batches, strict=True)]


def _found(column: str, parts: Sequence[pa.Array]) -> ClassRuns | None:
    """Return the finding for a column from its values in each range; None if it does not look sorted."""
    codes = pa.concat_arrays(parts).dictionary_encode("encode").indices.to_numpy()
    firsts = np.cumsum([0, *map(len, parts)])[:-1]
    num_pairs = len(codes) - len(parts)
    changes = np.diff(codes, prepend=-1) != 0
    changes[firsts] = False  # a range may start within a run
    run_rows = (num_pairs + 1) / (1 + int(changes.sum()))
    shares = np.bincount(codes) / len(codes)
    chance_rows = (num_pairs + 1) / (1 + num_pairs * (1 - float((shares**2).sum())))
    if run_rows < max(_MIN_RUN, _TIMES_CHANCE * chance_rows) or not 1 < len(shares) <= _MAX_CLASSES:
        return None
    return ClassRuns(column, len(shares), run_rows, chance_rows)
