"""Lossless types for values in text formats.

Pure (no I/O). Joins the types of the blocks and files of CSV and JSON lines to types that fit all values of the input.
"""

from __future__ import annotations

import decimal

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["TwoTypesError", "all_true", "inexact", "integer_field", "is_exact", "joined_fields"]

_SAFE_DIGITS = 15
"""A double holds any number with at most this many digits."""
_LARGE = {b"large": b""}
"""Metadata of an integer field with values that no double holds, so that it never becomes a field of doubles."""


class TwoTypesError(ValueError):
    """No type holds the values of two fields.

    Attributes:
        path: The field, as in `/box/corners[]`.
        one: The type of one.
        other: The type of the other.
    """

    def __init__(self, path: str, one: str, other: str) -> None:
        super().__init__(path, one, other)
        self.path, self.one, self.other = path, one, other


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


def integer_field(name: str, values: pa.Array) -> pa.Field:
    """Return the field of some 64-bit integers; its metadata notes whether doubles hold them."""
    rounded = values.cast(pa.float64(), safe=False).cast(pa.int64(), safe=False)
    return pa.field(name, pa.int64(), metadata=None if rounded.equals(values) else _LARGE)


def joined_fields(one: pa.Field, other: pa.Field, path: str = "") -> pa.Field:
    """Return a field whose type holds the values of two.

    Args:
        one: A field.
        other: Another of the same name.
        path: Where they are, for an error.

    Raises:
        TwoTypesError: There is no such type.
    """
    kinds, metadata = (one.type, other.type), one.metadata or other.metadata
    if all(map(pa.types.is_struct, kinds)):
        parts = {part.name: part for part in one.type}
        for part in other.type:
            before = parts.get(part.name)
            parts[part.name] = part if before is None else joined_fields(before, part, f"{path}/{part.name}")
        kind = pa.struct(list(parts.values()))
    elif all(map(pa.types.is_list, kinds)):
        kind = pa.list_(joined_fields(one.type.value_field, other.type.value_field, f"{path}[]"))
    elif pa.types.is_null(one.type) or one.type == other.type:
        kind = other.type
    elif pa.types.is_null(other.type):
        kind = one.type
    elif set(kinds) == {pa.int64(), pa.float64()} and not metadata:
        kind = pa.float64()
    else:
        raise TwoTypesError(path, *(f"{field.type}{' over 2**53' if field.metadata else ''}" for field in (one, other)))
    return pa.field(one.name, kind, metadata=metadata)
