"""The rows of a sample table, for existing tars: read from a shard, some samples at a time. Writes nothing.

The manifest's types decide which fields become columns if it has them. Otherwise, `cls` gives classes, and `json` its
numbers and booleans by their keys; their types are known only from the values, and may differ between tars.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from wdsplit.errors import CorruptDataError
from wdsplit.fields.arrow_types import read_type
from wdsplit.fields.decode import decode_field
from wdsplit.fields.image_sizes import first_image_field, image_sizes
from wdsplit.fields.rules import is_text
from wdsplit.fields.sample_columns import MAX_COLUMNS, own_columns
from wdsplit.loading.reading.block import head
from wdsplit.loading.reading.open_shard import OpenShard, open_shard
from wdsplit.loading.reading.windows import read_window
from wdsplit.shards.manifest import Field
from wdsplit.shards.sample_tables import HEIGHT, KEY, NUM_BYTES, WIDTH, is_kept, sample_type, with_names
from wdsplit.shards.table import Shard
from wdsplit.storage.interface import ReadableStorage
from wdsplit.tar.places import rows_of

__all__ = ["Recipe", "as_types", "joined_columns", "read_rows", "typed_schema"]

Payloads = Sequence[bytes | None]

_SAMPLES_AT_ONCE, _BYTES_AT_ONCE = 4096, 32 * 1024**2
_HEAD_BYTES = 2**16
"""Bytes to read of an image: its header has the size."""
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
        """The columns of fields with a type in the manifest: numbers, dates, times, classes, and those in `keep`."""
        found: dict[str, Field] = {}
        for field in self.fields:
            name = field.column
            if name in found or name in _TAKEN or name in self.no_keep or field.encoding in ("bytes", "media", "npy"):
                continue
            kind = read_type(field)
            if is_kept(kind) or (name in self.keep and sample_type(kind) is not None):
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
    if str in kinds and is_kept:
        texts = [value if value is None or isinstance(value, str) else orjson.dumps(value).decode() for value in values]
        return pa.array(texts, pa.string())
    others = kinds - _NUMBERS.keys()
    if others:
        what = " and ".join(sorted({_KIND_NAMES.get(kind, "others") for kind in others}))
        lost[f"column {key!r}: {what}"] += sum(type(value) in others for value in values)
    if not kinds & _NUMBERS.keys():
        return None
    kind = reduce(_wider, (each for name, each in _NUMBERS.items() if name in kinds))
    make = {pa.float64(): float, pa.int64(): int, pa.bool_(): bool}[kind]
    kept = [value if type(value) in _NUMBERS else None for value in values]
    huge = sum(value is not None and value not in _INT64 for value in kept) if kind == pa.int64() else 0
    if huge:
        lost[f"column {key!r}: integers of more than 64 bits"] += huge
        kept = [value if value in _INT64 else None for value in kept]
    return pa.array([None if value is None else make(value) for value in kept], kind)


_KIND_NAMES: dict[type, str] = {str: "texts", list: "lists", dict: "objects"}


def _decoded(payloads: Payloads, field: Field, lost: Counter[str]) -> pa.Array:
    """Return the values of a field with a type; null where a payload is invalid for its encoding."""
    kind = read_type(field)
    filled = list(payloads) if is_text(kind) else [payload or None for payload in payloads]
    try:
        if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
            # Booleans are written as 0 and 1, and Arrow cannot parse 16-bit floats.
            parsed = {"bool": pa.int8(), "halffloat": pa.float32()}.get(str(kind), kind)
            return pa.array(filled, pa.binary()).cast(pa.string()).cast(parsed).cast(kind)
        return decode_field(filled, field)
    except (pa.ArrowException, CorruptDataError):
        return pa.concat_arrays([_decoded_one(payload, field, lost) for payload in filled])


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


# Rows of a shard


def typed_schema(recipe: Recipe) -> pa.Schema:
    """Return the columns that all tables of a dataset have, from the types in the manifest."""
    columns = recipe.typed_columns()
    names = {column.name for column in columns}
    own = own_columns(first_image_field(recipe.fields) is not None)
    return pa.schema([*(column for column in own if column.name not in names), *columns])


def read_rows(storage: ReadableStorage, listed: Shard, recipe: Recipe, lost: Counter[str]) -> pa.Table:
    """Read a shard, some samples at a time, and return the rows of its table, without pads.

    Args:
        storage: The dataset.
        listed: The shard, from the manifest.
        recipe: How columns are made from fields.
        lost: Counts the values that are left out, by a description.

    Raises:
        WdsplitError: The shard is missing or damaged.
    """
    num_real = listed.num_samples - listed.num_pads
    shard = open_shard(storage, listed, tuple(field.name for field in recipe.fields))
    rows = [pa.table(part) for part in _parts(shard, num_real, recipe, lost)]
    columns = joined_columns([pa.schema(own_columns(False)), *(part.schema for part in rows)])
    return pa.concat_tables([as_types(part, columns) for part in rows]) if rows else typed_schema(recipe).empty_table()


def _parts(shard: OpenShard, num_real: int, recipe: Recipe, lost: Counter[str]) -> Iterator[dict[str, pa.Array]]:
    """Yield the columns of some samples at a time, without pads."""
    image = first_image_field(recipe.fields)
    names = [*recipe.field_names, *([image] if image is not None else [])]
    shard, offsets, first = shard.narrowed(names), shard.places.offsets(), 0
    while first < num_real:
        stop = int(np.searchsorted(offsets, offsets[first] + _BYTES_AT_ONCE, side="right")) - 1
        stop = min(max(stop, first + 1), first + _SAMPLES_AT_ONCE, num_real)
        window = read_window(shard, np.arange(first, stop))
        none = np.full(stop - first, None, object)
        payloads = {
            name: [None if payload is None else bytes(payload) for payload in window.fields.get(name, none)]
            for name in recipe.field_names
        }
        found = recipe.columns(payloads, lost)
        sizes = rows_of([(shard.places, slice(first, stop))]).sizes
        num_bytes = np.where(sizes < 0, 0, sizes).sum(axis=1)
        own = {KEY: pa.array(window.keys, pa.string()), NUM_BYTES: pa.array(num_bytes, pa.int64())}
        if image is not None and not {WIDTH, HEIGHT} <= found.keys():
            pictures = window.fields.get(image, none)
            heads = pa.array(
                [None if each is None else head(each, _HEAD_BYTES) for each in pictures], pa.large_binary()
            )
            own[WIDTH], own[HEIGHT] = image_sizes(heads)
        yield {name: column for name, column in own.items() if name not in found} | found
        first = stop
