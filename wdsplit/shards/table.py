"""The table of a dataset's shards: a row for each shard, as parquet and back.

Pure (no I/O). Anyone may have made a dataset: `parquet` limits the memory for reading its table, and this module checks
paths and counts.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wdsplit.arrays import Int64
from wdsplit.errors import CorruptDataError
from wdsplit.shards.parquet import MAX_TABLE_BYTES, UnreadableError, memory_limit, open_table, read_table
from wdsplit.tar.headers import BLOCK_BYTES

__all__ = [
    "COPY_AGAIN",
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
"""The index of such a shard has 512 MiB, and an order of its samples takes as much memory."""
_MAX_SAMPLES = 2**40

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
_INNER_NAME = r"(?!\.\.?(?:/|\Z))[^/\\\x00-\x1f]+"
_INNER_PATH = re.compile(rf"(?![A-Za-z]:){_INNER_NAME}(?:/{_INNER_NAME})*")
_PATHS_AT_ONCE = 8192

COPY_AGAIN = "copy the dataset again, or convert it again with --overwrite"
"""The remedy for a damaged dataset."""


@dataclass(frozen=True)
class Shard:
    """A shard: a row of the manifest's table.

    Attributes:
        path: Its path, relative to the dataset.
        num_samples: Number of its samples, including pads.
        num_pads: Number of its pads, which come last.
        num_bytes: Its size in bytes.
        checksum: The checksum of its bytes, from `checksum_of`.
    """

    path: str
    num_samples: int
    num_pads: int
    num_bytes: int
    checksum: str


@dataclass(frozen=True)
class Shards:
    """The shards of a dataset, in their order.

    Attributes:
        table: Arrow table with the columns path, num_samples (including pads), num_pads, num_bytes, checksum.
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
        """Build the table from its columns: Arrow or numpy arrays."""
        return cls(pa.table(dict(columns), schema=_SCHEMA))

    def column(self, name: str) -> Int64:
        """Return one of the numeric columns as int64 of shape (shards,)."""
        values = np.from_dlpack(self.table.column(name).combine_chunks())  # `to_numpy` would import pandas
        return np.asarray(values, np.int64)

    def with_bytes(self, num_bytes: Int64) -> Shards:
        """Return the same shards with other sizes: int64 of shape (shards,)."""
        place = _SCHEMA.get_field_index("num_bytes")
        return Shards(self.table.set_column(place, _SCHEMA.field(place), [num_bytes]))

    @property
    def num_real(self) -> Int64:
        """Number of samples of each shard, without pads: int64 of shape (shards,). They come first in the shard."""
        return self.column("num_samples") - self.column("num_pads")


def dump_shards(shards: Shards) -> bytes:
    """Return the bytes of the table."""
    sink = pa.BufferOutputStream()
    pq.write_table(shards.table, sink, compression="zstd")
    return bytes(sink.getvalue().to_pybytes())


def parse_shards(data: bytes, num_shards: int | None = None) -> Shards:
    """Parse the table.

    Args:
        data: Its bytes.
        num_shards: The number of rows that it must have; None for any.

    Raises:
        CorruptDataError: It is damaged or too large, or has invalid paths or counts.
    """
    try:
        file = open_table(data, _TEXTS)
        num_rows = file.metadata.num_rows
        if num_shards not in (None, num_rows) or num_rows > MAX_SHARDS:
            found, expected = f"num_shards = {num_shards} in the header", f"{num_rows} rows, at most {MAX_SHARDS}"
            raise UnreadableError(found, expected)
        table = read_table(file, _SCHEMA, memory_limit(data))
    except UnreadableError as error:
        raise CorruptDataError(
            f"{SHARDS_NAME} cannot be read",
            expected=error.expected or f"a parquet table with the columns {', '.join(_SCHEMA.names)}",
            found=error.found,
            remedy=COPY_AGAIN,
        ) from error
    _check_paths(table.column("path"))
    shards = Shards(table)
    _check_counts(shards)
    return shards


# The content of a table


def _check_paths(paths: pa.ChunkedArray) -> None:
    last, is_rising = "", True
    for first in range(0, len(paths), _PATHS_AT_ONCE):
        texts = paths.slice(first, _PATHS_AT_ONCE).to_pylist()
        for text in texts:
            if _INNER_PATH.fullmatch(text) is None:
                raise CorruptDataError(
                    f"{SHARDS_NAME} names a shard outside the dataset",
                    expected="a relative path without '..'",
                    found=repr(text[:1000]),
                    remedy="do not use this dataset: it may have been tampered with",
                )
        is_rising = is_rising and all(map(operator.lt, [last, *texts], texts))
        last = texts[-1]
    if not is_rising and len(paths.unique()) != len(paths):
        raise CorruptDataError(f"{SHARDS_NAME} has a duplicate shard", expected="each path once", remedy=COPY_AGAIN)


def _check_counts(shards: Shards) -> None:
    counts, pads, sizes = (shards.column(name) for name in ("num_samples", "num_pads", "num_bytes"))
    wrong = (pads < 0) | (pads > counts) | (counts > sizes // BLOCK_BYTES)
    if wrong.any() or sum(sizes.tolist()) >= 2**63:
        raise CorruptDataError(
            f"{SHARDS_NAME} has invalid counts",
            expected=f"0 <= num_pads <= num_samples <= num_bytes / {BLOCK_BYTES} for each shard, and less than 2**63 "
            "bytes in total",
            remedy=COPY_AGAIN,
        )
    total = sum(counts.tolist())
    if (counts > MAX_SHARD_SAMPLES).any() or total > _MAX_SAMPLES:
        raise CorruptDataError(
            f"{SHARDS_NAME} claims more samples than a dataset can have",
            expected=f"at most {MAX_SHARD_SAMPLES:,} in a shard, and {_MAX_SAMPLES:,} in total",
            found=f"{int(counts.max()):,} in a shard, and {total:,} in total",
            remedy="do not use this dataset: it may have been tampered with",
        )
