"""Lossless types for values in text formats.

Pure (no I/O). Joins the types of the blocks and files of CSV and JSON lines to types that fit all values of the input.
"""

from __future__ import annotations

import decimal
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.errors import InputError
from wdsplit.fields.promote import joined_type

__all__ = ["LARGE", "all_true", "inexact", "integer_type", "is_exact", "joined_types"]

LARGE = pa.decimal128(20)
"""The type of columns with integers that no double holds, until all types are joined."""

_SAFE_DIGITS = 15
"""A double holds any number with at most this many digits."""


def all_true(mask: pa.Array) -> bool:
    """Return whether all of a boolean array is true; an empty one is."""
    return bool(pc.all(mask, min_count=0).as_py())


def inexact(numbers: pa.Array) -> pa.Array:
    """Return the numbers that no double holds with all their written digits.

    Args:
        numbers: Strings that Arrow reads as doubles.
    """
    numbers = numbers.unique()
    is_long = pc.greater(pc.binary_length(numbers), _SAFE_DIGITS)
    numbers = numbers.filter(pc.or_(is_long, pc.match_substring_regex(numbers, "[eE][-+]?[0-9]{3}")))
    as_printed = pc.equal(numbers.cast(pa.float64()).cast(numbers.type), numbers)
    numbers = numbers.filter(pc.invert(as_printed))
    return numbers.filter(pa.array([not is_exact(number) for number in numbers.to_pylist()], pa.bool_()))


def is_exact(number: str) -> bool:
    """Return whether a number survives conversion to a double and back to text of as many digits.

    So `1.10` is exact, and 0.1 printed with 17 or with 30 digits, but 9007199254740993 is not.
    """
    value, double = decimal.Decimal(number), float(number)
    if not value.is_finite():
        return True
    printed = decimal.Context(prec=len(value.as_tuple().digits)).create_decimal_from_float(double)
    return value in (printed, decimal.Decimal(repr(double)))


def integer_type(values: pa.Array) -> pa.DataType:
    """Return the type of some 64-bit integers until all types are joined: `LARGE` never becomes a double."""
    rounded = values.cast(pa.float64(), safe=False).cast(pa.int64(), safe=False)
    return pa.int64() if rounded.equals(values) else LARGE


def joined_types(
    one: Mapping[str, pa.DataType], other: Mapping[str, pa.DataType], otherwise: pa.DataType | None = None
) -> dict[str, pa.DataType]:
    """Return the types of columns that hold the values of two parts of the input.

    Args:
        one: The types of columns.
        other: The types in another part.
        otherwise: The type of columns whose types have no common one.

    Raises:
        InputError: No type holds all values of a column, and `otherwise` is None; the error has no place.
    """
    found = dict(one)
    for name, kind in other.items():
        joined = joined_type(found.get(name, kind), kind)
        joined = otherwise if joined is None else joined
        if joined is None:
            before, now = (str(each).replace(str(LARGE), "int64 over 2**53") for each in (found[name], kind))
            raise InputError(
                f"the values of {name!r} have two types",
                expected=f"{before}, as before",
                found=now,
                remedy="write the values as strings or as numbers of one kind, or convert them as two datasets",
            )
        found[name] = joined
    return found
