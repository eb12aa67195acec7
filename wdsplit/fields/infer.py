"""Infers the fields for a table's columns from its schema.

Pure (no I/O). `rules` decides by type; this module adds names, the user's mapping, and Hugging Face's metadata in the
schema. One error lists all columns that cannot be written.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from wdsplit.errors import InputError, did_you_mean
from wdsplit.fields.arrow_types import field_of
from wdsplit.fields.rules import is_nested_numbers, rule_of, unwrap, why_refused
from wdsplit.shards.manifest import Field
from wdsplit.tar.names import check_field

__all__ = [
    "MAX_CLASSES",
    "MEDIA_SUFFIXES",
    "class_names",
    "infer_fields",
    "is_field_name",
    "is_json_text",
    "needs_sniff",
    "prefix_of",
    "refuse_repeated",
    "refuse_unknown_columns",
    "sniff",
    "with_class_names",
    "with_features",
]

MAX_CLASSES = 2**16
"""A column with more different texts does not hold classes."""

_MAGIC = (
    (re.compile(rb"\xff\xd8\xff"), "jpg"),
    (re.compile(rb"\x89PNG\r\n\x1a\n"), "png"),
    (re.compile(rb"RIFF....WEBP", re.DOTALL), "webp"),
    (re.compile(rb"GIF8[79]a"), "gif"),
    (re.compile(rb"II\*\0|MM\0\*"), "tiff"),
    (re.compile(rb"fLaC"), "flac"),
    (re.compile(rb"RIFF....WAVE", re.DOTALL), "wav"),
    (re.compile(rb"OggS"), "ogg"),
    (re.compile(rb"ID3|\xff[\xfb\xf3\xf2]"), "mp3"),
    (re.compile(rb"....ftyp", re.DOTALL), "mp4"),
    (re.compile(rb"\x93NUMPY"), "npy"),
    (re.compile(rb"%PDF-"), "pdf"),
)

_MEDIA = {
    "image": {
        "jpg": "jpg jpeg jpe jfif",
        "png": "png",
        "webp": "webp",
        "gif": "gif",
        "tiff": "tiff tif",
        "bmp": "bmp",
        "ppm": "ppm",
        "pgm": "pgm",
    },
    "audio": {"flac": "flac", "wav": "wav", "mp3": "mp3", "ogg": "ogg oga opus"},
    "video": {"mp4": "mp4 m4v"},
}
"""Kind of media to its fields, and the suffixes of files for each field."""

MEDIA_SUFFIXES = {
    f".{suffix}": (kind, field)
    for kind, fields in _MEDIA.items()
    for field, suffixes in fields.items()
    for suffix in suffixes.split()
}
"""Suffix of a media file, in lower case, to the kind of media (image, audio or video) and the field."""

_ENCODINGS_FOR = {
    "cls": ("integer", "text", "bytes"),
    "json": ("json", "text", "bytes"),
    "npy": ("npy", "bytes"),
    "txt": ("text", "integer", "json", "bytes"),
    **{name: ("bytes", "media") for _, name in _MAGIC if name != "npy"},
}
"""The encodings that a field of a known name may have; other fields may have any."""


def sniff(payload: bytes) -> str | None:
    """Return the field name for a payload, by its first bytes, or None if they are unknown."""
    for pattern, name in _MAGIC:
        if pattern.match(payload):
            return name
    return None


def is_field_name(name: str) -> bool:
    """Return whether a name ends like a field of a known kind: `txt`, `caption.txt`, `mask.png`."""
    return name.rpartition(".")[2] in _ENCODINGS_FOR


def needs_sniff(kind: pa.DataType) -> bool:
    """Return whether a column's field name depends on its first bytes."""
    rule = rule_of(kind)
    return rule is not None and rule.encoding in ("bytes", "media")


def _features(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """Return the Hugging Face feature of each column from the schema's metadata; empty if there are none."""
    return _parsed_features((schema.metadata or {}).get(b"huggingface", b"{}"))


@lru_cache(4)  # else each column of a wide table parses them again
def _parsed_features(text: bytes) -> dict[str, dict[str, Any]]:
    try:
        features = json.loads(text)["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def is_json_text(schema: pa.Schema, column: str) -> bool:
    """Return whether a column has texts that are JSON, by its Hugging Face feature."""
    return _features(schema).get(column, {}).get("_type") == "Json"


def with_features(schema: pa.Schema, features: Mapping[str, Mapping[str, Any]]) -> pa.Schema:
    """Return a schema with more Hugging Face features of columns; features that it already has take precedence."""
    if not features:
        return schema
    text = json.dumps({"info": {"features": {**features, **_features(schema)}}})
    return schema.with_metadata({**(schema.metadata or {}), b"huggingface": text.encode()})


def with_class_names(schema: pa.Schema, names: Mapping[str, Sequence[str]]) -> pa.Schema:
    """Return a schema with class names of some columns, for `class_names` to find."""
    features = {name: {"_type": "ClassLabel", "names": list(classes)} for name, classes in names.items()}
    return with_features(schema, features)


def class_names(schema: pa.Schema) -> dict[str, tuple[str, ...]]:
    """Return the class names of each column that has them (Hugging Face's ClassLabel, or lists of them)."""
    found = {}
    for column, feature in _features(schema).items():
        while "_type" in feature and isinstance(feature.get("feature"), dict):
            feature = feature["feature"]
        names = feature.get("names")
        if feature.get("_type") == "ClassLabel" and isinstance(names, list) and names:
            found[column] = tuple(str(name) for name in names)
    return found


def infer_fields(
    schema: pa.Schema,
    mapping: Mapping[str, str],
    key: str | None,
    first_bytes: Mapping[str, bytes | None],
    columns: Sequence[str] = (),
    label: str | None = None,
    classes: Mapping[str, tuple[str, ...]] | None = None,
    prefixed: bool = False,
) -> tuple[Field, ...]:
    """Decide the fields of a table's samples.

    Args:
        schema: The table's schema.
        mapping: Field name to column name.
        key: The key column, if any.
        first_bytes: For each binary column the first payload that is not null.
        columns: Columns to infer fields for; without these and a mapping, all but the key.
        label: The one of these that becomes `cls`; it may also be in the mapping.
        classes: The classes of columns of text that become `cls`, in the order of their numbers.
        prefixed: Begin each inferred name with its column, as in `caption.txt`: samples get other fields elsewhere.

    Returns:
        The fields: those of the mapping in its order, then those that are inferred.

    Raises:
        InputError: A column is missing, has no encoding, or two fields would have one name. All problems are named.
    """
    named = dict.fromkeys([*mapping.values(), *columns, *([key] if key else [])])
    known = {*schema.names}
    unknown = [name for name in named if name not in known]
    problems = [f"column {name!r} is not in the table (it has: {', '.join(schema.names)})" for name in unknown]
    problems += _repeated_columns(schema)
    if not mapping and not columns:
        columns = [name for name in schema.names if name != key]
    mapped = {*mapping.values()}
    inferred = [name for name in dict.fromkeys(columns) if name not in mapped or name == label]
    chosen = [*mapping.values(), *inferred]
    if not chosen and not problems:
        problems.append("the table has no column but the key")
    if not problems:
        kinds = {name: schema.field(name).type for name in chosen}
        problems += [
            f"column {name!r} has the type {kind}, which no encoding supports: {why}"
            for name, kind in kinds.items()
            if (why := why_refused(kind))
        ]
    if problems:
        raise _unusable(problems, did_you_mean(unknown, schema.names))
    found = class_names(schema) | dict(classes or {})
    names = [*mapping, *_inferred_names(schema, inferred, first_bytes, list(mapping), label, prefixed)]
    fields: list[Field] = []
    for name, column in zip(names, chosen, strict=True):
        kind = schema.field(column).type
        try:
            check_field(name)
        except InputError as error:
            problems.append(f"{error.cause} (expected {error.expected})")
        encoding = _encoding_for(name, kind, _default_encoding(schema, column))
        if encoding == "text" and name.rpartition(".")[2] == "cls" and column in found:
            encoding = "category"
        if encoding is None:
            problems.append(f"column {column!r} of type {kind} cannot be written as a field {name!r}")
        fields.append(field_of(name, column, encoding or "", kind, found.get(column, ())))
    written = [field.name for field in fields]
    problems += [f"field {name!r} would be written {written.count(name)} times" for name in _repeated(written)]
    if problems:
        raise _unusable(problems)
    return tuple(fields)


def refuse_repeated(schema: pa.Schema) -> None:
    """Refuse a table in which two columns have one name.

    Raises:
        InputError: Columns share a name; all such names are listed.
    """
    problems = _repeated_columns(schema)
    if problems:
        raise _unusable(problems)


def refuse_unknown_columns(schema: pa.Schema, names: Iterable[str], option: str) -> None:
    """Refuse columns that are not in a table; `option` names them.

    Raises:
        InputError: There are such columns.
    """
    unknown = [name for name in names if name not in schema.names]
    if unknown:
        raise InputError(
            f"column {unknown[0]!r} is not in the table",
            expected=f"one of {', '.join(schema.names)}",
            remedy=did_you_mean(unknown, schema.names) or f"check {option}",
        )


def _repeated_columns(schema: pa.Schema) -> list[str]:
    return [f"duplicate column {name!r} ({schema.names.count(name)} times)" for name in _repeated(schema.names)]


def _unusable(problems: Sequence[str], remedy: str = "") -> InputError:
    return InputError(
        "invalid columns",
        found="; ".join(problems),
        remedy=remedy
        or "choose the key with --key COLUMN, and columns and their names with --map EXT=COLUMN (repeatable), "
        "such as --map jpg=image --map cls=label",
    )


def _repeated(names: Sequence[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _default_encoding(schema: pa.Schema, column: str) -> str:
    """Return the default encoding of a column, which must not be a refused one."""
    kind = schema.field(column).type
    feature = _features(schema).get(column, {})
    if re.fullmatch("Array[2-5]D", str(feature.get("_type"))) and is_nested_numbers(unwrap(kind)):
        return "npy"
    rule = rule_of(kind)
    return rule.encoding if rule else ""


def _encoding_for(field: str, kind: pa.DataType, default: str) -> str | None:
    """Return the encoding of a column that goes to a field of this name, or None if the two do not fit."""
    extension, kind = field.rpartition(".")[2], unwrap(kind)
    if extension == "json" and default in ("integer", "npy"):
        return "json"
    if extension == "npy" and is_nested_numbers(kind):
        return "npy"
    if extension == "txt" and (pa.types.is_decimal(kind) or pa.types.is_temporal(kind)):
        return "text"
    allowed = _ENCODINGS_FOR.get(extension)
    return default if allowed is None or default in allowed else None


def prefix_of(column: str) -> str:
    """Return what the names of fields begin with that are named after their column."""
    return re.sub(r"[^a-z0-9_-]", "_", column.lower()) + "."


def _inferred_names(
    schema: pa.Schema,
    columns: Sequence[str],
    first_bytes: Mapping[str, bytes | None],
    taken: Sequence[str],
    label: str | None,
    prefixed: bool,
) -> list[str]:
    """Return field names by the columns' encodings; the column's name comes first if two would be the same."""
    extensions, classes = [], class_names(schema)
    for column in columns:
        kind, payload = schema.field(column).type, first_bytes.get(column)
        rule = rule_of(kind)
        by_type = "npy" if _default_encoding(schema, column) == "npy" else rule.extension if rule else ""
        if by_type == "txt" and is_json_text(schema, column):
            by_type = "json"
        if column == label:
            by_type = "cls"
        elif column in classes and pa.types.is_integer(unwrap(kind)):
            by_type = ".cls"
        extensions.append(by_type or (sniff(payload) if payload else None) or "bin")
    names, counts = [], Counter(extensions)
    for column, extension in zip(columns, extensions, strict=True):
        alone = not prefixed and extension[0] != "." and counts[extension] == 1 and extension not in taken
        names.append(extension if alone else f"{prefix_of(column)}{extension.lstrip('.')}")
    return names
