"""The columns of sample tables, and their values for each batch.

Pure (no I/O). Numbers, booleans, dates, times and classes that are written as fields are included by default, and the
names of media files; others with `keep`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.errors import InputError, did_you_mean
from wdsplit.fields.encode import utf8_text
from wdsplit.fields.image_sizes import first_image_field, image_sizes
from wdsplit.fields.infer import class_names
from wdsplit.fields.json_values import stored
from wdsplit.fields.keys import Locate, in_column
from wdsplit.fields.rules import is_text, unwrap
from wdsplit.shards.manifest import Field
from wdsplit.shards.sample_tables import (
    FILE_NAME,
    HEIGHT,
    KEY,
    NUM_BYTES,
    WIDTH,
    is_kept,
    names_of,
    sample_type,
    with_names,
)

__all__ = [
    "MAX_COLUMNS",
    "check_kept",
    "file_names",
    "kept_columns",
    "left_out",
    "own_columns",
    "sample_columns",
    "sample_rows",
]

MAX_COLUMNS = 256
"""Maximum number of columns that are kept by default."""
_KEPT = b"kept"


def file_names() -> pa.Field:
    """Return the column with the names of media files, which sample tables keep by default."""
    return pa.field(FILE_NAME, pa.large_string(), metadata={_KEPT: b"1"})


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
    found += [column.name for column in schema if _KEPT in (column.metadata or {})]
    order = dict.fromkeys([*(field.column for field in fields), *schema.names])
    return [name for name in order if (name in found or name in keep) and name not in no_keep]


def sample_columns(
    schema: pa.Schema, fields: Sequence[Field], kept: Sequence[str], has_sizes: bool = False
) -> pa.Schema:
    """Return the columns of the sample tables: their own, then the kept ones.

    A kept column called `width` or `height` replaces the sizes from the images' headers. With `has_sizes` there are
    columns of sizes also without images.
    """
    names = class_names(schema) | {field.column: field.names for field in fields if field.names}
    columns = []
    for name in kept:
        stored_as, classes = schema.field(name).type, names.get(name, ())
        # Class names become their numbers, as in the field cls.
        kind = pa.int64() if classes and is_text(unwrap(stored_as)) else sample_type(unwrap(stored_as))
        columns.append(with_names(pa.field(name, kind), classes if pa.types.is_integer(kind) else ()))
    own = own_columns(has_sizes or first_image_field(fields) is not None)
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
        elif name not in unknown and sample_type(unwrap(schema.field(name).type)) is None:
            kind = schema.field(name).type
            problems.append(f"column {name!r} has the type {kind} (expected numbers, booleans, texts, dates or times)")
    if problems:
        raise InputError(
            "sample tables cannot have these columns",
            found="; ".join(problems),
            remedy=did_you_mean(unknown, schema.names) or "change --keep and --no-keep",
        )


def _written(schema: pa.Schema, fields: Sequence[Field]) -> list[str]:
    """Return the columns that are written and kept by default, in the order of the fields."""
    categories = {field.column for field in fields if field.encoding == "category"}
    found, columns = [], {*schema.names}
    for name in dict.fromkeys(field.column for field in fields if field.column in columns):
        if is_kept(unwrap(schema.field(name).type)) or name in categories:
            found.append(name)
    return found


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
    lengths = [pc.fill_null(pc.binary_length(payload), 0) for payload in payloads.values()]
    found: dict[str, pa.Array] = {KEY: keys, NUM_BYTES: functools.reduce(pc.add, lengths)}
    if {WIDTH, HEIGHT} & set(schema.names):
        images = first_image_field(fields)
        unknown = pa.nulls(len(keys), pa.int32())
        found[WIDTH], found[HEIGHT] = (unknown, unknown) if images is None else image_sizes(payloads[images])
    names = names_of(schema)
    for name, column in columns.items():
        array = stored(column)
        if is_text(array.type):
            array = utf8_text(array, in_column(where, name))
            if name in names:  # class names become their numbers
                array = pc.index_in(array, pa.array(names[name], array.type))
        found[name] = array
    pairs = ((found[column.name], column.type) for column in schema)
    arrays = [array if array.type == kind else array.cast(kind, safe=False) for array, kind in pairs]
    return pa.table(arrays, schema=schema)
