"""Metadata files such as `metadata.csv` with columns for media files, as in Hugging Face's ImageFolder."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.errors import InputError
from wdsplit.fields.rules import is_text
from wdsplit.tables.formats.media import STEM
from wdsplit.tables.read import open_inputs, read_rows
from wdsplit.tables.table import FILE_NAME
from wdsplit.urls import joined_url, shown_url

__all__ = ["is_metadata", "read_metadata"]

_NAMES = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


def is_metadata(name: str) -> bool:
    """Return whether a file name is that of a metadata file."""
    return name in _NAMES


def read_metadata(
    names: pa.LargeStringArray,
    empty: pa.LargeStringArray,
    root: str,
    paths: Sequence[str],
    storage_options: Mapping[str, Any] | None,
    taken: str,
) -> tuple[dict[str, pa.Array], list[str]]:
    """Read the metadata of media files.

    Args:
        names: The media files, by their paths below the root.
        empty: Files that are left out because they are empty.
        root: The folder: a path or a URL.
        paths: The metadata files, by their paths below the root.
        storage_options: Options for a remote store.
        taken: The name of the media column, which no metadata column may have.

    Returns:
        Column name to values, a row for each media file; and the checksums of the metadata files.

    Raises:
        InputError: A metadata file cannot be read, or they do not name each media file once.
    """
    if not paths:
        return {}, []
    found = [_read(joined_url(root, path), posixpath.dirname(path), storage_options, taken) for path in sorted(paths)]
    place = ", ".join(shown_url(joined_url(root, path)) for path in sorted(paths))
    try:
        table = pa.concat_tables([table for table, _ in found], promote_options="permissive").combine_chunks()
    except pa.ArrowException as error:
        raise InputError(
            "metadata files differ in their columns",
            place=place,
            found=str(error),
            remedy="give columns with the same name one type in all files",
        ) from error
    rows = _matched(names, empty, table[FILE_NAME].combine_chunks(), place)
    columns = {name: table[name].take(rows).combine_chunks() for name in table.column_names if name != FILE_NAME}
    return columns, [footer for _, footer in found]


def _read(path: str, folder: str, storage_options: Mapping[str, Any] | None, kind: str) -> tuple[pa.Table, str]:
    """Return the rows of a metadata file, with file names relative to the root, and its checksum."""
    table = open_inputs([path], storage_options)
    place, names = shown_url(path), table.schema.names
    if FILE_NAME not in names or not is_text(table.schema.field(FILE_NAME).type):
        raise InputError(
            f"a metadata file has no column {FILE_NAME!r} of texts",
            expected=f"a column {FILE_NAME!r} with the paths of media files, relative to the metadata file",
            found=f"columns {', '.join(f'{field.name} ({field.type})' for field in table.schema)}",
            remedy=f"rename the column to {FILE_NAME}",
            url=place,
        )
    taken = sorted({kind, STEM} & {*names}) or sorted({name for name in names if names.count(name) > 1})
    if taken:
        raise InputError(
            f"a metadata file has a column with a reserved or duplicate name: {taken[0]!r}",
            expected=f"columns named neither {kind!r} nor {STEM!r}, and no two with the same name",
            remedy="rename the column",
            url=place,
        )
    batches = [pa.table(dict(rows.columns)) for rows in read_rows(table, 0, table.num_rows, names)]
    whole = pa.concat_tables(batches) if batches else table.schema.empty_table()
    stripped = pc.replace_substring_regex(whole[FILE_NAME].cast(pa.large_string()), r"^(\./)+", "")
    if folder:
        folder_scalar, slash = (pa.scalar(text, pa.large_string()) for text in (folder, "/"))
        stripped = pc.binary_join_element_wise(folder_scalar, stripped, slash)
    return whole.set_column(names.index(FILE_NAME), FILE_NAME, stripped), table.files[0].footer


def _matched(names: pa.Array, empty: pa.Array, named: pa.Array, place: str) -> pa.Array:
    """Return the metadata row of each media file; files and rows must match one to one."""
    known = pa.concat_arrays([names, empty])
    problems = []
    counts = named.value_counts()
    twice = counts.field("values").filter(pc.greater(counts.field("counts"), 1))
    rows = pc.index_in(names, value_set=named)
    without_row = names.filter(rows.is_null())
    without_file = named.filter(pc.invert(pc.is_in(named, value_set=known)))
    wrong = {"files in no row": without_row, "rows of no file": without_file, "files in several rows": twice}
    for what, odd in wrong.items():
        if len(odd):
            some = ", ".join(str(name) for name in odd[:3])
            problems.append(f"{len(odd):,} {what}: {some}{', ...' if len(odd) > 3 else ''}")
    if problems:
        raise InputError(
            "metadata and files do not match",
            place=place,
            expected=f"each file in one row, by its path in the column {FILE_NAME!r}",
            found="; ".join(problems),
            remedy="correct the metadata, or name the files without it by a pattern such as '*.jpg'",
        )
    return rows
