"""Samples of a dataset read by their numbers, in any order and any number at a time.

A number counts through the shards in their order, pads left out. No order and no epoch is involved.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.loading.reading.block import Block, Gathered
from wdsplit.loading.reading.open_shard import OpenShard
from wdsplit.loading.reading.process_limits import allow_open_files, keep_freed_memory
from wdsplit.loading.reading.read_ahead import Ahead, FetchRange, LazyShard
from wdsplit.loading.reading.windows import Scratch, WindowPlace, read_window, read_windows
from wdsplit.order.epoch import groups
from wdsplit.order.numbers import SampleNumbers
from wdsplit.shards.manifest import Manifest, Shard
from wdsplit.shards.sample_tables import KEY, read_samples
from wdsplit.storage.interface import ReadableStorage

__all__ = ["NumberedSamples"]

_OPEN_SHARDS = 1024
"""The most recently used shards stay open: opening one costs more than reading a sample of 100 kB."""
_SHARDS_TOGETHER, _SAMPLES_TOGETHER = 64, 1024
"""Shards and samples to read at a time; these shards are open in addition."""
_GAP_BYTES = 256 * 1024
"""A gap of this size or more in a remote shard is left out: separate requests read what is around it."""
_KEYS_BYTES = 256 * 1024**2
"""About how many bytes of keys are kept in memory."""


class NumberedSamples:
    """The samples of a dataset by their numbers.

    Args:
        storage: Where the dataset is.
        manifest: Its manifest.
        opener: Opens a shard of it.
        ahead: Fetches from a remote store, many ranges at the same time; None to read one after another.

    Attributes:
        numbers: Their numbers, and their places in the shards.
        keys_rise: Whether keys may rise with the numbers; False once a search has found one out of order.
    """

    def __init__(
        self,
        storage: ReadableStorage,
        manifest: Manifest,
        opener: Callable[[Shard], OpenShard],
        ahead: Ahead | None = None,
    ) -> None:
        self.storage = storage
        self._opener = opener
        self._manifest = manifest
        self.numbers = SampleNumbers(manifest.shards.num_real)
        self.keys_rise = True
        self._ahead = ahead
        self._scratch = Scratch()
        self._shards: OrderedDict[int, tuple[Shard, LazyShard]] = OrderedDict()
        self._keys: dict[int, pa.StringArray] = {}
        allow_open_files(min(_OPEN_SHARDS, len(manifest.shards)) + _SHARDS_TOGETHER)
        keep_freed_memory()

    def read(self, numbers: Int64) -> list[dict[str, Any]]:
        """Return samples as dicts of `__key__`, `__url__`, `__position__` (the number), `__pad__` and fields (bytes).

        Neighbouring samples are read together, whatever the order of the numbers.

        Args:
            numbers: int64 of any length, each that of a sample.

        Raises:
            WdsplitError: A shard is missing or damaged.
        """
        distinct, row = np.unique(numbers, return_inverse=True)
        samples: list[dict[str, Any]] = []
        try:
            for some in self._together(distinct):
                samples += self._block(some).samples()
        except BaseException:
            self._shards.clear()  # one that could not be opened is opened anew the next time
            raise
        if len(distinct) == len(numbers):
            return [samples[place] for place in row.tolist()]
        return [dict(samples[place]) for place in row.tolist()]  # stages may change one of them

    def _together(self, numbers: Int64) -> Iterator[Int64]:
        """Cut rising numbers into parts, each of a limited number of shards and samples."""
        shards, _ = self.numbers.places(numbers)
        nth = np.cumsum(np.diff(shards, prepend=shards[:1]) != 0)
        part = nth // _SHARDS_TOGETHER * len(numbers) + np.arange(len(numbers)) // _SAMPLES_TOGETHER
        return (numbers[rows] for _, rows in groups(part))

    def _block(self, numbers: Int64) -> Block:
        """Return the samples with some rising numbers."""
        rows, ranges = [], []
        shards, places = self.numbers.places(numbers)
        for shard, of_shard in groups(shards):
            for some in self._cut(shard, of_shard, places[of_shard]):
                rows.append(some)
                ranges.append(self._range(shard, places[some]))
        windows = self._windows(ranges)
        gathered = Gathered(len(numbers))
        for part, each in zip(read_windows(windows, self._scratch), rows, strict=True):
            window, inside = part.window, slice(part.first, part.first + len(each))
            url = window.url if isinstance(window.url, str) else window.url[inside]
            fields = {name: payloads[inside] for name, payloads in window.fields.items()}
            gathered.add(each, window.keys[inside], url, window.sizes[inside], fields, window.whole)
        return gathered.block(numbers, np.zeros(len(numbers), np.bool_))

    def _cut(self, shard: int, rows: Int64, places: Int64) -> list[Int64]:
        """Cut the rows of a shard where a request for each part is better than one for all."""
        if self._ahead is None:
            return [rows]
        listed, _ = self._shard(shard)
        gap = max(1, _GAP_BYTES * listed.num_samples // max(1, listed.num_bytes))
        return np.split(rows, np.flatnonzero(np.diff(places) > gap) + 1)

    def _range(self, shard: int, places: Int64) -> FetchRange:
        """Return the range of a shard that has some samples."""
        first, stop = int(places[0]), int(places[-1]) + 1
        listed, lazy = self._shard(shard)
        num_bytes = len(places) * listed.num_bytes // max(1, listed.num_samples)
        chosen = None if stop - first == len(places) else places
        return FetchRange(lazy, first, stop, num_bytes, chosen)

    def _windows(self, ranges: list[FetchRange]) -> list[WindowPlace]:
        """Return ranges as windows, with their bytes if they were fetched."""
        fetches = [] if self._ahead is None else self._ahead.fetch(ranges)
        for fetch in fetches:
            fetch.mark_urgent()
        windows = []
        for place, (lazy, first, stop, _, chosen) in enumerate(ranges):
            data = fetches[place].data(first) if fetches else None
            opened = lazy.get()
            if data is None:
                opened.expect(slice(first, stop) if chosen is None else chosen)
            windows.append(WindowPlace(opened, first, stop, data, chosen))
        return windows

    def _shard(self, shard: int) -> tuple[Shard, LazyShard]:
        """Return a shard, which opens when it is first needed; the least recently used one may be dropped."""
        if shard not in self._shards:
            listed = self._manifest.shards[shard]
            self._shards[shard] = listed, LazyShard(partial(self._opener, listed))
            if len(self._shards) > _OPEN_SHARDS:
                self._shards.popitem(last=False)
        self._shards.move_to_end(shard)
        return self._shards[shard]

    def key(self, number: int) -> str:
        """Return the key of a sample; its payloads are not read."""
        shard, place = (int(each[0]) for each in self.numbers.places(np.array([number])))
        return str(read_window(self._shard(shard)[1].get().narrowed(()), place, place + 1).keys[0])

    def keys_of_shards(self) -> Iterator[tuple[int, pa.StringArray]]:
        """Give the number of the first sample and the keys of each shard that has samples, from sample tables if any.

        The keys are kept, so that another call costs little.
        """
        for shard, count in enumerate(self.numbers.counts.tolist()):
            if not count:
                continue
            keys = self._keys.get(shard)
            if keys is None:
                keys = self._read_keys(shard, count)
                if sum(each.nbytes for each in self._keys.values()) < _KEYS_BYTES:
                    self._keys[shard] = keys
            yield int(self.numbers.ends[shard]) - count, keys

    def _read_keys(self, shard: int, count: int) -> pa.StringArray:
        if self._manifest.samples is not None:
            return read_samples(self.storage, self._manifest.shards[shard], [KEY]).column(0).combine_chunks()
        opened = self._shard(shard)[1].get().narrowed(())
        firsts = range(0, count, _SAMPLES_TOGETHER)
        windows = [read_window(opened, first, min(count, first + _SAMPLES_TOGETHER)) for first in firsts]
        return pa.array([key for window in windows for key in window.keys.tolist()], pa.string())
