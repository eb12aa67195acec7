"""Reads the input: footers for the plan, rows by their places for the tasks.

Only this module and `formats` open input tables. A reader can start at any place, and keeps one batch in memory.
"""

from __future__ import annotations

import operator
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from wdsplit.arrays import Int64
from wdsplit.conditions.compare import join
from wdsplit.engines.local import in_order, raise_if_cancelled
from wdsplit.engines.watching import watched
from wdsplit.errors import InputError, WdsplitError
from wdsplit.fields.infer import needs_sniff
from wdsplit.fields.json_values import decoded_parts, stored, type_without_views, without_views
from wdsplit.storage.opening import is_remote
from wdsplit.tables.formats.common import BATCH_BYTES, MAX_BATCH_ROWS, grouped, unreadable
from wdsplit.tables.formats.opening import changed, open_unchanged
from wdsplit.tables.formats.registry import format_by_content, format_named, name_of_format
from wdsplit.tables.schemas import Partitions, Schemas, promoted, promotion_notes, with_partitions
from wdsplit.tables.select import Picker
from wdsplit.tables.table import InputFile, Remote, Table, Value
from wdsplit.urls import is_web, shown_url

__all__ = ["Rows", "check_files", "file_batches", "first_payloads", "matching_groups", "open_inputs", "read_rows"]

_FOOTER_THREADS = 8
_SNIFF_BYTES = 64
_ENOUGH_ROWS, _ENOUGH_BYTES = 1024, 1024**2


@dataclass(frozen=True)
class Rows:
    """A batch of rows.

    Attributes:
        columns: Column name to array.
        numbers: int64 of shape (n,): each row's number in the table.
        table: The table.
    """

    columns: Mapping[str, pa.Array]
    numbers: Int64
    table: Table

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def nbytes(self) -> int:
        """Bytes of the columns."""
        return sum(array.nbytes for array in self.columns.values())

    def slice(self, low: int, high: int) -> Rows:
        """Return the rows low, ..., high - 1 of the batch; nothing is copied."""
        columns = {name: array.slice(low, high - low) for name, array in self.columns.items()}
        return Rows(columns, self.numbers[low:high], self.table)

    def batches(self, most: int) -> Iterator[Rows]:
        """Yield the rows in batches of at most so many; nothing is copied."""
        for low in range(0, len(self), most):
            yield self.slice(low, min(len(self), low + most))

    def where(self, row: int) -> str:
        """Return the file and row number of a row of the batch, for an error."""
        return self.table.where(int(self.numbers[row]))


def open_inputs(paths: Sequence[str], storage_options: Mapping[str, Any] | None = None, hive: bool = True) -> Table:
    """Open all files, several at once.

    Args:
        paths: Paths and URLs.
        storage_options: Options for remote stores.
        hive: Whether the names of folders such as `year=2024` become columns; never for tars.

    Raises:
        InputError: A file cannot be read, or two differ in their format or in columns that cannot be promoted.
    """
    files: list[InputFile] = []
    numbers: list[int] = []
    found = Schemas()
    opened = in_order(lambda path: _open_file(path, storage_options), paths, _FOOTER_THREADS)
    for file, schema in watched("opening files", opened, len(paths)):
        files.append(file)
        numbers.append(found.add(file.path, schema, file.num_rows))
    for file in files:
        if file.format != files[0].format:
            raise InputError(
                "two inputs differ in their format",
                expected=f"{files[0].format}, as in {files[0].path}",
                found=file.format,
                remedy="name the files of one format, as in 'raw/*.parquet', or convert them as two datasets",
                url=file.path,
            )
    reader = format_named(files[0].format)
    common_schema = getattr(reader, "common_schema", None)
    by_path = dict(zip(found.paths, found.schemas, strict=True))
    schema = promoted(found) if common_schema is None else common_schema(by_path)
    if files[0].format == "tar":
        return Table(tuple(files), schema)
    folders = [_folder_of(path, file) if hive else "" for path, file in zip(paths, files, strict=True)]
    partitions = Partitions(folders)
    notes = [*promotion_notes(found, schema), *partitions.notes()]
    null_is_absent = files[0].format != "csv"  # of which an empty field may be an empty text
    absent: list[list[str]] = []  # the columns for which the files of each schema have no values
    for each in found.schemas:
        typed = {one.name for one in each if not (null_is_absent and pa.types.is_null(one.type))}
        absent.append([name for name in schema.names if name not in typed])
    constants: dict[tuple[int, str], tuple[tuple[str, Value], ...]] = {}
    for place, of_file in enumerate(zip(numbers, folders, strict=True)):
        if of_file not in constants:
            values: dict[str, Value] = dict.fromkeys(absent[of_file[0]])
            constants[of_file] = tuple((values | partitions.values(of_file[1])).items())
        if constants[of_file]:
            files[place] = replace(files[place], constants=constants[of_file])
    return Table(tuple(files), with_partitions(schema, partitions, files[0].path), notes=tuple(notes))


def _folder_of(path: str, file: InputFile) -> str:
    """Return the absolute path or URL of a file's folder, given the path by which the user named the file."""
    if not is_remote(path):
        return os.path.dirname(os.path.abspath(file.path))
    return os.path.dirname(unquote(file.path) if is_web(file.path) else file.path)


def _open_file(path: str, storage_options: Mapping[str, Any] | None) -> tuple[InputFile, pa.Schema]:
    remote = Remote(path, storage_options) if is_remote(path) else None
    path = shown_url(path)
    with _readable(path, "a table"):
        name = name_of_format(path, remote)
    try:
        with _readable(path, format_named(name).WHAT):
            return format_named(name).open_file(path, remote)
    except InputError as error:
        with suppress(OSError):
            content = format_by_content(path, remote)
            if content not in (None, name):
                error.remedy = f"by its content it is {content}: rename it to end in .{content}"
        raise


def first_payloads(table: Table, columns: Sequence[str]) -> dict[str, bytes | None]:
    """Return the first bytes of each column whose field depends on them, from its first value that is not null."""
    wanted = {*columns}
    names = Counter(name for name in table.schema.names if name in wanted)
    found: dict[str, bytes | None] = {
        name: None for name, count in names.items() if count == 1 and needs_sniff(table.schema.field(name).type)
    }
    for name in found:
        for rows in read_rows(table, 0, table.num_rows, [name]):
            column = stored(rows.columns[name])
            if pa.types.is_struct(column.type):
                column = pc.struct_field(column, "bytes")
            valid = column.drop_null()
            if len(valid):
                found[name] = bytes(memoryview(valid[0].as_buffer())[:_SNIFF_BYTES])
                break
    return found


def read_rows(table: Table, first: int, stop: int, columns: Sequence[str]) -> Iterator[Rows]:
    """Read the rows at the places first, ..., stop - 1, batch by batch, in order.

    Raises:
        InputError: A file cannot be read.
    """
    yield from _joined(_read_rows(table, first, stop, columns))


def _read_rows(table: Table, first: int, stop: int, columns: Sequence[str]) -> Iterator[Rows]:
    picker = Picker(table)
    to_read = list(dict.fromkeys([*columns, *picker.columns]))
    for part in table.ranges(first, stop):
        read, picked, end = 0, 0, part.skip + part.count
        for batch in file_batches(table, part.file, part.groups, to_read):
            arrays = dict(zip(to_read, batch.columns, strict=True))
            numbers = part.row_numbers(read, read + len(batch))
            read += len(batch)
            if not picker.picks_all:
                rows = picker.picked(arrays, numbers)
                arrays = {name: array.take(pa.array(rows)) for name, array in arrays.items()}
                numbers = numbers[rows]
            low, high = max(part.skip - picked, 0), min(end - picked, len(numbers))
            picked += len(numbers)
            for cut in decoded_parts([arrays[name][low:high] for name in columns], BATCH_BYTES) if low < high else ():
                yield Rows(dict(zip(columns, cut, strict=True)), numbers[low : low + len(cut[0])], table)
                low += len(cut[0])
            if picked >= end:
                break
        if picked < end:
            found = max(0, picked - part.skip)
            raise changed(part.file, f"{found} of {part.count} selected rows")


def _joined(batches: Iterator[Rows]) -> Iterator[Rows]:
    """Join small batches, such as those of many small files: each batch has a fixed cost."""
    for is_small, some in groupby(batches, lambda rows: _size(rows) < 1):
        enough = 1 if is_small else 0  # large ones stay as they are
        yield from map(_concatenated, grouped(some, _size, enough))


def _size(rows: Rows) -> float:
    """Return the size of a batch, as a fraction of one that is large enough."""
    return max(len(rows) / _ENOUGH_ROWS, rows.nbytes / _ENOUGH_BYTES)


def _concatenated(batches: Sequence[Rows]) -> Rows:
    """Return batches as one."""
    first = batches[0]
    if len(batches) == 1:
        return first
    columns = {name: pa.concat_arrays([rows.columns[name] for rows in batches]) for name in first.columns}
    return Rows(columns, np.concatenate([rows.numbers for rows in batches]), first.table)


def file_batches(
    table: Table, file: InputFile, groups: Sequence[int], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Read all rows of some row groups of a file; string and binary views come as plain strings and bytes.

    Raises:
        InputError: The file cannot be read.
    """
    reader, constants = format_named(file.format), dict(file.constants)
    if file.members is not None and columns:  # media files are read later: their column has no type yet
        yield from reader.read_batches(file, groups, columns, table.schema)
        return
    kinds = {name: type_without_views(table.schema.field(name).type) for name in columns}
    own = [name for name in columns if name not in constants]
    with _readable(file.path, reader.WHAT):
        batches = reader.read_batches(file, groups, own, table.schema) if own else _without_columns(file, groups)
        for batch in batches:
            raise_if_cancelled()
            for arrays in _promoted(file, dict(zip(own, batch.columns, strict=True)), kinds):
                rows = len(arrays[own[0]]) if own else len(batch)
                for name in constants.keys() & kinds.keys():
                    arrays[name] = pa.repeat(pa.scalar(constants[name], kinds[name]), rows)
                yield pa.RecordBatch.from_arrays([arrays[name] for name in columns], names=list(columns))


def _without_columns(file: InputFile, groups: Sequence[int]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some row groups without any of the file's columns; nothing is read."""
    num_rows = sum(file.row_groups[group] for group in groups)
    for first in range(0, num_rows, MAX_BATCH_ROWS):
        rows = pa.StructArray.from_buffers(pa.struct([]), min(MAX_BATCH_ROWS, num_rows - first), [None])
        yield pa.RecordBatch.from_struct_array(rows)


def _promoted(
    file: InputFile, columns: dict[str, pa.Array], kinds: Mapping[str, pa.DataType]
) -> Iterator[dict[str, pa.Array]]:
    """Yield columns of a file with the types of the table; in several parts where dictionaries are decoded."""
    arrays = {name: without_views(column) for name, column in columns.items()}
    if all(array.type == kinds[name] for name, array in arrays.items()):
        yield arrays
        return
    for part in decoded_parts(list(arrays.values()), BATCH_BYTES):
        yield {name: _cast(file, name, array, kinds[name]) for name, array in zip(arrays, part, strict=True)}


def _cast(file: InputFile, name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return column if column.type == kind or pa.types.is_dictionary(kind) else column.cast(kind)
    except pa.ArrowInvalid as error:
        raise InputError(
            f"a value of column {name!r} does not fit the common type of all files",
            expected=f"values of type {kind}",
            found=f"{error} ({column.type})",
            remedy="cast the column to one type in all files, or convert them as two datasets",
            url=file.path,
        ) from error


def check_files(table: Table, first: int, stop: int) -> None:
    """Refuse local files with rows at the places first, ..., stop - 1 if they have changed since the plan was made.

    Remote files, and the media files of a folder, are checked when they are read.

    Raises:
        InputError: A file has changed or is missing.
    """
    for part in table.ranges(first, stop):
        if part.file.remote is None and part.file.members is None:
            with _readable(part.file.path, format_named(part.file.format).WHAT):
                open_unchanged(part.file).close()


def matching_groups(table: Table, file: InputFile, expression: Any, columns: Sequence[str]) -> list[int]:
    """Return the row groups of a file, without empty ones, that may have rows that meet a condition on `columns`.

    Raises:
        InputError: The file cannot be read.
    """
    reader, schema = format_named(file.format), pa.schema([table.schema.field(name) for name in columns])
    values = [(name, value) for name, value in file.constants if name in schema.names]
    known = None
    if values:
        equal = [
            ds.field(name).is_null() if value is None else ds.field(name) == pa.scalar(value, schema.field(name).type)
            for name, value in values
        ]
        known = join(operator.and_, equal)
        parquet, disk = ds.ParquetFileFormat(), LocalFileSystem()  # any format: the file is not opened
        unread = parquet.make_fragment(file.path, filesystem=disk, partition_expression=known)
        if not list(ds.FileSystemDataset([unread], schema, parquet, disk).get_fragments(expression)):
            return []
    groups: Sequence[int] = range(len(file.row_groups))
    by_statistics = getattr(reader, "matching_groups", None)
    if by_statistics is not None and len(values) < len(columns):
        with _readable(file.path, reader.WHAT):
            groups = by_statistics(file, expression, schema, known)
    return [group for group in groups if file.row_groups[group]]


@contextmanager
def _readable(path: str, what: str) -> Iterator[None]:
    """Turn errors of reading a file into an InputError that names the file."""
    try:
        yield
    except WdsplitError:
        raise
    except (pa.ArrowException, OSError, ValueError) as error:
        raise unreadable(path, what, error) from error
