"""One sample of a dataset, found by its number or its key.

Composition of the manifest and the open shards; no order and no epoch is involved, and torch is not needed. There is no
index of keys. Keys of a converted dataset rise, unless its rows were shuffled or have keys of their own, so a key is
searched by bisection first, and sample by sample only if that does not find it.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any

import numpy as np

from wdsplit.errors import InputError, SampleNotFoundError
from wdsplit.loading.reading.open_shard import OpenShard, open_shard
from wdsplit.order.split import whole
from wdsplit.shards.manifest import Manifest, Shard
from wdsplit.storage.interface import ReadableStorage
from wdsplit.tar.names import escape_key

__all__ = ["find_sample"]

_SAMPLES_AT_ONCE = 1024


def find_sample(
    storage: ReadableStorage,
    manifest: Manifest,
    key_or_index: str | int,
    opener: Callable[[ReadableStorage, Shard], OpenShard] | None = None,
) -> dict[str, Any]:
    """Return one sample.

    By number this opens one shard. By key it opens about log2(shards) of them and parses the headers of about
    log2(samples) samples, if the keys of the dataset rise. If the key is not found so, the headers of all samples are
    parsed, shard by shard, until it is. Payloads are never read, but those of the sample itself.

    Args:
        storage: Where the dataset is.
        manifest: Its manifest.
        key_or_index: A text is a key, escaped as in the tar or as it was before; if these are two samples, either is
            found. An integer is the number of a sample, counted through the shards in their order, pads left out; a
            negative one counts from the end.
        opener: Opens a shard; None for `open_shard`.

    Returns:
        `__key__`, `__url__`, `__position__`, `__pad__` (False) and the fields as bytes. The sample belongs to no epoch:
        `__position__` is its number, which is its position where an epoch is neither shuffled nor has several lanes.

    Raises:
        SampleNotFoundError: There is no such sample; a KeyError and an IndexError too.
        InputError: The argument is neither text nor integer, or an empty text.
        WdsplitError: A shard is missing or damaged.
    """
    samples = _Samples(storage, manifest, opener or open_shard)
    if isinstance(key_or_index, str):
        return samples.take(samples.number_of(key_or_index))
    index = None if isinstance(key_or_index, np.bool_) else whole(key_or_index)
    if type(index) is not int:
        raise InputError(
            "a sample is found by its key or its number",
            expected="a text, or an integer",
            found=f"{key_or_index!r} of type {type(key_or_index).__name__}",
        )
    count = len(samples)
    if not -count <= index < count:
        raise SampleNotFoundError(
            "no sample has this number",
            place=storage.url,
            expected=f"a number from {-count} to {count - 1}" if count else "no number: there are no samples",
            found=str(index),
            remedy="count from 0, through all shards, with pads left out",
        )
    return samples.take(index % count)


class _Samples:
    """The samples of a dataset by their numbers, pads left out. The shard that was used last is kept open."""

    def __init__(
        self, storage: ReadableStorage, manifest: Manifest, opener: Callable[[ReadableStorage, Shard], OpenShard]
    ) -> None:
        self._storage = storage
        self._opener = opener
        self._shards = manifest.shards
        self._counts = manifest.shards.num_real
        self._ends = np.cumsum(self._counts)
        self._number = -1
        self._opened: OpenShard | None = None

    def __len__(self) -> int:
        return int(self._counts.sum())

    def _open(self, shard: int) -> OpenShard:
        if self._opened is None or self._number != shard:
            self._opened = self._opener(self._storage, self._shards[shard])
            self._number = shard
        return self._opened

    def _place(self, number: int) -> tuple[OpenShard, int]:
        """Return the shard of a sample, open, and its place there."""
        shard = int(np.searchsorted(self._ends, number, side="right"))
        return self._open(shard), number - int(self._ends[shard] - self._counts[shard])

    def take(self, number: int) -> dict[str, Any]:
        """Return a sample."""
        shard, place = self._place(number)
        return next(iter(shard.window(place, place + 1).take([0], [number], [False])))

    def number_of(self, key: str) -> int:
        """Return the number of the sample with this key."""
        keys = list(dict.fromkeys([key, escape_key(key)]))
        for candidate in keys:
            number = bisect.bisect_left(range(len(self)), candidate, key=self._key)
            if number < len(self) and self._key(number) == candidate:
                return number
        return self._scan(keys)

    def _key(self, number: int) -> str:
        shard, place = self._place(number)
        return str(shard.window(place, place + 1, fields=()).keys[0])

    def _scan(self, keys: list[str]) -> int:
        """Go through all samples; return the number of the first that has one of the keys."""
        number = 0
        for shard, count in enumerate(self._counts.tolist()):
            for first in range(0, count, _SAMPLES_AT_ONCE):
                stop = min(count, first + _SAMPLES_AT_ONCE)
                found: list[str] = self._open(shard).window(first, stop, fields=()).keys.tolist()
                for key in keys:
                    if key in found:
                        return number + first + found.index(key)
            number += count
        raise SampleNotFoundError(
            "no sample has this key",
            place=self._storage.url,
            expected=f"one of the keys of {number} samples",
            found=repr(keys[0]),
            remedy="check it against the first keys, which `wdsplit inspect` shows; a row number has leading zeros",
            key=keys[0],
        )
