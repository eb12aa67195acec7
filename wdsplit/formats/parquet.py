"""Parquet: the footer tells all that a plan needs; row groups may be of any size, because they are read in pieces."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from wdsplit.formats.common import BATCH_BYTES, MAX_BATCH_ROWS, changed, checksum
from wdsplit.table import InputFile

__all__ = ["TYPED", "WHAT", "matching_groups", "open_file", "read_batches"]

TYPED = True
WHAT = "parquet"

_PROBE_ROWS = 16
_READ_BYTES = 1024**2
"""Column chunks are read in such pieces."""
_LEAST_READ_BYTES = 4096
"""Such pieces of column chunks are not read at once."""


def open_file(path: str) -> tuple[InputFile, pa.Schema]:
    """Read the footer."""
    size, footer = _footer_of(path)
    with pq.ParquetFile(path, buffer_size=_LEAST_READ_BYTES, pre_buffer=False) as file:
        _check_chunks(file)
        metadata = file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        data_bytes = sum(group.total_byte_size for group in groups)
        rows = tuple(group.num_rows for group in groups)
        modified_ns = os.stat(path).st_mtime_ns
        found = InputFile(path, size, metadata.num_rows, rows, data_bytes, footer, modified_ns)
        sizes = _column_sizes(groups, file.schema_arrow)
        return replace(found, column_bytes=tuple(sizes.items())), file.schema_arrow


def _check_chunks(file: pq.ParquetFile) -> None:
    """Refuse a footer whose column chunks cannot be those of its columns; nothing but the footer is read.

    Arrow ends the process when it is asked what such a footer says of a chunk, or prunes by its statistics. Its readers
    of chunks look at the same places, and raise; of no rows they read no page.
    """
    metadata = file.metadata
    kinds = [file.schema.column(number).physical_type for number in range(metadata.num_columns)]
    for group in range(metadata.num_row_groups if kinds else 0):
        next(file.reader.iter_batches(0, [group], use_threads=False), None)
        chunks = metadata.row_group(group)
        if [chunks.column(number).physical_type for number in range(chunks.num_columns)] != kinds:
            raise ValueError(f"a column of row group {group} has another type than in the schema")


def _footer_of(path: str) -> tuple[int, str]:
    """Return the size of a file and the checksum of its footer, which its last eight bytes measure."""
    with open(path, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8))
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(0, size - 8 - length))
        return size, checksum(file.read(length))


def read_batches(
    file: InputFile, groups: Sequence[int], columns: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Give the rows of some row groups, in batches; pages that have checksums are checked by them."""
    with pq.ParquetFile(file.path, buffer_size=_READ_BYTES, pre_buffer=False, page_checksum_verification=True) as table:
        if _footer_of(file.path) != (file.num_bytes, file.footer):
            raise changed(file, f"another one, with {table.metadata.num_rows} rows")
        rows = _batch_rows(file, table, groups, columns)
        for batch in table.iter_batches(rows, row_groups=list(groups), columns=list(columns), use_threads=False):
            yield batch.select(list(columns))


def _batch_rows(file: InputFile, table: pq.ParquetFile, groups: Sequence[int], columns: Sequence[str]) -> int:
    """Return how many rows make a batch: by the footer, or by the first rows if they are larger when decoded.

    Values that repeat stand only once in a parquet file, so the footer may tell far too little.
    """
    group = table.metadata.row_group(groups[0])
    sizes = _column_sizes([group], table.schema_arrow)
    row_bytes: int = max(1, sum(sizes.get(name, 0) for name in columns) // max(1, group.num_rows))
    probe = table.iter_batches(_PROBE_ROWS, row_groups=list(groups[:1]), columns=list(columns), use_threads=False)
    for batch in probe:
        row_bytes = max(row_bytes, batch.nbytes // len(batch))
        break
    return min(MAX_BATCH_ROWS, max(1, BATCH_BYTES // row_bytes))


def _column_sizes(groups: Sequence[Any], schema: pa.Schema) -> dict[str, int]:
    """Return the bytes of each column in some row groups, by what the footer says."""
    sizes = dict.fromkeys(schema.names, 0)
    for group in groups:
        for number in range(group.num_columns):
            chunk = group.column(number)
            name = chunk.path_in_schema
            while name not in sizes and "." in name:
                name = name.rpartition(".")[0]
            sizes[name] = sizes.get(name, 0) + chunk.total_uncompressed_size
    return sizes


def matching_groups(file: InputFile, expression: Any) -> Sequence[int]:
    """Return the row groups whose statistics do not rule the condition out."""
    fragment = ds.ParquetFileFormat().make_fragment(file.path, filesystem=LocalFileSystem())
    return sorted(group.id for part in fragment.split_by_row_group(expression) for group in part.row_groups)
