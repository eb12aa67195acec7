"""From payloads back to columns: the inverse of `encode`, by which a dataset gives back the table it was made of.

Pure (no I/O). It is there so that "every type comes back" is a statement that can be tested, and for those who want an
Arrow column again. It goes value by value: training reads samples, not this.
"""

from __future__ import annotations

import io
import json
from base64 import b64decode
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from wdsplit.errors import CorruptDataError
from wdsplit.fields.arrow_types import list_type, parse_type
from wdsplit.fields.rules import is_binary, is_list, is_tensor, is_text, unwrap
from wdsplit.shards.manifest import Field

__all__ = ["decode_field", "value_type"]


def decode_field(payloads: Sequence[bytes | None], field: Field) -> pa.Array:
    """Decode the payloads of a field into the column that it was made of.

    Equal to the original column, value for value and null for null, with these exceptions. Dictionaries come as their
    values and extension types as their storage. Images and audio come without their path. With `--null empty` nulls
    come back too, but for text and bytes, where a member of no bytes is an empty value; a column of class names
    comes back as those names.

    Args:
        payloads: The members' bytes, None where a sample lacks the field.
        field: The field, as the manifest has it.

    Returns:
        Array of the type `value_type(field)`.

    Raises:
        CorruptDataError: A payload is not what the field's encoding writes.
    """
    kind = value_type(field)
    decode = _DECODERS[field.encoding]
    original = parse_type(field.type)
    may_be_empty = is_text(kind) or (is_binary(kind) and not pa.types.is_fixed_size_binary(kind))
    values: list[Any] = []
    for number, payload in enumerate(payloads):
        if payload is None or (not payload and not may_be_empty):
            values.append(None)
            continue
        try:
            value = decode(payload, original, kind)
            pa.array([value], kind)
        except (ValueError, TypeError, AttributeError, ArithmeticError, EOFError, pa.ArrowException) as error:
            raise CorruptDataError(
                f"a field {field.name!r} cannot be decoded",
                place=f"payload {number}",
                expected=f"what {field.encoding} writes for {field.type}",
                found=repr(payload[:60]),
                remedy="verify the dataset with wdsplit verify",
            ) from error
        values.append(value)
    return pa.array(values, kind)


def value_type(field: Field) -> pa.DataType:
    """Return the type that a field's values have once decoded: dictionaries and extension types looked through."""
    kind = _stored_type(parse_type(field.type))
    if field.encoding == "class":
        return pa.string()
    if field.encoding == "media":
        return kind.field("bytes").type
    return kind


def _stored_type(kind: pa.DataType) -> pa.DataType:
    """Return a type with the dictionaries and extension types in it looked through."""
    kind = unwrap(kind)
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_struct(kind):
        return pa.struct([_stored_field(kind.field(i)) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        return pa.map_(_stored_field(kind.key_field), _stored_field(kind.item_field), keys_sorted=kind.keys_sorted)
    if not is_list(kind):
        return kind
    size = kind.list_size if pa.types.is_fixed_size_list(kind) else -1
    return list_type(str(kind).partition("<")[0], _stored_field(kind.value_field), size)


def _stored_field(field: pa.Field) -> pa.Field:
    return field.with_type(_stored_type(field.type))


def _decode_bytes(payload: bytes, original: pa.DataType, kind: pa.DataType) -> bytes:
    return payload


def _decode_text(payload: bytes, original: pa.DataType, kind: pa.DataType) -> Any:
    return _native(payload.decode(), kind)


def _decode_integer(payload: bytes, original: pa.DataType, kind: pa.DataType) -> Any:
    return bool(int(payload)) if pa.types.is_boolean(kind) else int(payload)


def _decode_json(payload: bytes, original: pa.DataType, kind: pa.DataType) -> Any:
    return _native(json.loads(payload), kind)


def _decode_npy(payload: bytes, original: pa.DataType, kind: pa.DataType) -> Any:
    array = np.load(io.BytesIO(payload), allow_pickle=False)
    original = unwrap(original)
    if is_tensor(original):
        array = array.transpose(np.argsort(original.permutation or range(array.ndim))).ravel()
    return array.tolist()


_DECODERS: dict[str, Callable[[bytes, pa.DataType, pa.DataType], Any]] = {
    "bytes": _decode_bytes,
    "class": _decode_text,
    "integer": _decode_integer,
    "json": _decode_json,
    "media": _decode_bytes,
    "npy": _decode_npy,
    "text": _decode_text,
}


def _native(value: Any, kind: pa.DataType) -> Any:
    """Turn what JSON has for a value into what Arrow builds it from: whole numbers of its unit for dates and times."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        children = [kind.field(i) for i in range(kind.num_fields)]
        if value.keys() != {child.name for child in children}:
            raise ValueError("other fields than the struct's")
        return {child.name: _native(value[child.name], child.type) for child in children}
    if pa.types.is_map(kind):
        return [(_native(key, kind.key_type), _native(item, kind.item_type)) for key, item in value]
    if is_list(kind):
        if not isinstance(value, list):
            raise TypeError("not a list")
        return [_native(item, kind.value_type) for item in value]
    if is_binary(kind):
        return b64decode(value, validate=True)
    if pa.types.is_decimal(kind):
        return Decimal(value)
    if pa.types.is_duration(kind):
        return int(value)
    if pa.types.is_date32(kind):
        return int(np.datetime64(value, "D").astype(np.int64))
    if pa.types.is_temporal(kind):
        text = f"1970-01-01T{value}" if pa.types.is_time(kind) else value.removesuffix("Z")
        return int(np.datetime64(text, getattr(kind, "unit", "ms")).astype(np.int64))
    return value
