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
from wdsplit.fields.rules import is_binary, is_text, unwrap

__all__ = ["Literal", "Values", "compare", "compute", "is_among", "join", "values_of"]

_MAX_CHAIN = 16
"""Up to this many items, `in` becomes a chain of `==`, for which every version of pyarrow uses statistics."""

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_FOLD: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
_ON_INTEGERS = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}
_ON_FLOATS = {"+": pc.add, "-": pc.subtract, "*": pc.multiply, "/": pc.divide}
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_SUBSECONDS = re.compile(r"(?<=:[0-5]\d:[0-5]\d)\.\d{1,18}(?=$|[Z+-])", re.ASCII)


@dataclass(frozen=True)
class Literal:
    """A value in the text: a Fraction, str, bytes, bool or None."""

    value: Any

    def __str__(self) -> str:
        names = {Fraction: "a number", str: "a string", bytes: "bytes", bool: "True or False"}
        return names.get(type(self.value), "None")


@dataclass(frozen=True, eq=False)
class Values:
    """Values that are computed for each row.

    Attributes:
        expression: The Arrow expression; half floats are cast to float, because Arrow cannot compare them.
        kind: Its type; never a dictionary, extension type, view, or decimal of less than 128 bits.
    """

    expression: Any
    kind: pa.DataType


@dataclass(frozen=True)
class _Grid:
    """The values of an exact type: integers from low to high, in units of 1 / `per_unit` (of a number or a second)."""

    per_unit: Fraction
    low: int
    high: int


def values_of(reference: Any, kind: pa.DataType) -> Values:
    """Return a column, or a member of one, as values to compare; cast only where Arrow needs that."""
    plain = unwrap(kind)
    if str(plain) in ("string_view", "binary_view"):
        plain = pa.large_string() if is_text(plain) else pa.large_binary()
    elif pa.types.is_decimal(plain) and plain.bit_width < 128:
        plain = pa.decimal128(plain.precision, plain.scale)
    computed = _computed(plain)
    return Values(reference if computed == kind else reference.cast(computed), plain)


def join(operation: Callable[[Any, Any], Any], conditions: Sequence[Any]) -> Any:
    """Join one or more conditions as a balanced tree."""
    half = len(conditions) // 2
    if not half:
        return conditions[0]
    return operation(join(operation, conditions[:half]), join(operation, conditions[half:]))


def compare(left: Literal | Values, name: str, right: Literal | Values) -> Any:
    """Return the condition that compares two operands; it is null where one of them is null.

    Args:
        left: The left operand.
        name: `<`, `<=`, `>`, `>=`, `==` or `!=`.
        right: The right operand.

    Raises:
        InputError: They cannot be compared.
    """
    if isinstance(left, Literal):
        if isinstance(right, Literal):
            raise InputError(
                "the comparison has two values and no column",
                remedy='write the name of a column without quotes, or as column("...")',
            )
        return compare(right, _MIRRORED.get(name, name), left)
    if isinstance(right, Values):
        kind = _common_type(left.kind, right.kind)
        if kind is None:
            raise _unlike(left.kind, f"a column of type {right.kind}")
        return _COMPARE[name](_cast(left, kind), _cast(right, kind))
    if isinstance(right.value, bool) and name not in ("==", "!="):
        raise InputError("True and False have no order", found=name, expected="`==` or `!=`")
    grid = _grid_of(left.kind)
    if grid is None:
        return _COMPARE[name](left.expression, _scalar(right, left.kind))
    return _compare_exact(left, name, _number(right, left.kind) * grid.per_unit, grid)


def _compare_exact(values: Values, name: str, number: Fraction, grid: _Grid) -> Any:
    """Compare with a number that may lie between two values of the type, or out of its range."""
    if name in ("==", "!=") and (number.denominator > 1 or not grid.low <= number <= grid.high):
        name, number = "<" if name == "==" else ">=", Fraction(grid.low)  # the same for all values, but null for null
    below = math.floor(number)
    if below < number or below > grid.high:
        name = {"<": "<=", ">=": ">"}.get(name, name)
    if below < grid.low:
        name = {"<=": "<", ">": ">="}.get(name, name)
    return _COMPARE[name](values.expression, _exact_scalar(min(max(below, grid.low), grid.high), values.kind))


def is_among(values: Values, items: Sequence[Literal]) -> Any:
    """Return the condition that a value equals one of some literals; it is null where the value is null.

    Raises:
        InputError: An item cannot be compared with the values.
    """
    equal = [compare(values, "==", item) for item in items[:_MAX_CHAIN]]
    if len(items) <= _MAX_CHAIN:
        return join(operator.or_, equal)
    grid = _grid_of(values.kind)
    if grid is None:
        found = [_scalar(item, values.kind).as_py() for item in items]
        if 0 in found and pa.types.is_floating(values.kind):
            found += [0.0, -0.0]  # `is_in` distinguishes them
    else:
        numbers = [_number(item, values.kind) * grid.per_unit for item in items]
        whole = [int(number) for number in numbers if number.denominator == 1 and grid.low <= number <= grid.high]
        found = [_exact_scalar(number, values.kind).as_py() for number in whole]
    # The first `==` makes the condition null where the value is null.
    return equal[0] | values.expression.isin(pa.array(found, _computed(values.kind)))


def compute(left: Literal | Values, name: str, right: Literal | Values) -> Literal | Values:
    """Return the sum, difference, product or quotient of two operands: exact for literals, else int64 or float64.

    Raises:
        InputError: An operand is not a number, or a literal does not fit.
    """
    for operand in (left, right):
        number = isinstance(operand.value, Fraction) if isinstance(operand, Literal) else _is_number(operand.kind)
        if not number:
            what = operand if isinstance(operand, Literal) else f"a column of type {operand.kind}"
            raise InputError("arithmetic needs numbers", expected="integers or floats", found=str(what))
    if isinstance(left, Literal) and isinstance(right, Literal):
        if name == "/" and not right.value:
            raise InputError("a number is divided by 0")
        return Literal(_FOLD[name](left.value, right.value))
    whole = name != "/" and all(_is_whole(operand) for operand in (left, right))
    kind = pa.int64() if whole else pa.float64()
    function = (_ON_INTEGERS if whole else _ON_FLOATS)[name]
    return Values(function(*(_cast(operand, kind) for operand in (left, right))), kind)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_whole(operand: Literal | Values) -> bool:
    if isinstance(operand, Values):
        return bool(pa.types.is_integer(operand.kind))
    return bool(operand.value.denominator == 1) and -(2**63) <= operand.value < 2**63


def _computed(kind: pa.DataType) -> pa.DataType:
    """Return the type in which Arrow compares values of a type."""
    return pa.float32() if pa.types.is_float16(kind) else kind


def _cast(operand: Literal | Values, kind: pa.DataType) -> Any:
    """Return an operand as an expression of a type; Arrow fails on values that do not fit."""
    if isinstance(operand, Literal):
        return pc.scalar(pa.scalar(int(operand.value), kind) if pa.types.is_integer(kind) else _scalar(operand, kind))
    return operand.expression if operand.kind == kind else operand.expression.cast(kind)


def _common_type(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type in which two columns are compared without loss, or None."""
    kinds = (left, right)
    if left == right and not pa.types.is_float16(left):
        known = (is_text, is_binary, _is_number, pa.types.is_decimal, pa.types.is_boolean, pa.types.is_temporal)
        return left if any(is_known(left) for is_known in known) else None
    if all(map(is_text, kinds)):
        return pa.large_string()
    if all(map(is_binary, kinds)):
        return pa.large_binary()
    if all(map(_is_number, kinds)) and any(map(pa.types.is_floating, kinds)):
        return pa.float64()
    if not all(pa.types.is_integer(kind) or pa.types.is_decimal(kind) for kind in kinds):
        return None
    if not any(pa.types.is_decimal(kind) or pa.types.is_uint64(kind) for kind in kinds):
        return pa.int64()
    digits = [(kind.precision, kind.scale) if pa.types.is_decimal(kind) else (20, 0) for kind in kinds]
    scale = max(scale for _, scale in digits)
    precision = max(precision - its for precision, its in digits) + scale
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(min(precision, 76), scale)


def _grid_of(kind: pa.DataType) -> _Grid | None:
    """Return the grid of an exact type, or None for other types."""
    if pa.types.is_decimal(kind):
        top = 10**kind.precision - 1
        return _Grid(Fraction(10) ** kind.scale, -top, top)
    if pa.types.is_timestamp(kind) or pa.types.is_time(kind):
        per_unit = Fraction(_PER_SECOND[kind.unit])
    elif pa.types.is_date(kind):
        per_unit = Fraction(1, 86_400) if pa.types.is_date32(kind) else Fraction(1000)
    elif pa.types.is_integer(kind):
        per_unit = Fraction(1)
    else:
        return None
    signed = not pa.types.is_unsigned_integer(kind)
    half = 2 ** (kind.bit_width - 1)
    return _Grid(per_unit, -half if signed else 0, half - 1 if signed else 2 * half - 1)


def _exact_scalar(number: int, kind: pa.DataType) -> pa.Scalar:
    if not pa.types.is_decimal(kind):
        return pa.scalar(number, kind)
    return pa.scalar(Decimal((int(number < 0), tuple(map(int, str(abs(number)))), -kind.scale)), kind)


def _number(literal: Literal, kind: pa.DataType) -> Fraction:
    """Return a literal as a number of an exact type; for dates and times, seconds since 1970 or midnight."""
    if isinstance(literal.value, str) and pa.types.is_temporal(kind):
        return _seconds(literal.value, kind)
    if isinstance(literal.value, Fraction) and not pa.types.is_temporal(kind):
        return literal.value
    raise _unlike(kind, str(literal), literal)


def _scalar(literal: Literal, kind: pa.DataType) -> pa.Scalar:
    """Return a literal as a value of an inexact type."""
    value = literal.value
    if isinstance(value, Fraction) and pa.types.is_floating(kind):
        return _float_scalar(value, kind)
    fits = {bool: pa.types.is_boolean, str: is_text, bytes: is_binary}.get(type(value))
    if fits is None or not fits(kind):
        raise _unlike(kind, str(literal), literal)
    if pa.types.is_fixed_size_binary(kind) and len(value) != kind.byte_width:
        raise InputError(
            "the number of bytes differs from the column's", found=str(len(value)), expected=str(kind.byte_width)
        )
    return pa.scalar(value, kind)


def _float_scalar(number: Fraction, kind: pa.DataType) -> pa.Scalar:
    """Return the nearest float of a type."""
    dtype = np.dtype(f"f{kind.bit_width // 8}")
    try:
        with np.errstate(over="ignore", under="ignore"):
            value = float(dtype.type(float(number)))
    except OverflowError:
        value = math.inf
    if math.isinf(value) or (number and not value):
        limits = np.finfo(dtype)
        raise InputError(
            f"a number is out of range for type {kind}",
            expected=f"0, or a magnitude from {limits.smallest_subnormal} to {limits.max}",
        )
    return pa.scalar(value, _computed(kind))


def _seconds(text: str, kind: pa.DataType) -> Fraction:
    """Return the seconds since 1970, or midnight, of a string; Arrow parses all but the fractions of seconds."""
    zoned, timed = pa.types.is_timestamp(kind) and kind.tz is not None, pa.types.is_time(kind)
    fraction = _SUBSECONDS.search(text)
    whole = ("1970-01-01T" if timed else "") + _SUBSECONDS.sub("", text)
    try:
        seconds: int = pa.scalar(whole).cast(pa.timestamp("s", "UTC" if zoned else None)).value
    except pa.ArrowInvalid as error:
        example = "12:30:00" if timed else "2024-02-29T12:30:00Z" if zoned else "2024-02-29"
        zone = " with a time zone (Z or +01:00)" if zoned else ""
        raise InputError(
            f"invalid string for type {kind}",
            found=repr(text[:40]),
            expected=f'a string such as "{example}"{zone}',
        ) from error
    return seconds + Fraction(f"0{fraction[0]}" if fraction else 0)


def _unlike(kind: pa.DataType, what: str, literal: Literal | None = None) -> InputError:
    """Return the error for a column and a value that cannot be compared."""
    remedy = ""
    if literal is not None and literal.value is None:
        remedy = "write `is None` or `is not None`"
    elif pa.types.is_nested(kind):
        remedy = "compare a member of a struct, as column.member, or the length of a list, as len(column)"
    elif literal is not None and pa.types.is_temporal(kind):
        remedy = "write dates and times as strings; durations cannot be compared with values"
    elif literal is not None and is_binary(kind):
        remedy = 'write bytes as b"..."'
    return InputError(f"a column of type {kind} cannot be compared with {what}", remedy=remedy)
