"""Parquet: the footer has all that a plan needs; row groups may be of any size, because they are read in pieces."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import IO, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.fs import LocalFileSystem

from wdsplit.engines.local import ahead
from wdsplit.tables.formats.common import BATCH_BYTES, MAX_BATCH_ROWS, changed, check_unchanged, checksum
from wdsplit.tables.formats.opening import AHEAD_BYTES, MAX_BUFFER_BYTES, RemoteInput, open_input
from wdsplit.tables.table import InputFile, Remote

__all__ = ["WHAT", "matching_groups", "open_file", "read_batches"]

WHAT = "parquet"

_PROBE_ROWS = 16
_READ_BYTES = 1024**2
"""Column chunks are read in pieces of this size."""
_PROBE_READ_BYTES = 4096
"""Size of these pieces when only the footer is needed: the smallest that Arrow reads."""
_TAIL_BYTES = 64 * 1024
"""Bytes to read at the end of a remote file: usually they contain the footer."""


def open_file(path: str, remote: Remote | None = None) -> tuple[InputFile, pa.Schema]:
    """Read the footer."""
    with open_input(path, remote) as source:
        size, footer = _footer_of(source)
        file = pq.ParquetFile(_arrow_source(path, source), buffer_size=_PROBE_READ_BYTES, pre_buffer=False)
        _check_chunks(file)
        metadata = file.metadata
        groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
        data_bytes = sum(group.total_byte_size for group in groups)
        rows = tuple(group.num_rows for group in groups)
        modified_ns = source.modified_ns if isinstance(source, RemoteInput) else os.stat(path).st_mtime_ns
        found = InputFile(path, size, metadata.num_rows, rows, data_bytes, footer, modified_ns, remote=remote)
        sizes = _column_sizes(groups, file.schema_arrow)
        return replace(found, column_bytes=tuple(sizes.items())), file.schema_arrow


def _arrow_source(path: str, source: IO[bytes] | RemoteInput) -> Any:
    """Return what Arrow reads: the object, or the path of a local file, which it opens by itself."""
    return source.as_arrow() if isinstance(source, RemoteInput) else path


def _check_chunks(file: pq.ParquetFile) -> None:
    """Refuse a footer whose column chunks do not match its columns; only the footer is read.

    With such a footer, Arrow ends the process when it describes a chunk or prunes by statistics. Its chunk readers
    check the same places and raise an error instead; for no rows they read no page.
    """
    metadata = file.metadata
    kinds = [file.schema.column(number).physical_type for number in range(metadata.num_columns)]
    for group in range(metadata.num_row_groups if kinds else 0):
        next(file.reader.iter_batches(0, [group], use_threads=False), None)
        chunks = metadata.row_group(group)
        if [chunks.column(number).physical_type for number in range(chunks.num_columns)] != kinds:
            raise ValueError(f"a column of row group {group} has another type than in the schema")


def _footer_of(source: IO[bytes] | RemoteInput) -> tuple[int, str]:
    """Return the size of a file and the checksum of its footer, whose length is in the last eight bytes."""
    size = source.seek(0, os.SEEK_END)
    if isinstance(source, RemoteInput):
        source.buffer([(max(0, size - _TAIL_BYTES), size)])
    source.seek(max(0, size - 8))
    length = int.from_bytes(source.read(4), "little")
    if isinstance(source, RemoteInput) and _TAIL_BYTES < length + 8 <= size:
        source.buffer([(size - 8 - length, size)])
    source.seek(max(0, size - 8 - length))
    return size, checksum(source.read(length))


def read_batches(
    file: InputFile, groups: Sequence[int], columns: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some row groups, in batches; verify the checksums of pages that have them."""
    with open_input(file.path, file.remote) as source:
        found = _footer_of(source)
        with pq.ParquetFile(
            _arrow_source(file.path, source),
            buffer_size=_READ_BYTES if file.remote is None else AHEAD_BYTES,
            pre_buffer=False,
            page_checksum_verification=True,
        ) as table:
            if found != (file.num_bytes, file.footer):
                raise changed(file, f"another file, with {table.metadata.num_rows} rows")
            runs: Iterable[list[int]] = [list(groups)]
            if isinstance(source, RemoteInput):
                check_unchanged(file, source)
                runs = _buffered_runs(source, table, groups, columns)
            rows = 0
            for run in runs:
                rows = rows or _batch_rows(file, table, groups, columns)
                for batch in table.iter_batches(rows, row_groups=run, columns=list(columns), use_threads=False):
                    yield batch.select(list(columns))


def _buffered_runs(
    source: RemoteInput, table: pq.ParquetFile, groups: Sequence[int], columns: Sequence[str]
) -> Iterator[list[int]]:
    """Yield runs of row groups with their bytes in memory; the next run is fetched meanwhile."""
    for run, buffers in ahead((run, source.fetch(ranges)) for run, ranges in _runs(table, groups, columns)):
        source.use_buffers(buffers)
        yield run


def _runs(
    table: pq.ParquetFile, groups: Sequence[int], columns: Sequence[str]
) -> Iterator[tuple[list[int], list[tuple[int, int]]]]:
    """Cut row groups into runs that fit into memory; yield each with the byte ranges of its column chunks.

    A row group that is too large has no ranges: its chunks are read in pieces, as in local files.
    """
    run: list[int] = []
    run_ranges: list[tuple[int, int]] = []
    for group in groups:
        ranges = _chunk_ranges(table, group, columns)
        num_bytes = sum(end - begin for begin, end in run_ranges + ranges)
        if run and num_bytes > MAX_BUFFER_BYTES:
            yield run, run_ranges
            run, run_ranges = [], []
        if sum(end - begin for begin, end in ranges) > MAX_BUFFER_BYTES:
            yield [group], []
            continue
        run.append(group)
        run_ranges += ranges
    if run:
        yield run, run_ranges


def _chunk_ranges(table: pq.ParquetFile, group: int, columns: Sequence[str]) -> list[tuple[int, int]]:
    """Return where the chunks of some columns begin and end in the file."""
    metadata, names = table.metadata.row_group(group), table.schema_arrow.names
    ranges = []
    for number in range(metadata.num_columns):
        chunk = metadata.column(number)
        if _column_of(chunk.path_in_schema, names) in columns:
            begins = [chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset]
            ranges.append((min(begins), min(begins) + chunk.total_compressed_size))
    return ranges


def _column_of(path: str, names: Collection[str]) -> str:
    """Return the column of a chunk, given the chunk's path in the schema."""
    while path not in names and "." in path:
        path = path.rpartition(".")[0]
    return path


def _batch_rows(file: InputFile, table: pq.ParquetFile, groups: Sequence[int], columns: Sequence[str]) -> int:
    """Return the number of rows of a batch, by the sizes in the footer, or of the first decoded rows if larger.

    Values that repeat are stored once in a parquet file, so the footer may state far too little.
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
    """Return the bytes of each column in some row groups, from the footer."""
    sizes = dict.fromkeys(schema.names, 0)
    for group in groups:
        for number in range(group.num_columns):
            chunk = group.column(number)
            name = _column_of(chunk.path_in_schema, sizes)
            sizes[name] = sizes.get(name, 0) + chunk.total_uncompressed_size
    return sizes


def matching_groups(file: InputFile, expression: Any, schema: pa.Schema, known: Any) -> Sequence[int]:
    """Return the row groups that neither statistics nor the condition `known` rule out."""
    source, filesystem = file.path, LocalFileSystem()
    if file.remote is not None:
        remote = RemoteInput(file.remote)
        _footer_of(remote)  # so that it is buffered
        source, filesystem = remote.as_arrow(), None
    fragment = ds.ParquetFileFormat().make_fragment(source, filesystem=filesystem, partition_expression=known)
    try:
        parts = fragment.split_by_row_group(expression, schema=schema)  # statistics are cast to the types of all files
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # not castable: reading refuses values that would change
        return range(fragment.num_row_groups)
    return sorted(group.id for part in parts for group in part.row_groups)
