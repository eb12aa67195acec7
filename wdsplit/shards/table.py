"""The table of a dataset's shards: a row a shard, as parquet and back.

Pure (no I/O). A table comes with a dataset that anyone may have made, and a few compressed or repeated bytes can stand
for terabytes: so what its metadata says of its size is checked before anything is decompressed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wdsplit.errors import CorruptDataError
from wdsplit.tar.headers import BLOCK_BYTES

__all__ = [
    "MAX_SHARDS",
    "MAX_SHARD_SAMPLES",
    "MAX_TABLE_BYTES",
    "SHARDS_NAME",
    "Shard",
    "Shards",
    "dump_shards",
    "parse_shards",
]

SHARDS_NAME = "shards.parquet"
MAX_SHARDS = 2**24
MAX_SHARD_SAMPLES = 2**26
"""Its index has 512 MiB then, and an order of its samples takes as much."""
_MAX_SAMPLES = 2**40
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

_SLACK_BYTES, _MAX_EXPANSION = 16 * 1024**2, 256
"""How much memory a table may take when it is read: so much, and so much for each of its bytes."""
_ROW_BYTES = 3 * 8 + 2 * 4
"""What a row takes at least: three counts, and the places of two texts."""
_FOOTER_SLACK_BYTES, _FOOTER_SHARE = 64 * 1024, 16
"""How long the footer may be: so much, and such a share of the file. Reading it takes hundreds of times its size."""
_MAX_LISTED = 10_000
"""Entries of any list in the footer."""
_ENCODINGS = frozenset(("PLAIN", "PLAIN_DICTIONARY", "RLE", "RLE_DICTIONARY"))
"""In others a value may repeat bytes of the one before it, and so take more memory than the metadata says."""
_REMEDY = "copy the dataset again, or convert it again with --overwrite"

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    """A shard, as the manifest has it.

    Attributes:
        path: Where it is, relative to the dataset.
        num_samples: Its samples, pads included.
        num_pads: How many of them are pads; they come last.
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
        """Samples of each shard that are not pads: int64 of shape (shards,). They come first in the shard."""
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
        CorruptDataError: It is damaged, larger than a table of so many shards can be, or has invalid paths or counts.
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
    footer_bytes = int.from_bytes(data[-8:-4], "little")
    if len(data) > MAX_TABLE_BYTES or footer_bytes > _FOOTER_SLACK_BYTES + len(data) // _FOOTER_SHARE:
        raise _unreadable(f"{len(data)} bytes, {footer_bytes} of them in the footer")
    file = pq.ParquetFile(
        pa.BufferReader(_in_arrow_memory(data)),
        read_dictionary=_TEXTS,  # a repeated text takes memory once
        thrift_string_size_limit=len(data),
        thrift_container_size_limit=_MAX_LISTED,
    )
    _check_metadata(file, num_shards, limit)
    if not num_shards:
        return _SCHEMA.empty_table()
    table = file.read(_SCHEMA.names, use_threads=False)
    if table.num_rows != num_shards or sum(_text_bytes(table.column(name)) for name in _TEXTS) > limit:
        raise _unreadable("texts that take more memory than those of a table of this size can")
    table = table.select(_SCHEMA.names).cast(_SCHEMA)
    table.validate(full=True)
    return table


def _check_metadata(file: pq.ParquetFile, num_shards: int, limit: int) -> None:
    """Refuse a file that has other columns or rows, or that takes more bytes than a limit when it is read."""
    if not all(_is_right(file.schema_arrow, name) for name in _SCHEMA.names):
        raise _unreadable(", ".join(f"{field.name}: {field.type}" for field in file.schema_arrow)[:1000])
    metadata = file.metadata
    num_rows = metadata.num_rows
    if num_rows != num_shards or num_rows > MAX_SHARDS:
        raise _unreadable(f"num_shards = {num_shards} in the header", f"{num_rows} rows, at most {MAX_SHARDS}")
    columns = range(metadata.num_columns)
    num_bytes = num_rows * _ROW_BYTES
    for number in range(metadata.num_row_groups):
        # A batch of no rows decompresses nothing, but finds the errors of a forged footer. Without it `column` meets
        # them where pyarrow does not catch them, and the process aborts.
        for _ in file.reader.iter_batches(0, [number], column_indices=list(columns), use_threads=False):
            pass
        group = metadata.row_group(number)
        num_rows -= group.num_rows
        for column in map(group.column, columns):
            if group.num_rows < 0 or column.total_uncompressed_size < 0 or not _ENCODINGS.issuperset(column.encodings):
                raise _unreadable(f"a column of {column.total_uncompressed_size} bytes in {column.encodings}")
            num_bytes += column.total_uncompressed_size
    if num_rows or num_bytes > limit:
        raise _unreadable("columns that take more memory than those of a table of this size can")


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
    """Return the bytes of texts, which may be encoded as a dictionary, when they are written out."""
    total = 0
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            lengths = np.asarray(pc.binary_length(chunk.dictionary).fill_null(0), np.int64)
            total += int(lengths[np.asarray(chunk.indices.fill_null(0), np.int64)].sum()) if len(lengths) else 0
        else:
            total += chunk.nbytes
    return total


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
        raise CorruptDataError(f"{SHARDS_NAME} has a duplicate shard", expected="each path once", remedy=_REMEDY)


def _check_counts(shards: Shards) -> None:
    counts, pads, sizes = (shards.column(name) for name in ("num_samples", "num_pads", "num_bytes"))
    wrong = (pads < 0) | (pads > counts) | (counts > sizes // BLOCK_BYTES)
    if wrong.any() or sum(sizes.tolist()) >= 2**63:
        raise CorruptDataError(
            f"{SHARDS_NAME} holds invalid counts",
            expected=f"0 <= num_pads <= num_samples <= num_bytes / {BLOCK_BYTES} for each shard, and no more bytes in "
            "all than 64 bits can count",
            remedy=_REMEDY,
        )
    total = sum(counts.tolist())
    if (counts > MAX_SHARD_SAMPLES).any() or total > _MAX_SAMPLES:
        raise CorruptDataError(
            f"{SHARDS_NAME} claims more samples than a dataset can have",
            expected=f"at most {MAX_SHARD_SAMPLES:,} in a shard, and {_MAX_SAMPLES:,} in all",
            found=f"{int(counts.max()):,} in a shard, and {total:,} in all",
            remedy="do not use this dataset: it may have been tampered with",
        )


def _unreadable(found: str, expected: str = "") -> CorruptDataError:
    return CorruptDataError(
        f"{SHARDS_NAME} cannot be read",
        expected=expected or f"a parquet table with the columns {', '.join(_SCHEMA.names)}",
        found=found,
        remedy=_REMEDY,
    )
