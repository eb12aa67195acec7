"""Annotations: columns and fields that were joined to the samples of a dataset after it was made.

`fields/NAME@VERSION.json` is written last and names a folder. There, each shard has a table with the rows of its sample
table, and a *side shard* with its places: a tar with the same samples and pads in the same order, which has only the
joined fields. The shards, the manifest and its fingerprint stay as they are.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from wdsplit.errors import CorruptDataError, InputError
from wdsplit.notebook import html_table
from wdsplit.shards.manifest import Field, Manifest, Shard, checksum_of, parse_fields
from wdsplit.shards.sample_tables import dump_schema, names_of, parse_columns, read_samples, samples_path
from wdsplit.shards.stored import Kind, version_of
from wdsplit.shards.table import MAX_TABLE_BYTES, Shards, dump_shards, parse_shards
from wdsplit.storage.interface import ReadableStorage, Storage
from wdsplit.texts import counted, human_bytes

__all__ = [
    "ANNOTATIONS",
    "MISSING",
    "RUN_SUFFIX",
    "SIDE_TABLES",
    "Annotation",
    "Covered",
    "annotation_of_folder",
    "annotation_table_path",
    "find_covered",
    "is_annotation_folder",
    "list_annotations",
    "read_annotation",
    "read_side_shards",
    "side_table_path",
    "write_annotation",
    "write_side_shards",
]

RUN_SUFFIX = ".run"
"""The suffix of the folder with the files of an unfinished run."""
MISSING = "missing"
"""The field of a side shard's samples that have none of the joined fields: an empty member, as each needs a member."""

_FORMAT_VERSION = 1
_HASH = "[0-9a-f]{16}"
SIDE_TABLES = "shards@"
"""How the names of the tables of side shards begin: there is one for each version."""
_MAX_BYTES = 64 * 1024**2


@dataclass(frozen=True)
class Annotation:
    """Columns and fields that were joined to a dataset.

    Attributes:
        name: Its name.
        folder: The folder of its tables, relative to the dataset.
        schema: Its columns, with class names in their metadata (`sample_tables.names_of`). A value is null where the
            source had no row for the sample.
        fields: Its fields, in the order of their members. A sample lacks a field where the source had no row, or null.
        fingerprint: The fingerprint of the dataset that it was made for.
        num_samples: Number of samples of the dataset.
        num_missing: Number of samples for which the source had no row.
        num_extra: Number of rows of the source with a key that no sample has.
        num_duplicates: Number of rows of the source that were left out, because another one has the same key.
        num_bytes: Size of its tables and side shards in bytes.
        shards_checksum: The checksum of the table of its side shards; empty if it has no fields.
        provenance: The inputs and options, for users.
    """

    name: str
    folder: str
    schema: pa.Schema
    fingerprint: str
    num_samples: int
    num_missing: int
    num_extra: int
    num_duplicates: int
    num_bytes: int
    provenance: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple[Field, ...] = ()
    shards_checksum: str = ""

    def __repr__(self) -> str:
        names = ", ".join([*self.schema.names, *(each.name for each in self.fields)])
        rows = f"{self.num_samples - self.num_missing:,} of {self.num_samples:,}"
        return f"<Annotation {self.name!r}: {names}; rows for {rows} samples>"

    def _repr_html_(self) -> str:
        facts = [
            ("columns", ", ".join(f"{each.name} ({each.type})" for each in self.schema)),
            ("fields", ", ".join(f"{each.name} ({each.type})" for each in self.fields)),
            ("rows", f"for {self.num_samples - self.num_missing:,} of {counted(self.num_samples, 'sample')}"),
            ("size", human_bytes(self.num_bytes)),
        ]
        return html_table(f"Annotation {self.name}", [fact for fact in facts if fact[1]])

    @property
    def class_names(self) -> dict[str, tuple[str, ...]]:
        """The class names of each column that has them, by their numbers."""
        return names_of(self.schema)


def annotation_table_path(folder: str, shard: str) -> str:
    """Return the path of the table of a shard, given the annotation's folder and the shard's path."""
    return f"{folder}/{samples_path(shard)}"


def side_table_path(folder: str, fingerprint: str) -> str:
    """Return the path of the table of an annotation's side shards, given its folder and the version's fingerprint."""
    return f"{folder}/{SIDE_TABLES}{version_of(fingerprint)}.parquet"


def _read(storage: ReadableStorage, name: str, path: str) -> Annotation:
    """Read the file of an annotation."""
    try:
        return _parse(name, storage.read(path, _MAX_BYTES))
    except (CorruptDataError, InputError) as error:
        raise error.in_dataset(storage.url, path) from error


def _parse(name: str, data: bytes) -> Annotation:
    try:
        content = orjson.loads(data)
        if content["wdsplit_annotation"] != _FORMAT_VERSION:
            raise ValueError(f"format version {content['wdsplit_annotation']!r} instead of {_FORMAT_VERSION}")
        folder = content["folder"]
        if not re.fullmatch(rf"{ANNOTATIONS.folder}/{re.escape(name)}-{_HASH}", folder):
            raise ValueError(f"folder {folder!r}")
        return Annotation(
            name,
            folder,
            parse_columns(content["columns"]),
            str(content["fingerprint"]),
            **{count: int(content[count]) for count in _COUNTS},
            provenance=dict(content["provenance"]),
            fields=parse_fields(content["fields"]),
            shards_checksum=str(content["shards_checksum"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ANNOTATIONS.unreadable(name, str(error)) from error


ANNOTATIONS = Kind(
    what="annotation",
    folder="fields",
    suffix=".json",
    pattern=re.compile("[A-Za-z0-9_-]{1,100}"),
    allowed="letters, digits, '_' and '-', at most 100",
    make="wdsplit annotate DATASET TABLE --name {name} ... --overwrite",
    again="`wdsplit map DATASET MODULE:FUNCTION --name {name} --update` if a function made it, "
    "else `wdsplit annotate DATASET TABLE --name {name} ... --overwrite`",
    read=_read,
    fingerprint=lambda annotation: annotation.fingerprint,
)


def list_annotations(storage: ReadableStorage, manifest: Manifest) -> dict[str, Annotation]:
    """Return the annotations that were made for a version by name; damaged ones are left out."""
    found, _ = ANNOTATIONS.scan(storage, manifest)
    return {name: each for name, each in found.items() if each.fingerprint == manifest.fingerprint}


def read_annotation(
    storage: ReadableStorage, annotation: Annotation, shard: Shard, columns: Sequence[str] | None = None
) -> pa.Table:
    """Read columns of an annotation: a row for each sample of a shard, in their order, without pads.

    Args:
        storage: The dataset.
        annotation: The annotation.
        shard: The shard.
        columns: The columns' names; None for all.

    Raises:
        CorruptDataError: The shard's table is damaged or missing.
    """
    path, remedy = annotation_table_path(annotation.folder, shard.path), ANNOTATIONS.remedy(annotation.name)
    return read_samples(storage, shard, columns, annotation.schema, path, remedy)


def read_side_shards(storage: ReadableStorage, annotation: Annotation, manifest: Manifest) -> Manifest:
    """Return the side shards of an annotation, as a dataset that has the shards and samples of another one.

    Args:
        storage: The dataset.
        annotation: The annotation, which has fields.
        manifest: The dataset's manifest, of all its samples.

    Returns:
        Its provenance has the names of the annotation, its version and its folder.

    Raises:
        CorruptDataError: Their table is damaged or missing.
        InputError: They are not those of the dataset's shards.
    """
    path, shards = side_table_path(annotation.folder, annotation.fingerprint), manifest.shards
    try:
        data = storage.read(path, MAX_TABLE_BYTES)
        checksum = checksum_of(xxhash.xxh3_128(data))
        if checksum != annotation.shards_checksum:
            raise CorruptDataError(
                "the table of side shards does not belong to its annotation",
                expected=annotation.shards_checksum,
                found=checksum,
                remedy=ANNOTATIONS.remedy(annotation.name),
            )
        side = parse_shards(data, len(shards))
    except CorruptDataError as error:
        raise error.in_dataset(storage.url, path) from error
    if any(not np.array_equal(side.column(name), shards.column(name)) for name in ("num_samples", "num_pads")):
        raise InputError(
            f"annotation {annotation.name!r} does not have the samples of each shard",
            place=f"{storage.url}/{path}",
            expected=f"{manifest.num_samples:,} samples in {len(shards):,} shards, as many in each as the dataset",
            found=f"{int(side.num_real.sum()):,} samples, or others in some shard",
            remedy=ANNOTATIONS.remedy(annotation.name),
        )
    fields = (*annotation.fields, Field(MISSING, "", "bytes", "null"))
    origin = {"annotation": annotation.name, "version": annotation.fingerprint, "folder": annotation.folder}
    return dataclasses.replace(manifest, shards=side, fields=fields, samples=None, provenance=origin)


class Covered(NamedTuple):
    """What an annotation covers of the latest version of a dataset.

    Attributes:
        annotation: The annotation.
        num_shards: How many shards it covers: the first ones.
        sides: Their side shards; None if it has no fields.
    """

    annotation: Annotation
    num_shards: int
    sides: Shards | None


def find_covered(storage: ReadableStorage, name: str, manifest: Manifest) -> Covered:
    """Return what an annotation covers of the latest version of a dataset: all, or what an earlier version had.

    Raises:
        InputError: There is no such annotation, or later versions do not have the shards that it was made for.
        CorruptDataError: It is damaged.
    """
    made_for = ANNOTATIONS.versions(storage).get(name, ())
    for count in (len(manifest.shards), *(each.num_shards for each in reversed(manifest.history[:-1]))):
        part = dataclasses.replace(manifest, shards=Shards(manifest.shards.table.slice(0, count)))
        if version_of(part.fingerprint) in made_for:
            found = ANNOTATIONS.find(storage, name, part)
            return Covered(found, count, read_side_shards(storage, found, part).shards if found.fields else None)
    error = ANNOTATIONS.missing(storage, name, manifest)
    if made_for:
        error.remedy = "some of its shards were written again since: make it for all samples, with --overwrite"
    raise error


def annotation_of_folder(entry: str) -> str:
    """Return the annotation that a folder of tables in the annotations' folder belongs to; empty if it is none."""
    found = re.fullmatch(f"({ANNOTATIONS.pattern.pattern})-{_HASH}", entry)
    return "" if found is None else found[1]


def is_annotation_folder(entry: str, entries: Iterable[str]) -> bool:
    """Return whether one of the entries of the annotations' folder is the folder of an annotation, or of a run."""
    name = annotation_of_folder(entry)
    return bool(name) and any(each == f"{name}{RUN_SUFFIX}" or each.startswith(f"{name}@") for each in entries)


def write_side_shards(storage: Storage, folder: str, shards: Shards, fingerprint: str) -> str:
    """Write the table of an annotation's side shards for a version, given its fingerprint; return its checksum."""
    data = dump_shards(shards)
    with storage.publish(side_table_path(folder, fingerprint), durable=True) as file:
        file.write([data])
    return checksum_of(xxhash.xxh3_128(data))


def write_annotation(storage: Storage, annotation: Annotation) -> None:
    """Write the file that completes an annotation, after its tables and side shards: from then on it exists."""
    content = {
        "wdsplit_annotation": _FORMAT_VERSION,
        "folder": annotation.folder,
        "columns": dump_schema(annotation.schema),
        "fields": [dataclasses.asdict(each) for each in annotation.fields],
        "shards_checksum": annotation.shards_checksum,
        "fingerprint": annotation.fingerprint,
        **{name: getattr(annotation, name) for name in _COUNTS},
        "provenance": annotation.provenance,
    }
    with storage.publish(ANNOTATIONS.path(annotation.name, annotation.fingerprint), durable=True) as file:
        file.write([orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)])


_COUNTS = ("num_samples", "num_missing", "num_extra", "num_duplicates", "num_bytes")
