"""Reading the input: files and their footers for the plan, rows by their places for the tasks.

Only this module and `formats` open input tables. A reader starts at any place and keeps one batch in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from wdsplit.engines.local import in_order, raise_if_cancelled
from wdsplit.errors import InputError, WdsplitError
from wdsplit.fields.encode import media_bytes
from wdsplit.fields.infer import class_names, needs_sniff
from wdsplit.fields.json_values import decoded_parts, stored, without_views
from wdsplit.order.epoch import Int64
from wdsplit.storage.opening import is_remote
from wdsplit.tables.formats.common import BATCH_BYTES, check_unchanged
from wdsplit.tables.formats.registry import format_named, name_of_format
from wdsplit.tables.select import Picker
from wdsplit.tables.table import FileRange, InputFile, Remote, Table
from wdsplit.urls import shown_url

__all__ = ["Rows", "check_files", "file_batches", "first_payloads", "matching_groups", "open_inputs", "read_rows"]

_FOOTER_THREADS = 8
_SNIFF_BYTES = 64
_SMALL_ROWS, _SMALL_BYTES = 1024, 1024**2


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

    def where(self, row: int) -> str:
        """Return file and row of a row of the batch, for an error."""
        return self.table.where(int(self.numbers[row]))


def open_inputs(paths: Sequence[str], storage_options: Mapping[str, Any] | None = None) -> Table:
    """Open all files, several at once.

    Args:
        paths: Paths and URLs.
        storage_options: How to reach remote stores.

    Raises:
        InputError: A file cannot be read, or two differ in their format or their columns.
    """
    opened = list(in_order(lambda path: _open_file(path, storage_options), paths, _FOOTER_THREADS))
    files = tuple(file for file, _ in opened)
    paths = [file.path for file in files]
    _check_one_format(files)
    reader = format_named(files[0].format)
    if not reader.TYPED:
        return Table(
            files, reader.common_schema({path: schema for path, (_, schema) in zip(paths, opened, strict=True)})
        )
    schema = opened[0][1]
    for path, (_, other) in zip(paths, opened, strict=True):
        _check_same_columns(paths[0], schema, path, other)
    return Table(files, schema)


def _open_file(path: str, storage_options: Mapping[str, Any] | None) -> tuple[InputFile, pa.Schema]:
    remote = Remote(path, storage_options) if is_remote(path) else None
    path = shown_url(path)
    with _readable(path, "a table"):
        name = name_of_format(path, remote)
    with _readable(path, format_named(name).WHAT):
        return format_named(name).open_file(path, remote)


def _check_one_format(files: Sequence[InputFile]) -> None:
    for file in files:
        if file.format != files[0].format:
            raise InputError(
                "two inputs differ in their format",
                place=file.path,
                expected=f"{files[0].format}, as {files[0].path} has it",
                found=file.format,
                remedy="name the files of one format, as in 'raw/*.parquet', or convert them as two datasets",
                url=file.path,
            )


def _check_same_columns(first: str, schema: pa.Schema, path: str, other: pa.Schema) -> None:
    problems = []
    for name in dict.fromkeys([*schema.names, *other.names]):
        kinds = [", ".join(str(s.field(i).type) for i in s.get_all_field_indices(name)) for s in (schema, other)]
        kinds = [kind or "missing" for kind in kinds]
        if kinds[0] != kinds[1]:
            problems.append(f"column {name!r} is {kinds[0]} in {first}, {kinds[1]} in {path}")
    classes, others = class_names(schema), class_names(other)
    problems += [
        f"the classes of column {name!r} have other names, or another order, in {path} than in {first}"
        for name in classes.keys() & others.keys()
        if classes[name] != others[name]
    ]
    if problems:
        raise InputError(
            "two inputs differ in their columns",
            place=path,
            expected="the same columns and types in all inputs",
            found="; ".join(problems),
            remedy="cast the columns to one type, or convert the files as two datasets",
            url=path,
        )


def first_payloads(table: Table, columns: Sequence[str]) -> dict[str, bytes | None]:
    """Return the beginning of the first payload that is not null of those of the columns whose field depends on it."""
    names = [name for name in table.schema.names if name in columns]
    found: dict[str, bytes | None] = {
        name: None for name in names if names.count(name) == 1 and needs_sniff(table.schema.field(name).type)
    }
    for name in found:
        for rows in read_rows(table, 0, table.num_rows, [name]):
            column = stored(rows.columns[name])
            if pa.types.is_struct(column.type):
                column = media_bytes(column)
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
        left = part.count
        for arrays, numbers in _read_range(table, part, to_read, picker):
            for cut in decoded_parts([arrays[name] for name in columns], BATCH_BYTES):
                taken = len(cut[0])
                yield Rows(dict(zip(columns, cut, strict=True)), numbers[:taken], table)
                numbers, left = numbers[taken:], left - taken
        if left:
            raise InputError(
                "an input has other rows than when it was planned",
                place=part.file.path,
                expected=f"{part.count} rows",
                found=f"{part.count - left}",
                remedy="leave the inputs alone while they are converted; start again with --overwrite",
                url=part.file.path,
            )


def _joined(batches: Iterator[Rows]) -> Iterator[Rows]:
    """Join small batches, as those of many small files: each batch has a fixed cost."""
    pending: list[Rows] = []
    num_rows = num_bytes = 0
    for rows in batches:
        rows_bytes = rows.nbytes
        is_small = len(rows) < _SMALL_ROWS and rows_bytes < _SMALL_BYTES
        if is_small:
            pending.append(rows)
            num_rows, num_bytes = num_rows + len(rows), num_bytes + rows_bytes
        if pending and (not is_small or num_rows >= _SMALL_ROWS or num_bytes >= _SMALL_BYTES):
            yield _concatenated(pending)
            pending, num_rows, num_bytes = [], 0, 0
        if not is_small:
            yield rows
    if pending:
        yield _concatenated(pending)


def _concatenated(batches: Sequence[Rows]) -> Rows:
    """Return batches as one."""
    first = batches[0]
    if len(batches) == 1:
        return first
    columns = {name: pa.concat_arrays([rows.columns[name] for rows in batches]) for name in first.columns}
    return Rows(columns, np.concatenate([rows.numbers for rows in batches]), first.table)


def _read_range(
    table: Table, part: FileRange, columns: Sequence[str], picker: Picker
) -> Iterator[tuple[dict[str, pa.Array], Int64]]:
    """Read the selected rows of a file: columns by their names, and the rows' numbers."""
    read, picked = 0, 0
    for batch in file_batches(table, part.file, part.groups, columns):
        arrays = dict(zip(columns, batch.columns, strict=True))
        numbers = part.row_numbers(read, read + len(batch))
        read += len(batch)
        if not picker.picks_all:
            rows = picker.picked(arrays, numbers)
            arrays = {name: array.take(pa.array(rows)) for name, array in arrays.items()}
            numbers = numbers[rows]
        low, high = max(part.skip - picked, 0), min(part.skip + part.count - picked, len(numbers))
        picked += len(numbers)
        if low < high:
            yield {name: array.slice(low, high - low) for name, array in arrays.items()}, numbers[low:high]
        if picked >= part.skip + part.count:
            break


def file_batches(
    table: Table, file: InputFile, groups: Sequence[int], columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Read all rows of some row groups of a file; string and binary views come as plain strings and bytes.

    Raises:
        InputError: The file cannot be read.
    """
    reader = format_named(file.format)
    with _readable(file.path, reader.WHAT):
        for batch in reader.read_batches(file, groups, columns, table.schema):
            raise_if_cancelled()
            yield pa.RecordBatch.from_arrays(list(map(without_views, batch.columns)), names=list(columns))


def check_files(table: Table, first: int, stop: int) -> None:
    """Refuse local files with rows at the places first, ..., stop - 1 if they were written since the plan was made.

    Remote ones are checked when they are read.

    Raises:
        InputError: One was, or is gone.
    """
    for part in table.ranges(first, stop):
        if part.file.remote is None:
            with _readable(part.file.path, format_named(part.file.format).WHAT):
                check_unchanged(part.file)


def matching_groups(file: InputFile, expression: Any) -> list[int]:
    """Return the row groups of a file that may hold rows that meet a condition, and have rows at all.

    Raises:
        InputError: The file cannot be read.
    """
    reader = format_named(file.format)
    with _readable(file.path, reader.WHAT):
        return [group for group in reader.matching_groups(file, expression) if file.row_groups[group]]


class _readable:  # noqa: N801 (used as a function)
    """Turn errors of reading a file into an InputError that names the file."""

    def __init__(self, path: str, what: str) -> None:
        self.path = path
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, tb: Any) -> None:
        if isinstance(error, WdsplitError) or not isinstance(error, (pa.ArrowException, OSError, ValueError)):
            return
        raise InputError(
            f"an input cannot be read as {self.what}",
            place=self.path,
            found=str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__,
            remedy="check permissions and that the file is whole; download or write it again",
            url=self.path,
        ) from error
