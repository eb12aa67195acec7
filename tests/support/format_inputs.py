"""Input files, read by the module of their format, for its tests."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from wdsplit.tables.formats import arrow, common, text
from wdsplit.tables.read import open_inputs, read_rows


def cut_small(patch) -> None:
    """Let files be cut into blocks and batches of a few rows."""
    patch.setattr(text, "BLOCK_BYTES", 100)
    patch.setattr(arrow, "_GROUP_BYTES", 100)
    patch.setattr(common, "BATCH_BYTES", 150)


def read_files(paths, columns=None) -> pa.Table:
    """Return all rows of files as one table."""
    table = open_inputs([str(path) for path in paths])
    columns = columns or table.schema.names
    parts = [pa.table([rows.columns[name] for name in columns], names=columns)
             for rows in read_rows(table, 0, table.num_rows, columns)]  # fmt: skip
    return pa.concat_tables(parts) if parts else pa.schema([table.schema.field(name) for name in columns]).empty_table()


def read_data(path, data) -> pa.Table:
    """Write a file of a text, or of bytes, and read it."""
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return read_files([path])


def damage(path, groups, columns=None) -> None:
    """Overwrite the data of row groups of a parquet file, in all columns or in those of these numbers."""
    data, metadata = bytearray(Path(path).read_bytes()), pq.read_metadata(path)
    for group in groups:
        for number in columns or range(metadata.num_columns):
            column = metadata.row_group(group).column(number)
            start = column.dictionary_page_offset or column.data_page_offset
            data[start : start + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    Path(path).write_bytes(data)
