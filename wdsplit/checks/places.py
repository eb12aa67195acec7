"""Reads samples of a dataset or mixture, or some of their fields, by their places; independent of order and epoch.

The parts of a mixture are its datasets. Of large samples in remote datasets, only the bytes of the fields are read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.engines.local import in_order
from wdsplit.errors import InputError
from wdsplit.loading.reading.open_shard import OpenShard, open_shard
from wdsplit.loading.reading.source import AnySource, Source
from wdsplit.loading.reading.windows import read_window
from wdsplit.order.epoch import Located, groups
from wdsplit.shards.manifest import Manifest
from wdsplit.storage.interface import ReadableStorage

__all__ = ["parts_of", "read_fields", "samples_at", "small_bytes"]

_Value = TypeVar("_Value")

_SAMPLE_CONNECTIONS, _MAX_OPEN = 16, 256
_FIELD_CONNECTIONS = 32
_SAMPLES_AT_ONCE, _REMOTE_SAMPLES_AT_ONCE = 1024, 16
_MAX_LABEL_BYTES = 1024


def parts_of(source: AnySource) -> tuple[Source, ...]:
    """Return the datasets of a mixture, or the only one."""
    parts: Any = getattr(source, "sources", (source,))
    return tuple(parts)


def samples_at(parts: tuple[Source, ...], places: Located) -> Iterator[dict[str, Any]]:
    """Yield samples with all payloads, in their order; remote ones are read by several threads."""
    storages = [part.storage() for part in parts]

    @lru_cache(_MAX_OPEN)
    def opened(part: int, shard: int) -> OpenShard:  # two threads may both open it
        return parts[part].open_shard(storages[part], shard)

    def read(place: tuple[int, int, int]) -> dict[str, Any]:
        part, shard, sample = place
        return next(read_window(opened(part, shard), np.array([sample])).samples())

    rows = zip(places.source.tolist(), places.shard.tolist(), places.sample.tolist(), strict=True)
    threads = _SAMPLE_CONNECTIONS if any(storage.has_latency for storage in storages) else 1
    yield from in_order(read, rows, threads)


def read_fields(
    storage: ReadableStorage,
    manifest: Manifest,
    shard: Int64,
    sample: Int64,
    fields: Sequence[str],
    whole: bool,
    value: Callable[[Any, str], _Value],
) -> dict[str, list[_Value | None]]:
    """Return the results of a function for some fields of some samples of a dataset.

    Args:
        storage: Where the dataset is.
        manifest: Its manifest.
        shard: int64 of shape (n,): the shard of each sample.
        sample: int64 of shape (n,): its number in the shard.
        fields: The fields, or `__key__`.
        whole: Read whole samples from a remote store, adjacent ones by one request: faster if all samples are read.
        value: Called with each payload, in the form of `Block`, or the key for `__key__`; and the URL of the shard.

    Returns:
        For each field n values; None where a sample lacks it.

    Raises:
        WdsplitError: A shard is missing or damaged.
    """
    order = np.lexsort((sample, shard))
    at_once = _REMOTE_SAMPLES_AT_ONCE if storage.is_remote and not whole else _SAMPLES_AT_ONCE
    tasks = [
        order[rows[first : first + at_once]]
        for _, rows in groups(shard[order])
        for first in range(0, len(rows), at_once)
    ]

    def read(task: Int64) -> list[list[_Value | None]]:
        listed = manifest.shards[int(shard[task[0]])]
        opened = open_shard(storage, listed, manifest.field_names, None if whole and storage.is_remote else fields)
        distinct, row_of = np.unique(sample[task], return_inverse=True)
        window = read_window(opened, distinct)
        columns = (window.keys if name == "__key__" else window.fields.get(name) for name in fields)
        rows = row_of.tolist()
        return [
            [None if column is None or (found := column[row]) is None else value(found, opened.url) for row in rows]
            for column in columns
        ]

    values: dict[str, list[_Value | None]] = {name: [None] * len(shard) for name in fields}
    threads = _FIELD_CONNECTIONS if storage.has_latency else 1
    for task, columns in zip(tasks, in_order(read, tasks, threads), strict=True):
        for name, column in zip(fields, columns, strict=True):
            for row, found in zip(task.tolist(), column, strict=True):
                values[name][row] = found
    return values


def small_bytes(payload: Any, url: str) -> bytes:
    """Return the bytes of a payload that may be a class, for `read_fields`.

    Raises:
        InputError: It is too large.
    """
    if len(payload) > _MAX_LABEL_BYTES:
        raise InputError(
            "a field has no classes: its values are too large",
            place=url,
            expected=f"at most {_MAX_LABEL_BYTES:,} bytes, such as 3 or cat",
            found=f"{len(payload):,} bytes",
            remedy="choose a field of classes with class_field (--class-field)",
        )
    return bytes(payload)
