"""Lossless types for values in text formats.

Pure (no I/O). Joins the types of the blocks and files of CSV and JSON lines to types that fit all values of the input.
"""

from __future__ import annotations

import decimal
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.fields.promote import joined_type

__all__ = ["LARGE", "TwoTypesError", "all_true", "inexact", "integer_type", "is_exact", "joined_types"]

LARGE = pa.decimal128(20)
"""The type of columns with integers that no double holds, until all types are joined."""

_SAFE_DIGITS = 15
"""A double holds any number with at most this many digits."""


class TwoTypesError(ValueError):
    """A column has values of two types, and no type holds both: the column, one type, the other."""

    def __init__(self, name: str, one: str, other: str) -> None:
        super().__init__(name, one, other)
        self.name, self.one, self.other = name, one, other


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


def joined_types(one: Mapping[str, pa.DataType], other: Mapping[str, pa.DataType]) -> dict[str, pa.DataType]:
    """Return the types of columns that hold the values of two parts of the input.

    Raises:
        TwoTypesError: No type holds all values of a column.
    """
    found = dict(one)
    for name, kind in other.items():
        joined = joined_type(found.get(name, kind), kind)
        if joined is None:
            texts = (str(each).replace(str(LARGE), "int64 over 2**53") for each in (found[name], kind))
            raise TwoTypesError(name, *texts)
        found[name] = joined
    return found
