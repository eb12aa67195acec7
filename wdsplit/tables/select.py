"""Selects rows by a condition, and by a hash that assigns them to splits.

Pure (no I/O). The hash depends only on the row's own value. So a row stays in its split when other rows change, and
rows with the same value stay together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.arrays import Int64
from wdsplit.conditions.parse import parse_where
from wdsplit.errors import InputError
from wdsplit.fields.infer import class_names, refuse_unknown_columns
from wdsplit.fields.json_values import scalar_text, stored
from wdsplit.fields.keys import hash_keys, in_column
from wdsplit.fields.rules import is_text
from wdsplit.order.hashing import hash_numbers, hash_stream
from wdsplit.tables.table import Split, Table

__all__ = ["Picker", "check_split_type", "cut_splits", "hash_values", "in_split"]

_SPLIT_DOMAIN = 6
_FRACTION_TOLERANCE = 1e-9


def cut_splits(fractions: Mapping[str, float], column: str | None) -> dict[str, Split]:
    """Divide the hashes from 0 to 2**64 - 1 among splits, by their fractions.

    Args:
        fractions: Name of a split to its fraction.
        column: The column to hash; None for the rows' numbers.

    Raises:
        InputError: A fraction is not above 0 or is too small, or the fractions do not add up to 1.
    """
    sizes = list(fractions.values())
    if any(not 0 < size <= 1 for size in sizes) or abs(math.fsum(sizes) - 1) > _FRACTION_TOLERANCE:
        raise InputError(
            "the fractions of the splits do not add up to 1",
            expected="fractions above 0 that add up to 1, such as train=0.9,val=0.1",
            found=", ".join(f"{name}={fraction:g}" for name, fraction in fractions.items()),
            remedy="use fractions, not percent; put rows to leave out into a split of their own",
        )
    cuts = [round(math.fsum(sizes[:number]) * 2**53) << 11 for number in range(len(sizes))] + [2**64]
    empty = [name for name, low, high in zip(fractions, cuts, cuts[1:], strict=False) if low >= high]
    if empty:
        raise InputError(
            "a split is too small",
            expected="fractions that a 64-bit hash can distinguish",
            found=", ".join(f"{name}={fractions[name]:g}" for name in empty),
            remedy="remove it, or increase its fraction",
        )
    return {name: Split(column, cuts[number], cuts[number + 1]) for number, name in enumerate(fractions)}


def check_split_type(schema: pa.Schema, column: str) -> None:
    """Refuse a column that cannot assign rows to splits.

    Raises:
        InputError: There is no such column, or it has floats, bytes or nested values.
    """
    refuse_unknown_columns(schema, [column], "--key and --split-by")
    kind = schema.field(column).type
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    plain = pa.types.is_integer(value) or pa.types.is_boolean(value) or pa.types.is_date(value)
    if not (plain or is_text(value)):
        raise InputError(
            f"column {column!r} cannot assign rows to splits",
            expected="strings, integers, booleans or dates",
            found=str(kind),
            remedy="choose another --split-by column",
        )


def hash_values(column: pa.Array, numbers: Int64, table: Table, name: str) -> npt.NDArray[np.uint64]:
    """Return a 64-bit hash of each value's text: uint64 of shape (n,), the same for all types of strings.

    Args:
        column: Strings, integers, booleans or dates.
        numbers: int64 of shape (n,): the rows' numbers.
        table: The table, to name a row in an error.
        name: The column's name.

    Raises:
        InputError: A value is null.
    """
    where = in_column(lambda row: table.where(int(numbers[row])), name)
    column = stored(column)
    if column.null_count:
        raise InputError(
            "a row belongs to no split: its value is null",
            place=where(pc.index(column.is_null(), True).as_py()),
            expected="a value for each row",
            remedy="fill the column, or leave such rows out with --where",
        )
    text = scalar_text(column, where).cast(pa.large_string())
    return hash_keys(text) + np.asarray(pc.binary_length(text)).astype(np.uint64)


class Picker:
    """Finds the rows of a batch that a table's selection keeps, apart from its limit."""

    def __init__(self, table: Table) -> None:
        selection = table.selection
        self._table = table
        self._split = selection.split
        names = class_names(table.schema)
        numbered = {name: its for name, its in names.items() if pa.types.is_integer(table.schema.field(name).type)}
        self._where = parse_where(selection.where, table.schema, numbered) if selection.where else None
        self.where_columns: tuple[str, ...] = self._where.columns if self._where is not None else ()
        split_columns = (self._split.column,) if self._split is not None and self._split.column is not None else ()
        self.columns: tuple[str, ...] = tuple(dict.fromkeys((*self.where_columns, *split_columns)))

    @property
    def pruning(self) -> Any:
        """The part of the condition that statistics can decide, as an Arrow expression; None if there is none."""
        return None if self._where is None else self._where.pruning

    @property
    def picks_all(self) -> bool:
        """Whether no row is left out."""
        return self._where is None and self._split is None

    def meeting(self, columns: Mapping[str, pa.Array], num_rows: int) -> Int64:
        """Return the rows that meet the condition: int64, in ascending order."""
        if self._where is None:
            return np.arange(num_rows)
        return self._where.rows([columns[name] for name in self.where_columns], num_rows)

    def hashes(self, columns: Mapping[str, pa.Array], numbers: Int64) -> npt.NDArray[np.uint64]:
        """Return the hashes that assign rows to splits: uint64 of shape (n,)."""
        name = self._split.column if self._split is not None else None
        if name is None:
            return hash_numbers(hash_stream(_SPLIT_DOMAIN), numbers)
        values = hash_values(columns[name], numbers, self._table, name)
        return hash_numbers(hash_stream(_SPLIT_DOMAIN), values)

    def picked(self, columns: Mapping[str, pa.Array], numbers: Int64) -> Int64:
        """Return the rows that meet the condition and are in the split: int64, in ascending order."""
        rows = self.meeting(columns, len(numbers))
        if self._split is None:
            return rows
        kept = {name: columns[name].take(pa.array(rows)) for name in self.columns}
        return rows[in_split(self.hashes(kept, numbers[rows]), self._split)]


def in_split(hashes: npt.NDArray[np.uint64], split: Split) -> npt.NDArray[np.bool_]:
    """Return which hashes are in a split: bool of shape (n,)."""
    inside: npt.NDArray[np.bool_] = (hashes >= np.uint64(split.low)) & (hashes <= np.uint64(split.high - 1))
    return inside
