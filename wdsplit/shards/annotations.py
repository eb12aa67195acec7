"""Annotations: columns that were joined to the samples of a dataset after it was made.

`annotations/NAME.json` is written last and names a folder. There, each shard has a table with the rows of its sample
table. The shards, the manifest and its fingerprint stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import orjson
import pyarrow as pa

from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, WdsplitError, did_you_mean
from wdsplit.shards.manifest import Manifest, Shard
from wdsplit.shards.parquet import MAX_TABLE_BYTES
from wdsplit.shards.sample_tables import dump_schema, names_of, parse_columns, parse_samples, samples_path
from wdsplit.shards.stored import intact, scan
from wdsplit.storage.interface import ReadableStorage, Storage

__all__ = [
    "ANNOTATIONS_FOLDER",
    "RUN_SUFFIX",
    "Annotation",
    "annotation_folder",
    "annotation_names",
    "annotation_table_path",
    "check_annotation_name",
    "drop_annotation",
    "find_annotation",
    "find_parts",
    "is_part_of",
    "list_annotations",
    "read_annotation",
    "scan_annotations",
    "write_annotation",
]

ANNOTATIONS_FOLDER = "annotations"
RUN_SUFFIX = ".run"
"""The suffix of the folder with the files of an unfinished run."""

_FORMAT_VERSION = 1
_NAME = re.compile("[A-Za-z0-9_-]{1,100}")
_HASH = "[0-9a-f]{16}"
_MAX_BYTES = 64 * 1024**2


@dataclass(frozen=True)
class Annotation:
    """Columns that were joined to a dataset.

    Attributes:
        name: Its name.
        folder: The folder of its tables, relative to the dataset.
        schema: Its columns, with class names in their metadata (`sample_tables.names_of`). A value is null where the
            source had no row for the sample.
        fingerprint: The fingerprint of the dataset that it was made for.
        num_samples: Number of samples of the dataset.
        num_missing: Number of samples for which the source had no row.
        num_extra: Number of rows of the source with a key that no sample has.
        num_duplicates: Number of rows of the source that were left out, because another one has the same key.
        num_bytes: Size of its tables in bytes.
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

    @property
    def class_names(self) -> dict[str, tuple[str, ...]]:
        """The class names of each column that has them, by their numbers."""
        return names_of(self.schema)


def check_annotation_name(name: str) -> str:
    """Return the name of an annotation if it is valid: it becomes the name of a file.

    Raises:
        InputError: The name is invalid.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            "invalid annotation name",
            expected="letters, digits, '_' and '-', at most 100",
            found=repr(name),
            remedy="give another --name",
        )
    return name


def annotation_folder(name: str, run: str) -> str:
    """Return the folder with the tables of an annotation; `run` is the hash of its run, 16 hexadecimal digits."""
    return f"{ANNOTATIONS_FOLDER}/{name}-{run}"


def annotation_table_path(folder: str, shard: str) -> str:
    """Return the path of the table of a shard, given the annotation's folder and the shard's path."""
    return f"{folder}/{samples_path(shard)}"


def annotation_names(storage: ReadableStorage) -> list[str]:
    """Return the names of all annotations of a dataset, sorted, including those for other shards."""
    names = (name.removesuffix(".json") for name in storage.list(ANNOTATIONS_FOLDER) if name.endswith(".json"))
    return sorted(name for name in names if _NAME.fullmatch(name))


def scan_annotations(storage: ReadableStorage) -> dict[str, Annotation | WdsplitError]:
    """Return all annotations of a dataset by name, including those for other shards; the error of a damaged one."""
    return scan(annotation_names(storage), partial(find_annotation, storage))


def find_annotation(storage: ReadableStorage, name: str, manifest: Manifest | None = None) -> Annotation:
    """Read an annotation that `annotation_names` has found.

    Args:
        storage: The dataset.
        name: Its name.
        manifest: The dataset's manifest; None to accept an annotation for other shards too.

    Raises:
        CorruptDataError: It is damaged.
        InputError: It was made for other shards than the dataset has now, or by another version of the format.
    """
    annotation = _read(storage, name)
    if manifest is not None and annotation.fingerprint != manifest.fingerprint:
        raise InputError(
            f"annotation {name!r} was made for other shards than the dataset has now",
            place=f"{storage.url}/{_commit_path(name)}",
            expected=f"fingerprint {manifest.fingerprint}",
            found=annotation.fingerprint,
            remedy=_remedy(storage, name),
        )
    return annotation


def _read(storage: ReadableStorage, name: str) -> Annotation:
    path = _commit_path(name)
    try:
        content = orjson.loads(storage.read(path, _MAX_BYTES))
        if not isinstance(content, dict) or type(content.get("wdsplit_annotation")) is not int:
            raise ValueError("no format version")
        if content["wdsplit_annotation"] != _FORMAT_VERSION:
            raise InputError(
                "an annotation has another format version",
                place=f"{storage.url}/{path}",
                expected=str(_FORMAT_VERSION),
                found=str(content["wdsplit_annotation"]),
                remedy="use the version of wdsplit that wrote it, or annotate again with --overwrite",
            )
        folder = content["folder"]
        if not re.fullmatch(rf"{ANNOTATIONS_FOLDER}/{re.escape(name)}-{_HASH}", folder):
            raise ValueError(f"folder {folder!r}")
        schema = parse_columns(content["columns"])
        counts = {count: int(content[count]) for count in _COUNTS}
        fingerprint, provenance = str(content["fingerprint"]), dict(content["provenance"])
        return Annotation(name, folder, schema, fingerprint, **counts, provenance=provenance)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise CorruptDataError(
            "an annotation cannot be read",
            place=f"{storage.url}/{path}",
            expected="JSON as `wdsplit annotate` writes it",
            found=str(error)[:1000],
            remedy=_remedy(storage, name),
        ) from error


def list_annotations(storage: ReadableStorage, manifest: Manifest) -> dict[str, Annotation]:
    """Return the usable annotations of a dataset by name.

    Annotations that are damaged, or were made for other shards than the dataset has now, are left out.

    Args:
        storage: The dataset.
        manifest: Its manifest, of all its samples.
    """
    found = intact(scan_annotations(storage)).items()
    return {name: each for name, each in found if each.fingerprint == manifest.fingerprint}


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
    path = annotation_table_path(annotation.folder, shard.path)
    try:
        return parse_samples(storage.read(path, MAX_TABLE_BYTES), shard, columns, annotation.schema)
    except (CorruptDataError, DatasetNotFoundError) as error:
        is_missing = isinstance(error, DatasetNotFoundError)
        raise CorruptDataError(
            f"a table of annotation {annotation.name!r} cannot be read",
            place=f"{storage.url}/{path}",
            expected=f"the table of {shard.path}" if is_missing else error.expected,
            found="no such file" if is_missing else error.found,
            remedy=_remedy(storage, annotation.name),
            url=f"{storage.url}/{path}",
        ) from error


def find_parts(storage: Storage, name: str) -> list[str]:
    """Return the files and folders of an annotation, and of unfinished runs of it, in the annotations' folder.

    Raises:
        InputError: There are none.
    """
    check_annotation_name(name)
    found = [entry for entry in storage.list(ANNOTATIONS_FOLDER) if is_part_of(entry, name)]
    if not found:
        known = annotation_names(storage)
        raise InputError(
            f"there is no annotation {name!r}",
            place=storage.url,
            expected=f"one of {', '.join(known)}" if known else "a dataset with annotations",
            found=name if known else "no annotations",
            remedy=did_you_mean([name], known),
        )
    return found


def drop_annotation(storage: Storage, name: str) -> None:
    """Remove an annotation, and the files of its unfinished runs.

    Raises:
        InputError: There is no such annotation.
    """
    found = find_parts(storage, name)
    storage.remove(_commit_path(name))  # first, so that no annotation exists without tables
    storage.remove(*(f"{ANNOTATIONS_FOLDER}/{entry}" for entry in found))


def is_part_of(entry: str, name: str) -> bool:
    """Return whether a file or folder in the annotations' folder belongs to an annotation."""
    return entry in (f"{name}.json", f"{name}{RUN_SUFFIX}") or re.fullmatch(f"{name}-{_HASH}", entry) is not None


def write_annotation(storage: Storage, annotation: Annotation) -> None:
    """Write the file that completes an annotation, after its tables: from then on it exists."""
    content = {
        "wdsplit_annotation": _FORMAT_VERSION,
        "folder": annotation.folder,
        "columns": dump_schema(annotation.schema),
        "fingerprint": annotation.fingerprint,
        **{name: getattr(annotation, name) for name in _COUNTS},
        "provenance": annotation.provenance,
    }
    with storage.publish(_commit_path(annotation.name), durable=True) as file:
        file.write([orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)])


_COUNTS = ("num_samples", "num_missing", "num_extra", "num_duplicates", "num_bytes")


def _commit_path(name: str) -> str:
    return f"{ANNOTATIONS_FOLDER}/{name}.json"


def _remedy(storage: ReadableStorage, name: str) -> str:
    return f"annotate again with --overwrite, or remove it with `wdsplit annotate {storage.url} --drop {name}`"
