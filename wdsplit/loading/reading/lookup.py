"""One sample of a dataset, found by its number or its key.

There is no index of keys. Keys of a converted dataset rise, unless its rows were shuffled or have keys of their own: so
a key is searched for by bisection first, then shard by shard.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from wdsplit.errors import InputError, SampleNotFoundError
from wdsplit.loading.reading.numbered import NumberedSamples
from wdsplit.loading.reading.open_shard import OpenShard, open_shard
from wdsplit.order.split import whole
from wdsplit.shards.manifest import Manifest, Shard
from wdsplit.storage.interface import ReadableStorage
from wdsplit.tar.names import ambiguous_key, escape_key, unescape_key

__all__ = ["checked_number", "find_number", "find_sample", "missing_key"]


def find_sample(
    storage: ReadableStorage,
    manifest: Manifest,
    key_or_index: str | int,
    opener: Callable[[Shard], OpenShard] | None = None,
) -> dict[str, Any]:
    """Return one sample.

    By number this opens one shard. By key it opens about log2(shards) of them and parses the headers of about
    log2(samples) samples, if the keys of the dataset rise. If that does not find it, the keys of all samples are read
    shard by shard: from the sample tables, or from the headers. No payloads are read but those of the sample itself.

    Args:
        storage: Where the dataset is.
        manifest: Its manifest.
        key_or_index: A text is a key, escaped as in the tar or unescaped. An
            integer is the number of a sample, counted through the shards in their order, pads left out; a negative one
            counts from the end.
        opener: Opens a shard; None for `open_shard`.

    Returns:
        `__key__`, `__url__`, `__position__`, `__pad__` (False) and the fields as bytes. The sample belongs to no epoch:
        `__position__` is its number, which is its position where an epoch is neither shuffled nor has several lanes.

    Raises:
        SampleNotFoundError: There is no such sample; also a KeyError and an IndexError.
        InputError: The argument is neither text nor integer, or an empty text; or two samples have the key.
        WdsplitError: A shard is missing or damaged.
    """
    samples = NumberedSamples(storage, manifest, opener or partial(open_shard, storage, names=manifest.field_names))
    if isinstance(key_or_index, str):
        number = find_number(samples, key_or_index)
    else:
        number = checked_number(key_or_index, len(samples.numbers), storage.url)
    return samples.read(np.array([number]))[0]


def checked_number(value: Any, count: int, url: str) -> int:
    """Return the index of a sample, from 0 to `count` - 1; a negative number counts from the end.

    Raises:
        SampleNotFoundError: There is no such sample.
        InputError: The number is not an integer.
    """
    is_scalar = not isinstance(value, np.bool_) and getattr(value, "ndim", None) in (None, 0)
    index = whole(value) if is_scalar else None
    if type(index) is not int:
        raise InputError(
            "invalid key or number of a sample",
            expected="a text, or an integer",
            found=f"{value!r} of type {type(value).__name__}",
        )
    if not -count <= index < count:
        raise SampleNotFoundError(
            "no sample has this number",
            place=url,
            expected=f"a number from {-count} to {count - 1}" if count else "no number: there are no samples",
            found=str(index),
            remedy="count from 0, through all shards, with pads left out",
        )
    return int(index % count)


def find_number(samples: NumberedSamples, key: str) -> int:
    """Return the number of the sample with a key.

    Raises:
        SampleNotFoundError: There is none.
        InputError: The key is empty, or two samples have it.
    """
    keys, count = list(dict.fromkeys([key, escape_key(key)])), len(samples.numbers)
    places: dict[str, int] = {}
    for candidate in keys if samples.keys_rise else ():
        number = bisect.bisect_left(range(count), candidate, key=samples.key)
        if number < count and samples.key(number) == candidate:
            places[candidate] = number
    may_be_two = unescape_key(key) != key
    is_found = len(places) == len(keys) if may_be_two else bool(places)  # among keys that do not rise, one by chance
    for first, found in samples.keys_of_shards() if not is_found else ():
        for candidate in keys:
            place = found.index(candidate).as_py()
            if place >= 0 and candidate not in places:
                samples.keys_rise = False
                places[candidate] = first + int(place)
        if len(places) == len(keys) or (places and not may_be_two):
            break
    if not places:
        raise missing_key(key, count, samples.storage.url)
    if may_be_two and len(places) > 1:
        raise ambiguous_key(key, samples.storage.url)
    return places.get(key, min(places.values()))


def missing_key(key: str, count: int, url: str) -> SampleNotFoundError:
    """Return the error that none of `count` samples has a key."""
    return SampleNotFoundError(
        "no sample has this key",
        place=url,
        expected=f"one of the keys of {count} samples",
        found=repr(key),
        remedy="check it against the first keys, which `wdsplit inspect` shows; a row number has leading zeros",
        key=key,
    )
