"""The columns of sample tables, and their values for each batch.

Pure (no I/O). Numbers, booleans and classes that are written as fields are included by default, others with `keep`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.errors import InputError, did_you_mean
from wdsplit.fields.encode import utf8_text
from wdsplit.fields.image_sizes import first_image_field, image_sizes
from wdsplit.fields.infer import class_names
from wdsplit.fields.json_values import stored
from wdsplit.fields.keys import Locate
from wdsplit.fields.rules import is_text, unwrap
from wdsplit.shards.manifest import Field
from wdsplit.shards.sample_tables import HEIGHT, KEY, NUM_BYTES, WIDTH, names_of, sample_type, with_names

__all__ = ["MAX_COLUMNS", "check_kept", "kept_columns", "left_out", "own_columns", "sample_columns", "sample_rows"]

MAX_COLUMNS = 256
"""Maximum number of columns that are kept by default."""


def own_columns(has_images: bool) -> list[pa.Field]:
    """Return the columns that every sample table has, and for images their sizes."""
    own = [pa.field(KEY, pa.string(), nullable=False), pa.field(NUM_BYTES, pa.int64(), nullable=False)]
    return [*own, pa.field(WIDTH, pa.int32()), pa.field(HEIGHT, pa.int32())] if has_images else own


def kept_columns(
    schema: pa.Schema, fields: Sequence[Field], keep: Sequence[str] = (), no_keep: Sequence[str] = ()
) -> list[str]:
    """Return the columns of a table that sample tables keep, in the order of the fields, then of the table.

    Args:
        schema: The table's columns.
        fields: The fields of its samples.
        keep: Columns to keep, of any type, written or not.
        no_keep: Columns to leave out.
    """
    found = [name for name in _written(schema, fields) if name not in (KEY, NUM_BYTES)][:MAX_COLUMNS]
    order = dict.fromkeys([*(field.column for field in fields), *schema.names])
    return [name for name in order if (name in found or name in keep) and name not in no_keep]


def sample_columns(schema: pa.Schema, fields: Sequence[Field], kept: Sequence[str]) -> pa.Schema:
    """Return the columns of the sample tables: their own, then the kept ones.

    A kept column called `width` or `height` replaces the sizes from the images' headers.
    """
    names = class_names(schema) | {field.column: field.names for field in fields if field.names}
    columns = [_column(schema.field(name), names.get(name, ())) for name in kept]
    own = own_columns(first_image_field(fields) is not None)
    return pa.schema([column for column in own if column.name not in kept] + columns)


def left_out(schema: pa.Schema, fields: Sequence[Field]) -> list[str]:
    """Return the columns that are not kept by default, because their names are taken or there are too many."""
    kept = {*kept_columns(schema, fields)}
    return [name for name in _written(schema, fields) if name not in kept]


def check_kept(schema: pa.Schema, keep: Sequence[str], no_keep: Sequence[str]) -> None:
    """Refuse invalid columns to keep or leave out.

    Raises:
        InputError: Some are invalid; all of them are named.
    """
    unknown = [name for name in dict.fromkeys([*keep, *no_keep]) if name not in schema.names]
    problems = [f"column {name!r} is not in the table (it has: {', '.join(schema.names)})" for name in unknown]
    problems += [f"column {name!r} is named by keep and by no_keep" for name in keep if name in no_keep]
    for name in keep:
        if name in (KEY, NUM_BYTES):
            problems.append(f"column {name!r} has the name of a column that every sample table has")
        elif name not in unknown and _kept_type(schema.field(name).type) is None:
            kind = schema.field(name).type
            problems.append(f"column {name!r} has the type {kind} (expected numbers, booleans, texts, dates or times)")
    if problems:
        raise InputError(
            "sample tables cannot have these columns",
            found="; ".join(problems),
            remedy=did_you_mean(unknown, schema.names) or "change --keep and --no-keep",
        )


def _written(schema: pa.Schema, fields: Sequence[Field]) -> list[str]:
    """Return the columns of numbers, booleans and classes that are written, in the order of the fields."""
    categories = {field.column for field in fields if field.encoding == "category"}
    columns = {*schema.names}
    names = dict.fromkeys(field.column for field in fields if field.column in columns)
    return [name for name in names if name in categories or _is_number(schema.field(name))]


def _is_number(column: pa.Field) -> bool:
    kind = unwrap(column.type)
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _kept_type(kind: pa.DataType) -> pa.DataType | None:
    return sample_type(unwrap(kind))


def _column(column: pa.Field, names: Sequence[str]) -> pa.Field:
    """Return a column of a sample table; class names become their numbers, as in the field cls."""
    kind = pa.int64() if names and is_text(unwrap(column.type)) else _kept_type(column.type)
    return with_names(pa.field(column.name, kind), names if pa.types.is_integer(kind) else ())


def sample_rows(
    schema: pa.Schema,
    fields: Sequence[Field],
    keys: pa.LargeStringArray,
    payloads: Mapping[str, pa.LargeBinaryArray],
    columns: Mapping[str, pa.Array],
    where: Locate,
) -> pa.Table:
    """Return the rows of sample tables for a batch of samples.

    Args:
        schema: The columns of the tables.
        fields: The fields of the samples.
        keys: Their keys.
        payloads: Field name to payloads, null where a sample lacks the field.
        columns: Column name to array of the kept columns.
        where: Returns the place of a row, for an error.

    Raises:
        InputError: A text is not UTF-8.
    """
    found: dict[str, pa.Array] = {KEY: keys, NUM_BYTES: _num_bytes(payloads)}
    images = first_image_field(fields) if {WIDTH, HEIGHT} & set(schema.names) else None
    if images is not None:
        found[WIDTH], found[HEIGHT] = image_sizes(payloads[images])
    names = names_of(schema)
    found |= {name: _values(name, column, names.get(name), where) for name, column in columns.items()}
    return pa.table([_as(found[column.name], column.type) for column in schema], schema=schema)


def _values(name: str, array: pa.Array, names: Sequence[str] | None, where: Locate) -> pa.Array:
    """Return the values of a kept column; class names become their numbers."""
    array = stored(array)
    if is_text(array.type):
        array = utf8_text(array, lambda row: f"{where(row)}, column {name!r}")
        if names is not None:
            return pc.index_in(array, pa.array(names, array.type))
    return array


def _as(array: pa.Array, kind: pa.DataType) -> pa.Array:
    return array if array.type == kind else array.cast(kind, safe=False)


def _num_bytes(payloads: Mapping[str, pa.LargeBinaryArray]) -> pa.Int64Array:
    """Return the total size of each sample's payloads in bytes."""
    total: pa.Int64Array | None = None
    for payload in payloads.values():
        lengths = pc.binary_length(payload)
        if payload.null_count:
            lengths = pc.fill_null(lengths, 0)
        total = lengths if total is None else pc.add(total, lengths)
    return total
