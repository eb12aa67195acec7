"""Common types of two types, as Arrow and Polars promote them, and casts to them.

Pure (no I/O). No cast loses a value silently: if a type cannot represent all values of another (int64 as float64,
microseconds as nanoseconds), the cast raises at the first value that would change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa

from wdsplit.fields.json_values import type_without_views
from wdsplit.fields.rules import is_binary, is_list, is_text

__all__ = ["common_type", "joined_schema", "joined_type"]

_MAX_DIGITS = 76
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
"""Bits of an integer type to its decimal digits."""
_UNITS = ("s", "ms", "us", "ns")


def common_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the common type to read two types as, or None if there is none.

    Timestamps must have the same zone, or none. Strings and bytes do not mix, nor booleans and numbers, nor decimals
    and floats. A type is only common if the installed pyarrow can cast to it.
    """
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    found = joined_type(one, other)
    try:
        for kind in (one, other):
            if found is not None:
                pa.nulls(1, kind).cast(type_without_views(found))
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError):
        return None
    return found


def joined_schema(schemas: Sequence[pa.Schema]) -> pa.Schema:
    """Return the columns of all schemas, without metadata, in the order of their first appearance.

    Raises:
        pa.ArrowTypeError: A column has two types without a common one.
    """
    fields: dict[str, pa.Field] = {}
    for schema in schemas:
        for one in schema.remove_metadata():
            before = fields.setdefault(one.name, one)
            kind = common_type(before.type, one.type)
            if kind is None:
                raise pa.ArrowTypeError(f"column {one.name!r}: {before.type} and {one.type}")
            fields[one.name] = before.with_type(kind)
    return pa.schema(list(fields.values()))


def joined_type(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the common type of two types, or None; unlike `common_type`, pyarrow may be unable to cast to it."""
    one, other = _values_type(one), _values_type(other)
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    for matches, join in _JOINS:
        if matches(one) and matches(other):
            return join(one, other)
    return None


def _values_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _is_exact(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal(kind))


def _joined_integers(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    signed = [kind for kind in (one, other) if pa.types.is_signed_integer(kind)]
    width = max(one.bit_width, other.bit_width)
    if len(signed) == 1:
        unsigned = other if signed[0] == one else one
        width = min(64, max(signed[0].bit_width, 2 * unsigned.bit_width))
    return getattr(pa, f"{'int' if signed else 'uint'}{width}")()


def _joined_numbers(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    kinds = (one, other)
    if all(map(pa.types.is_integer, kinds)):
        return _joined_integers(one, other)
    if all(map(pa.types.is_floating, kinds)):
        return max(kinds, key=lambda kind: kind.bit_width)
    whole, real = kinds if pa.types.is_integer(one) else (other, one)
    return pa.float32() if whole.bit_width <= 16 and real.bit_width <= 32 else pa.float64()


def _joined_decimals(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    digits = [
        (kind.precision, kind.scale) if pa.types.is_decimal(kind) else (_DIGITS[kind.bit_width], 0)
        for kind in (one, other)
    ]
    scale = max(after_point for _, after_point in digits)
    precision = max(total - after_point for total, after_point in digits) + scale
    if precision > _MAX_DIGITS:
        return None
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def _joined_units(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the type with the finer unit of two timestamps, times or durations."""
    unit = max(one.unit, other.unit, key=_UNITS.index)
    if pa.types.is_time(one):
        return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    if pa.types.is_duration(one):
        return pa.duration(unit)
    return pa.timestamp(unit, one.tz) if one.tz == other.tz else None


def _joined_lists(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    field = _joined_field(one.value_field, other.value_field)
    if field is None:
        return None
    sizes = [kind.list_size if pa.types.is_fixed_size_list(kind) else None for kind in (one, other)]
    if None not in sizes and sizes[0] == sizes[1]:
        return pa.list_(field, sizes[0])
    return (pa.large_list if any(map(pa.types.is_large_list, (one, other))) else pa.list_)(field)


def _joined_structs(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return the struct of all members, in the order of their first appearance."""
    parts = [{kind.field(i).name: kind.field(i) for i in range(kind.num_fields)} for kind in (one, other)]
    if any(len(part) < kind.num_fields for part, kind in zip(parts, (one, other), strict=True)):
        return None
    fields = []
    for name in parts[0] | parts[1]:
        fields.append(_joined_field(*(part.get(name, pa.field(name, pa.null())) for part in parts)))
    return None if any(field is None for field in fields) else pa.struct(fields)


def _joined_maps(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    key, item = _joined_field(one.key_field, other.key_field), _joined_field(one.item_field, other.item_field)
    return None if key is None or item is None else pa.map_(key.with_nullable(False), item)


def _joined_field(one: pa.Field, other: pa.Field) -> pa.Field | None:
    kind = joined_type(one.type, other.type)
    return None if kind is None else pa.field(one.name, kind)


_JOINS: tuple[
    tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, pa.DataType], pa.DataType | None]],
    ...,
] = (
    (_is_number, _joined_numbers),
    (_is_exact, _joined_decimals),
    (is_text, lambda *_: pa.large_string()),
    (is_binary, lambda *_: pa.large_binary()),
    (pa.types.is_date, lambda *_: pa.date64()),
    (pa.types.is_timestamp, _joined_units),
    (pa.types.is_time, _joined_units),
    (pa.types.is_duration, _joined_units),
    (is_list, _joined_lists),
    (pa.types.is_struct, _joined_structs),
    (pa.types.is_map, _joined_maps),
)
"""Functions that test a type, and functions that return the common type of two such types; the first match decides."""
