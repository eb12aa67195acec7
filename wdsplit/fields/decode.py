"""Converts payloads back to Arrow columns: the inverse of `encode`.

Pure (no I/O). Slow, because it decodes value by value; the loader uses `loading.stages` instead.
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
from wdsplit.fields.arrow_types import read_type
from wdsplit.fields.rules import is_binary, is_list, is_text
from wdsplit.shards.manifest import Field

__all__ = ["decode_field"]


def decode_field(payloads: Sequence[bytes | None], field: Field) -> pa.Array:
    """Decode the payloads of a field into the column that it was made from.

    The result equals the original column, including nulls, with these exceptions:

    - Dictionaries become their values, extension types their storage, tensors nested lists of their shape.
    - Images and audio lose their path, and a column of categories in a field `cls` has numbers.
    - With `--null empty`, null strings and binary values become empty ones.

        dataset = wdsplit.Dataset("data/train", shuffle=False, tail="uneven")
        field = next(field for field in dataset.manifest.fields if field.name == "json")
        column = wdsplit.decode_field([sample.get("json") for sample in dataset], field)

    Args:
        payloads: The members' bytes; None where a sample lacks the field.
        field: The field, from the `fields` of a manifest.

    Returns:
        An array of the same length as `payloads`, with the type in the field's `arrow_schema`.

    Raises:
        CorruptDataError: A payload is invalid for the field's encoding, or the type of the field is invalid.
    """
    kind = read_type(field)
    decode = _DECODERS[field.encoding]
    may_be_empty = is_text(kind) or (is_binary(kind) and not pa.types.is_fixed_size_binary(kind))
    values: list[Any] = []
    for number, payload in enumerate(payloads):
        if payload is None or (not payload and not may_be_empty):
            values.append(None)
            continue
        try:
            value = decode(payload, kind)
            pa.array([value], kind)
        except (ValueError, TypeError, AttributeError, ArithmeticError, EOFError, pa.ArrowException) as error:
            raise CorruptDataError(
                f"a field {field.name!r} cannot be decoded",
                place=f"payload {number}",
                expected=f"what {field.encoding} writes for {field.type}",
                found=repr(payload[:60]),
                remedy="check the dataset with `wdsplit verify`",
            ) from error
        values.append(value)
    return pa.array(values, kind)


_DECODERS: dict[str, Callable[[bytes, pa.DataType], Any]] = {
    "bytes": lambda payload, kind: payload,
    "category": lambda payload, kind: int(payload),
    "integer": lambda payload, kind: bool(int(payload)) if pa.types.is_boolean(kind) else int(payload),
    "json": lambda payload, kind: _native(json.loads(payload), kind),
    "media": lambda payload, kind: payload,
    "npy": lambda payload, kind: np.load(io.BytesIO(payload), allow_pickle=False).tolist(),
    "text": lambda payload, kind: _native(payload.decode(), kind),
}


def _native(value: Any, kind: pa.DataType) -> Any:
    """Convert a JSON value to the value that Arrow expects: for dates and times, whole numbers of their unit."""
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
