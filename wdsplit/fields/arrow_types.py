"""Arrow types in a manifest: a readable text, and an Arrow schema for decoding values.

Pure (no I/O). Both depend only on the column's type, not on field metadata or registered extension types. Metadata is
not serialised, because its bytes differ between versions of pyarrow.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from wdsplit.errors import CorruptDataError
from wdsplit.fields.rules import is_list, is_tensor, unwrap, why_refused
from wdsplit.shards.manifest import Field
from wdsplit.shards.table import COPY_AGAIN

__all__ = ["decoded_type", "field_of", "map_children", "read_type", "serialize_type"]


def field_of(name: str, column: str, encoding: str, kind: pa.DataType, names: tuple[str, ...] = ()) -> Field:
    """Return the field that a manifest records for a column of a type; see `Field` for the arguments."""
    schema = serialize_type(decoded_type(kind, encoding)) if encoding else ""
    return Field(name, column, encoding, str(_without_registered(kind)), names, schema)


def serialize_type(kind: pa.DataType) -> str:
    """Return a type as base64 of an Arrow schema of one field (an IPC message), the same in all pyarrow versions."""
    return b64encode(pa.schema([pa.field("", kind)]).serialize()).decode()


def read_type(field: Field) -> pa.DataType:
    """Return the type that a field's values have once decoded: the inverse of `serialize_type`.

    Raises:
        CorruptDataError: The manifest has no such type.
    """
    try:
        (one,) = pa.ipc.read_schema(pa.py_buffer(b64decode(field.arrow_schema, validate=True)))
        if why_refused(one.type) or not _stored_type(one.type).equals(one.type):
            raise ValueError(f"values are never decoded to {one.type}")
    except (ValueError, OSError, EOFError, pa.ArrowException) as error:
        raise CorruptDataError(
            f"field {field.name!r} has an invalid Arrow schema in the manifest",
            expected="base64 of a serialised Arrow schema of one field",
            found=repr(field.arrow_schema[:60]),
            remedy=COPY_AGAIN,
        ) from error
    return one.type


def decoded_type(kind: pa.DataType, encoding: str) -> pa.DataType:
    """Return the type that the values of a column have once decoded.

    Dictionaries count as their values, extension types as their storage; tensors that are written as npy count as
    nested lists of their shape. A column of categories has numbers, and one of images or audio their bytes.
    """
    plain = unwrap(kind)
    if encoding == "category":
        return pa.int64()
    if encoding == "media":
        return plain.field("bytes").type
    if not (is_tensor(plain) and encoding == "npy"):
        return _stored_type(plain)
    array = plain.value_type
    for axis in reversed(plain.permutation or range(len(plain.shape))):
        array = pa.list_(array, plain.shape[axis])
    return array


def map_children(kind: pa.DataType, change: Callable[[pa.DataType], pa.DataType]) -> pa.DataType:
    """Return a list, struct or map with the types inside changed, and any other type as it is; metadata is dropped."""

    def changed(field: pa.Field) -> pa.Field:
        return field.with_type(change(field.type)).remove_metadata()

    if pa.types.is_struct(kind):
        return pa.struct([changed(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(changed(kind.key_field), changed(kind.item_field), keys_sorted=kind.keys_sorted)
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(changed(kind.value_field), kind.list_size)
    if is_list(kind):
        name = str(kind).partition("<")[0]
        make: Any = getattr(pa, "list_" if name == "list" else name)
        return make(changed(kind.value_field))
    return kind


def _stored_type(kind: pa.DataType) -> pa.DataType:
    kind = unwrap(kind)
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    return map_children(kind, _stored_type)


def _without_registered(kind: pa.DataType) -> pa.DataType:
    """Replace extension types defined in Python by their storage: other programs do not know them."""
    return map_children(kind.storage_type if isinstance(kind, pa.ExtensionType) else kind, _without_registered)
