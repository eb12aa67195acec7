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


def open_file(path: str) -> tuple[InputFile, pa.Schema]:
    """Read the footer."""
    size, footer = _footer_of(path)
    with pq.ParquetFile(path) as file:
        metadata = file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        data_bytes = sum(group.total_byte_size for group in groups)
        rows = tuple(group.num_rows for group in groups)
        modified_ns = os.stat(path).st_mtime_ns
        found = InputFile(path, size, metadata.num_rows, rows, data_bytes, footer, modified_ns)
        return replace(found, column_bytes=_column_sizes(groups, file.schema_arrow)), file.schema_arrow


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
    row_bytes = max(1, _column_bytes(table.metadata.row_group(groups[0]), columns))
    probe = table.iter_batches(_PROBE_ROWS, row_groups=list(groups[:1]), columns=list(columns), use_threads=False)
    for batch in probe:
        row_bytes = max(row_bytes, batch.nbytes // len(batch))
        break
    return min(MAX_BATCH_ROWS, max(1, BATCH_BYTES // row_bytes))


def _column_sizes(groups: Sequence[Any], schema: pa.Schema) -> tuple[tuple[str, int], ...]:
    """Return the bytes of each column in all row groups."""
    sizes = dict.fromkeys(schema.names, 0)
    for group in groups:
        for number in range(group.num_columns):
            chunk = group.column(number)
            name = chunk.path_in_schema
            while name not in sizes and "." in name:
                name = name.rpartition(".")[0]
            sizes[name] = sizes.get(name, 0) + chunk.total_uncompressed_size
    return tuple(sizes.items())


def _column_bytes(group: Any, columns: Sequence[str]) -> int:
    """Return the bytes of a row in some columns, by what the footer says of a row group."""
    chunks = (group.column(number) for number in range(group.num_columns))
    wanted = set(columns)
    sizes = (
        chunk.total_uncompressed_size
        for chunk in chunks
        if chunk.path_in_schema in wanted or chunk.path_in_schema.partition(".")[0] in wanted
    )
    return int(sum(sizes) // max(1, group.num_rows))


def matching_groups(file: InputFile, expression: Any) -> Sequence[int]:
    """Return the row groups whose statistics do not rule the condition out."""
    fragment = ds.ParquetFileFormat().make_fragment(file.path, filesystem=LocalFileSystem())
    return sorted(group.id for part in fragment.split_by_row_group(expression) for group in part.row_groups)
