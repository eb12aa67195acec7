"""Common types of two types, as Arrow and Polars promote them, and casts to them.

Pure (no I/O). No cast loses a value silently: if a type cannot represent all values of another (int64 as float64,
microseconds as nanoseconds), the cast raises at the first value that would change.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from wdsplit.fields.arrow_types import map_children
from wdsplit.fields.json_values import type_without_views
from wdsplit.fields.rules import is_binary, is_list, is_text

__all__ = ["common_type", "joined_schema", "joined_type"]

_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}
"""Bits of an integer type to its decimal digits."""


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
    if pa.types.is_null(one) or pa.types.is_null(other):
        return other if pa.types.is_null(one) else one
    kinds = [_plain(one), _plain(other)]
    if _mixes(*kinds):
        return None
    if any(map(pa.types.is_decimal, kinds)):
        kinds = [pa.decimal128(_DIGITS[kind.bit_width]) if pa.types.is_integer(kind) else kind for kind in kinds]
    try:
        schemas = [pa.schema([pa.field("", kind)]) for kind in kinds]
        return pa.unify_schemas(schemas, promote_options="permissive").types[0]
    except pa.ArrowException:
        return None


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return what a type is joined as: without dictionaries and views; half floats hold too few integers."""
    if pa.types.is_dictionary(kind):
        return _plain(kind.value_type)
    if str(kind).startswith(("list_view<", "large_list_view<")):
        kind = (pa.list_ if str(kind).startswith("list_view<") else pa.large_list)(kind.value_field)
    return pa.float32() if pa.types.is_float16(kind) else map_children(type_without_views(kind), _plain)


def _mixes(one: pa.DataType, other: pa.DataType) -> bool:
    """Return whether Arrow would join strings with bytes, decimals with floats, or members of one name."""
    if any(pa.types.is_struct(kind) and len(_children(kind)) < kind.num_fields for kind in (one, other)):
        return True
    for first, second in ((one, other), (other, one)):
        if (is_text(first) and is_binary(second)) or (pa.types.is_decimal(first) and pa.types.is_floating(second)):
            return True
    inside = _children(other)
    return any(name in inside and _mixes(kind, inside[name]) for name, kind in _children(one).items())


def _children(kind: pa.DataType) -> dict[str, pa.DataType]:
    """Return the types inside a list, struct or map, by their names."""
    if pa.types.is_struct(kind):
        return {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
    if pa.types.is_map(kind):
        return {"key": kind.key_type, "item": kind.item_type}
    return {"": kind.value_type} if is_list(kind) else {}
