"""The table of a dataset's shards: a row a shard, as parquet and back.

Pure (no I/O). A table comes with a dataset that anyone may have made, so before it is read its pages are counted: a few
compressed or repeated bytes can stand for terabytes, and what a parquet file says of itself need not be true.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wdsplit.errors import CorruptDataError
from wdsplit.tar.headers import BLOCK_BYTES

__all__ = ["MAX_SHARDS", "MAX_TABLE_BYTES", "SHARDS_NAME", "Shard", "Shards", "dump_shards", "parse_shards"]

SHARDS_NAME = "shards.parquet"
MAX_SHARDS = 2**24
MAX_TABLE_BYTES = 2 * 1024**3

_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("num_samples", pa.int64(), nullable=False),
        pa.field("num_pads", pa.int64(), nullable=False),
        pa.field("num_bytes", pa.int64(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
    ]
)
_TEXTS = ["path", "checksum"]
_INNER_PATH = r"^[^/\\\x00-\x1f]+(/[^/\\\x00-\x1f]+)*$"
_OUTWARD_PATH = r"(^|/)\.\.?(/|$)|^[A-Za-z]:"

_SLACK_SHARDS, _MIN_ROW_BYTES = 2**16, 8
"""How many rows a table may have: so many, and one for each so many of its bytes."""
_SLACK_BYTES, _MAX_EXPANSION = 16 * 1024**2, 256
"""What a table may take when it is read: so much, and so much for each of its bytes. A row has a checksum of its own,
which takes 16 bytes however well it is compressed, and a path of at most 4,096."""
_FOOTER_SLACK_BYTES, _FOOTER_PART = 64 * 1024, 16
"""How long the footer may be: so much, and so much of the whole table. Reading it takes hundreds of times its size."""
_MAX_LISTED = 10_000
"""Entries of any list in the footer."""
_PLAIN_ENCODINGS = frozenset((0, 2, 3, 8))
"""PLAIN, PLAIN_DICTIONARY, RLE, RLE_DICTIONARY. In others a value may hold bytes of the one before it."""
_PAGES = {0: 5, 2: 7}
"""The field of a page's header that has more of it: of DATA_PAGE and DICTIONARY_PAGE, as they are written."""
_TRUE, _FALSE, _BYTE, _INT_16, _INT_32, _INT_64, _BINARY, _LIST, _STRUCT = 1, 2, 3, 4, 5, 6, 8, 9, 12
_LONG_LIST = 15
_ITEMS = {
    (4, 1, 3, 2): _INT_32,  # encodings
    (4, 1, 3, 3): _BINARY,  # path_in_schema
    (4, 1, 3, 16, 2): _INT_64,  # size_statistics: repetition_level_histogram
    (4, 1, 3, 16, 3): _INT_64,  # definition_level_histogram
}
"""The items of the lists in a footer, by their field ids from FileMetaData on; of all others they are structs."""
_MAX_FIELD_ID, _MAX_DEPTH = 31, 8
_REMEDY = "copy the dataset again, or convert it again with --overwrite"

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    """A shard, as the manifest has it.

    Attributes:
        path: Where it is, relative to the dataset.
        num_samples: Its samples, pads included.
        num_pads: How many of them are pads; they stand last.
        num_bytes: Its size.
        checksum: Of its bytes, as `checksum_of` writes it.
    """

    path: str
    num_samples: int
    num_pads: int
    num_bytes: int
    checksum: str


@dataclass(frozen=True)
class Shards:
    """The shards of a dataset, a row each, in their order.

    Attributes:
        table: Arrow table with the columns path, num_samples (pads included), num_pads, num_bytes, checksum.
    """

    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def __getitem__(self, shard: int) -> Shard:
        return Shard(**{name: self.table.column(name)[shard].as_py() for name in _SCHEMA.names})

    @classmethod
    def of(cls, shards: Sequence[Shard]) -> Shards:
        """Build the table."""
        return cls(pa.Table.from_pylist([dataclasses.asdict(shard) for shard in shards], schema=_SCHEMA))

    @classmethod
    def of_columns(cls, columns: Mapping[str, Any]) -> Shards:
        """Build the table from its columns: arrays of Arrow or numpy."""
        return cls(pa.table(dict(columns), schema=_SCHEMA))

    def column(self, name: str) -> Int64:
        """Return one of the numeric columns as int64 of shape (shards,)."""
        return np.asarray(self.table.column(name).to_numpy(), np.int64)

    @property
    def num_real(self) -> Int64:
        """Samples of each shard that are not pads: int64 of shape (shards,). They stand first in the shard."""
        return self.column("num_samples") - self.column("num_pads")


def dump_shards(shards: Shards) -> bytes:
    """Return the bytes of the table."""
    sink = pa.BufferOutputStream()
    pq.write_table(shards.table, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def parse_shards(data: bytes, num_shards: int) -> Shards:
    """Parse the table.

    Args:
        data: Its bytes.
        num_shards: The rows that it must have.

    Raises:
        CorruptDataError: It is damaged, larger than a table of so many shards can be, or names what cannot be.
    """
    try:
        table = _read(data, num_shards)
    except (pa.ArrowException, KeyError, OSError, ValueError, OverflowError, IndexError, MemoryError) as error:
        if isinstance(error, CorruptDataError):
            raise
        raise _unreadable(str(error)[:1000]) from error
    _check_paths(table.column("path"))
    shards = Shards(table)
    _check_counts(shards)
    return shards


def _read(data: bytes, num_shards: int) -> pa.Table:
    """Read the table, once it is known what memory that takes."""
    limit = _SLACK_BYTES + _MAX_EXPANSION * len(data)
    _check_pages(data, num_shards, limit)
    file = pq.ParquetFile(
        pa.BufferReader(_in_arrow_memory(data)),
        read_dictionary=_TEXTS,
        thrift_string_size_limit=len(data),
        thrift_container_size_limit=_MAX_LISTED,
    )
    if not all(_is_right(file.schema_arrow, name) for name in _SCHEMA.names):
        raise _unreadable(", ".join(f"{field.name}: {field.type}" for field in file.schema_arrow)[:1000])
    if not num_shards:
        return _SCHEMA.empty_table()
    table = file.read(_SCHEMA.names, use_threads=False)
    if table.num_rows != num_shards or sum(_text_bytes(table.column(name)) for name in _TEXTS) > limit:
        raise _unreadable("texts that take more memory than those of a table of this size can")
    table = table.select(_SCHEMA.names).cast(_SCHEMA)
    table.validate(full=True)
    return table


def _is_right(schema: pa.Schema, name: str) -> bool:
    """Tell whether a column is there once, and of a type that cannot hold more values than rows."""
    kinds = [schema.field(place).type for place in schema.get_all_field_indices(name)]
    plain = [kind.value_type if pa.types.is_dictionary(kind) else kind for kind in kinds]
    return plain == [_SCHEMA.field(name).type]


def _in_arrow_memory(data: bytes) -> pa.Buffer:
    """Return bytes as a buffer that Python does not own.

    A thread of Arrow's that lets go of a buffer of Python's while the interpreter ends makes it abort.
    """
    buffer = pa.allocate_buffer(len(data))
    memoryview(buffer).cast("B")[:] = data
    return buffer


def _text_bytes(column: pa.ChunkedArray) -> int:
    """Return the bytes of texts that may be held as a dictionary, were they written out."""
    total = 0
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            lengths = np.asarray(pc.binary_length(chunk.dictionary).fill_null(0), np.int64)
            total += int(lengths[np.asarray(chunk.indices.fill_null(0), np.int64)].sum()) if len(lengths) else 0
        else:
            total += chunk.nbytes
    return total


# The pages of a parquet file, found without Arrow, of which odd footers end the process


def _check_pages(data: bytes, num_shards: int, limit: int) -> None:
    """Refuse a file whose pages take more than a limit when they are decompressed, or can be read as more than that."""
    footer_bytes = int.from_bytes(data[-8:-4], "little")
    if len(data) > MAX_TABLE_BYTES or footer_bytes > _FOOTER_SLACK_BYTES + len(data) // _FOOTER_PART:
        raise _unreadable(f"{len(data)} bytes, {footer_bytes} of them in the footer")
    try:
        footer, _ = _struct(data, len(data) - 8 - footer_bytes)
        groups = [(group[3, _INT_64], chunk[3, _STRUCT]) for group in footer[4, _LIST] for chunk in group[1, _LIST]]
        num_rows = footer[3, _INT_64]
    except (KeyError, IndexError) as error:
        raise _unreadable("a footer that is none") from error
    most = min(MAX_SHARDS, _SLACK_SHARDS + len(data) // _MIN_ROW_BYTES)
    if num_rows != num_shards or num_shards > most:
        rows = f"{num_rows} rows, and at most {most} in {len(data)} bytes"
        raise _unreadable(f"num_shards = {num_shards} in the header", rows)
    left = len(data)
    for rows, column in groups if num_rows else ():
        first, num_bytes = column.get((9, _INT_64), -1), column.get((7, _INT_64), -1)
        dictionary = column.get((11, _INT_64), 0)
        first = dictionary if 0 < dictionary < first else first
        left -= num_bytes
        if min(first, num_bytes, left, rows) < 0 or first + num_bytes > len(data) or rows > num_rows:
            raise _unreadable("columns that lie outside the file, or on top of each other")
        limit -= sum(_page_bytes(data, first, first + num_bytes, rows))
        if limit < 0:
            raise _unreadable("pages that take more memory than a table of this size can")


def _page_bytes(data: bytes, first: int, stop: int, num_rows: int) -> Iterator[int]:
    """Give what each page of a column takes when it is decompressed."""
    while first < stop:
        page, first = _struct(data, first)
        about = page.get((_PAGES.get(page.get((1, _INT_32), -1), 0), _STRUCT))
        if about is None or min(page.get((2, _INT_32), -1), page.get((3, _INT_32), -1)) < 0:
            raise _unreadable("a page of an unknown kind")
        if not 0 <= about.get((1, _INT_32), -1) <= num_rows or about.get((2, _INT_32)) not in _PLAIN_ENCODINGS:
            raise _unreadable("a page of more values than rows, or in an encoding that is not written")
        yield page[2, _INT_32]
        first += page[3, _INT_32]
    if first != stop:
        raise _unreadable("a page that does not end with its column")


def _struct(data: bytes, place: int, path: tuple[int, ...] = ()) -> tuple[dict[tuple[int, int], Any], int]:
    """Return the values of a struct in Thrift's compact protocol, by field id and type; and where it ends.

    Source: https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md. What Arrow's reader could
    take for something else is refused: a field twice, one of an unknown id, a list of other items.
    """
    values: dict[tuple[int, int], Any] = {}
    fields: set[int] = set()
    field = 0
    while data[place]:
        delta, kind = divmod(data[place], 16)
        place += 1
        if delta:
            field += delta
        else:
            field, place = _number(data, place)
        if field in fields or not 0 < field <= _MAX_FIELD_ID:
            raise _unreadable("a field twice, or an unknown one")
        fields.add(field)
        if kind not in (_TRUE, _FALSE):
            values[field, kind], place = _value(data, place, kind, (*path, field))
    return values, place + 1


def _value(data: bytes, place: int, kind: int, path: tuple[int, ...]) -> tuple[Any, int]:
    if kind == _BYTE:
        return None, place + 1
    if kind in (_INT_16, _INT_32, _INT_64):
        return _number(data, place)
    if kind == _BINARY:
        length, place = _varint(data, place)
        return None, place + length
    if kind == _STRUCT and len(path) < _MAX_DEPTH:
        return _struct(data, place, path)
    if kind == _LIST:
        count, inner = divmod(data[place], 16)
        place += 1
        if count == _LONG_LIST:
            count, place = _varint(data, place)
        if count <= _MAX_LISTED and inner == _ITEMS.get(path, _STRUCT):
            items = []
            for _ in range(count):
                item, place = _value(data, place, inner, path)
                items.append(item)
            return items, place
    raise _unreadable("a value that no table has")


def _number(data: bytes, place: int) -> tuple[int, int]:
    value, place = _varint(data, place)
    return value >> 1 ^ -(value & 1), place


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        value |= (data[place] & 127) << shift
        place += 1
        if data[place - 1] < 128:
            return value, place
    raise _unreadable("a number of more than 64 bits")


# What a table says


def _check_paths(paths: pa.ChunkedArray) -> None:
    inner = pc.and_(
        pc.match_substring_regex(paths, _INNER_PATH),
        pc.invert(pc.match_substring_regex(paths, _OUTWARD_PATH)),
    )
    if not pc.all(inner, min_count=0).as_py():
        bad = pc.filter(paths, pc.invert(inner))[0].as_py()
        raise CorruptDataError(
            f"{SHARDS_NAME} names a shard outside the dataset",
            expected="a relative path without '..'",
            found=repr(bad[:1000]),
            remedy="do not use this dataset: it may have been tampered with",
        )
    if len(pc.unique(paths)) != len(paths):
        raise CorruptDataError(f"{SHARDS_NAME} names a shard twice", expected="each path once", remedy=_REMEDY)


def _check_counts(shards: Shards) -> None:
    counts, pads, sizes = (shards.column(name) for name in ("num_samples", "num_pads", "num_bytes"))
    wrong = (pads < 0) | (pads > counts) | (counts > sizes // BLOCK_BYTES)
    if wrong.any() or sum(sizes.tolist()) >= 2**63:
        raise CorruptDataError(
            f"{SHARDS_NAME} holds counts that cannot be",
            expected=f"0 <= num_pads <= num_samples <= num_bytes / {BLOCK_BYTES} for each shard, and no more bytes in "
            "all than 64 bits can count",
            remedy=_REMEDY,
        )


def _unreadable(found: str, expected: str = "") -> CorruptDataError:
    return CorruptDataError(
        f"{SHARDS_NAME} cannot be read",
        expected=expected or f"a parquet table with the columns {', '.join(_SCHEMA.names)}",
        found=found,
        remedy=_REMEDY,
    )
