"""From columns to fields: which encoding a column takes, and the payloads of a whole batch at once.

Pure (no I/O). Each encoding turns an Arrow array into a large_binary array of payloads, null where the member is left
out. What has no encoding is refused by name before any work begins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.errors import InputError
from wdsplit.keys import Where
from wdsplit.manifest import Field
from wdsplit.sample import check_field

__all__ = ["NULLS", "Null", "encode_batch", "infer_fields", "media_bytes", "needs_sniff", "sniff"]

Null = Literal["error", "omit", "empty"]
NULLS: tuple[Null, ...] = ("error", "omit", "empty")

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

_MAGIC = (
    (re.compile(rb"\xff\xd8\xff"), "jpg"),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "png"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "webp"),
    (re.compile(rb"GIF8[79]a"), "gif"),
    (re.compile(rb"II\*\0|MM\0\*"), "tiff"),
    (re.compile(rb"fLaC"), "flac"),
    (re.compile(rb"RIFF....WAVE", re.DOTALL), "wav"),
    (re.compile(rb"OggS"), "ogg"),
    (re.compile(rb"ID3|\xff[\xfb\xf3\xf2]"), "mp3"),
    (re.compile(rb"....ftyp", re.DOTALL), "mp4"),
    (re.compile(rb"\x93NUMPY"), "npy"),
    (re.compile(rb"%PDF-"), "pdf"),
)


def sniff(payload: bytes) -> str | None:
    """Return the field name that the first bytes of a payload call for, or None if they are not known."""
    for pattern, name in _MAGIC:
        if pattern.match(payload):
            return name
    return None


def _is_binary(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_media(kind: pa.DataType) -> bool:
    """Tell whether a column holds what Hugging Face writes for images and audio: structs of bytes and path."""
    if not pa.types.is_struct(kind):
        return False
    children = {kind.field(i).name: kind.field(i).type for i in range(kind.num_fields)}
    return "bytes" in children and _is_binary(children["bytes"]) and children.keys() <= {"bytes", "path"}


def _is_json(kind: pa.DataType) -> bool:
    """Tell whether JSON can carry every value of a type and bring it back."""
    if pa.types.is_struct(kind):
        names = {kind.field(i).name for i in range(kind.num_fields)}
        return len(names) == kind.num_fields and all(_is_json(kind.field(i).type) for i in range(kind.num_fields))
    if _is_list(kind):
        return _is_json(kind.value_type)
    scalar = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind) or _is_text(kind)
    return bool(scalar or pa.types.is_null(kind))


def _encoding_of(kind: pa.DataType) -> str | None:
    """Return the encoding that a column of a type takes by itself, or None if there is none."""
    if pa.types.is_dictionary(kind):
        return _encoding_of(kind.value_type)
    if _is_binary(kind):
        return "bytes"
    if _is_media(kind):
        return "media"
    if _is_text(kind):
        return "text"
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return "integer"
    if _is_list(kind) and (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)):
        return "npy"
    return "json" if _is_json(kind) and not pa.types.is_null(kind) else None


_FIELD_OF = {"text": "txt", "integer": "cls", "npy": "npy", "json": "json"}
_ENCODINGS_FOR = {
    "cls": ("integer", "text", "bytes"),
    "json": ("json", "text", "bytes"),
    "npy": ("npy", "bytes"),
    "txt": ("text", "integer", "json", "bytes"),
    **{name: ("bytes", "media") for _, name in _MAGIC if name != "npy"},
}
"""What a field of a known name may hold; any other field may hold anything."""


def needs_sniff(kind: pa.DataType) -> bool:
    """Tell whether a column's field name depends on its first bytes."""
    return _encoding_of(kind) in ("bytes", "media")


def infer_fields(
    schema: pa.Schema,
    mapping: Mapping[str, str],
    key: str | None,
    first_bytes: Mapping[str, bytes | None],
) -> tuple[Field, ...]:
    """Decide the fields of a table's samples.

    Args:
        schema: The table's schema.
        mapping: Field name to column name; if empty, every column but the key becomes a field.
        key: The key column, if any.
        first_bytes: For each binary column the first payload that is not null.

    Returns:
        The fields, in the order of the mapping, else of the columns.

    Raises:
        InputError: A column is missing, has no encoding, or two fields would have one name. All problems are named.
    """
    problems = [
        f"column {name!r} is not in the table (it has: {', '.join(schema.names)})"
        for name in [*mapping.values(), *([key] if key else [])]
        if name not in schema.names
    ]
    problems += [f"column {name!r} stands {schema.names.count(name)} times" for name in _repeated(schema.names)]
    columns = [] if problems else list(mapping.values()) or [name for name in schema.names if name != key]
    if not columns and not problems:
        problems.append("the table has no column but the key")
    for name in columns:
        kind = schema.field(name).type
        if _encoding_of(kind) is None:
            problems.append(f"column {name!r} has the type {kind}, which no encoding can carry")
    if problems:
        raise _unusable(problems)
    names = list(mapping) or _inferred_names(schema, columns, first_bytes)
    fields = []
    for name, column in zip(names, columns, strict=True):
        kind = schema.field(column).type
        try:
            check_field(name)
        except InputError as error:
            problems.append(f"{error.cause} (expected {error.expected})")
        encoding = _encoding_for(name, kind)
        if encoding is None:
            problems.append(f"column {column!r} of type {kind} cannot be written as a field {name!r}")
        fields.append(Field(name, column, encoding or "", str(kind)))
    problems += [f"field {name!r} would be written {names.count(name)} times" for name in _repeated(names)]
    if problems:
        raise _unusable(problems)
    return tuple(fields)


def _unusable(problems: Sequence[str]) -> InputError:
    return InputError(
        "the table's columns cannot be used as they are",
        found="; ".join(problems),
        remedy="choose the key with --key COLUMN, and columns and their names with --map EXT=COLUMN (repeatable), "
        "such as --map jpg=image --map cls=label",
    )


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted({name for name in names if names.count(name) > 1})


def _encoding_for(field: str, kind: pa.DataType) -> str | None:
    """Return the encoding of a column that goes to a field of this name, or None if the two do not fit."""
    encoding = _encoding_of(kind)
    extension = field.rpartition(".")[2]
    if extension == "json" and encoding in ("integer", "npy") and _is_json(kind):
        return "json"
    allowed = _ENCODINGS_FOR.get(extension)
    return encoding if allowed is None or encoding in allowed else None


def _inferred_names(schema: pa.Schema, columns: list[str], first_bytes: Mapping[str, bytes | None]) -> list[str]:
    """Name the fields by their encodings; where two would have one name, put the column's name before it."""
    extensions = []
    for column in columns:
        encoding = _encoding_of(schema.field(column).type) or ""
        payload = first_bytes.get(column)
        extensions.append(_FIELD_OF.get(encoding) or (sniff(payload) if payload else None) or "bin")
    names = []
    for column, extension in zip(columns, extensions, strict=True):
        prefix = re.sub(r"[^a-z0-9_-]", "_", column.lower())
        names.append(extension if extensions.count(extension) == 1 else f"{prefix}.{extension}")
    return names


def media_bytes(column: pa.StructArray) -> pa.Array:
    """Return the bytes of a column of structs of bytes and path; null where struct or bytes are."""
    return pc.struct_field(column, "bytes")


def encode_batch(
    columns: Mapping[str, pa.Array], fields: Sequence[Field], null: Null, where: Where
) -> dict[str, pa.LargeBinaryArray]:
    """Encode a batch of rows.

    Args:
        columns: Column name to array; all of one length.
        fields: The fields to make.
        null: What a null value becomes: an error, no member (`omit`) or a member of no bytes (`empty`).
        where: Names a row in an error.

    Returns:
        Field name to payloads; null where a sample lacks the field.

    Raises:
        InputError: A value is null and must not be, or cannot be encoded.
    """
    encoded: dict[str, pa.LargeBinaryArray] = {}
    for field in fields:
        column = columns[field.column]
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()

        def locate(row: int, name: str = field.column) -> str:
            return f"{where(row)}, column {name!r}"

        payload = _ENCODERS[field.encoding](column, locate)
        if payload.null_count:
            payload = _treat_nulls(payload, null, locate)
        encoded[field.name] = payload
    _check_not_bare(encoded, where)
    return encoded


def _treat_nulls(payload: pa.LargeBinaryArray, null: Null, where: Where) -> pa.LargeBinaryArray:
    if null == "omit":
        return payload
    if null == "empty":
        return pc.fill_null(payload, b"")
    raise InputError(
        "a value is null",
        place=where(_first_null(payload)),
        expected="a value",
        remedy="--null omit leaves the member out, --null empty writes it with no bytes; or filter the table",
    )


def _first_null(array: pa.Array) -> int:
    return int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])


def _check_not_bare(encoded: Mapping[str, pa.LargeBinaryArray], where: Where) -> None:
    """Refuse a sample whose every member is left out: it would vanish from the tar."""
    arrays = list(encoded.values())
    if not arrays or not all(array.null_count for array in arrays):
        return
    bare = np.logical_and.reduce([array.is_null().to_numpy(zero_copy_only=False) for array in arrays])
    if bare.any():
        raise InputError(
            "every value of a row is null",
            place=where(int(bare.argmax())),
            expected="at least one value",
            remedy="filter such rows out, or use --null empty",
        )


def _encode_bytes(column: pa.Array, where: Where) -> pa.LargeBinaryArray:
    return column.cast(pa.large_binary())


def _encode_media(column: pa.Array, where: Where) -> pa.LargeBinaryArray:
    payload = media_bytes(column).cast(pa.large_binary())
    hollow = pc.and_(payload.is_null(), column.is_valid()).to_numpy(zero_copy_only=False)
    if hollow.any():
        row = int(hollow.argmax())
        raise InputError(
            "an image or audio value has a path but no bytes",
            place=where(row),
            expected="the bytes of the file",
            found=str(column[row].as_py()),
            remedy="embed the files in the table",
        )
    return payload


def _encode_text(column: pa.Array, where: Where) -> pa.LargeBinaryArray:
    return column.cast(pa.large_string()).cast(pa.large_binary())


def _encode_integer(column: pa.Array, where: Where) -> pa.LargeBinaryArray:
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return column.cast(pa.large_string()).cast(pa.large_binary())


def _encode_json(column: pa.Array, where: Where) -> pa.LargeBinaryArray:
    """Encode values as JSON; NaN and the infinities become NaN, Infinity and -Infinity, as Python's json reads them."""
    values = [None if value is None else _JSON.encode(value).encode() for value in column.to_pylist()]
    return pa.array(values, pa.large_binary())


def _encode_npy(column: pa.Array, where: Where) -> pa.LargeBinaryArray:
    """Encode lists of numbers as npy arrays of one dimension, each the header of its length and then its numbers."""
    lengths = np.asarray(pc.fill_null(pc.list_value_length(column), 0), np.int64)
    values = column.flatten()
    if values.null_count:
        owner = np.repeat(np.arange(len(lengths)), lengths)
        raise InputError(
            "a list of numbers holds a null",
            place=where(int(owner[_first_null(values)])),
            expected="numbers only, to be written as npy",
            remedy="fill the nulls in the table, or leave the column out",
        )
    numbers = np.ascontiguousarray(values.to_numpy(zero_copy_only=False))
    numbers = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths * numbers.itemsize, out=offsets[1:])
    data = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(lengths), [None, pa.py_buffer(offsets), pa.py_buffer(numbers)]
    )
    distinct, number = np.unique(lengths, return_inverse=True)
    headers = pa.array([_npy_header(numbers.dtype, int(n)) for n in distinct], pa.large_binary())
    joined = pc.binary_join_element_wise(headers.take(pa.array(number)), data, pa.scalar(b"", pa.large_binary()))
    if not column.null_count:
        return joined
    return pc.if_else(column.is_valid(), joined, pa.scalar(None, pa.large_binary()))


def _npy_header(dtype: np.dtype[np.generic], length: int) -> bytes:
    """Return the npy 1.0 header of a vector (format: numpy.lib.format), the same with every version of numpy."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': ({length},), }}"
    fill = -(10 + len(text) + 1) % 64
    body = text + " " * fill + "\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body.encode("latin-1")


_ENCODERS: dict[str, Callable[[pa.Array, Where], pa.LargeBinaryArray]] = {
    "bytes": _encode_bytes,
    "integer": _encode_integer,
    "json": _encode_json,
    "media": _encode_media,
    "npy": _encode_npy,
    "text": _encode_text,
}
