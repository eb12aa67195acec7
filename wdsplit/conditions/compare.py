"""Comparing and computing with columns: Arrow expressions with exact results.

Pure (no I/O). A number in the text is an exact fraction. Compared with a column, it becomes a value of the column's
type. So the column needs no cast, and row group statistics can exclude rows. Overflows are errors.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.errors import InputError
from wdsplit.fields.promote import common_type
from wdsplit.fields.rules import is_binary, is_text, unwrap

__all__ = ["Operand", "compare", "compute", "is_among", "join", "read"]

_MAX_CHAIN = 16
"""Up to this many items, `in` becomes a chain of `==`, for which every version of pyarrow uses statistics."""

Operation = Callable[[Any, Any], Any]

_BESIDE: tuple[dict[Operation, Operation], ...] = (
    {},
    {operator.lt: operator.le, operator.ge: operator.gt},
    {operator.le: operator.lt, operator.gt: operator.ge},
)
"""How to compare with the next value below (1) instead of a number that no value equals; above (-1) for the least."""
_MIRRORED = {operator.lt: operator.gt, operator.le: operator.ge, operator.gt: operator.lt, operator.ge: operator.le}
_ON_COLUMNS: dict[Operation, tuple[Operation | None, Operation]] = {
    operator.add: (pc.add_checked, pc.add),
    operator.sub: (pc.subtract_checked, pc.subtract),
    operator.mul: (pc.multiply_checked, pc.multiply),
    operator.truediv: (None, pc.divide),
}
"""How to compute with columns of integers, and of floats."""

_PER_SECOND = {
    "s": Fraction(1),
    "ms": Fraction(10**3),
    "us": Fraction(10**6),
    "ns": Fraction(10**9),
    "date32[day]": Fraction(1, 86_400),
    "date64[ms]": Fraction(10**3),
}
_SUBSECONDS = re.compile(r"(?<=:[0-5]\d:[0-5]\d)\.\d{1,18}(?=$|[Z+-])", re.ASCII)


@dataclass(frozen=True, eq=False)
class Operand:
    """A value in the text, or values that are computed for each row.

    Attributes:
        value: A Fraction, str, bytes, bool or None; or an Arrow expression, in which half floats are cast to float,
            because Arrow cannot compare them.
        kind: The type of the expression: never a dictionary, extension type, view, or decimal of less than 128 bits.
            None for a value in the text.
    """

    value: Any
    kind: pa.DataType | None = None

    def __str__(self) -> str:
        if self.kind is not None:
            return f"a column of type {self.kind}"
        names = {Fraction: "a number", str: "a string", bytes: "bytes", bool: "True or False"}
        return names.get(type(self.value), "None")


def read(reference: Any, kind: pa.DataType) -> Operand:
    """Return a column, or a member of one, as values to compare.

    It is cast only where Arrow needs that. Arrow before 18 overlooks nulls inside a dictionary, so that is always cast.
    """
    plain = unwrap(kind)
    if str(plain) in ("string_view", "binary_view"):
        plain = pa.large_string() if is_text(plain) else pa.large_binary()
    elif pa.types.is_decimal(plain) and plain.bit_width < 128:
        plain = pa.decimal128(plain.precision, plain.scale)
    computed = pa.float32() if pa.types.is_float16(plain) else plain
    is_cast = computed != kind and not pa.types.is_nested(plain)
    return Operand(reference.cast(computed) if is_cast else reference, plain)


def join(operation: Operation, conditions: Sequence[Any]) -> Any:
    """Join one or more conditions as a balanced tree."""
    half = len(conditions) // 2
    if not half:
        return conditions[0]
    return operation(join(operation, conditions[:half]), join(operation, conditions[half:]))


def compare(left: Operand, operation: Operation, right: Operand) -> Any:
    """Return the condition that compares two operands; it is null where one of them is null.

    Args:
        left: The left operand.
        operation: `lt`, `le`, `gt`, `ge`, `eq` or `ne` of the module `operator`.
        right: The right operand.

    Raises:
        InputError: They cannot be compared.
    """
    if left.kind is None:
        if right.kind is None:
            remedy = 'write the name of a column without quotes, or as column("...")'
            raise InputError("the comparison has two values and no column", remedy=remedy)
        return compare(right, _MIRRORED.get(operation, operation), left)
    if right.kind is not None:
        kind = common_type(left.kind, right.kind)
        if kind is None or pa.types.is_nested(kind) or isinstance(kind, pa.BaseExtensionType) or pa.types.is_null(kind):
            raise _unlike(left.kind, right)
        return operation(_cast(left, kind), _cast(right, kind))
    value, side = _nearest(right, left.kind)
    column, scalar = left.value, _scalar(value, left.kind)
    if side and operation not in _MIRRORED:
        never = (column < scalar) & (column > scalar)  # null where the column is
        return never if operation is operator.eq else ~never
    return _BESIDE[side].get(operation, operation)(column, scalar)


def is_among(values: Operand, items: Sequence[Operand]) -> Any:
    """Return the condition that a column's value equals one of some in the text; it is null where the value is null.

    Raises:
        InputError: An item cannot be compared with the values.
    """
    equal = [compare(values, operator.eq, item) for item in items[:_MAX_CHAIN]]
    if len(items) <= _MAX_CHAIN:
        return join(operator.or_, equal)
    found = [value for value, side in (_nearest(item, values.kind) for item in items) if not side]
    if 0 in found and pa.types.is_floating(values.kind):
        found += [0.0, -0.0]  # `is_in` distinguishes them
    # The first `==` makes the condition null where the value is null.
    return equal[0] | values.value.isin(pa.array(found, _scalar(None, values.kind).type))


def compute(left: Operand, operation: Operation, right: Operand) -> Operand:
    """Return the sum, difference, product or quotient: exact of values in the text, else int64 or float64.

    Args:
        left: The left operand.
        operation: `add`, `sub`, `mul` or `truediv` of the module `operator`.
        right: The right operand.

    Raises:
        InputError: An operand is not a number, or one in the text does not fit.
    """
    is_whole = operation is not operator.truediv
    for operand in (left, right):
        if not (isinstance(operand.value, Fraction) if operand.kind is None else _is_number(operand.kind)):
            raise InputError("arithmetic needs numbers", expected="integers or floats", found=str(operand))
        fits = operand.kind is None and operand.value.denominator == 1 and -(2**63) <= operand.value < 2**63
        is_whole = is_whole and (fits if operand.kind is None else pa.types.is_integer(operand.kind))
    if left.kind is None and right.kind is None:
        if operation is operator.truediv and not right.value:
            raise InputError("a number is divided by 0")
        return Operand(operation(left.value, right.value))
    function = _ON_COLUMNS[operation][0 if is_whole else 1]
    kind = pa.int64() if is_whole else pa.float64()
    return Operand(function(_cast(left, kind), _cast(right, kind)), kind)  # type: ignore[misc]


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _cast(operand: Operand, kind: pa.DataType) -> Any:
    """Return an operand as an expression of a type; Arrow fails on values that do not fit."""
    if operand.kind is None:
        return pc.scalar(pa.scalar(int(operand.value) if pa.types.is_integer(kind) else _float(operand.value, kind)))
    return operand.value if operand.kind == kind else operand.value.cast(kind)


def _scalar(value: Any, kind: pa.DataType) -> pa.Scalar:
    return pa.scalar(value, pa.float32() if pa.types.is_float16(kind) else kind)


def _nearest(literal: Operand, kind: pa.DataType) -> tuple[Any, int]:
    """Return the value of a column's type that is nearest to one in the text, and where that lies.

    Returns:
        The value, as `pa.scalar` takes it: the nearest float; of an exact type the next below, or else the least. And
        -1, 0 or 1: the one in the text is less, equal (as floats always count) or more.

    Raises:
        InputError: They cannot be compared.
    """
    value, is_temporal = literal.value, pa.types.is_temporal(kind)
    if isinstance(value, Fraction) and pa.types.is_floating(kind):
        return _float(value, kind), 0
    if isinstance(value, str) and is_temporal and not pa.types.is_duration(kind):
        number = _seconds(value, kind) * _PER_SECOND[str(kind) if pa.types.is_date(kind) else kind.unit]
    elif isinstance(value, Fraction) and (pa.types.is_integer(kind) or pa.types.is_decimal(kind)):
        number = value * Fraction(10) ** getattr(kind, "scale", 0)
    else:
        is_like = {bool: pa.types.is_boolean, str: is_text, bytes: is_binary}.get(type(value))
        if is_like is None or not is_like(kind):
            raise _unlike(kind, literal)
        if pa.types.is_fixed_size_binary(kind) and len(value) != kind.byte_width:
            cause = "the number of bytes differs from the column's"
            raise InputError(cause, found=str(len(value)), expected=str(kind.byte_width))
        return value, 0
    is_unsigned, is_decimal = pa.types.is_unsigned_integer(kind), pa.types.is_decimal(kind)
    top = 10**kind.precision - 1 if is_decimal else 2 ** (kind.bit_width - (not is_unsigned)) - 1
    bottom = 0 if is_unsigned else -top if is_decimal else -top - 1
    found = min(max(math.floor(number), bottom), top)
    return Decimal(f"{found}e{-kind.scale}") if is_decimal else found, (number > found) - (number < found)


def _seconds(text: str, kind: pa.DataType) -> Fraction:
    """Return the seconds since 1970, or midnight, of a string.

    Arrow parses all but the fractions of seconds: to nanoseconds, old versions turn far years into other ones.
    """
    is_zoned, is_time = getattr(kind, "tz", None) is not None, pa.types.is_time(kind)
    fraction, whole = _SUBSECONDS.search(text), ("1970-01-01T" if is_time else "") + _SUBSECONDS.sub("", text)
    try:
        seconds: int = pa.scalar(whole).cast(pa.timestamp("s", "UTC" if is_zoned else None)).value
    except pa.ArrowInvalid as error:
        example = "12:30:00" if is_time else "2024-02-29T12:30:00Z" if is_zoned else "2024-02-29"
        expected = f'a string such as "{example}"{", with a time zone (Z or +01:00)" if is_zoned else ""}'
        raise InputError(f"invalid string for type {kind}", found=repr(text[:40]), expected=expected) from error
    return seconds + Fraction(f"0{fraction[0]}" if fraction else 0)


def _float(number: Fraction, kind: pa.DataType) -> float:
    """Return the nearest float of a type."""
    try:
        with np.errstate(over="ignore", under="ignore"):
            nearest = float(np.dtype(f"f{kind.bit_width // 8}").type(float(number)))
    except OverflowError:
        nearest = math.inf
    if math.isinf(nearest) or (number and not nearest):
        raise InputError(f"a number is out of range for type {kind}")
    return nearest


def _unlike(kind: pa.DataType, other: Operand) -> InputError:
    """Return the error for a column and an operand that cannot be compared."""
    remedy = ""
    if other.kind is None and other.value is None:
        remedy = "write `is None` or `is not None`"
    elif pa.types.is_nested(kind):
        remedy = "compare a member of a struct, as column.member, or the length of a list, as len(column)"
    elif other.kind is None and pa.types.is_temporal(kind):
        remedy = "write dates and times as strings; durations cannot be compared with values"
    elif other.kind is None and is_binary(kind):
        remedy = 'write bytes as b"..."'
    return InputError(f"a column of type {kind} cannot be compared with {other}", remedy=remedy)
