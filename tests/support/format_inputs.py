"""Input files, read by the module of their format, for its tests."""

from __future__ import annotations

import pyarrow as pa

from wdsplit.tables.formats import arrow, common, text


def cut_small(patch) -> None:
    """Let files be cut into blocks and batches of a few rows."""
    patch.setattr(text, "BLOCK_BYTES", 100)
    patch.setattr(arrow, "_GROUP_BYTES", 100)
    patch.setattr(common, "BATCH_BYTES", 150)


def read_files(module, paths, columns=None) -> pa.Table:
    opened = {path: module.open_file(path) for path in paths}
    schema = module.common_schema({path: found for path, (_, found) in opened.items()})
    columns = columns or schema.names
    batches = [
        batch
        for file, _ in opened.values()
        if file.row_groups
        for batch in module.read_batches(file, range(len(file.row_groups)), columns, schema)
    ]
    return pa.Table.from_batches(batches, pa.schema([schema.field(name) for name in columns]))


def read_data(module, path, data) -> pa.Table:
    """Write a file of a text, or of bytes, and read it."""
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return read_files(module, [str(path)])
