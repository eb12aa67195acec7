"""Reading parquet: footers for the plan, rows by their number for the tasks.

The only room that opens input tables. Rows are numbered through all inputs in the order given; a reader starts at
any row and holds one batch.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import braceexpand
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from wdsplit.encode import media_bytes
from wdsplit.errors import InputError
from wdsplit.fields import class_names, needs_sniff
from wdsplit.order import Int64
from wdsplit.plan import InputFile
from wdsplit.storage import local_path
from wdsplit.values import decoded_parts, stored

__all__ = ["Rows", "find_inputs", "first_payloads", "open_inputs", "read_rows"]

_BATCH_BYTES = 16 * 1024**2
_MAX_BATCH_ROWS = 16_384
_PROBE_ROWS = 16
_READ_BYTES = 1024**2
"""Column chunks are read in such pieces, so that row groups may be larger than memory."""
_FOOTER_THREADS = 8
_SNIFF_BYTES = 64


@dataclass(frozen=True)
class Rows:
    """A batch of rows.

    Attributes:
        columns: Column name to array.
        numbers: int64 of shape (n,): each row's number over all inputs.
        inputs: The inputs.
    """

    columns: Mapping[str, pa.Array]
    numbers: Int64
    inputs: Sequence[InputFile]

    def __len__(self) -> int:
        return len(self.numbers)

    def slice(self, low: int, high: int) -> Rows:
        """Return the rows low, ..., high - 1 of the batch; nothing is copied."""
        columns = {name: array.slice(low, high - low) for name, array in self.columns.items()}
        return Rows(columns, self.numbers[low:high], self.inputs)

    def where(self, row: int) -> str:
        """Say where a row of the batch stands, for an error."""
        number = int(self.numbers[row])
        for file in self.inputs:
            if number < file.num_rows:
                return f"{file.path}, row {number}"
            number -= file.num_rows
        return f"row {number} beyond the inputs"


def find_inputs(arguments: Sequence[str]) -> list[str]:
    """Return the parquet files that paths, folders, globs and brace expressions name, in order.

    A folder stands for all `*.parquet` files below it, sorted; so does a glob for what it matches.

    Raises:
        InputError: An argument names nothing, or a file is named twice.
    """
    paths = [path for argument in arguments for pattern in _patterns(argument) for path in _matches(pattern)]
    if not paths:
        raise InputError("no input is given", expected="at least one parquet file, folder, glob or brace expression")
    seen: set[str] = set()
    for path in paths:
        real = os.path.realpath(path)
        if real in seen:
            raise InputError(
                "an input is named twice",
                place=path,
                remedy="name each file once: its rows would be written twice",
                url=path,
            )
        seen.add(real)
    return paths


def _patterns(argument: str) -> list[str]:
    """Return what a brace expression stands for; a file whose own name has braces stands for itself."""
    path = local_path(argument)
    if "{" not in path or os.path.exists(path):
        return [path]
    try:
        return list(braceexpand.braceexpand(path))
    except ValueError as error:
        raise InputError(
            "braces do not close",
            place=path,
            expected="as in part-{000..127}.parquet",
            remedy="check the path",
            url=path,
        ) from error


def _matches(pattern: str) -> list[str]:
    if os.path.isfile(pattern):
        return [pattern]
    if os.path.isdir(pattern):
        found = _tables_below(pattern)
        expected = "a folder with *.parquet files"
    else:
        matched = sorted(glob.glob(pattern, recursive=True))
        found = [path for match in matched for path in (_tables_below(match) if os.path.isdir(match) else [match])]
        expected = "a file, a folder, or a pattern that matches files"
    if not found:
        raise InputError(
            "there is no such input", place=pattern, expected=expected, remedy="check the path", url=pattern
        )
    return found


def _tables_below(folder: str) -> list[str]:
    found = glob.glob(os.path.join(glob.escape(folder), "**", "*.parquet"), recursive=True)
    return sorted(path for path in found if os.path.isfile(path))


def open_inputs(paths: Sequence[str]) -> tuple[tuple[InputFile, ...], pa.Schema]:
    """Read the footers of all inputs, several at once.

    Returns:
        The files, and the schema that they share.

    Raises:
        InputError: A file is no parquet, or two files differ in their columns.
    """
    with ThreadPoolExecutor(_FOOTER_THREADS) as pool:
        opened = list(pool.map(_open_footer, paths))
    schema = opened[0][1]
    for path, (_, other) in zip(paths, opened, strict=True):
        _check_same_columns(paths[0], schema, path, other)
    return tuple(file for file, _ in opened), schema


def _open_footer(path: str) -> tuple[InputFile, pa.Schema]:
    with _readable(path):
        size, footer = _footer_of(path)
        with pq.ParquetFile(path) as file:
            metadata = file.metadata
            groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
            data_bytes = sum(group.total_byte_size for group in groups)
            rows = tuple(group.num_rows for group in groups)
            return InputFile(
                path, size, metadata.num_rows, rows, data_bytes, footer, os.stat(path).st_mtime_ns
            ), file.schema_arrow


def _footer_of(path: str) -> tuple[int, str]:
    """Return the size of a parquet file and the checksum of its footer, which its last eight bytes measure."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(0, size - 8 - length))
        return size, xxhash.xxh3_128_hexdigest(file.read(length))


def _check_same_columns(first: str, schema: pa.Schema, path: str, other: pa.Schema) -> None:
    problems = []
    for name in dict.fromkeys([*schema.names, *other.names]):
        kinds = [str(s.field(name).type) if name in s.names else "missing" for s in (schema, other)]
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


def first_payloads(inputs: Sequence[InputFile], schema: pa.Schema) -> dict[str, bytes | None]:
    """Return the beginning of the first payload that is not null of each column whose field depends on it."""
    found: dict[str, bytes | None] = {
        name: None for name in schema.names if schema.names.count(name) == 1 and needs_sniff(schema.field(name).type)
    }
    num_rows = sum(file.num_rows for file in inputs)
    for name in found:
        for rows in read_rows(inputs, 0, num_rows, [name]):
            column = stored(rows.columns[name])
            if pa.types.is_struct(column.type):
                column = media_bytes(column)
            valid = column.drop_null()
            if len(valid):
                found[name] = bytes(memoryview(valid[0].as_buffer())[:_SNIFF_BYTES])
                break
    return found


def read_rows(inputs: Sequence[InputFile], first: int, stop: int, columns: Sequence[str]) -> Iterator[Rows]:
    """Read the rows first, first + 1, ..., stop - 1, batch by batch, in order; a batch is of one file.

    Raises:
        InputError: A file cannot be read.
    """
    begin = 0
    for file in inputs:
        end = begin + file.num_rows
        if begin < stop and first < end and first < stop:
            for row, arrays in _read_file(file, max(0, first - begin), min(stop, end) - begin, columns):
                count = len(next(iter(arrays.values())))
                yield Rows(arrays, np.arange(begin + row, begin + row + count), inputs)
        begin = end


def _read_file(
    file: InputFile, first: int, stop: int, columns: Sequence[str]
) -> Iterator[tuple[int, dict[str, pa.Array]]]:
    """Read rows of one file, from the row group that holds the first of them: batches, each with its first row."""
    groups: list[int] = []
    row, skipped = 0, 0
    for number, count in enumerate(file.row_groups):
        if row < stop and first < row + count:
            groups.append(number)
        elif not groups:
            skipped += count
        row += count
    with _readable(file.path), pq.ParquetFile(file.path, buffer_size=_READ_BYTES, pre_buffer=False) as table:
        if _footer_of(file.path) != (file.num_bytes, file.footer):
            raise InputError(
                "an input has changed since it was planned",
                place=file.path,
                expected=f"the file of {file.num_bytes} bytes and {file.num_rows} rows",
                found=f"another one, with {table.metadata.num_rows} rows",
                remedy="leave the inputs alone while they are converted; start again with --overwrite",
                url=file.path,
            )
        row = skipped
        batch_rows = _batch_rows(file, table, groups, columns)
        for batch in table.iter_batches(batch_rows, row_groups=groups, columns=list(columns), use_threads=False):
            low, high = max(first - row, 0), min(stop - row, len(batch))
            if low < high:
                part = batch.slice(low, high - low)
                for arrays in decoded_parts(part.columns, _BATCH_BYTES):
                    yield row + low, dict(zip(part.schema.names, arrays, strict=True))
                    low += len(arrays[0])
            row += len(batch)
            if row >= stop:
                break


def _batch_rows(file: InputFile, table: pq.ParquetFile, groups: Sequence[int], columns: Sequence[str]) -> int:
    """Return how many rows make a batch: by the footer, or by the first rows if they are larger when decoded.

    Values that repeat stand only once in a parquet file, so the footer may tell far too little.
    """
    row_bytes = max(1, file.data_bytes // max(1, file.num_rows))
    probe = table.iter_batches(_PROBE_ROWS, row_groups=list(groups[:1]), columns=list(columns), use_threads=False)
    for batch in probe:
        row_bytes = max(row_bytes, batch.nbytes // len(batch))
        break
    return min(_MAX_BATCH_ROWS, max(1, _BATCH_BYTES // row_bytes))


class _readable:  # noqa: N801 (used as a function)
    """Turn what goes wrong while a parquet file is read into an error that names the file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, tb: Any) -> None:
        if isinstance(error, InputError) or not isinstance(error, (pa.ArrowException, OSError, ValueError)):
            return
        raise InputError(
            "an input cannot be read as parquet",
            place=self.path,
            found=str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__,
            remedy="check permissions and that the file is whole; download or write it again",
            url=self.path,
        ) from error
