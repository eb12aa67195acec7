"""The manifest: what a dataset is made of, as `wdsplit.json` (header) and `shards.parquet` (a row a shard).

Pure (no I/O): bytes to objects and back. The header is written last and names the checksum of the table, so a dataset
without a header does not exist, and a header never goes with another table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from wdsplit.errors import CorruptDataError, InputError

__all__ = [
    "FORMAT_VERSION",
    "HEADER_NAME",
    "RUN_FOLDER",
    "SHARDS_NAME",
    "Field",
    "Manifest",
    "Shard",
    "Shards",
    "checksum_of",
    "dump_manifest",
    "index_path",
    "parse_manifest",
    "shard_path",
]

FORMAT_VERSION = 1
HEADER_NAME = "wdsplit.json"
SHARDS_NAME = "shards.parquet"
RUN_FOLDER = ".wdsplit-run"
"""In the output while a conversion is unfinished: what it needs to be continued."""

_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("num_samples", pa.int64(), nullable=False),
        pa.field("num_pads", pa.int64(), nullable=False),
        pa.field("num_bytes", pa.int64(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
    ]
)
_FIELD_TEXTS = ("column", "encoding", "name", "type")
_INNER_PATH = r"^[^/\\\x00-\x1f]+(/[^/\\\x00-\x1f]+)*$"
_OUTWARD_PATH = r"(^|/)\.\.?(/|$)|^[A-Za-z]:"


@dataclass(frozen=True)
class Field:
    """A field of every sample.

    Attributes:
        name: What its members are called after the key.
        column: The column it came from.
        encoding: How the column's values were written.
        type: The column's Arrow type, as `arrowtype` writes it.
        names: Of a field of class names all of them, by their numbers; else empty.
    """

    name: str
    column: str
    encoding: str
    type: str
    names: tuple[str, ...] = ()


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

    def column(self, name: str) -> npt.NDArray[np.int64]:
        """Return one of the numeric columns as int64 of shape (shards,)."""
        return np.asarray(self.table.column(name).to_numpy(), np.int64)

    @property
    def num_real(self) -> npt.NDArray[np.int64]:
        """Samples of each shard that are not pads: int64 of shape (shards,). They stand first in the shard."""
        return self.column("num_samples") - self.column("num_pads")


@dataclass(frozen=True)
class Manifest:
    """A finished dataset.

    Attributes:
        shards: Its shards.
        fields: The fields of its samples, in the order in which their members stand.
        lanes: Lanes that an epoch is woven from (C).
        window: Samples read and shuffled together, at most (Q).
        pad: How the shards were made equal: repeat, drop or none.
        provenance: Inputs, options, versions and the plan's hash, for people; nothing is computed from it.
    """

    shards: Shards
    fields: tuple[Field, ...]
    lanes: int
    window: int
    pad: str
    provenance: dict[str, Any]

    @property
    def num_samples(self) -> int:
        """Samples that are not pads."""
        return int(self.shards.num_real.sum())

    @property
    def num_pads(self) -> int:
        """Pads in all shards."""
        return int(self.shards.column("num_pads").sum())

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards."""
        return int(self.shards.column("num_bytes").sum())

    @property
    def fingerprint(self) -> str:
        """What identifies the dataset's content: a hash of each shard's counts and checksum, in order."""
        digest = xxhash.xxh3_128()
        digest.update(self.shards.column("num_samples").astype("<i8").tobytes())
        digest.update(self.shards.column("num_pads").astype("<i8").tobytes())
        digest.update("\n".join(self.shards.table.column("checksum").to_pylist()).encode())
        return digest.hexdigest()


def shard_path(shard: int) -> str:
    """Return the path of a shard that wdsplit writes."""
    return f"{shard:06d}.tar"


def index_path(path: str) -> str:
    """Return the path of a shard's index."""
    return f"{path}.idx"


def checksum_of(digest: Any) -> str:
    """Return an xxh3_128 digest as the manifest writes it."""
    return f"xxh3_128:{digest.hexdigest()}"


def dump_manifest(manifest: Manifest) -> tuple[bytes, bytes]:
    """Return the bytes of the header and of the shard table."""
    sink = pa.BufferOutputStream()
    pq.write_table(manifest.shards.table, sink, compression="zstd")
    table = sink.getvalue().to_pybytes()
    header = {
        "wdsplit": FORMAT_VERSION,
        "num_shards": len(manifest.shards),
        "num_samples": manifest.num_samples,
        "num_pads": manifest.num_pads,
        "num_bytes": manifest.num_bytes,
        "fields": [dataclasses.asdict(field) for field in manifest.fields],
        "lanes": manifest.lanes,
        "window": manifest.window,
        "pad": manifest.pad,
        "shards_checksum": checksum_of(xxhash.xxh3_128(table)),
        "provenance": manifest.provenance,
    }
    return orjson.dumps(header, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE), table


def parse_manifest(header: bytes, table: bytes) -> Manifest:
    """Parse a header and a shard table, and check one against the other.

    Raises:
        CorruptDataError: Either is damaged, or they do not belong together.
        InputError: The dataset was written by another version of the format.
    """
    fields = _parse_header(header)
    checksum = checksum_of(xxhash.xxh3_128(table))
    if fields["shards_checksum"] != checksum:
        raise CorruptDataError(
            f"{SHARDS_NAME} is not the table that {HEADER_NAME} was written for",
            expected=str(fields["shards_checksum"]),
            found=checksum,
            remedy="copy the dataset again, or convert it again with --overwrite",
        )
    shards = _parse_shards(table)
    manifest = Manifest(
        shards,
        tuple(Field(**{**field, "names": tuple(field.get("names", ()))}) for field in fields["fields"]),
        fields["lanes"],
        fields["window"],
        fields["pad"],
        fields["provenance"],
    )
    for name, found in (
        ("num_shards", len(shards)),
        ("num_samples", manifest.num_samples),
        ("num_pads", manifest.num_pads),
        ("num_bytes", manifest.num_bytes),
    ):
        if fields[name] != found:
            raise _bad_header(f"{name} = {fields[name]}", f"{found}, as {SHARDS_NAME} has it")
    return manifest


def _parse_header(header: bytes) -> dict[str, Any]:
    try:
        fields = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise _bad_header(f"no JSON ({error})", "a JSON object") from error
    if not isinstance(fields, dict) or "wdsplit" not in fields:
        raise _bad_header("no format version", 'a JSON object with the key "wdsplit"')
    if fields["wdsplit"] != FORMAT_VERSION:
        raise InputError(
            f"{HEADER_NAME} has another format version",
            expected=str(FORMAT_VERSION),
            found=str(fields["wdsplit"]),
            remedy="read the dataset with the version of wdsplit that wrote it, or convert it again",
        )
    kinds = {
        "num_shards": int,
        "num_samples": int,
        "num_pads": int,
        "num_bytes": int,
        "lanes": int,
        "window": int,
        "pad": str,
        "shards_checksum": str,
        "fields": list,
        "provenance": dict,
    }
    for name, kind in kinds.items():
        if type(fields.get(name)) is not kind:
            raise _bad_header(f"{name} = {fields.get(name)!r}", f"{name} of type {kind.__name__}")
    if fields["lanes"] < 1 or fields["window"] < 1:
        raise _bad_header(f"lanes {fields['lanes']}, window {fields['window']}", "at least 1 of each")
    for field in fields["fields"]:
        if not _is_field(field):
            raise _bad_header(f"field {field!r}", f"an object with the texts {', '.join(_FIELD_TEXTS)}, maybe names")
    return fields


def _is_field(field: Any) -> bool:
    if not isinstance(field, dict) or field.keys() - {"names"} != set(_FIELD_TEXTS):
        return False
    names = field.get("names", [])
    return isinstance(names, list) and all(isinstance(text, str) for text in (*names, *map(field.get, _FIELD_TEXTS)))


def _in_arrow_memory(data: bytes) -> pa.Buffer:
    """Return bytes as a buffer that Python does not own.

    A thread of Arrow's that lets go of a buffer of Python's while the interpreter ends makes it abort.
    """
    buffer = pa.allocate_buffer(len(data))
    memoryview(buffer).cast("B")[:] = data
    return buffer


def _parse_shards(table: bytes) -> Shards:
    try:
        shards = pq.ParquetFile(pa.BufferReader(_in_arrow_memory(table))).read(use_threads=False)
        shards = shards.select(_SCHEMA.names).cast(_SCHEMA)
        shards.validate(full=True)
    except (pa.ArrowException, KeyError, OSError, ValueError) as error:
        raise CorruptDataError(
            f"{SHARDS_NAME} cannot be read",
            expected=f"a parquet table with the columns {', '.join(_SCHEMA.names)}",
            found=str(error),
            remedy="copy the dataset again, or convert it again with --overwrite",
        ) from error
    paths = shards.column("path")
    inner = pc.and_(
        pc.match_substring_regex(paths, _INNER_PATH),
        pc.invert(pc.match_substring_regex(paths, _OUTWARD_PATH)),
    )
    if not pc.all(inner, min_count=0).as_py():
        bad = pc.filter(paths, pc.invert(inner))[0].as_py()
        raise CorruptDataError(
            f"{SHARDS_NAME} names a shard outside the dataset",
            expected="a relative path without '..'",
            found=repr(bad),
            remedy="do not use this dataset: it may have been tampered with",
        )
    result = Shards(shards)
    if len(pc.unique(paths)) != len(paths):
        raise CorruptDataError(
            f"{SHARDS_NAME} names a shard twice",
            expected="each path once",
            remedy="copy the dataset again, or convert it again with --overwrite",
        )
    counts = result.column("num_samples")
    pads = result.column("num_pads")
    if (pads < 0).any() or (pads > counts).any() or (result.column("num_bytes") < 0).any():
        raise CorruptDataError(
            f"{SHARDS_NAME} holds counts that cannot be",
            expected="0 <= num_pads <= num_samples and 0 <= num_bytes for each shard",
            remedy="copy the dataset again, or convert it again with --overwrite",
        )
    return result


def _bad_header(found: str, expected: str) -> CorruptDataError:
    return CorruptDataError(
        f"{HEADER_NAME} cannot be read",
        expected=expected,
        found=found,
        remedy="copy the dataset again, or convert it again with --overwrite",
    )
