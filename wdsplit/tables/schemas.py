"""The common columns of many files: promotes types, fills missing columns, adds Hive partitions.

Pure (no I/O). Keeps each distinct schema once, however many files have it. Hive partitions are columns in folder names,
as in `year=2024/lang=en/part-0.parquet`: all consecutive `name=value` folders directly above a file count, so a file
has the same columns whether it is given by folder, pattern or path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import unquote

import pyarrow as pa

from wdsplit.errors import InputError
from wdsplit.fields.infer import class_names, refuse_repeated
from wdsplit.fields.promote import common_type
from wdsplit.tables.table import Value

__all__ = ["Partitions", "Schemas", "promoted", "promotion_notes", "with_partitions"]

_FEATURES = b"huggingface"
_MISSING = "missing"
_NULL = "__HIVE_DEFAULT_PARTITION__"
_INTEGER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
"""A 64-bit integer; `01` is one, as in Arrow."""


@dataclass
class Schemas:
    """The schemas of files.

    Attributes:
        schemas: The different schemas, in order.
        paths: The first file with each.
        counts: How many files with rows have each.
    """

    schemas: list[pa.Schema] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    _numbers: dict[bytes, int] = field(default_factory=dict)

    def add(self, path: str, schema: pa.Schema, num_rows: int) -> int:
        """Add a file, and return the number of its schema; only Hugging Face's metadata makes schemas differ."""
        metadata = schema.metadata or {}
        features = {name: value for name, value in metadata.items() if name == _FEATURES}
        key = schema.with_metadata(features or None).serialize().to_pybytes()
        number = self._numbers.setdefault(key, len(self.schemas))
        if number == len(self.schemas):
            self.schemas.append(schema)
            self.paths.append(path)
            self.counts.append(0)
        self.counts[number] += num_rows > 0
        return number


def promoted(found: Schemas) -> pa.Schema:
    """Return the columns of all files, in the order of their first appearance, each of a type that holds all values.

    Raises:
        InputError: A column has types without a common one, or its classes differ. All such columns are named.
    """
    if len(found.schemas) == 1:
        return found.schemas[0]
    for path, schema in zip(found.paths, found.schemas, strict=True):
        try:
            refuse_repeated(schema)
        except InputError as error:
            raise error.at(path) from error
    fields: dict[str, pa.Field] = {}
    conflicts: dict[str, tuple[str, str]] = {}
    for number, schema in enumerate(found.schemas):
        for one in schema:
            before = fields.setdefault(one.name, one)
            kind = common_type(before.type, one.type)
            if kind is not None:
                fields[one.name] = before if kind == before.type else before.with_type(kind)
            elif one.name not in conflicts:
                conflicts[one.name] = (_conflict(found, one.name, number), found.paths[number])
    problems = [text for text, _ in conflicts.values()] + _class_conflicts(found)
    if problems:
        path = next((path for _, path in conflicts.values()), found.paths[-1])
        raise InputError(
            "two inputs differ in their columns",
            expected="types that can be promoted to a common type without loss",
            found="; ".join(problems),
            remedy="cast the columns to one type, or convert the files as two datasets",
            url=path,
        )
    richest = max(found.schemas, key=lambda schema: len(class_names(schema)))
    return pa.schema(list(fields.values()), metadata=richest.metadata)


def _conflict(found: Schemas, name: str, number: int) -> str:
    """Return a text that names two files whose types of a column conflict, given the number of the second's schema."""
    kind = found.schemas[number].field(name).type
    before = [other for other in range(number) if name in found.schemas[other].names]
    types = [found.schemas[other].field(name).type for other in before]
    place = next((place for place, other in enumerate(types) if common_type(other, kind) is None), 0)
    return f"column {name!r} is {types[place]} in {found.paths[before[place]]}, {kind} in {found.paths[number]}"


def _class_conflicts(found: Schemas) -> list[str]:
    known: dict[str, tuple[tuple[str, ...], str]] = {}
    problems = []
    for path, schema in zip(found.paths, found.schemas, strict=True):
        for name, classes in class_names(schema).items():
            before, first = known.setdefault(name, (classes, path))
            if classes != before:
                problems.append(
                    f"the classes of column {name!r} have different names or another order in {path} than in {first}"
                )
    return problems


def promotion_notes(found: Schemas, schema: pa.Schema) -> list[str]:
    """Return a note for each column that some files with rows lack or have in another type.

    Args:
        found: The schemas of the files.
        schema: The columns of all files, without those of partitions.
    """
    kinds = [dict(zip(each.names, each.types, strict=True)) for each in found.schemas]
    notes = [_note(one, kinds, found.counts) for one in schema]
    return [note for note in notes if note]


def _note(one: pa.Field, kinds: Sequence[Mapping[str, pa.DataType]], num_files: Sequence[int]) -> str:
    """Return a note on the type of a column, given the types in each schema; empty if all files agree."""
    if pa.types.is_null(one.type):
        return f"{one.name}: no values in any file: not written"
    counts: dict[str, int] = {}
    for types, count in zip(kinds, num_files, strict=True):
        if count:
            kind = str(types[one.name]) if one.name in types else _MISSING
            counts[kind] = counts.get(kind, 0) + count
    if len(counts) <= 1:
        return ""
    total, num_missing = sum(counts.values()), counts.pop(_MISSING, 0)
    first, *others = (f"{kind} in {count:,}" for kind, count in counts.items())
    texts = [f"{first} of {total:,} files", *others, *([f"{_MISSING} in {num_missing:,}"] if num_missing else [])]
    nulls = ", null where it is missing" if num_missing else ""
    return f"{one.name}: {', '.join(texts)}: read as {one.type}{nulls}"


class Partitions:
    """The partitions that folders name.

    Args:
        folders: Absolute paths or URLs; empty for none.

    Attributes:
        are_integers: Column name to whether all of its values are integers, in the order of the folders.

    Raises:
        InputError: Two folders of a path name the same column, or a name is not UTF-8.
    """

    def __init__(self, folders: Iterable[str]) -> None:
        self._texts = {folder: _texts_of(folder) for folder in dict.fromkeys(folders)}
        self.are_integers: dict[str, bool] = {}
        found: dict[str, set[str | None]] = {}
        for texts in self._texts.values():
            for name, text in texts:
                found.setdefault(name, set()).add(text)
        for name, values in found.items():
            values.discard(None)
            self.are_integers[name] = bool(values) and all(_INTEGER.fullmatch(str(value)) for value in values)

    def values(self, folder: str) -> dict[str, Value]:
        """Return the value of each column in the files of a folder; None where the folder does not name the column."""
        texts = dict.fromkeys(self.are_integers) | dict(self._texts[folder])
        return {
            name: int(text) if text is not None and self.are_integers[name] else text for name, text in texts.items()
        }

    def notes(self) -> list[str]:
        """Return a note on each column, with its type and origin."""
        return [
            f"{name}: {'int64' if is_integer else 'string'}, from the names of folders"
            for name, is_integer in self.are_integers.items()
        ]


def _texts_of(folder: str) -> tuple[tuple[str, str | None], ...]:
    """Return the columns that the last folders of a path name, and their values as text."""
    names, texts = list[str](), list[str | None]()
    for part in reversed(folder.split("/")):
        name, equals, value = part.partition("=")
        if not (name and equals):
            break
        names.insert(0, unquote(name, errors="surrogateescape"))
        texts.insert(0, None if value == _NULL else unquote(value, errors="surrogateescape"))
    try:
        "".join([*names, *(text or "" for text in texts)]).encode()
    except UnicodeEncodeError as error:
        raise _unusable(folder, "folders whose percent-encoded names are UTF-8") from error
    if len({*names}) < len(names):
        raise _unusable(folder, "folders that name each column once")
    return tuple(zip(names, texts, strict=True))


def _unusable(folder: str, expected: str) -> InputError:
    return InputError(
        "the folder names cannot be read as columns",
        expected=expected,
        remedy="rename the folders, or use --no-hive to leave such columns out",
        url=folder,
    )


def with_partitions(schema: pa.Schema, partitions: Partitions, path: str) -> pa.Schema:
    """Add the columns of Hive partitions, after all others.

    Args:
        schema: The columns of all files.
        partitions: Their partitions.
        path: The first file, for an error.

    Raises:
        InputError: The files already have a column of that name.
    """
    both = [name for name in partitions.are_integers if name in schema.names]
    if both:
        raise InputError(
            "a column is both in the files and in the folder names",
            expected="each column either in the files or in the folder names, such as year=2024/",
            found=", ".join(map(repr, both)),
            remedy="use --no-hive to ignore the folder names",
            url=path,
        )
    for name, is_integer in partitions.are_integers.items():
        schema = schema.append(pa.field(name, pa.int64() if is_integer else pa.string()))
    return schema
