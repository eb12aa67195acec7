"""Converts Arrow values to JSON values: numbers, strings, lists and objects.

Pure (no I/O). Scalars stay Arrow arrays; only nested values become Python values, row by row. Python's dates and times
are not used, because they would lose digits.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.errors import InputError
from wdsplit.fields.arrow_types import map_children
from wdsplit.fields.keys import Locate
from wdsplit.fields.rules import is_binary, is_list, is_text

__all__ = [
    "decoded_parts",
    "first_true",
    "json_text",
    "json_values",
    "plain",
    "scalar_text",
    "stored",
    "type_without_views",
    "without_views",
]

_LARGE_STRING = pa.large_string()
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_DAY_S = 86_400
_FIRST_DAY, _END_DAY = -719_162, 2_932_897
"""0001-01-01 and 10000-01-01, in days from 1970: ISO 8601 has four digits for a year, and Python has no year 0."""


def first_true(mask: pa.Array) -> int | None:
    """Return the first row of a boolean array that is true, or None."""
    row: int = pc.index(mask, True).as_py()
    return None if row < 0 else row


def stored(column: pa.Array) -> pa.Array:
    """Return the values of a dictionary array, the storage of an extension array, and other arrays as they are."""
    while True:
        if isinstance(column, pa.ExtensionArray):
            column = column.storage
        elif pa.types.is_dictionary(column.type):
            column = _wide(column.dictionary).take(column.indices)
        else:
            return column


def decoded_parts(columns: Sequence[pa.Array], limit_bytes: int) -> Iterator[list[pa.Array]]:
    """Cut columns of one length into parts, and decode the dictionaries in them.

    A dictionary of a few long values is small until it is decoded. A part has at most `limit_bytes` of decoded strings
    and bytes, or it is one row.
    """
    rows = len(columns[0]) if columns else 0
    sizes = np.zeros(rows, np.int64)
    for column in columns:
        if pa.types.is_dictionary(column.type) and (
            is_text(column.type.value_type) or is_binary(column.type.value_type)
        ):
            lengths = pc.binary_length(column.dictionary).take(column.indices)
            sizes += np.asarray(pc.fill_null(lengths, 0), np.int64)
    ends = np.cumsum(sizes)
    first = 0
    while first < rows:
        before = int(ends[first - 1]) if first else 0
        end = max(first + 1, int(np.searchsorted(ends, before + limit_bytes, side="right")))
        parts = (column.slice(first, end - first) for column in columns)
        yield [stored(part) if pa.types.is_dictionary(part.type) else part for part in parts]
        first = end


def _wide(values: pa.Array) -> pa.Array:
    """Give strings and bytes 64-bit offsets: repeated, the few values of a dictionary may exceed 2 GiB."""
    if is_text(values.type):
        return values.cast(_LARGE_STRING)
    return values.cast(pa.large_binary()) if is_binary(values.type) else values


def without_views(column: pa.Array) -> pa.Array:
    """Return a column with string and binary views as large strings and large binary, for Arrow's kernels.

    The values of list views stay as they are: Arrow cannot cast list views, but can take and slice them.
    """
    kind = type_without_views(column.type)
    return column if kind is column.type else column.cast(kind)


def type_without_views(kind: pa.DataType) -> pa.DataType:
    """Return the type that `without_views` gives columns of a type."""
    if str(kind) == "string_view":
        return _LARGE_STRING
    if str(kind) == "binary_view":
        return pa.large_binary()
    if "_view" not in str(kind) or str(kind).startswith(("list_view", "large_list_view")):
        return kind
    return map_children(kind, type_without_views)


def plain(column: pa.Array, where: Locate) -> pa.Array:
    """Return scalars as JSON values: an array of numbers, booleans or strings.

    Args:
        column: Scalars of any type that has a rule.
        where: Returns the place of a row, for an error.

    Raises:
        InputError: A date or time is outside the range of ISO 8601.
    """
    column = stored(column)
    kind = column.type
    if pa.types.is_decimal(kind):
        return column.cast(_LARGE_STRING)
    if pa.types.is_temporal(kind) and not pa.types.is_duration(kind):
        return _iso_text(column, where)
    if pa.types.is_duration(kind):
        return column.cast(pa.int64())
    if pa.types.is_float16(kind):
        numbers = column.to_numpy(zero_copy_only=False).astype(np.float64)
        return pa.array(numbers, mask=column.is_null().to_numpy(zero_copy_only=False))
    if is_binary(kind):
        values = column.to_pylist()
        return pa.array([None if value is None else b64encode(value).decode() for value in values], _LARGE_STRING)
    return column


def _iso_text(column: pa.Array, where: Locate) -> pa.Array:
    """Return dates, times and timestamps in ISO 8601, with all digits of their unit; with a zone as UTC, with `Z`."""
    kind = column.type
    unit = "ms" if pa.types.is_date64(kind) else getattr(kind, "unit", "s")
    day = 1 if pa.types.is_date32(kind) else _DAY_S * _PER_SECOND[unit]
    first, end = (0, day) if pa.types.is_time(kind) else (_FIRST_DAY * day, _END_DAY * day)
    numbers = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(pa.int64())
    beyond = pc.or_(pc.less(numbers, max(first, -(2**63))), pc.greater(numbers, min(end - 1, 2**63 - 1)))
    if pa.types.is_date64(kind):
        beyond = pc.or_(beyond, pc.not_equal(pc.multiply(pc.divide(numbers, day), day), numbers))
    row = first_true(beyond)
    if row is not None:
        raise InputError(
            f"a {'time' if pa.types.is_time(kind) else 'date'} cannot be written in ISO 8601",
            place=where(row),
            expected="a time of the day" if pa.types.is_time(kind) else "a date in the years 1 to 9999",
            found=f"{numbers[row].as_py()} of type {kind}",
            remedy="correct the value in the table, or cast the column to integers",
        )
    if not pa.types.is_timestamp(kind):
        return column.cast(_LARGE_STRING)
    text = numbers.cast(pa.timestamp(unit)).cast(_LARGE_STRING)
    text = pc.replace_substring(text, " ", "T")
    return text if kind.tz is None else _join(text, "Z")


def scalar_text(column: pa.Array, where: Locate) -> pa.Array:
    """Return scalars as large strings: numbers as in JSON, dates and times in ISO 8601.

    Floats are the shortest text that reads back as the same double, with a point, to differ from integers.
    """
    column = plain(column, where)
    if not pa.types.is_floating(column.type):
        return column.cast(_LARGE_STRING)
    doubles = column.cast(pa.float64())
    text = doubles.cast(_LARGE_STRING)
    whole = pc.match_substring_regex(text, r"^-?[0-9]+$")
    text = pc.if_else(whole, _join(text, ".0"), text)
    if first_true(pc.invert(pc.is_finite(doubles))) is None:
        return text
    text = pc.if_else(pc.is_nan(doubles), pa.scalar("NaN", _LARGE_STRING), text)
    return pc.replace_substring(text, "inf", "Infinity")


def json_text(column: pa.Array, where: Locate) -> pa.Array:
    """Return scalars as JSON, in large strings. Strings must not need escapes, like those that `plain` makes."""
    column = plain(column, where)
    if not is_text(column.type):
        return scalar_text(column, where)
    return _join('"', column.cast(_LARGE_STRING), '"')


def _join(*parts: pa.Array | str) -> pa.Array:
    """Concatenate arrays of large strings, element by element, and constant texts."""
    strings = (pa.scalar(part, _LARGE_STRING) if isinstance(part, str) else part for part in (*parts, ""))
    return pc.binary_join_element_wise(*strings)


def json_values(column: pa.Array, where: Locate) -> list[Any]:
    """Return a column of any type as values for Python's json, one per row; maps become lists of pairs."""
    column = stored(column)
    kind = column.type
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        children = [json_values(child, where) for child in column.flatten()]
        rows: list[Any] = [dict(zip(names, row, strict=True)) for row in zip(*children, strict=True)]
    elif pa.types.is_map(kind):
        lists = column.cast(pa.list_(pa.struct([kind.key_field, kind.item_field])))
        lengths, inner = _lengths(lists, where)
        keys, items = (json_values(child, inner) for child in lists.flatten().flatten())
        rows = _cut(list(zip(keys, items, strict=True)), lengths)
    elif is_list(kind):
        lengths, inner = _lengths(column, where)
        rows = _cut(json_values(column.flatten(), inner), lengths)
    else:
        return list(plain(column, where).to_pylist())
    if not column.null_count:
        return rows
    return [row if valid else None for row, valid in zip(rows, column.is_valid().to_pylist(), strict=True)]


def _lengths(lists: pa.Array, where: Locate) -> tuple[npt.NDArray[np.int64], Locate]:
    """Return the length of each list, and a function that returns the place of a value's row."""
    lengths = np.asarray(pc.fill_null(pc.list_value_length(lists), 0), np.int64)
    ends = np.cumsum(lengths)
    return lengths, lambda value: where(int(np.searchsorted(ends, value, side="right")))


def _cut(values: list[Any], lengths: npt.NDArray[np.int64]) -> list[Any]:
    ends = np.cumsum(lengths).tolist()
    return [values[first:end] for first, end in zip([0, *ends[:-1]], ends, strict=bool(ends))]
