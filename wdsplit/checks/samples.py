"""Samples of a dataset or mixture by their places: whole, some of their fields, keys and classes; and saved as files.

No order and no epoch is involved. The parts of a mixture are its datasets. Of large remote samples, only the bytes of
the fields are read.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.engines.local import in_order
from wdsplit.errors import OutputExistsError, StorageError
from wdsplit.loading.reading.block import Objects, as_objects
from wdsplit.loading.reading.open_shard import OpenShard, open_shard
from wdsplit.loading.reading.source import AnySource, Source
from wdsplit.loading.reading.windows import read_window
from wdsplit.order.epoch import Located, groups
from wdsplit.order.hashing import permutation
from wdsplit.shards.manifest import Field, Manifest
from wdsplit.shards.sample_tables import KEY, read_samples
from wdsplit.storage.interface import ReadableStorage
from wdsplit.storage.local import write_whole
from wdsplit.tar.names import RESERVED_FIELDS
from wdsplit.texts import class_name

__all__ = [
    "MAX_LABEL_BYTES",
    "keys_and_labels",
    "label_field",
    "parts_of",
    "read_fields",
    "read_texts",
    "samples_at",
    "save_samples",
    "spread_numbers",
]

_Value = TypeVar("_Value")

_SAMPLE_CONNECTIONS, _MAX_OPEN = 16, 256
_FIELD_CONNECTIONS = 32
_SAMPLES_AT_ONCE, _REMOTE_SAMPLES_AT_ONCE = 1024, 16
MAX_LABEL_BYTES = 256
"""A payload with more bytes is no class."""
_ROWS_PER_SAMPLE = 8192
"""With up to this many rows per requested sample, sample tables are faster: a table takes one request, the headers of
a sample take two."""
_DOMAIN = 23
_UNSAFE_PARTS = {"": "%2F", ".": "%2E", "..": "%2E%2E"}
"""Replacements for the parts of a key that would lead out of the folder, or be lost."""


def parts_of(source: AnySource) -> tuple[Source, ...]:
    """Return the datasets of a mixture, or the only one."""
    parts: Any = getattr(source, "sources", (source,))
    return tuple(parts)


def spread_numbers(num_stored: int, count: int, seed: int) -> list[int]:
    """Return different numbers of samples, spread over all files, in random order.

    The seed draws one from each of `count` equal parts of the files, so all parts are seen, and few shards are opened.
    """
    count = min(count, num_stored)
    if not count:
        return []
    begins = np.arange(count) * num_stored // count
    ends = np.append(begins[1:], num_stored)
    inside = permutation(1 << 16, seed, _DOMAIN)[:count]
    numbers = begins + inside * (ends - begins) // (1 << 16)
    shuffled: list[int] = numbers[permutation(count, seed, _DOMAIN, 1)].tolist()
    return shuffled


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


def read_texts(
    part: Source, shard: Int64, sample: Int64, fields: Sequence[str], whole: bool = False
) -> list[list[str | None]]:
    """Return keys and short payloads of n samples as texts; from remote sample tables if that is faster.

    Args:
        part: The dataset.
        shard: As for `read_fields`.
        sample: As for `read_fields`.
        fields: The fields, or `__key__`.
        whole: As for `read_fields`.

    Returns:
        For each field n texts; None where a sample lacks it, or it has more than 256 bytes.

    Raises:
        WdsplitError: A shard is missing or damaged.
    """
    storage, manifest = part.storage(), part.manifest
    num_rows = int(manifest.shards.num_real[np.unique(shard)].sum())
    integers = (
        [] if manifest.samples is None else [one.name for one in manifest.samples if pa.types.is_integer(one.type)]
    )
    columns = {each.name: each.column for each in manifest.fields if each.column in integers} | {KEY: KEY}
    has_columns = manifest.samples is not None and columns.keys() >= set(fields)
    if not (storage.has_latency and has_columns) or num_rows > _ROWS_PER_SAMPLE * len(shard):
        read = read_fields(storage, manifest, shard, sample, fields, whole, _text)
        return [read[name] for name in fields]
    names = [columns[name] for name in fields]
    numbers, runs = zip(*groups(shard), strict=True)

    def read_table(number: int) -> pa.Table:
        return read_samples(storage, manifest.shards[number], names, manifest.samples)

    texts: list[list[str | None]] = [[None] * len(shard) for _ in fields]
    for table, rows in zip(in_order(read_table, numbers, _FIELD_CONNECTIONS), runs, strict=True):
        for own, name in zip(texts, names, strict=True):
            for row, value in zip(rows.tolist(), table.column(name).take(sample[rows]).to_pylist(), strict=True):
                own[row] = None if value is None else str(value)
    return texts


def _text(payload: Any, url: str) -> str | None:
    """Return a key, or the text of a short payload."""
    if isinstance(payload, str):
        return payload
    return None if len(payload) > MAX_LABEL_BYTES else bytes(payload).decode("utf-8", "replace").strip()


def label_field(manifest: Manifest) -> Field | None:
    """Return the field of the classes: the first with class names, else the first `cls`; None if there is none."""
    named = [each for each in manifest.fields if each.names]
    plain = [each for each in manifest.fields if each.name.rpartition(".")[2] == "cls"]
    return next(iter([*named, *plain]), None)


def keys_and_labels(parts: tuple[Source, ...], places: Located) -> tuple[Objects, Objects | None]:
    """Return the keys of samples and, if a part has classes, the classes: object of shape (samples,), str or None.

    Raises:
        WdsplitError: A shard is missing or damaged.
    """
    keys, labels = np.empty(len(places.source), object), np.empty(len(places.source), object)
    fields = [label_field(part.manifest) for part in parts]
    for number, rows in groups(places.source):
        field = fields[number]
        wanted = [KEY] if field is None else [KEY, field.name]
        found = read_texts(parts[number], places.shard[rows], places.sample[rows], wanted)
        keys[rows] = as_objects(found[0])
        if field is not None:
            labels[rows] = as_objects([text and class_name(text, field.names) for text in found[1]])
    return keys, labels if any(fields) else None


def save_samples(samples: Iterable[Mapping[str, Any]], folder: Path, overwrite: bool = False) -> list[str]:
    """Write the payloads of samples as FOLDER/KEY.FIELD and return the paths; the folders in a key are kept.

    Args:
        samples: The fields as bytes, with `__key__`.
        folder: The folder; created if missing.
        overwrite: Replace files that exist.

    Raises:
        OutputExistsError: A file exists already.
        StorageError: A file cannot be written.
    """
    written: list[str] = []
    for sample in samples:
        *parents, name = (_UNSAFE_PARTS.get(part, part) for part in sample["__key__"].split("/"))
        for field, payload in sample.items():
            if field in RESERVED_FIELDS or payload is None:
                continue
            file = folder.joinpath(*parents, f"{name}.{field}")
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
                if not overwrite and os.path.lexists(file):
                    raise FileExistsError(errno.EEXIST, "", str(file))
            except FileExistsError as error:
                remedy = "choose another folder"
                raise OutputExistsError("the file exists already", str(error.filename), remedy=remedy) from error
            except OSError as error:
                raise StorageError("a file cannot be written", place=str(file), found=str(error.strerror)) from error
            write_whole(file, payload)
            written.append(str(file))
    return written
