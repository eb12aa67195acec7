"""Encodes Arrow columns as the members of samples, a batch at a time.

Pure (no I/O). Each encoding converts an Arrow array to a large_binary array of payloads, null where the member is left
out. `infer` chooses the encoding of a column; `decode` is the inverse.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.errors import InputError
from wdsplit.fields.json_values import first_true, json_text, json_values, scalar_text, stored
from wdsplit.fields.keys import Locate, in_column
from wdsplit.fields.nulls import Null
from wdsplit.fields.rules import is_list, is_tensor, is_text
from wdsplit.shards.manifest import Field
from wdsplit.tar.headers import large_binary

__all__ = ["encode_batch", "npy_header", "utf8_text"]

_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_LARGE_BINARY = pa.large_binary()


def encode_batch(
    columns: Mapping[str, pa.Array], fields: Sequence[Field], null: Null, where: Locate, may_be_empty: bool = False
) -> dict[str, pa.LargeBinaryArray]:
    """Encode a batch of rows.

    Args:
        columns: Column name to array; all of one length.
        fields: The fields to make.
        null: What a null value becomes: an error, no member (`omit`) or a member of no bytes (`empty`).
        where: Returns the place of a row, for an error.
        may_be_empty: Allow samples without any member, which a tar cannot contain.

    Returns:
        Field name to payloads; null where a sample lacks the field.

    Raises:
        InputError: A value is null and must not be, or cannot be encoded.
    """
    encoded: dict[str, pa.LargeBinaryArray] = {}
    for field in fields:
        column, locate = columns[field.column], in_column(where, field.column)
        if field.encoding == "category":
            payload = _encode_category(column, field.names, locate)
        else:
            payload = _ENCODERS[field.encoding](column, locate)
        if payload.null_count and null == "error":
            raise InputError(
                "a value is null",
                place=locate(pc.index(payload.is_null(), True).as_py()),
                expected="a value",
                remedy="use --null omit to leave the member out, --null empty to write an empty one, or filter the "
                "table",
            )
        encoded[field.name] = pc.fill_null(payload, b"") if payload.null_count and null == "empty" else payload
    arrays = list(encoded.values())
    if not may_be_empty and arrays and all(array.null_count for array in arrays):
        row = first_true(functools.reduce(pc.and_, [array.is_null() for array in arrays]))
        if row is not None:
            raise InputError(
                "every value of a row is null",
                place=where(row),
                expected="at least one value",
                remedy="leave such rows out, as with --where 'COLUMN is not None', or use --null empty",
            )
    return encoded


def _encode_media(column: pa.Array, where: Locate) -> pa.LargeBinaryArray:
    column = stored(column)
    payload = pc.struct_field(column, "bytes").cast(_LARGE_BINARY)
    row = first_true(pc.and_(payload.is_null(), column.is_valid()))
    if row is not None:
        raise InputError(
            "an image or audio value has a path but no bytes",
            place=where(row),
            expected="the bytes of the file",
            found=str(column[row].as_py()),
            remedy="embed the files in the table: with Hugging Face datasets, save_to_disk(FOLDER), and convert FOLDER",
        )
    return payload


def utf8_text(column: pa.Array, where: Locate) -> pa.LargeStringArray:
    """Return text unchanged; dates, times and decimals as in JSON, but without quotes.

    Raises:
        InputError: A text is not UTF-8.
    """
    text = scalar_text(column, where)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _not_utf8(column, where, error) from error
    return text


def _encode_integer(column: pa.Array, where: Locate) -> pa.LargeBinaryArray:
    column = stored(column)
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    return column.cast(pa.large_string()).cast(_LARGE_BINARY)


def _encode_category(column: pa.Array, names: Sequence[str], where: Locate) -> pa.LargeBinaryArray:
    """Encode names of classes as their numbers."""
    texts = stored(column).cast(pa.large_string())
    numbers = pc.index_in(texts, pa.array(names, pa.large_string()))
    row = first_true(pc.and_(numbers.is_null(), texts.is_valid()))
    if row is not None:
        raise InputError(
            "invalid class name",
            place=where(row),
            expected=f"one of the {len(names)} names of the column's classes",
            found=repr(texts[row].as_py()),
            remedy="correct the names in the table, or map the column to a field txt",
        )
    return _encode_integer(numbers, where)


def _encode_json(column: pa.Array, where: Locate) -> pa.LargeBinaryArray:
    """Encode values as JSON; NaN and the infinities become NaN, Infinity and -Infinity, as Python's json reads them."""
    column = stored(column)
    kind = column.type
    if not (pa.types.is_nested(kind) or is_list(kind) or is_text(kind)):
        return json_text(column, where).cast(_LARGE_BINARY)
    try:
        values = json_values(column, where)
    except UnicodeDecodeError as error:
        raise _not_utf8(column, where, error) from error
    texts = [None if value is None else _JSON.encode(value).encode() for value in values]
    return pa.array(texts, _LARGE_BINARY)


def _not_utf8(column: pa.Array, where: Locate, error: Exception) -> InputError:
    """Return the error for a column with a string that is not UTF-8; it names the first such row."""
    with suppress(UnicodeDecodeError):
        for row in range(len(column)):
            json_values(column.slice(row, 1), where)
    return InputError(
        "a string is not UTF-8",
        place=where(row),
        expected="UTF-8, which parquet requires of strings",
        found=str(error),
        remedy="write the table again with the text decoded, or the column as binary",
    )


def _encode_npy(column: pa.Array, where: Locate) -> pa.LargeBinaryArray:
    """Encode lists of numbers, nested but not ragged, as npy: a header with the shape, then the numbers."""
    lists = stored(column)
    numbers, owner, dims = _unnest(lists, where)
    if is_tensor(column.type):
        shape, order = list(column.type.shape), list(column.type.permutation or range(len(column.type.shape)))
        arrays = numbers.reshape(len(lists) - lists.null_count, *shape)
        numbers = np.ascontiguousarray(arrays.transpose(0, *(axis + 1 for axis in order)))
        dims = [np.full(len(lists), shape[axis]) for axis in order]
    numbers = numbers.astype(numbers.dtype.newbyteorder("<"), copy=False)
    data = large_binary(np.bincount(owner, minlength=len(lists)) * numbers.itemsize, numbers)
    headers = _npy_headers(numbers.dtype, np.stack(dims, axis=1) if dims else np.zeros((len(lists), 0), np.int64))
    joined = pc.binary_join_element_wise(headers, data, pa.scalar(b"", _LARGE_BINARY))
    if not lists.null_count:
        return joined
    return pc.if_else(lists.is_valid(), joined, pa.scalar(None, _LARGE_BINARY))


def _unnest(
    lists: pa.Array, where: Locate
) -> tuple[npt.NDArray[np.generic], npt.NDArray[np.int64], list[npt.NDArray[np.int64]]]:
    """Flatten nested lists.

    Returns:
        All numbers; the row of each number; and for each dimension its length in each row.
    """
    rows = len(lists)
    owner, level, dims = np.arange(rows), lists, []
    while is_list(level.type):
        lengths = np.asarray(pc.fill_null(pc.list_value_length(level), 0), np.int64)
        dim = np.full(rows, level.type.list_size if pa.types.is_fixed_size_list(level.type) else 0, np.int64)
        dim[owner] = lengths
        ragged = np.flatnonzero(lengths != dim[owner])
        if len(ragged):
            row = int(owner[ragged[0]])
            raise InputError(
                "nested lists of numbers are ragged",
                place=where(row),
                expected="inner lists of equal length in each row, to write them as npy",
                found=f"lengths {int(lengths[ragged[0]])} and {int(dim[row])}",
                remedy="map the column to a field json instead: --map json=COLUMN",
            )
        dims.append(dim)
        owner, level = np.repeat(owner, lengths), level.flatten()
        if level.null_count:
            raise InputError(
                "a list of numbers contains a null",
                place=where(int(owner[pc.index(level.is_null(), True).as_py()])),
                expected="only numbers, to write them as npy",
                remedy="fill the nulls in the table, map the column to a field json, or leave it out",
            )
    return np.ascontiguousarray(level.to_numpy(zero_copy_only=False)), owner, dims


def _npy_headers(dtype: np.dtype[np.generic], shapes: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
    """Return the header of each row's array; shapes are int64 of shape (rows, dimensions)."""
    number = np.zeros(len(shapes), np.int64)
    for lengths in shapes.T:
        _, rank = np.unique(lengths, return_inverse=True)
        _, number = np.unique(number * (len(shapes) + 1) + rank, return_inverse=True)
    _, first, number = np.unique(number, return_index=True, return_inverse=True)
    headers = [npy_header(dtype, tuple(shapes[row].tolist())) for row in first]
    return pa.array(headers, _LARGE_BINARY).take(pa.array(number))


def npy_header(dtype: np.dtype[np.generic], shape: tuple[int, ...]) -> bytes:
    """Return the npy 1.0 header of an array (format: numpy.lib.format), the same in all versions of numpy."""
    text = f"{{'descr': '{dtype.str}', 'fortran_order': False, 'shape': {shape}, }}"
    fill = -(10 + len(text) + 1) % 64
    body = text + " " * fill + "\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body.encode("latin-1")


_ENCODERS: dict[str, Callable[[pa.Array, Locate], pa.LargeBinaryArray]] = {
    "bytes": lambda column, where: stored(column).cast(_LARGE_BINARY),
    "integer": _encode_integer,
    "json": _encode_json,
    "media": _encode_media,
    "npy": _encode_npy,
    "text": lambda column, where: utf8_text(column, where).cast(_LARGE_BINARY),
}
