"""The types of JSON, brought together: of the objects of a block, of blocks, and of files.

Pure (no I/O). A type is that of Arrow's parser, but strings stay strings. Integers that a double may not hold are noted
in the metadata of their field, so that they never become doubles.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["TwoTypesError", "described", "has_large_doubles", "joined_types", "reading_type"]

_MAX_SAFE = 2**53
_LARGE = {b"large": b""}
"""The metadata of a field with integers that a double may not hold."""


class TwoTypesError(ValueError):
    """Two types cannot be brought together."""

    def __init__(self, path: str, one: str, other: str) -> None:
        super().__init__(path, one, other)
        self.path, self.one, self.other = path, one, other


def joined_types(path: str, one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the type that values of two types have in common.

    Raises:
        TwoTypesError: There is none.
    """
    if pa.types.is_struct(one) and pa.types.is_struct(other):
        names = dict.fromkeys(field.name for kind in (one, other) for field in kind)
        return pa.struct([_joined_fields(path, name, one, other) for name in names])
    if pa.types.is_list(one) and pa.types.is_list(other):
        return pa.list_(_joined(f"{path}[]", one.value_field, other.value_field))
    if pa.types.is_null(one) or one == other:
        return other
    if pa.types.is_null(other):
        return one
    if {one, other} == {pa.int64(), pa.float64()}:
        return pa.float64()
    raise TwoTypesError(path, str(one), str(other))


def _joined_fields(path: str, name: str, one: pa.StructType, other: pa.StructType) -> pa.Field:
    fields = [kind.field(name) for kind in (one, other) if kind.get_field_index(name) >= 0]
    return fields[0] if len(fields) == 1 else _joined(f"{path}/{name}", *fields)


def _joined(path: str, one: pa.Field, other: pa.Field) -> pa.Field:
    kind = joined_types(path, one.type, other.type)
    is_large = any(field.metadata for field in (one, other))
    if is_large and kind == pa.float64():
        raise TwoTypesError(path, *(f"{field.type}{' over 2**53' if field.metadata else ''}" for field in (one, other)))
    return pa.field(one.name, kind, metadata=_LARGE if is_large else None)


def has_large_doubles(column: pa.Array) -> bool:
    """Tell whether a column holds doubles that integers may have been rounded to."""
    if pa.types.is_struct(column.type):
        return any(has_large_doubles(column.field(i)) for i in range(column.type.num_fields))
    if pa.types.is_list(column.type):
        return has_large_doubles(column.values)
    if not pa.types.is_floating(column.type):
        return False
    return bool(pc.any(pc.greater_equal(pc.abs(column), _MAX_SAFE), min_count=0).as_py())


def described(name: str, column: pa.Array, look: bool) -> pa.Field:
    """Return the field of a column; integers are noted that a double may not hold, if there may be some."""
    kind = column.type
    metadata = None
    if pa.types.is_struct(kind):
        kind = pa.struct([described(kind.field(i).name, column.field(i), look) for i in range(kind.num_fields)])
    elif pa.types.is_list(kind):
        kind = pa.list_(described("item", column.values, look))
    elif pa.types.is_timestamp(kind):
        kind = pa.string()
    elif look and pa.types.is_integer(kind):
        ends = [end for end in pc.min_max(column).as_py().values() if end is not None]
        metadata = _LARGE if any(abs(end) > _MAX_SAFE for end in ends) else None
    return pa.field(name, kind, metadata=metadata)


def reading_type(kind: pa.DataType) -> pa.DataType:
    """Return a type as files are read by it, without metadata.

    Lists of nothing but nulls are lists of strings: Arrow's parser makes arrays of them that are not valid.
    """
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, reading_type(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.string() if pa.types.is_null(kind.value_type) else reading_type(kind.value_type))
    return kind
