"""Makes the columns of sample tables from the payloads of samples, for existing tars.

Pure (no I/O). The manifest's types decide if it has them. Otherwise, `cls` gives classes, and `json` its numbers and
booleans by their keys; their types are known only from the values, and may differ between tars.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import orjson
import pyarrow as pa

from wdsplit.errors import CorruptDataError
from wdsplit.fields.arrow_types import read_type
from wdsplit.fields.decode import decode_field
from wdsplit.fields.rules import is_text
from wdsplit.fields.sample_columns import MAX_COLUMNS
from wdsplit.shards.manifest import Field
from wdsplit.shards.sample_tables import KEY, NUM_BYTES, sample_type, with_names

__all__ = ["Recipe", "as_types", "joined_columns"]

Payloads = Sequence[bytes | None]

_TAKEN = (KEY, NUM_BYTES)
_MAX_CLASS_BYTES = 64
_WIDTHS = {str(kind): rank for rank, kind in enumerate((pa.bool_(), pa.int32(), pa.int64(), pa.float64(), pa.string()))}
_NUMBERS = {bool: pa.bool_(), int: pa.int64(), float: pa.float64()}
_INT64 = range(-(2**63), 2**63)


@dataclass(frozen=True)
class Recipe:
    """How the columns of sample tables are made from the fields of samples.

    Attributes:
        fields: The fields, from the manifest.
        keep: Additional columns to keep.
        no_keep: Columns to leave out.
    """

    fields: tuple[Field, ...]
    keep: tuple[str, ...] = ()
    no_keep: tuple[str, ...] = ()

    @property
    def typed(self) -> dict[str, Field]:
        """The columns of fields with a type in the manifest: numbers, classes, and those in `keep`."""
        found: dict[str, Field] = {}
        for field in self.fields:
            name = field.column
            if name in found or name in _TAKEN or name in self.no_keep or field.encoding in ("bytes", "media", "npy"):
                continue
            kind = read_type(field)
            is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
            if is_number or (name in self.keep and field.encoding != "class" and sample_type(kind) is not None):
                found[name] = field
        return found

    @property
    def untyped(self) -> list[str]:
        """The fields without a type, which their values determine: cls, json, and text fields in `keep`."""
        names = [field.name for field in self.fields if field.encoding == "bytes"]
        return [name for name in names if name.rpartition(".")[2] in ("cls", "json") or name in self.keep]

    @property
    def field_names(self) -> list[str]:
        """All fields to read."""
        return list(dict.fromkeys([*(field.name for field in self.typed.values()), *self.untyped]))

    def typed_columns(self) -> list[pa.Field]:
        """Return the columns of `typed`."""
        kinds = {name: sample_type(read_type(field)) for name, field in self.typed.items()}
        names = {name: field.names for name, field in self.typed.items()}
        return [
            with_names(pa.field(name, kind), names[name] if pa.types.is_integer(kind) else ())
            for name, kind in kinds.items()
        ]

    def columns(self, payloads: Mapping[str, Payloads], lost: Counter[str]) -> dict[str, pa.Array]:
        """Return the columns of some samples, by their names.

        Args:
            payloads: The payloads of each of `field_names`; None where a sample lacks the field.
            lost: Counts the values that are left out, by a description.
        """
        columns = self.typed_columns()
        arrays = [_decoded(payloads[self.typed[column.name].name], self.typed[column.name], lost) for column in columns]
        found = {column.name: array.cast(column.type) for array, column in zip(arrays, columns, strict=True)}
        for name in self.untyped:
            for key, values in self._values(name, payloads[name], lost).items():
                if key in found or key in _TAKEN or (len(found) >= MAX_COLUMNS and key not in self.keep):
                    lost[f"column {key!r} (its name is taken, or there are more than {MAX_COLUMNS} columns)"] += 1
                elif key not in self.no_keep:
                    array = _array(key, values, key in self.keep or not _is_json(name), lost)
                    found |= {} if array is None else {key: array}
        return found

    def _values(self, name: str, payloads: Payloads, lost: Counter[str]) -> dict[str, list[Any]]:
        """Return the values of a field, by column name."""
        if not _is_json(name):
            return {name: [_label(payload, name, name in self.keep, lost) for payload in payloads]}
        found: dict[str, list[Any]] = {}
        for row, payload in enumerate(payloads):
            for key, value in _items(payload, name, lost):
                if key not in found:
                    found[key] = [None] * len(payloads)
                found[key][row] = value
        return found


def _is_json(name: str) -> bool:
    return name.rpartition(".")[2] == "json"


def _items(payload: bytes | None, name: str, lost: Counter[str]) -> Iterable[tuple[str, Any]]:
    """Return the keys and values of a JSON object."""
    if not payload:
        return ()
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError:
        value = None
    if isinstance(value, dict):
        return value.items()
    lost[f"field {name!r}: no object in JSON"] += 1
    return ()


def _label(payload: bytes | None, name: str, is_text: bool, lost: Counter[str]) -> int | str | None:
    """Return the number in a payload, or its text if it is short."""
    if not payload:
        return None
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        text = ""
    digits = text.strip()
    if digits.lstrip("-").isascii() and digits.lstrip("-").isdecimal() and len(digits) < 20 and int(digits) in _INT64:
        return int(digits)
    if text and (is_text or len(payload) <= _MAX_CLASS_BYTES):
        return text if is_text else digits
    lost[f"field {name!r}: no class"] += 1
    return None


def _array(key: str, values: list[Any], is_kept: bool, lost: Counter[str]) -> pa.Array | None:
    """Return the values of a column as an array of numbers, or of strings if it is kept; None if none are left."""
    kinds: set[type] = {type(value) for value in values} - {type(None)}
    numbers = [_NUMBERS[kind] for kind in (bool, int, float) if kind in kinds]
    others = kinds - _NUMBERS.keys()
    if str in kinds and is_kept:
        return pa.array(list(map(_text, values)), pa.string())
    if others:
        what = " and ".join(sorted({_KIND_NAMES.get(kind, "others") for kind in others}))
        lost[f"column {key!r}: {what}"] += sum(type(value) in others for value in values)
    if not numbers:
        return None
    kind = reduce(_wider, numbers)
    kept = [value if type(value) in _NUMBERS else None for value in values]
    if kind == pa.int64():
        huge = sum(value is not None and value not in _INT64 for value in kept)
        if huge:
            lost[f"column {key!r}: integers of more than 64 bits"] += huge
        kept = [None if value is None or value not in _INT64 else int(value) for value in kept]
    return pa.array([None if value is None else float(value) for value in kept] if kind == pa.float64() else kept, kind)


def _text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else orjson.dumps(value).decode()


_KIND_NAMES: dict[type, str] = {str: "texts", list: "lists", dict: "objects"}


def _decoded(payloads: Payloads, field: Field, lost: Counter[str]) -> pa.Array:
    """Return the values of a field with a type; null where a payload is invalid for its encoding."""
    kind = read_type(field)
    filled = [payload or None for payload in payloads] if not is_text(kind) else list(payloads)
    try:
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            texts = pa.array(filled, pa.binary()).cast(pa.string())
            return (
                texts.cast(pa.int8()).cast(kind) if pa.types.is_boolean(kind) else texts.cast(_parsed(kind)).cast(kind)
            )
        return decode_field(filled, field)
    except (pa.ArrowException, CorruptDataError):
        arrays = [_decoded_one(payload, field, lost) for payload in filled]
        return pa.concat_arrays(arrays)


def _parsed(kind: pa.DataType) -> pa.DataType:
    """Return the type to parse strings as: booleans are written as 0 and 1, and Arrow cannot parse 16-bit floats."""
    if pa.types.is_boolean(kind):
        return pa.int8()
    return pa.float32() if pa.types.is_float16(kind) else kind


def _decoded_one(payload: bytes | None, field: Field, lost: Counter[str]) -> pa.Array:
    try:
        return decode_field([payload], field)
    except CorruptDataError:
        lost[f"field {field.name!r}: not {field.type}"] += 1
        return pa.nulls(1, read_type(field))


# Columns of several tars


def joined_columns(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Return the union of the tables' columns, each with a type for the values of all tables."""
    columns: dict[str, pa.Field] = {}
    for schema in schemas:
        for column in schema:
            before = columns.get(column.name, column)
            columns[column.name] = before.with_type(_wider(before.type, column.type))
    return pa.schema(list(columns.values()))


def as_types(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return a table with the columns of `joined_columns`; columns that it lacks are null."""
    arrays = [
        table[column.name].cast(column.type) if column.name in table.column_names else pa.nulls(len(table), column.type)
        for column in schema
    ]
    return pa.table(arrays, schema=schema)


def _wider(one: pa.DataType, other: pa.DataType) -> pa.DataType:
    """Return the one of two types that can represent the values of both."""
    if one == other:
        return one
    return max(one, other, key=lambda kind: _WIDTHS.get(str(kind), len(_WIDTHS)))
