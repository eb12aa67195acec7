"""Damaged samples returned as errors instead of raised, so that the samples around them can still be read.

A window that cannot be parsed is halved until only samples remain that cannot be parsed alone. So whether a sample is
damaged depends only on its own bytes, not on the samples read with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.errors import CorruptDataError, WdsplitError
from wdsplit.loading.reading.block import Gathered, Objects, as_objects
from wdsplit.loading.reading.open_shard import OpenShard
from wdsplit.loading.reading.plan import PlannedWindow
from wdsplit.loading.reading.read_windows import Part, WindowPlace, parse_window, read_again, read_windows
from wdsplit.loading.reading.reader import SampleReader
from wdsplit.loading.reading.window import AnyWindow

__all__ = ["DAMAGE", "SalvagingReader"]

DAMAGE = "/damage"
"""The only field of a damaged sample: its error. No member's name gives this field."""


class SalvagingReader(SampleReader):
    """A `SampleReader` that gives damaged samples as errors; those of a shard that cannot be opened are all damaged.

    Args:
        folder: Name of the shards' folder in messages.
        arguments: As of `SampleReader`.
    """

    def __init__(self, folder: str, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._folder = folder

    def _num_together(self, new: Collection[tuple[int, PlannedWindow]]) -> int:
        with suppress(CorruptDataError):
            return super()._num_together(new)
        return 1

    def _read(self, windows: list[PlannedWindow]) -> list[Part]:
        parts: dict[PlannedWindow, Part] = {}
        places: dict[PlannedWindow, WindowPlace] = {}
        for window in windows:
            try:
                places[window] = self.place(window)
            except CorruptDataError as error:
                url = f"{self._folder}/{self._shard(window.visit).listed.path}"
                parts[window] = Part(_damaged(url, len(window.places), error), 0)
        if places:
            read = read_windows(list(places.values()), self.fields, self.scratch, _salvaged)
            parts.update(zip(places, read, strict=True))
        return [parts[window] for window in windows]


@dataclass(frozen=True)
class _Salvaged:
    """Samples of a window, some of them damaged: an `AnyWindow`."""

    url: Objects | str
    keys: Objects
    sizes: Int64
    fields: dict[str, Objects]
    whole: Collection[str] = ()


def _damaged(url: str, size: int, error: CorruptDataError) -> _Salvaged:
    """Return a window of damaged samples. Their keys are not known: names may be damaged too."""
    # The garbage collector does not see into arrays of objects: by a traceback, they would keep this reader forever.
    keys, errors = as_objects([""] * size), as_objects([error.with_traceback(None)] * size)
    return _Salvaged(url, keys, np.zeros(size, np.int64), {DAMAGE: errors})


def _salvaged(place: WindowPlace, error: WdsplitError, fields: Collection[str] | None) -> AnyWindow:
    """Return the readable samples of a window, from another copy if there is one, and errors for the others."""
    if not isinstance(error, CorruptDataError):
        return read_again(place, error, fields)
    try:
        if place.shard.again is not None:
            place = place._replace(shard=place.shard.again(), data=None)
        shard = place.shard
        data = None
        if shard.file.is_remote:
            data = memoryview(shard.file.read(place.begin, shard.end(place.stop) - place.begin))
        place = place._replace(data=data)
    except CorruptDataError as damage:
        return _damaged(place.shard.url, place.num_samples, damage)
    gathered, first = Gathered(place.num_samples), 0
    samples = np.arange(place.first, place.stop) if place.chosen is None else place.chosen
    for window in _pieces(place, samples, fields):
        rows = np.arange(first, first + len(window.keys))
        gathered.add(rows, window.keys, window.url, window.sizes, window.fields, window.whole)
        first += len(rows)
    nothing = np.zeros(place.num_samples, np.int64)
    block = gathered.block(nothing, nothing.astype(np.bool_))
    return _Salvaged(block.urls, block.keys, block.sizes, block.fields, block.whole)


def _pieces(place: WindowPlace, samples: Int64, fields: Collection[str] | None) -> Iterator[AnyWindow]:
    """Give some samples of a window as windows, in their order. Its data, if any, are contiguous."""
    shard, data = place.shard, place.data
    first, stop = int(samples[0]), int(samples[-1]) + 1
    if data is not None:
        data = data[int(shard.offsets[first]) - place.begin : shard.end(stop) - place.begin]
    chosen = None if len(samples) == stop - first else samples
    try:
        yield parse_window(WindowPlace(shard, first, stop, data, chosen), fields, with_gaps=data is not None)
        return
    except CorruptDataError as error:
        damage = error
    if len(samples) == 1:
        yield _damaged(shard.url, 1, _located(damage, shard))
        return
    middle = len(samples) // 2
    yield from _pieces(place, samples[:middle], fields)
    yield from _pieces(place, samples[middle:], fields)


def _located(error: CorruptDataError, shard: OpenShard) -> CorruptDataError:
    if shard.url in error.place:
        return error
    located = shard.explained(error.at(shard.url))
    assert isinstance(located, CorruptDataError)
    located.url = shard.url
    return located
