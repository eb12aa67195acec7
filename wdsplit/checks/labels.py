"""Reads fields of given samples; of large samples in remote datasets, only the bytes of these fields.

Combines the manifest and the readers of windows; independent of order and epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.engines.local import in_order
from wdsplit.errors import InputError
from wdsplit.loading.reading.open_shard import open_shard
from wdsplit.loading.reading.windows import WindowPlace, read_windows
from wdsplit.order.epoch import groups
from wdsplit.shards.manifest import Manifest, Shard
from wdsplit.storage.interface import ReadableStorage

__all__ = ["read_fields", "read_labels"]

_Value = TypeVar("_Value")

_CONNECTIONS = 32
_SAMPLES_AT_ONCE, _REMOTE_SAMPLES_AT_ONCE = 1024, 16
_MAX_LABEL_BYTES = 1024


def read_labels(
    storage: ReadableStorage, manifest: Manifest, shard: Int64, sample: Int64, fields: Sequence[str], whole: bool
) -> dict[str, list[bytes | None]]:
    """Return some fields of some samples, as bytes.

    Args:
        storage: Where the dataset is.
        manifest: Its manifest.
        shard: int64 of shape (n,): the shard of each sample.
        sample: int64 of shape (n,): its number in the shard.
        fields: The fields.
        whole: Read whole samples from a remote store, adjacent ones by one request: faster if all samples are read.

    Returns:
        For each field n values; None where a sample lacks it.

    Raises:
        InputError: A value is too large for a label.
        WdsplitError: A shard is missing or damaged.
    """
    return read_fields(storage, manifest, shard, sample, fields, whole, _label)


def read_fields(
    storage: ReadableStorage,
    manifest: Manifest,
    shard: Int64,
    sample: Int64,
    fields: Sequence[str],
    whole: bool,
    value: Callable[[Any, str], _Value],
) -> dict[str, list[_Value | None]]:
    """Return the results of a function for some fields of some samples: n values for each field.

    Args:
        storage: As for `read_labels`.
        manifest: As for `read_labels`.
        shard: As for `read_labels`.
        sample: As for `read_labels`.
        fields: As for `read_labels`.
        whole: As for `read_labels`.
        value: Called with each payload, in the form of `Block`, or the key for `__key__`; and the URL of the shard.

    Raises:
        WdsplitError: A shard is missing or damaged.
    """
    order = np.lexsort((sample, shard))
    at_once = _REMOTE_SAMPLES_AT_ONCE if storage.is_remote and not whole else _SAMPLES_AT_ONCE
    tasks = [
        (manifest.shards[number], sample[order[rows[first : first + at_once]]])
        for number, rows in groups(shard[order])
        for first in range(0, len(rows), at_once)
    ]
    values: dict[str, list[_Value | None]] = {name: [None] * len(shard) for name in fields}
    places = iter(order.tolist())
    read = partial(_read, storage, manifest, fields, whole, value)
    for found in in_order(read, tasks, _CONNECTIONS if storage.has_latency else 1):
        for row in found:
            place = next(places)
            for name, found_value in zip(fields, row, strict=True):
                values[name][place] = found_value
    return values


def _read(
    storage: ReadableStorage,
    manifest: Manifest,
    fields: Sequence[str],
    whole: bool,
    value: Callable[[Any, str], _Value],
    task: tuple[Shard, Int64],
) -> list[list[_Value | None]]:
    """Return the fields of some samples of a shard, in ascending order."""
    listed, samples = task
    shard = open_shard(storage, listed, manifest.field_names, None if whole and storage.is_remote else fields)
    distinct, rows = np.unique(samples, return_inverse=True)
    place = WindowPlace(shard, int(distinct[0]), int(distinct[-1]) + 1, None, distinct)
    window = read_windows([place])[0].window
    columns = [window.keys if name == "__key__" else window.fields.get(name) for name in fields]
    found: list[list[_Value | None]] = []
    for row in rows.tolist():
        payloads = [None if column is None else column[row] for column in columns]
        found.append([None if payload is None else value(payload, shard.url) for payload in payloads])
    return found


def _label(payload: Any, url: str) -> bytes:
    """Return a payload, reading it if necessary."""
    if len(payload) > _MAX_LABEL_BYTES:
        raise InputError(
            "a field has no classes: its values are too large",
            place=url,
            expected=f"at most {_MAX_LABEL_BYTES:,} bytes, such as 3 or cat",
            found=f"{len(payload):,} bytes",
            remedy="choose a field of classes with class_field (--class-field)",
        )
    return bytes(payload)
