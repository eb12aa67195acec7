"""Tables written in every format that is read, for the tests."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc

from tars import by_tarfile

ROWS_PER_GROUP = 7


def numbered_table(num_rows, first=0) -> pa.Table:
    """Return a table that every format but tars can hold with the same types."""
    numbers = range(first, first + num_rows)
    return pa.table(
        {
            "caption": [f'a "cat", {i} é\n{"x" * (i % 9)}' for i in numbers],
            "label": pa.array(numbers, pa.int64()),
            "score": [i / 7 for i in numbers],
            "is good": [i % 3 == 0 for i in numbers],
            "naïve": [None if i % 5 == 2 else i for i in numbers],
        }
    )


def arrow_bytes(table, new, compression=None, rows=ROWS_PER_GROUP) -> bytes:
    sink = io.BytesIO()
    with new(sink, table.schema, options=ipc.IpcWriteOptions(compression=compression)) as writer:
        for batch in table.to_batches(max_chunksize=rows):
            writer.write_batch(batch)
    return sink.getvalue()


def csv_bytes(table, **options) -> bytes:
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, **options)
    writer.writerow(table.column_names)
    writer.writerows([[_csv_value(value) for value in row.values()] for row in table.to_pylist()])
    return sink.getvalue().encode()


def _csv_value(value):
    return str(value).lower() if isinstance(value, bool) else value


def jsonl_bytes(table) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in table.to_pylist())


def tar_bytes(table) -> bytes:
    """Return a tar whose fields are the columns; nulls are left out."""
    return by_tarfile(
        (f"{number:05d}.{name.replace(' ', '-').replace('ï', 'i')}", str(value).encode())
        for number, row in enumerate(table.to_pylist())
        for name, value in row.items()
        if value is not None
    )


WRITERS = {
    "file.arrow": lambda table: arrow_bytes(table, ipc.new_file),
    "lz4 file.feather": lambda table: arrow_bytes(table, ipc.new_file, "lz4"),
    "zstd stream.ipc": lambda table: arrow_bytes(table, ipc.new_stream, "zstd"),
    "é a.csv": csv_bytes,
    "crlf tabs.tsv": lambda table: csv_bytes(table, delimiter="\t", lineterminator="\r\n", quoting=csv.QUOTE_ALL),
    "a.jsonl": jsonl_bytes,
}
"""Name of a file to what makes its bytes of a table."""


def write_as(folder, name, table) -> str:
    """Write a table as a file of the format that its name says, and return its path."""
    path = Path(folder) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(WRITERS[name](table))
    return str(path)
