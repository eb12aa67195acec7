"""Common types of two types, as Arrow and Polars promote them, and casts to them.

Pure (no I/O). No cast loses a value silently: if a type cannot represent all values of another (int64 as float64,
microseconds as nanoseconds), the cast raises at the first value that would change.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from wdsplit.fields.json_values import type_without_views
from wdsplit.fields.rules import is_binary, is_list

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
    one, other = (kind.value_type if pa.types.is_dictionary(kind) else kind for kind in (one, other))
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    for matches, join in _NESTED:
        if matches(one) or matches(other):
            return join(one, other) if matches(one) and matches(other) else None
    return _joined_scalars([one, other])


def _joined_scalars(kinds: Sequence[pa.DataType]) -> pa.DataType | None:
    """Return the common type of Arrow, where it holds all values of both."""
    if any(map(pa.types.is_decimal, kinds)):  # Arrow reads decimals beside floats as floats
        if any(map(pa.types.is_floating, kinds)):
            return None
        kinds = [pa.decimal128(_DIGITS[kind.bit_width]) if pa.types.is_integer(kind) else kind for kind in kinds]
    if any(map(is_binary, kinds)):  # and strings beside bytes as bytes
        return pa.large_binary() if all(map(is_binary, kinds)) else None
    # Half floats hold few integers, and Arrow joins no views.
    kinds = [pa.float32() if pa.types.is_float16(kind) else type_without_views(kind) for kind in kinds]
    try:
        return pa.unify_schemas([pa.schema([("", kind)]) for kind in kinds], promote_options="permissive").types[0]
    except pa.ArrowException:
        return None


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


_NESTED = ((is_list, _joined_lists), (pa.types.is_struct, _joined_structs), (pa.types.is_map, _joined_maps))
"""Functions that test a type, and functions that return the common type of two such types."""
