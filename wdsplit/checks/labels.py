"""Reads fields of given samples with the index; of remote datasets, only headers and the bytes next to them.

Combines the manifest and the readers of windows; independent of order and epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.engines.local import in_order
from wdsplit.errors import CorruptDataError, InputError
from wdsplit.loading.reading.open_shard import OpenShard
from wdsplit.loading.reading.read_windows import WindowPlace, read_windows
from wdsplit.order.epoch import groups
from wdsplit.shards.manifest import Manifest, Shard, index_path
from wdsplit.storage.interface import ReadableFile, ReadableStorage
from wdsplit.tables.formats.opening import joined_ranges
from wdsplit.tar.index import INDEX_ENTRY_BYTES

__all__ = ["read_fields", "read_labels"]

_Value = TypeVar("_Value")

_CONNECTIONS = 32
_SAMPLES_AT_ONCE, _REMOTE_SAMPLES_AT_ONCE = 1024, 16
_INDEX_HOLE_BYTES = 64 * 1024
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
    read = partial(_read, storage, fields, whole, value)
    for found in in_order(read, tasks, _CONNECTIONS if storage.has_latency else 1):
        for row in found:
            place = next(places)
            for name, found_value in zip(fields, row, strict=True):
                values[name][place] = found_value
    return values


def _read(
    storage: ReadableStorage,
    fields: Sequence[str],
    whole: bool,
    value: Callable[[Any, str], _Value],
    task: tuple[Shard, Int64],
) -> list[list[_Value | None]]:
    """Return the fields of some samples of a shard, in ascending order."""
    shard, samples = task
    url, file = f"{storage.url}/{shard.path}", _Ranges(storage.open(shard.path, shard.num_bytes))
    breaks = np.flatnonzero(np.diff(samples, prepend=-2) != 1)
    runs = [(int(run[0]), int(run[-1]) + 1) for run in np.split(samples, breaks[1:])]
    places = []
    for offsets in _offsets(storage, shard, runs):
        place = WindowPlace(OpenShard(url, file, offsets), 0, len(offsets) - 1)
        if whole and storage.is_remote:
            place = place._replace(data=memoryview(file.read(place.begin, place.end - place.begin)))
        places.append(place)
    rows = []
    for place, part in zip(places, read_windows(places, frozenset(fields)), strict=True):
        columns = [part.window.keys if name == "__key__" else part.window.fields.get(name) for name in fields]
        for row in range(part.first, part.first + place.stop):
            payloads = [None if column is None else column[row] for column in columns]
            rows.append([None if payload is None else value(payload, url) for payload in payloads])
    return rows


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


def _offsets(storage: ReadableStorage, shard: Shard, runs: Sequence[tuple[int, int]]) -> Iterator[Int64]:
    """Yield the offsets of the samples of each run, and of its end; reads only these from the index."""
    path, each = index_path(shard.path), INDEX_ENTRY_BYTES
    index = storage.open(path, each * (shard.num_samples + 1))
    ranges = joined_ranges([(each * first, each * (stop + 1)) for first, stop in runs], _INDEX_HOLE_BYTES)
    read = [np.frombuffer(index.read(begin, end - begin), "<u8").astype(np.int64) for begin, end in ranges]
    begins = [begin // each for begin, _ in ranges]
    for first, stop in runs:
        number = int(np.searchsorted(begins, first, side="right")) - 1
        offsets = read[number][first - begins[number] : stop + 1 - begins[number]]
        if offsets[0] < 0 or offsets[-1] > shard.num_bytes or (np.diff(offsets) <= 0).any():
            raise CorruptDataError(
                "an index is damaged",
                place=f"{storage.url}/{path}",
                expected=f"rising offsets below {shard.num_bytes}",
                remedy="copy the index again, or convert again with --overwrite",
                url=f"{storage.url}/{path}",
            )
        yield offsets


@dataclass(frozen=True)
class _Ranges:
    """A file of which only the requested bytes are read, even if each read is a request."""

    file: ReadableFile
    is_remote = False

    @property
    def size(self) -> int:
        return self.file.size

    @property
    def version(self) -> str:
        return self.file.version

    def read(self, offset: int, num_bytes: int) -> bytes:
        return self.file.read(offset, num_bytes)

    def read_into(self, buffer: memoryview, offset: int) -> None:
        self.file.read_into(buffer, offset)

    def expect(self, offset: int, num_bytes: int) -> None:
        self.file.expect(offset, num_bytes)
