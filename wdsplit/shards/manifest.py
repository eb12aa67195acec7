"""The manifest: the content of a dataset, as `wdsplit.json` (header) and `shards.parquet` (a row for each shard).

Pure (no I/O): bytes to objects and back. The header is written last: without it there is no dataset. It contains the
checksum of the table, so a header never matches another table.
"""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from wdsplit.errors import CorruptDataError, InputError
from wdsplit.integers import at_least
from wdsplit.notebook import html_table
from wdsplit.order.limits import MAX_LANES, MAX_WINDOW
from wdsplit.shards.sample_tables import dump_schema, parse_schema
from wdsplit.shards.table import (
    COPY_AGAIN,
    MAX_SHARD_SAMPLES,
    MAX_SHARDS,
    MAX_TABLE_BYTES,
    SHARDS_NAME,
    Shard,
    Shards,
    dump_shards,
    parse_shards,
)
from wdsplit.shards.versions import Version, parse_history, table_path
from wdsplit.texts import counted, human_bytes

__all__ = [
    "ERASE_FOLDER",
    "FORMAT_VERSION",
    "HEADER_NAME",
    "MAX_HEADER_BYTES",
    "MAX_SHARDS",
    "MAX_SHARD_SAMPLES",
    "MAX_TABLE_BYTES",
    "RUN_FOLDER",
    "SHARDS_NAME",
    "Field",
    "Manifest",
    "Shard",
    "Shards",
    "checksum_of",
    "dump_manifest",
    "first_samples",
    "parse_fields",
    "parse_header",
    "parse_manifest",
    "shard_path",
    "table_path_in",
]

FORMAT_VERSION = 2
HEADER_NAME = "wdsplit.json"
MAX_HEADER_BYTES = 256 * 1024**2
RUN_FOLDER = ".wdsplit-run"
"""The folder in the output with the files of an unfinished conversion."""
ERASE_FOLDER = ".wdsplit-erase"
"""The same of unfinished erasing."""

_HASHED_TOGETHER = 2**13
"""Number of checksums that a fingerprint hashes at a time, to save memory."""
_FIELD_TEXTS = ("arrow_schema", "column", "encoding", "name", "type")


@dataclass(frozen=True)
class Field:
    """A field of every sample.

    Attributes:
        name: Its name: the part of a member's name after the key.
        column: The column it came from.
        encoding: How the column's values were written.
        type: The column's Arrow type, as text for users.
        names: The class names of a column of classes, by number; else empty.
        arrow_schema: The type of the decoded values: base64 of an Arrow schema of one field, from `fields.arrow_types`.
    """

    name: str
    column: str
    encoding: str
    type: str
    names: tuple[str, ...] = ()
    arrow_schema: str = field(default="", repr=False)


def fields_table(fields: Iterable[Field]) -> str:
    """Return the fields of a dataset as a table for notebooks."""
    rows = [(one.name, one.column, one.type, one.encoding, ", ".join(one.names)) for one in fields]
    return html_table("Fields", rows, ("field", "column", "type", "encoding", "classes"))


@dataclass(frozen=True)
class Manifest:
    """A finished dataset.

    Attributes:
        shards: Its shards.
        fields: The fields of its samples, in the order of their members.
        lanes: Number of lanes (C).
        window: Maximum number of samples that are read and shuffled together (Q).
        pad: How the shards were made equal: repeat, drop or none.
        provenance: Inputs, options, versions and the plan's hash.
        samples: The columns of the sample tables beside its shards; None if it has no such tables.
        history: The versions up to this one, if samples were appended to the dataset; else empty.
        shards_checksum: The checksum of `shards.parquet` in its header; empty if it was not read from one.
    """

    shards: Shards
    fields: tuple[Field, ...]
    lanes: int
    window: int
    pad: str
    provenance: dict[str, Any]
    samples: pa.Schema | None = None
    history: tuple[Version, ...] = ()
    shards_checksum: str = dataclasses.field(default="", repr=False, compare=False)

    def __repr__(self) -> str:
        fields = ", ".join(f"{field.name}: {field.type}" for field in self.fields)
        samples = f"{counted(self.num_samples, 'sample')} and {counted(self.num_pads, 'pad')}"
        counts = f"{samples} in {counted(len(self.shards), 'shard')}"
        return f"<Manifest: {counts}; {fields}; lanes {self.lanes}, window {self.window}>"

    def _repr_html_(self) -> str:
        facts = [*self.described().items(), ("fingerprint", self.fingerprint)]
        return html_table("Manifest", facts) + fields_table(self.fields)

    def described(self) -> dict[str, Any]:
        """Return the most important facts, for tables: counts, size, fields and numbers of classes."""
        classes = ", ".join(f"{len(names):,} (field {name})" for name, names in self.class_names.items())
        return {
            "samples": self.num_samples,
            "shards": f"{len(self.shards):,}, {human_bytes(self.num_bytes)}, with {counted(self.num_pads, 'pad')}",
            "fields": ", ".join(f"{field.name} ({field.type})" for field in self.fields),
            "classes": classes or "no names",
            "order": f"{counted(self.lanes, 'lane')}, windows of up to {counted(self.window, 'sample')}",
        }

    @property
    def version(self) -> int:
        """The number of the dataset's version; 1 until samples are appended."""
        return self.history[-1].number if self.history else 1

    @property
    def emit(self) -> tuple[str, ...]:
        """The other readers for which there are index files."""
        return tuple(self.provenance.get("emit", ()))

    @property
    def conversion_options(self) -> Mapping[str, Any]:
        """The options of the conversion that made the dataset; empty if the manifest does not say."""
        options = self.provenance.get("options")
        return options if isinstance(options, Mapping) else {}

    @property
    def sample_bytes(self) -> int:
        """The mean number of bytes of a shard that a sample takes."""
        return self.num_bytes // max(1, self.num_samples + self.num_pads)

    @cached_property
    def field_names(self) -> tuple[str, ...]:
        """The names of the fields, in the order of their members."""
        return tuple(field.name for field in self.fields)

    @property
    def num_samples(self) -> int:
        """Number of samples, without pads."""
        return int(self.shards.num_real.sum())

    @property
    def num_pads(self) -> int:
        """Number of pads in all shards."""
        return int(self.shards.column("num_pads").sum())

    @property
    def num_bytes(self) -> int:
        """Size of all shards in bytes."""
        return int(self.shards.column("num_bytes").sum())

    @property
    def class_names(self) -> dict[str, tuple[str, ...]]:
        """The class names of each field that has them, by number: `{"cls": ("cat", "dog")}`."""
        return {field.name: field.names for field in self.fields if field.names}

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the dataset's content: a hash of each shard's counts and checksum, in order."""
        digest = xxhash.xxh3_128()
        digest.update(self.shards.column("num_samples").astype("<i8").tobytes())
        digest.update(self.shards.column("num_pads").astype("<i8").tobytes())
        checksums = self.shards.table.column("checksum")
        for first in range(0, len(checksums), _HASHED_TOGETHER):
            texts = checksums.slice(first, _HASHED_TOGETHER).to_pylist()  # Arrow would import pandas to join them
            digest.update("\n".join([""] * (first > 0) + texts).encode())
        return digest.hexdigest()


def first_samples(manifest: Manifest, limit: int) -> Manifest:
    """Return a manifest of only the first samples: later ones in the same shard count as pads, which readers skip.

    Each limit gives another fingerprint.

    Args:
        manifest: The dataset's manifest.
        limit: Number of samples, in the order of the shards; at least 1. If this is all samples, the manifest itself is
            returned.

    Raises:
        InputError: The limit is invalid.
    """
    limit = at_least(1, "limit", limit)
    if limit >= manifest.num_samples:
        return manifest
    ends = np.cumsum(manifest.shards.num_real)
    last = int(np.searchsorted(ends, limit))
    table = manifest.shards.table.slice(0, last + 1)
    num_pads = manifest.shards.column("num_pads")[: last + 1].copy()
    num_pads[last] += ends[last] - limit
    table = table.set_column(table.schema.get_field_index("num_pads"), table.schema.field("num_pads"), [num_pads])
    return dataclasses.replace(manifest, shards=Shards(table))


def shard_path(shard: int) -> str:
    """Return the path of a shard, given its number."""
    return f"{shard:06d}.tar"


def checksum_of(digest: Any) -> str:
    """Return an xxh3_128 digest as text for the manifest."""
    return f"xxh3_128:{digest.hexdigest()}"


def dump_manifest(manifest: Manifest) -> tuple[bytes, bytes]:
    """Return the bytes of the header and of the shard table."""
    table = dump_shards(manifest.shards)
    header = {
        "wdsplit": FORMAT_VERSION,
        "version": manifest.version,
        "num_shards": len(manifest.shards),
        "num_samples": manifest.num_samples,
        "num_pads": manifest.num_pads,
        "num_bytes": manifest.num_bytes,
        "fields": [dataclasses.asdict(field) for field in manifest.fields],
        "lanes": manifest.lanes,
        "window": manifest.window,
        "pad": manifest.pad,
        "shards_checksum": checksum_of(xxhash.xxh3_128(table)),
        **({"history": list(map(dataclasses.asdict, manifest.history))} if manifest.history else {}),
        **({"samples": dump_schema(manifest.samples)} if manifest.samples is not None else {}),
        "provenance": manifest.provenance,
    }
    return orjson.dumps(header, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE), table


def parse_manifest(header: bytes, table: bytes) -> Manifest:
    """Parse a header and a shard table, and check one against the other.

    Raises:
        CorruptDataError: Either is damaged or too large, or they do not belong together.
        InputError: The dataset was written by another version of the format.
    """
    fields = parse_header(header)
    checksum = checksum_of(xxhash.xxh3_128(table))
    if fields["shards_checksum"] != checksum:
        raise CorruptDataError(
            f"{SHARDS_NAME} does not belong to {HEADER_NAME}",
            expected=reprlib.repr(fields["shards_checksum"]).strip("'"),
            found=checksum,
            remedy=COPY_AGAIN,
        )
    shards = parse_shards(table, fields["num_shards"])
    manifest = Manifest(
        shards,
        fields["fields"],
        fields["lanes"],
        fields["window"],
        fields["pad"],
        fields["provenance"],
        fields.get("samples"),
        fields["history"],
        checksum,
    )
    for name, found in (
        ("num_samples", manifest.num_samples),
        ("num_pads", manifest.num_pads),
        ("num_bytes", manifest.num_bytes),
    ):
        if fields[name] != found:
            raise _bad_header(f"{name} = {fields[name]}", f"{found}, as in {SHARDS_NAME}")
    return manifest


def table_path_in(header: bytes) -> str:
    """Return the path of the shard table of a header; raises as `parse_manifest` does."""
    if b'"history"' not in header:  # most datasets have one version, and need not be parsed for it
        return SHARDS_NAME
    fields = parse_header(header)
    return table_path(fields["version"], fields["shards_checksum"])


_HEADER_TYPES = {
    **dict.fromkeys(("version", "num_shards", "num_samples", "num_pads", "num_bytes", "lanes", "window"), int),
    **dict.fromkeys(("pad", "shards_checksum"), str),
    "fields": list,
    "provenance": dict,
}


def parse_header(header: bytes) -> dict[str, Any]:
    """Return the values of a header, checked; raises as `parse_manifest` does."""
    if len(header) > MAX_HEADER_BYTES:
        raise _bad_header(f"{len(header)} bytes", f"at most {MAX_HEADER_BYTES}")
    try:
        fields = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise _bad_header(f"invalid JSON ({error})", "a JSON object") from error
    if not isinstance(fields, dict) or "wdsplit" not in fields:
        raise _bad_header("no format version", 'a JSON object with the key "wdsplit"')
    if fields["wdsplit"] != FORMAT_VERSION:
        raise InputError(
            f"{HEADER_NAME} has another format version",
            expected=str(FORMAT_VERSION),
            found=reprlib.repr(fields["wdsplit"]),
            remedy="read the dataset with the version of wdsplit that wrote it, or convert it again",
        )
    for name, kind in _HEADER_TYPES.items():
        if type(fields.get(name)) is not kind:
            raise _bad_header(f"{name} = {reprlib.repr(fields.get(name))}", f"{name} of type {kind.__name__}")
    for name, maximum in (("lanes", MAX_LANES), ("window", MAX_WINDOW)):
        if not 1 <= fields[name] <= maximum:
            raise _bad_header(f"{name} = {fields[name]}", f"1 to {maximum}")
    try:
        fields["fields"] = parse_fields(fields["fields"])
    except ValueError as error:
        texts = ", ".join(_FIELD_TEXTS)
        raise _bad_header(str(error), f"each field once, an object with the texts {texts}, maybe names") from error
    try:
        fields["history"] = () if fields["version"] == 1 else parse_history(fields.get("history"), fields["version"])
    except ValueError as error:
        raise _bad_header(str(error), "the versions of the dataset, from its first to this one") from error
    try:
        if "samples" in fields:
            fields["samples"] = parse_schema(fields["samples"])
    except ValueError as error:
        raise _bad_header(f"sample tables with {error}", "columns as wdsplit writes them") from error
    try:
        orjson.dumps(fields["provenance"])  # refuses values that are nested too deeply
    except orjson.JSONEncodeError as error:
        raise _bad_header(f"a provenance that cannot be written ({error})", "values as wdsplit writes them") from error
    return fields


def parse_fields(fields: Any) -> tuple[Field, ...]:
    """Parse fields that `dataclasses.asdict` has turned into JSON values.

    Raises:
        ValueError: They are invalid, or one is there twice.
    """
    for one in fields:
        if not _is_field(one):
            raise ValueError(f"field {reprlib.repr(one)}")
    parsed = tuple(Field(**{**field, "names": tuple(field.get("names", ()))}) for field in fields)
    names = [one.name for one in parsed]
    if len(set(names)) < len(names):
        raise ValueError(f"fields {reprlib.repr(names)}")
    return parsed


def _is_field(field: Any) -> bool:
    if not isinstance(field, dict) or field.keys() - {"names"} != set(_FIELD_TEXTS):
        return False
    names = field.get("names", [])
    return isinstance(names, list) and all(isinstance(text, str) for text in (*names, *map(field.get, _FIELD_TEXTS)))


def _bad_header(found: str, expected: str) -> CorruptDataError:
    return CorruptDataError(f"{HEADER_NAME} cannot be read", expected=expected, found=found, remedy=COPY_AGAIN)
