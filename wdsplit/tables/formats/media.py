"""Folders of media files as tables with a row per file. `tables.payloads` reads the files.

The rows are known from listing the folder, so this module reads nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.errors import InputError
from wdsplit.fields.infer import class_names, with_class_names
from wdsplit.fields.promote import joined_schema
from wdsplit.fields.sample_columns import file_names
from wdsplit.tables.table import FILE_NAME, InputFile
from wdsplit.urls import joined_url

__all__ = [
    "GROUP_ROWS",
    "LABEL",
    "REFERENCE",
    "STEM",
    "WHAT",
    "common_schema",
    "field_of_media",
    "media_schema",
    "read_batches",
]

WHAT = "a folder of media files"

GROUP_ROWS = 1024
LABEL = "label"
STEM = "stem"
"""The column with the paths of files without their extensions."""
REFERENCE = pa.struct([("path", pa.large_string()), ("size", pa.int64()), ("modified_ns", pa.int64())])
"""The type of the media column until the files are read: path, size in bytes, modification time in nanoseconds."""

_FIELD = b"field"


def media_schema(kind: str, field: str, classes: Sequence[str], members: pa.Schema) -> pa.Schema:
    """Return the columns of a folder.

    Args:
        kind: The kind of media, which is also the name of their column.
        field: The field for the media.
        classes: Names of the classes; empty for none.
        members: The columns of `InputFile.members`.
    """
    columns = [pa.field(kind, pa.large_binary(), metadata={_FIELD: field.encode()})]
    columns += [pa.field(LABEL, pa.int64())] if classes else []
    columns += [one for one in members if one.name not in (kind, FILE_NAME) and not (classes and one.name == LABEL)]
    columns += [file_names(), pa.field(STEM, pa.large_string())]
    schema = pa.schema(columns)
    return with_class_names(schema, {LABEL: classes}) if classes else schema


def field_of_media(schema: pa.Schema) -> tuple[str, str]:
    """Return the name of the media column, and its field."""
    (column,) = (one for one in schema if one.metadata and _FIELD in one.metadata)
    return column.name, column.metadata[_FIELD].decode()


def common_schema(schemas: Mapping[str, pa.Schema], known: Sequence[str] = ()) -> pa.Schema:
    """Return the columns of all folders, with the classes of all folders: the known ones, then others, sorted."""
    (first, schema), *others = schemas.items()
    classes = class_names(schema)
    for path, other in others:
        more = class_names(other)
        if field_of_media(other)[0] != field_of_media(schema)[0] or bool(more) != bool(classes):
            texts = [
                f"{field_of_media(each)[0]} files {'with' if class_names(each) else 'without'} classes"
                for each in (schema, other)
            ]
            raise InputError(
                "two folders differ in their contents",
                expected=f"{texts[0]}, as in {first}",
                found=texts[1],
                remedy="convert them as two datasets, or put them into one folder",
                url=path,
            )
        classes = {name: (*known, *sorted({*names, *more[name]} - {*known})) for name, names in classes.items()}
    try:
        joined = joined_schema(list(schemas.values()))
    except pa.ArrowException as error:
        raise InputError(
            "the metadata of two folders differ in their columns",
            place=", ".join(schemas),
            found=str(error),
            remedy="give columns with the same name one type, or convert the folders as two datasets",
        ) from error
    return with_class_names(joined, classes)


def read_batches(
    file: InputFile, groups: Sequence[int], columns: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some row groups; the column of media has references (`REFERENCE`)."""
    assert file.members is not None
    ends = np.cumsum(file.row_groups)
    for group in groups:
        count = file.row_groups[group]
        rows = file.members.slice(int(ends[group]) - count, count).combine_chunks()
        arrays = [_column(file, rows, name, schema) for name in columns]
        yield pa.RecordBatch.from_arrays(arrays, names=list(columns))


def _column(file: InputFile, rows: pa.Table, name: str, schema: pa.Schema) -> pa.Array:
    """Return a column of some rows."""
    paths = rows[FILE_NAME].combine_chunks()
    if name == FILE_NAME:
        return paths
    if name == STEM:
        return pc.replace_substring_regex(paths, r"\.[^./]*$", "")
    if name not in rows.column_names:
        return pa.nulls(len(rows), schema.field(name).type)
    column = rows[name].combine_chunks()
    if name == field_of_media(schema)[0]:
        if file.remote is not None:
            paths = pa.array([joined_url(file.remote.url, path) for path in paths.to_pylist()], pa.large_string())
        elif file.path:
            root = pa.scalar(file.path.rstrip("/"), pa.large_string())
            paths = pc.binary_join_element_wise(root, paths, pa.scalar("/", pa.large_string()))
        return pa.StructArray.from_arrays([paths, *column.flatten()], fields=list(REFERENCE))
    if name in class_names(schema) and pa.types.is_dictionary(column.type):
        numbers = pc.index_in(column.dictionary, value_set=pa.array(class_names(schema)[name], pa.large_string()))
        return numbers.take(column.indices).cast(pa.int64())
    return column.cast(schema.field(name).type)
