"""Parquet: the footer has all that a plan needs; row groups may be of any size, because they are read in pieces."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import xxhash

from wdsplit.engines.local import ahead
from wdsplit.tables.formats.common import BATCH_BYTES, MAX_BATCH_ROWS
from wdsplit.tables.formats.opening import (
    AHEAD_BYTES,
    MAX_BUFFER_BYTES,
    Input,
    RemoteInput,
    changed,
    described,
    open_input,
    open_unchanged,
)
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
        footer = _footer_of(source)
        file = pq.ParquetFile(source.as_arrow(), buffer_size=_PROBE_READ_BYTES, pre_buffer=False)
        _check_chunks(file)
        groups = [file.metadata.row_group(i) for i in range(file.metadata.num_row_groups)]
        rows, data_bytes = [group.num_rows for group in groups], sum(group.total_byte_size for group in groups)
        sizes = _column_sizes(groups, file.schema_arrow)
        found = described(source, "parquet", rows, data_bytes, footer, column_bytes=tuple(sizes.items()))
        return found, file.schema_arrow


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


def _footer_of(source: Input) -> str:
    """Return the checksum of the footer, whose length is in the last eight bytes; buffer it if it is remote."""
    source.buffer([(max(0, source.size - _TAIL_BYTES), source.size)])
    length = int.from_bytes(source.read_at(max(0, source.size - 8), 4), "little")
    if _TAIL_BYTES < length + 8 <= source.size:
        source.buffer([(source.size - 8 - length, source.size)])
    return xxhash.xxh3_128_hexdigest(source.read_at(max(0, source.size - 8 - length), length))


def read_batches(
    file: InputFile, groups: Sequence[int], columns: Sequence[str], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some row groups, in batches; verify the checksums of pages that have them."""
    # A copy of a local file may have another modification time: its footer is compared.
    with open_input(file.path) if file.remote is None else open_unchanged(file) as source:
        footer = _footer_of(source)
        with pq.ParquetFile(
            source.as_arrow(),
            buffer_size=_READ_BYTES if file.remote is None else AHEAD_BYTES,
            pre_buffer=False,
            page_checksum_verification=True,
        ) as table:
            if (source.size, footer) != (file.num_bytes, file.footer):
                raise changed(file, f"another file, with {table.metadata.num_rows} rows")
            runs: Iterable[tuple[list[int], list[tuple[int, memoryview]]]] = [(list(groups), [])]
            if isinstance(source, RemoteInput):  # runs of row groups in memory; the next one is fetched meanwhile
                runs = ahead((run, source.fetch(ranges)) for run, ranges in _runs(table, groups, columns))
            rows = 0
            for run, buffers in runs:
                source.use_buffers(buffers)
                rows = rows or _batch_rows(file, table, groups, columns)
                for batch in table.iter_batches(rows, row_groups=run, columns=list(columns), use_threads=False):
                    yield batch.select(list(columns))


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
    with open_input(file.path, file.remote) as source:
        _footer_of(source)  # so that it is buffered if it is remote
        fragment = ds.ParquetFileFormat().make_fragment(source.as_arrow(), partition_expression=known)
        try:
            parts = fragment.split_by_row_group(expression, schema=schema)  # statistics are cast to the common types
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # not castable: reading refuses values that would change
            return range(fragment.num_row_groups)
        return sorted(group.id for part in parts for group in part.row_groups)
