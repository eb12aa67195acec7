"""Reads keys and classes of samples, from their headers or, for remote datasets, from sample tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.checks.places import read_fields
from wdsplit.engines.local import in_order
from wdsplit.loading.reading.block import Objects, as_objects
from wdsplit.loading.reading.source import Source
from wdsplit.order.epoch import Located, groups
from wdsplit.shards.manifest import Field, Manifest
from wdsplit.shards.sample_tables import read_samples
from wdsplit.storage.interface import ReadableStorage

__all__ = ["keys_and_labels", "label_field"]

_CONNECTIONS = 32
_MAX_LABEL_BYTES = 256
_ROWS_PER_SAMPLE = 8192
"""With up to this many rows per requested sample, sample tables are faster: a table takes one request, the headers of
a sample take two."""


def keys_and_labels(parts: tuple[Source, ...], places: Located) -> tuple[Objects, Objects | None]:
    """Return the keys of samples and, if a part has classes, the classes: object of shape (samples,), str or None.

    Raises:
        WdsplitError: A shard is missing or damaged.
    """
    keys, labels = np.empty(len(places.source), object), np.empty(len(places.source), object)
    fields = [label_field(part.manifest) for part in parts]
    for number, rows in groups(places.source):
        field = fields[number]
        found_keys, found_labels = _read(parts[number], field, places.shard[rows], places.sample[rows])
        keys[rows] = as_objects(found_keys)
        if field is not None:
            names = {str(place): name for place, name in enumerate(field.names)}
            labels[rows] = as_objects([names.get(text, text) for text in found_labels])
    return keys, labels if any(fields) else None


def label_field(manifest: Manifest) -> Field | None:
    """Return the field of the classes: the first with class names, else the first `cls`; None if there is none."""
    named = [each for each in manifest.fields if each.names]
    plain = [each for each in manifest.fields if each.name.rpartition(".")[2] == "cls"]
    return next(iter([*named, *plain]), None)


def _read(part: Source, field: Field | None, shard: Int64, sample: Int64) -> tuple[list[Any], list[Any]]:
    """Return the keys of some samples, and the values of their class field."""
    storage, manifest = part.storage(), part.manifest
    num_rows = int(manifest.shards.num_real[np.unique(shard)].sum())
    if storage.has_latency and _has_columns(manifest, field) and num_rows <= _ROWS_PER_SAMPLE * len(shard):
        return _from_tables(storage, manifest, field, shard, sample)
    names = ["__key__", *([] if field is None else [field.name])]
    read = read_fields(storage, manifest, shard, sample, names, False, _value)
    return read["__key__"], read[names[-1]]


def _has_columns(manifest: Manifest, field: Field | None) -> bool:
    """Return whether there are sample tables, with the classes if there are any."""
    if manifest.samples is None or field is None:
        return manifest.samples is not None
    return any(each.name == field.column and pa.types.is_integer(each.type) for each in manifest.samples)


def _from_tables(
    storage: ReadableStorage, manifest: Manifest, field: Field | None, shard: Int64, sample: Int64
) -> tuple[list[Any], list[Any]]:
    names = ["__key__", *([] if field is None else [field.column])]
    numbers, runs = zip(*groups(shard), strict=True)

    def read(number: int) -> pa.Table:
        return read_samples(storage, manifest.shards[number], names, manifest.samples)

    keys: list[Any] = [None] * len(shard)
    labels = keys.copy()
    for table, rows in zip(in_order(read, numbers, _CONNECTIONS), runs, strict=True):
        columns = (table.column(name).take(sample[rows]).to_pylist() for name in (names[0], names[-1]))
        for row, key, label in zip(rows.tolist(), *columns, strict=True):
            keys[row], labels[row] = key, None if label is None else str(label)
    return keys, labels


def _value(payload: Any, url: str) -> str | None:
    """Return a key, or the text of a small payload."""
    if isinstance(payload, str):
        return payload
    if len(payload) > _MAX_LABEL_BYTES:
        return None
    return bytes(payload).decode("utf-8", "replace").strip()
