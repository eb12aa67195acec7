"""The sample table of a shard: a parquet file beside it with a row for each sample, so that views can choose samples.

Pure (no I/O), except `read_samples`. A table contains the checksum of the shard that it was made for. The manifest
lists the columns of a dataset's tables, and their class names.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from wdsplit.errors import CorruptDataError, DatasetNotFoundError
from wdsplit.shards.parquet import MAX_TABLE_BYTES, UnreadableError, memory_limit, open_table, plain_type, read_table
from wdsplit.shards.table import Shard
from wdsplit.storage.interface import ReadableStorage

__all__ = [
    "FILE_NAME",
    "HEIGHT",
    "KEY",
    "NUM_BYTES",
    "WIDTH",
    "dump_samples",
    "dump_schema",
    "is_kept",
    "is_samples",
    "names_of",
    "parse_columns",
    "parse_samples",
    "parse_schema",
    "read_names",
    "read_samples",
    "sample_type",
    "samples_path",
    "with_names",
]

KEY, NUM_BYTES, WIDTH, HEIGHT = "__key__", "num_bytes", "width", "height"
"""The columns that wdsplit adds; the last two only if a field has images."""
FILE_NAME = "file_name"
"""The column with the file of each sample, relative to the input; datasets of image folders have it."""

_REMEDY = "copy the dataset again; `wdsplit index DATASET --overwrite` makes those of tars again"
_CHECKSUM, _PAGES, _NAMES = b"wdsplit.shard", b"wdsplit.pages", b"names"
_COLUMN_BYTES, _MAX_FOOTER = 2048, 1024**2
"""Maximum bytes of a footer for each column in the manifest, and of a whole footer without a manifest."""
_MIN_DELTA_BITS = 32
"""Narrower integers are written plainly: parquet does not delta-encode them."""

_KINDS: dict[str, pa.DataType] = {
    str(kind): kind
    for kind in (
        pa.bool_(),
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float32(), pa.float64(), pa.string(), pa.date32()),
        *(pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
        *(pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns")),
    )
}
"""The types that columns may have, by name, except for timestamps with a zone, and decimals."""
_ZONED = re.compile(r"timestamp\[(ms|us|ns), tz=([A-Za-z0-9_+:/-]{1,64})\]")
_DECIMAL = re.compile(r"decimal128\((\d{1,2}), (-?\d{1,2})\)")


def samples_path(path: str) -> str:
    """Return the path of the sample table of a shard."""
    return f"{path}.parquet"


# Columns


def sample_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type with which a sample table stores values of a type, or None if it cannot store them.

    It stores numbers, booleans, texts, dates, times and decimals, but no lists, structs, binary data or durations.
    """
    wider = {
        "halffloat": pa.float32(),
        "large_string": pa.string(),
        "string_view": pa.string(),
        "date64[ms]": pa.date32(),
        "time32[s]": pa.time32("ms"),
    }.get(str(kind), kind)
    if pa.types.is_timestamp(wider) and wider.unit == "s":
        wider = pa.timestamp("ms", wider.tz)
    return wider if _parse_type(str(wider)) == wider else None


def is_kept(kind: pa.DataType) -> bool:
    """Return whether sample tables keep columns of a type by default: all that they store but texts."""
    return sample_type(kind) not in (None, pa.string())


def with_names(field: pa.Field, names: Sequence[str]) -> pa.Field:
    """Return a column with the names of its classes, by number; without names, return it as it is."""
    return field.with_metadata({_NAMES: orjson.dumps(list(names))}) if names else field


def names_of(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return the class names of each column that has them, by number: `{"label": ("cat", "dog")}`."""
    return {field.name: _names(field) for field in schema if _names(field)}


def _names(field: pa.Field) -> tuple[str, ...]:
    return tuple(orjson.loads((field.metadata or {}).get(_NAMES, b"[]")))


def dump_schema(schema: pa.Schema) -> list[dict[str, Any]]:
    """Return the columns of sample tables as JSON values for a manifest."""
    return [
        {"name": field.name, "type": str(field.type), **({"names": list(_names(field))} if _names(field) else {})}
        for field in schema
    ]


def parse_schema(columns: Any) -> pa.Schema:
    """Parse the columns of sample tables: the inverse of `dump_schema`.

    Raises:
        ValueError: They are invalid.
    """
    schema = parse_columns(columns)
    if schema.names[:2] != [KEY, NUM_BYTES]:
        raise ValueError(f"the columns {', '.join(schema.names)[:1000]}")
    if schema.types[:2] != [pa.string(), pa.int64()]:
        raise ValueError(f"{KEY}: {schema.types[0]}, {NUM_BYTES}: {schema.types[1]}")
    return schema


def parse_columns(columns: Any) -> pa.Schema:
    """Parse the columns of any table that `dump_schema` has written; raises as `parse_schema` does."""
    if not isinstance(columns, list):
        raise ValueError("no list of columns")
    schema = pa.schema([_parse_column(column) for column in columns])
    if len(set(schema.names)) < len(schema):
        raise ValueError(f"the columns {', '.join(schema.names)[:1000]}")
    return schema


def _parse_column(column: Any) -> pa.Field:
    match column:
        case {"name": str(name), "type": str(text), **more} if more.keys() <= {"names"}:
            kind, names = _parse_type(text), more.get("names", [])
            if kind is not None and isinstance(names, list) and all(isinstance(each, str) for each in names):
                return with_names(pa.field(name, kind, nullable=name not in (KEY, NUM_BYTES)), names)
    raise ValueError(f"the column {repr(column)[:1000]}")


def _parse_type(text: str) -> pa.DataType | None:
    if zoned := _ZONED.fullmatch(text):
        return pa.timestamp(zoned[1], zoned[2])
    if decimal := _DECIMAL.fullmatch(text):
        precision, scale = int(decimal[1]), int(decimal[2])
        return pa.decimal128(precision, scale) if 1 <= precision <= 38 and 0 <= scale <= precision else None
    return _KINDS.get(text)


# Tables


def dump_samples(table: pa.Table, checksum: str) -> bytes:
    """Return the bytes of a sample table: compact, and the same for the same rows.

    Args:
        table: Its rows.
        checksum: The checksum of its shard in the manifest.
    """
    # as one array each, so that the same rows give the same bytes
    columns = [each.chunk(0) if each.num_chunks == 1 else each.combine_chunks() for each in table.columns]
    schema = pa.schema([field.remove_metadata() for field in table.schema])
    compression: dict[str, str] = {}
    encodings: dict[str, str] = {}
    dictionaries: list[str] = []
    for name, column in zip(schema.names, columns, strict=True):
        is_integer = pa.types.is_integer(column.type)
        # Encoded integers hardly shrink further, and zstd takes longer to start for a column than to compress it.
        compression[name] = "lz4" if is_integer else "zstd"
        if name not in (KEY, NUM_BYTES) and _repeats(column):
            dictionaries.append(name)
        elif is_integer and column.type.bit_width >= _MIN_DELTA_BITS:
            encodings[name] = "DELTA_BINARY_PACKED"
        elif pa.types.is_floating(column.type):
            encodings[name] = "BYTE_STREAM_SPLIT"
    data = b""
    for _ in range(2):  # first for the checksum of the pages, which is in the footer after them
        sink = pa.BufferOutputStream()
        pq.write_table(
            pa.Table.from_arrays(
                columns, schema=schema.with_metadata({_CHECKSUM: checksum, _PAGES: _pages_checksum(data)})
            ),
            sink,
            compression=compression,
            use_dictionary=dictionaries,
            column_encoding=encodings or None,
            write_statistics=False,
            write_page_checksum=True,
        )
        data = bytes(sink.getvalue())
    return data


def _pages_checksum(data: bytes) -> str:
    """Return a checksum of all values of a table: of its bytes before the footer."""
    footer_bytes = int.from_bytes(data[-8:-4], "little")
    return xxhash.xxh3_128_hexdigest(memoryview(data)[: max(0, len(data) - 8 - footer_bytes)])


def _repeats(column: pa.Array) -> bool:
    """Return whether the values of a column repeat enough to make a dictionary worthwhile."""
    import pyarrow.compute as pc  # here, because the first batch of a dataset comes without it

    if pa.types.is_integer(column.type) and not column.null_count and len(column):
        values = column.to_numpy()  # counting distinct values would take as long as writing them
        return bool(2 * (int(values.max()) - int(values.min())) <= len(column))
    return bool(2 * pc.count_distinct(column).as_py() <= len(column))


def read_samples(
    storage: ReadableStorage,
    shard: Shard,
    columns: Sequence[str] | None = None,
    schema: pa.Schema | None = None,
    path: str = "",
    remedy: str = _REMEDY,
) -> pa.Table:
    """Read the sample table of a shard, or another table with a row for each of its samples.

    Args:
        storage: The dataset.
        shard: The shard from the manifest. If it has more pads than the file, only the first samples are returned.
        columns: Columns, in the order of the returned table; None for all.
        schema: The columns in the manifest (`Manifest.samples`), to check their types; None to accept any.
        path: The table's path; that of the sample table by default.
        remedy: What to do if it is damaged.

    Returns:
        A row for each sample in the tar's order, without pads.

    Raises:
        CorruptDataError: The table is missing or damaged, belongs to another shard, or has other rows or columns.
    """
    path = path or samples_path(shard.path)
    try:
        return parse_samples(storage.read(path, MAX_TABLE_BYTES), shard, columns, schema)
    except (CorruptDataError, DatasetNotFoundError) as error:
        damaged = _damaged(error.found, error.expected, remedy)
        if isinstance(error, DatasetNotFoundError):
            damaged = _damaged("no such file", f"the table of {shard.path}", remedy)
        damaged.url = f"{storage.url}/{path}"
        raise damaged.in_dataset(storage.url, path) from error


def read_names(storage: ReadableStorage, shard: Shard, schema: pa.Schema) -> list[tuple[str, str]]:
    """Return the key of each sample of a shard, and the file that it was made from; empty if unknown.

    The arguments, and the errors that it raises, are those of `read_samples`.
    """
    columns = [KEY, *([FILE_NAME] if FILE_NAME in schema.names else [])]
    table = read_samples(storage, shard, columns, schema)
    files = table[FILE_NAME].to_pylist() if len(columns) > 1 else [""] * len(table)
    return [(key, str(file or "")) for key, file in zip(table[KEY].to_pylist(), files, strict=True)]


def is_samples(data: bytes) -> bool:
    """Return whether a file is a sample table, of any shard."""
    try:
        return _CHECKSUM in (open_table(data, (), _MAX_FOOTER).schema_arrow.metadata or {})
    except UnreadableError:
        return False


def parse_samples(
    data: bytes, shard: Shard, columns: Sequence[str] | None = None, schema: pa.Schema | None = None
) -> pa.Table:
    """Parse a sample table; see `read_samples`."""
    num_real = shard.num_samples - shard.num_pads
    try:
        max_footer = _MAX_FOOTER if schema is None else sum(_COLUMN_BYTES + 4 * len(name) for name in schema.names)
        texts = columns
        if schema is not None or columns is None:
            known = open_table(data, (), max_footer).schema_arrow if schema is None else schema
            texts = [field.name for field in known if field.type == pa.string()]
        file = open_table(data, texts or (), max_footer)
        found = pa.schema([pa.field(field.name, plain_type(field.type)) for field in file.schema_arrow])
        known = parse_schema(dump_schema(found)) if schema is None else schema
        if [(field.name, field.type) for field in known] != [(field.name, field.type) for field in found]:
            raise UnreadableError(_shown(found), _shown(known))
        checksum, num_rows = (file.schema_arrow.metadata or {}).get(_CHECKSUM, b"").decode(), file.metadata.num_rows
        if checksum != shard.checksum:
            raise UnreadableError(f"one for {checksum or 'no shard'}", f"a table for {shard.checksum}")
        pages = (file.schema_arrow.metadata or {}).get(_PAGES)  # tables of earlier versions have none
        if pages is not None and pages.decode() != _pages_checksum(data):
            raise UnreadableError("other values", "the values that were written with it")
        if not num_real <= num_rows <= shard.num_samples:
            raise UnreadableError(f"{num_rows} rows", f"{num_real} rows")
        selected = known if columns is None else pa.schema([known.field(name) for name in columns])
        limit = max(memory_limit(data), min(shard.num_bytes, MAX_TABLE_BYTES))
        return read_table(file, selected, limit).slice(0, num_real)
    except UnreadableError as error:
        raise _damaged(error.found, error.expected or "a table as wdsplit writes it") from error
    except (ValueError, KeyError, UnicodeDecodeError) as error:
        raise _damaged(str(error), "a table as wdsplit writes it") from error


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)[:1000]


def _damaged(found: str, expected: str, remedy: str = _REMEDY) -> CorruptDataError:
    return CorruptDataError("a table of samples cannot be read", expected=expected, found=found, remedy=remedy)
