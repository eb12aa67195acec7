"""Reads the small parquet tables of a dataset safely.

Pure (no I/O). Anyone may have made a dataset, and a few compressed or repeated bytes can expand to terabytes. So the
sizes in a table's metadata are checked before anything is decompressed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["MAX_TABLE_BYTES", "UnreadableError", "memory_limit", "open_table", "plain_type", "read_table"]

MAX_TABLE_BYTES = 2 * 1024**3

_SLACK_BYTES, _MAX_EXPANSION = 16 * 1024**2, 256
"""Memory limit of a table: a constant, and a factor for its bytes."""
_OFFSET_BYTES = 4
"""Bytes of the offset of a text in memory."""
_FOOTER_SLACK_BYTES, _FOOTER_SHARE = 64 * 1024, 16
"""Limit of a footer: a constant, and this fraction of the file. Reading it takes hundreds of times its size."""
_MAX_LISTED = 10_000
"""Maximum entries of any list in the footer."""
_TEXT_ENCODINGS = frozenset(("PLAIN", "PLAIN_DICTIONARY", "RLE", "RLE_DICTIONARY"))
"""In other encodings a text may repeat bytes of the one before, and so take more memory than the metadata states."""
_ENCODINGS = _TEXT_ENCODINGS | {"BYTE_STREAM_SPLIT", "DELTA_BINARY_PACKED"}

_DAMAGES = (pa.ArrowException, KeyError, OSError, ValueError, OverflowError, IndexError, MemoryError)
"""Errors that reading a damaged table raises."""


class UnreadableError(Exception):
    """A table cannot be read: it is damaged, or not the expected one.

    Args:
        found: What was found.
        expected: What was expected; empty for a valid table with the right columns.
    """

    def __init__(self, found: str, expected: str = "") -> None:
        super().__init__(found)
        self.found, self.expected = found, expected


def memory_limit(data: bytes) -> int:
    """Return the maximum bytes of memory that the columns of a table may take when it is read."""
    return _SLACK_BYTES + _MAX_EXPANSION * len(data)


def open_table(data: bytes, texts: Sequence[str], max_footer: int = _FOOTER_SLACK_BYTES) -> pq.ParquetFile:
    """Open a table; only its footer is read.

    Args:
        data: Its bytes.
        texts: The columns of texts, to read as dictionaries: a repeated text takes memory once.
        max_footer: Maximum bytes of the footer, in addition to a fraction of the file.

    Raises:
        UnreadableError: It is damaged.
    """
    footer_bytes = int.from_bytes(data[-8:-4], "little")
    if len(data) > MAX_TABLE_BYTES or footer_bytes > max_footer + len(data) // _FOOTER_SHARE:
        raise UnreadableError(f"{len(data)} bytes, {footer_bytes} of them in the footer")
    try:
        return pq.ParquetFile(
            pa.BufferReader(_in_arrow_memory(data)),
            read_dictionary=list(texts),
            thrift_string_size_limit=len(data),
            thrift_container_size_limit=_MAX_LISTED,
            page_checksum_verification=True,
        )
    except _DAMAGES as error:
        raise UnreadableError(str(error)[:1000]) from error


def read_table(file: pq.ParquetFile, schema: pa.Schema, limit: int) -> pa.Table:
    """Read some columns of a table that `open_table` has opened, after a check of the memory that they need.

    Args:
        file: The table.
        schema: The columns. Columns of texts must have been in `texts` of `open_table`.
        limit: Maximum bytes of memory for all columns of the file.

    Raises:
        UnreadableError: The table is damaged, lacks a column, or needs more memory.
    """
    try:
        _check_metadata(file, schema, limit)
        if not file.metadata.num_rows:
            return schema.empty_table()
        table = file.read(schema.names, use_threads=False)
        texts = [name for name in schema.names if schema.field(name).type == pa.string()]
        if table.num_rows != file.metadata.num_rows or sum(_text_bytes(table.column(name)) for name in texts) > limit:
            raise UnreadableError("text columns no larger in memory than a table of this size allows")
        columns = [_plain(table.column(field.name), field) for field in schema]
        table = pa.Table.from_arrays(columns, schema=schema)
        table.validate(full=True)
    except _DAMAGES as error:
        raise UnreadableError(str(error)[:1000]) from error
    return table


def _check_metadata(file: pq.ParquetFile, schema: pa.Schema, limit: int) -> None:
    """Refuse a file that has other columns, or would take more memory than `limit` bytes."""
    found, metadata = file.schema_arrow, file.metadata
    for name, kind in zip(schema.names, schema.types, strict=True):  # exactly one column of each name
        if [plain_type(found.field(place).type) for place in found.get_all_field_indices(name)] != [kind]:
            raise UnreadableError(", ".join(f"{field.name}: {field.type}" for field in found)[:1000])
    num_rows, columns = metadata.num_rows, range(metadata.num_columns)
    least = (_OFFSET_BYTES if kind == pa.string() else -(-int(kind.bit_width) // 8) for kind in schema.types)
    num_bytes = num_rows * sum(least)
    for number in range(metadata.num_row_groups):
        # Reading a batch of no rows decompresses nothing, but detects errors of a forged footer. Without this, `column`
        # would hit them where pyarrow does not catch them, and the process would abort.
        for _ in file.reader.iter_batches(0, [number], column_indices=list(columns), use_threads=False):
            pass
        group = metadata.row_group(number)
        num_rows -= group.num_rows
        for column in map(group.column, columns):
            allowed = _TEXT_ENCODINGS if column.physical_type == "BYTE_ARRAY" else _ENCODINGS
            if group.num_rows < 0 or column.total_uncompressed_size < 0 or not allowed.issuperset(column.encodings):
                raise UnreadableError(f"a column of {column.total_uncompressed_size} bytes in {column.encodings}")
            num_bytes += column.total_uncompressed_size
    if num_rows or num_bytes > limit:
        raise UnreadableError("columns no larger in memory than a table of this size allows")


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of a column's values, which may be read as a dictionary."""
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _in_arrow_memory(data: bytes) -> pa.Buffer:
    """Return bytes as a buffer that Python does not own.

    If a thread of Arrow releases a Python buffer while the interpreter exits, the process aborts.
    """
    buffer = pa.allocate_buffer(len(data))
    memoryview(buffer).cast("B")[:] = data
    return buffer


def _plain(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    """Return a column with its proper type: texts may be encoded as a dictionary."""
    if column.type != field.type:
        chunks = [chunk.dictionary if _is_distinct(chunk) else chunk.cast(field.type) for chunk in column.chunks]
        column = pa.chunked_array(chunks, field.type)
    if column.null_count and not field.nullable:
        raise UnreadableError(f"null values in the column {field.name}")
    return column


def _is_distinct(chunk: pa.Array) -> bool:
    """Return whether an array is a dictionary with each value once, in order, as it is where all values differ."""
    if not pa.types.is_dictionary(chunk.type) or chunk.null_count or len(chunk) != len(chunk.dictionary):
        return False
    return bool((np.from_dlpack(chunk.indices) == np.arange(len(chunk))).all())


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Return the bytes of texts without dictionary encoding."""
    total = 0
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type) and not _is_distinct(chunk):
            import pyarrow.compute as pc  # here, because the first batch of a dataset comes without it

            total += pc.sum(pc.binary_length(chunk.dictionary).take(chunk.indices)).as_py() or 0
        else:
            total += chunk.nbytes
    return total
