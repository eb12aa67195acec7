"""Samples of a dataset by their numbers or keys, in any order and any number at a time.

A number counts through the shards in their order, pads left out. No order and no epoch is involved. There is no index
of keys. Keys of a converted dataset rise, unless its rows were shuffled or have keys of their own: so a key is searched
for by bisection first, then shard by shard.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.errors import InputError, SampleNotFoundError
from wdsplit.integers import whole
from wdsplit.loading.reading.block import gathered
from wdsplit.loading.reading.process_limits import allow_open_files, keep_freed_memory
from wdsplit.loading.reading.read_ahead import FetchRange, LazyShard
from wdsplit.loading.reading.source import Source
from wdsplit.loading.reading.windows import Scratch, WindowPlace, expect, read_window, read_windows
from wdsplit.loading.world import with_worker
from wdsplit.order.epoch import groups
from wdsplit.order.numbers import SampleNumbers
from wdsplit.order.split import World
from wdsplit.order.views import EpochViews
from wdsplit.shards.sample_tables import KEY, read_samples
from wdsplit.storage.locks import ProcessLock
from wdsplit.tar.names import ambiguous_key, escape_key, unescape_key

__all__ = ["NumberedSamples", "checked_number", "missing_key"]

_OPEN_SHARDS = 1024
"""The most recently used shards stay open: opening one costs more than reading a sample of 100 kB."""
_SHARDS_TOGETHER, _SAMPLES_TOGETHER = 64, 1024
"""Shards and samples to read at a time; these shards are open in addition."""
_GAP_BYTES = 256 * 1024
"""A gap of this size or more in a remote shard is left out: separate requests read what is around it."""
_KEYS_BYTES = 256 * 1024**2
"""About how many bytes of keys are kept in memory."""


class NumberedSamples:
    """The samples of a dataset, or of its view, by their numbers and keys.

    Threads wait for remote data together, and read what came one after another. What is open belongs to a process:
    copies and forks open their own.

    Args:
        source: The dataset.
        directly: Read the shards where they are, one range after another: from no cache, and with nothing ahead.

    Attributes:
        numbers: The numbers of all samples of the dataset, and their places in the shards.
    """

    def __init__(self, source: Source, directly: bool = False) -> None:
        self._source, self._directly, self._manifest = source, directly, source.manifest
        totals, selection = source.manifest.shards.num_real, source.selection_at(0)
        self.numbers = SampleNumbers(totals)
        self._chosen = None if selection is None else SampleNumbers(totals, selection)
        self._lock = ProcessLock()
        self._opened_by = -1  # no process yet
        self._keys_rise = True
        self._keys: dict[int, pa.StringArray] = {}

    @classmethod
    def of_all(cls, source: Source) -> NumberedSamples:
        """Return all samples of a dataset, whatever its views, to read few of them directly."""
        return cls(source.with_views(EpochViews()), directly=True)

    def __len__(self) -> int:
        return len(self.numbers if self._chosen is None else self._chosen)

    def __reduce__(self) -> tuple[Any, ...]:
        """Leave out open shards and keys."""
        return NumberedSamples, (self._source, self._directly)

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Let one thread read. After an error all shards are closed: one that could not be opened is opened anew."""
        with self._lock:
            if self._opened_by != os.getpid():
                self._open()
            try:
                yield
            except SampleNotFoundError:
                raise
            except BaseException:
                self._shard.cache_clear()
                raise

    def _open(self) -> None:
        """Start without open shards, in this process."""
        source, shards = self._source, self._source.shards
        self._storage, self._scratch = source.storage(), Scratch()
        is_ahead = not self._directly and source.is_ahead
        self._ahead = source.access.ahead(with_worker(World()).num_workers, 0, 0) if is_ahead else None
        opener = partial(source.open_shard, self._storage, directly=self._directly)
        self._shard = lru_cache(_OPEN_SHARDS)(lambda number: LazyShard(shards[number], partial(opener, number)))
        allow_open_files(min(_OPEN_SHARDS, len(shards)) + _SHARDS_TOGETHER)
        keep_freed_memory()
        self._opened_by = os.getpid()

    def read(self, numbers: Int64) -> list[dict[str, Any]]:
        """Return samples as dicts of `__key__`, `__url__`, `__position__` (the number), `__pad__` and fields (bytes).

        Neighbouring samples are read together, whatever the order of the numbers.

        Args:
            numbers: int64 of any length, each that of a sample.

        Raises:
            WdsplitError: A shard is missing or damaged.
        """
        name, parts = "", None
        if self._chosen is not None:
            name = self._source.order(0).part_name
            *places, parts = self._chosen.places(numbers)
            numbers = self.numbers.of(*places)
        distinct, row = np.unique(numbers, return_inverse=True)
        samples: list[dict[str, Any]] = []
        shards, *_ = self.numbers.places(distinct)
        nth = np.cumsum(np.diff(shards, prepend=shards[:1]) != 0)
        part = nth // _SHARDS_TOGETHER * len(distinct) + np.arange(len(distinct)) // _SAMPLES_TOGETHER
        for _, rows in groups(part):
            samples += self._together(distinct[rows])
        if name and parts is not None:
            return [{**samples[place], name: part} for place, part in zip(row.tolist(), parts.tolist(), strict=True)]
        if len(distinct) == len(numbers):
            return [samples[place] for place in row.tolist()]
        return [dict(samples[place]) for place in row.tolist()]  # stages may change one of them

    def _together(self, numbers: Int64) -> list[dict[str, Any]]:
        """Return the samples with some rising numbers."""
        shards, places, _ = self.numbers.places(numbers)
        with self._opened():
            rows = [some for shard, of_shard in groups(shards) for some in self._cut(shard, of_shard, places[of_shard])]
            ranges = [FetchRange(self._shard(int(shards[some[0]])), places[some]) for some in rows]
            fetches = [None] * len(ranges) if self._ahead is None else self._ahead.fetch(ranges)
        remote = [fetch for fetch in fetches if fetch is not None]
        for fetch in remote:
            fetch.mark_urgent()
        for fetch in remote:
            fetch.run(is_waiting=True)  # meanwhile other threads may begin to fetch
        with self._opened():
            windows = [
                WindowPlace(shard.get(), samples) if fetch is None else fetch.window(samples)
                for (shard, samples), fetch in zip(ranges, fetches, strict=True)
            ]
            expect(windows)
            read = zip(rows, read_windows(windows, self._scratch), strict=True)
            parts = [(some, part.block, part.first + np.arange(len(some))) for some, part in read]
            return list(gathered(parts, numbers, np.zeros(len(numbers), np.bool_)).samples())

    def _cut(self, shard: int, rows: Int64, places: Int64) -> list[Int64]:
        """Cut the rows of a shard where a request for each part is better than one for all."""
        if self._ahead is None:
            return [rows]
        listed = self._source.shards[shard]
        gap = max(1, _GAP_BYTES * listed.num_samples // max(1, listed.num_bytes))
        return np.split(rows, np.flatnonzero(np.diff(places) > gap) + 1)

    def sample(self, key_or_number: str | int) -> dict[str, Any]:
        """Return one sample, as in `read`.

        By number this opens one shard. By key it opens about log2(shards) of them and parses the headers of about
        log2(samples) samples, if the keys of the dataset rise. If that does not find it, the keys of all samples are
        read shard by shard: from the sample tables, or from the headers. No payloads are read but those of the sample.

        Args:
            key_or_number: A text is a key, escaped as in the tar or unescaped; a negative number counts from the end.

        Raises:
            SampleNotFoundError: There is no such sample; also a KeyError and an IndexError.
            InputError: The argument is neither text nor integer, or an empty text; or two samples have the key.
            WdsplitError: A shard is missing or damaged.
        """
        if isinstance(key_or_number, str):
            number = self.find(key_or_number)
        else:
            number = checked_number(key_or_number, len(self), self._source.url)
        return self.read(np.array([number]))[0]

    def find(self, key: str) -> int:
        """Return the number of the sample with a key.

        Raises:
            SampleNotFoundError: There is none.
            InputError: The key is empty, or two samples have it.
        """
        keys, count = list(dict.fromkeys([key, escape_key(key)])), len(self.numbers)
        found: dict[str, int] = {}
        may_be_two = unescape_key(key) != key
        with self._opened():
            for candidate in keys if self._keys_rise else ():
                number = bisect.bisect_left(range(count), candidate, key=self._key)
                if number < count and self._key(number) == candidate:
                    found[candidate] = number
            is_found = len(found) == len(keys) if may_be_two else bool(found)  # keys that do not rise: one by chance
            for first, own in self._keys_of_shards() if not is_found else ():
                for candidate in keys:
                    place = own.index(candidate).as_py()
                    if place >= 0 and candidate not in found:
                        self._keys_rise = False
                        found[candidate] = first + int(place)
                if len(found) == len(keys) or (found and not may_be_two):
                    break
        if may_be_two and len(found) > 1:
            raise ambiguous_key(key, self._source.url)
        number = found.get(key, min(found.values(), default=-1))
        if self._chosen is not None and found:
            shard, sample, _ = self.numbers.places(np.array([number]))
            selection: Any = self._source.selection_at(0)
            number = -1
            if selection.chosen.mask(int(shard[0]))[sample[0]]:
                number = int(self._chosen.of(shard, sample)[0])
        if number < 0:
            raise missing_key(key, len(self), self._source.url)
        return number

    def _key(self, number: int) -> str:
        """Return the key of a sample; its payloads are not read."""
        shard, place, _ = self.numbers.places(np.array([number]))
        return str(read_window(self._shard(int(shard[0])).get().narrowed(()), place).keys[0])

    def _keys_of_shards(self) -> Iterator[tuple[int, pa.StringArray]]:
        """Give the number of the first sample and the keys of each shard that has samples; they are kept."""
        for shard, count in enumerate(self.numbers.counts.tolist()):
            if not count:
                continue
            first = int(self.numbers.ends[shard]) - count
            if shard in self._keys:
                yield first, self._keys[shard]
                continue
            if self._manifest.samples is not None:
                listed = self._manifest.shards[shard]
                keys = read_samples(self._storage, listed, [KEY]).column(0).combine_chunks()
            else:
                opened = self._shard(shard).get().narrowed(())
                parts = np.split(np.arange(count), range(_SAMPLES_TOGETHER, count, _SAMPLES_TOGETHER))
                keys = pa.array([key for part in parts for key in read_window(opened, part).keys.tolist()], pa.string())
            if sum(each.nbytes for each in self._keys.values()) < _KEYS_BYTES:
                self._keys[shard] = keys
            yield first, keys


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
