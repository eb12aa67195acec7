"""Stages run with one sample at a time, and substitutes for bad samples, so that every position yields one item.

A bad sample of a pack is left out, as is one of a group of a budget; one of any other group is replaced by the next
good one of the group. If no sample of a pack or group is good, and elsewhere, it is replaced by the last good one
before it in its lane, else by the first one after it, else by one of the next lanes. This depends on the data and the
stages, not on the topology. A candidate is good if the stages accept it at its own position. It draws the random
numbers of that position wherever it is delivered: those of the bad sample may have made a stage fail. Each reader of a
bad sample reads and tries its candidates itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache, partial
from itertools import takewhile
from operator import ge, le
from typing import Any

import numpy as np

from wdsplit.errors import CorruptDataError, InputError, PipelineError, WdsplitError, noted
from wdsplit.loading.bad_samples import BadSample, Found, file_of
from wdsplit.loading.reading.read_ahead import LazyShard
from wdsplit.loading.reading.source import AnySource, Place, Source
from wdsplit.loading.reading.windows import DAMAGE, read_window
from wdsplit.loading.stages.randomness import Shift
from wdsplit.loading.transport.collate import LeftOut
from wdsplit.order.bundles import Grouping
from wdsplit.order.epoch import EpochOrder
from wdsplit.order.split import AnyOrder
from wdsplit.shards.sample_tables import read_names

__all__ = ["OneByOne", "Substitutes"]

_SHARDS_OPEN = 16

ApplyShifted = Callable[[Iterator[Any], Shift], Iterator[Any]]
"""Applies stages to samples; their positions are shifted before generators are seeded from them."""


class BadSampleError(Exception):
    """Says that a sample is bad, and why."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class OneByOne:
    """Runs stages with one sample at a time, so that each gives one item. Errors name the sample.

    After an error the stages start again: a generator that raised has ended.

    Args:
        source: The source of the samples.
        apply_stages: Applies the stages to a stream of samples.
    """

    def __init__(self, source: AnySource, apply_stages: ApplyShifted) -> None:
        self._source = source
        self._apply_stages = apply_stages
        self._shift = Shift()
        self._items: Iterator[Any] | None = None
        self._next, self._ended = list[dict[str, Any]](), list[bool]()
        self._names = "", ""  # key and URL of the last sample

    def apply(self, samples: Iterable[dict[str, Any]], is_needed: Callable[[], bool] = lambda: True) -> Iterator[Any]:
        """Give an item for each sample, in their order, as long as they are needed.

        Raises:
            PipelineError: The stages give no item for a sample or several, or too many samples are bad.
            Exception: A stage raises it, or storage fails.
        """
        for sample in samples:
            if not is_needed():
                return
            try:
                yield self._item(sample)
            except Exception as error:
                own = error.error if isinstance(error, BadSampleError) else error
                raise self._placed(own, sample) from own.__cause__

    def _item(self, sample: dict[str, Any]) -> Any:
        """Return the item to give for a sample; `Substitutes` gives another one for a bad sample."""
        return self.run(sample)

    def run(self, sample: dict[str, Any], shift: int = 0) -> Any:
        """Return the stages' item for a sample; `shift` is added to its position before generators are seeded from it.

        Raises:
            BadSampleError: The sample is damaged, a stage raises an error, or the stages give nothing for it.
            PipelineError: The stages give several items for a sample, or take another one first.
        """
        if DAMAGE in sample:
            raise BadSampleError(sample[DAMAGE])
        self._shift.by = shift
        before, self._names = self._names, (sample["__key__"], sample["__url__"])
        if self._items is None:
            self._next, self._ended = [], []
            self._items = self._apply_stages(_taken(self._next, self._ended), self._shift)
        self._next.append(sample)
        try:
            item = next(self._items)
        except StopIteration:
            self._items = None
            if not self._ended:
                raise _not_one_to_one("returned nothing more after", *before) from None
            raise BadSampleError(_not_one_to_one("returned nothing for", *self._names)) from None
        except Exception as error:
            self._items = None
            is_placed = isinstance(error, PipelineError) and bool(error.key)
            is_ours, is_damage = isinstance(error, WdsplitError), isinstance(error, (CorruptDataError, InputError))
            # Neither a failure of storage nor a mistake of the program is a bad sample.
            if isinstance(error, ImportError) or (is_ours and not (is_placed or is_damage)):
                raise
            raise BadSampleError(error) from error
        if self._next:
            raise _not_one_to_one("returned more than one item for", *before)
        if self._ended:
            raise _not_one_to_one("took another sample before it returned an item for", *self._names)
        return item

    def finish(self) -> None:
        """Let the stages finish after their last sample.

        Raises:
            PipelineError: They give one more item.
        """
        self._next.clear()
        for _ in self._items or ():
            raise _not_one_to_one("returned more than one item for", *self._names)

    def _placed(self, error: Exception, sample: Mapping[str, Any]) -> Exception:
        """Return an error with the sample that was under way, unless it tells so itself."""
        key, url = self._names
        if not key or (isinstance(error, WdsplitError) and error.key):
            return error
        if isinstance(error, WdsplitError):
            located = error.at(f"sample {key!r} of {url}")
            located.key, located.url = key, url
            return located
        fields = ", ".join(name for name in sample if not name.startswith("__"))
        place = f"in sample {key!r} of {url}{file_of(self._source, url, key)}"
        return noted(error, place + f", which has {fields}" * isinstance(error, KeyError))


def _taken(samples: list[dict[str, Any]], ended: list[bool]) -> Iterator[dict[str, Any]]:
    """Give each sample once; a stage that takes a second one before it gives an item finds the end.

    This refers to no `OneByOne`, so that an abandoned one lets go of its stages at once.
    """
    while samples:
        yield samples.pop()
    ended.append(True)


def _not_one_to_one(what: str, key: str, url: str) -> PipelineError:
    return PipelineError(
        "a stage did not return one sample for each input",
        place=f"a stage {what} sample {key!r} of {url}" if key else "",
        expected="one item for each sample, before the next one is taken, so that every rank has the same steps",
        remedy="leave batching and shuffling to the Loader and the Dataset; do not drop samples in a stage (select, a "
        "map that returns None, a handler that skips): choose the others with a view, Dataset(..., where=...), or "
        "open the dataset with on_bad_sample='substitute'",
        key=key,
        url=url,
    )


class Substitutes(OneByOne):
    """Gives an item for each sample, made from a substitute if the sample is bad. For one reader and epoch."""

    def __init__(self, source: AnySource, order: AnyOrder, apply_stages: ApplyShifted, found: Found) -> None:
        super().__init__(source, apply_stages)
        self._order = order
        self._found = found
        self._trials = OneByOne(source, apply_stages)
        self._samples = _SamplesOf(source, order)
        self._form = source.form_at(order.epoch)
        # Of the pack or group under way: its position, how many of its samples have come, and how many were good.
        self._position, self._num_come, self._num_good = -1, 0, 0
        self._bad_fellows: tuple[int, set[int]] = -1, set()
        self._bad = _KnownBad()
        self._last_good: dict[int, int] = {}

    def _item(self, sample: dict[str, Any]) -> Any:
        key, url, position, is_pad = (sample[name] for name in ("__key__", "__url__", "__position__", "__pad__"))
        if position != self._position:
            self._position, self._num_come, self._num_good = position, 0, 0
        number, self._num_come = self._num_come, self._num_come + 1
        try:
            item = self.run(sample)
            self._num_good += 1
            return item
        except BadSampleError as found:
            error = found.error
        place = self._samples.place(position, number)
        listed, file_name = self._samples.names_of(place)
        bad = BadSample(key or listed, url, place.sample, position, error, file_name)
        if not number:  # candidates are the first samples of packs
            self._bad.add(position)
        if not is_pad:  # the sample is counted where it is no pad
            self._found.note(bad)
        if isinstance(self._form, Grouping) and not self._form.budget:
            fellow = self._fellow(position, number)
            return self._substitute(bad) if fellow is None else fellow
        if self._form is not None and (self._num_good or number + 1 < self._samples.num_at(position)):
            return LeftOut()
        return self._substitute(bad)

    def _substitute(self, bad: BadSample) -> Any:
        """Return the item of the first good candidate for a bad sample."""
        num_bad = 1
        for candidate in self._candidates(bad.position):
            sample = self._good_sample(candidate)
            if sample is not None:
                given = {**sample, "__position__": bad.position, "__pad__": True}
                with suppress(BadSampleError):  # a stage depends on the position itself
                    return self._trials.run(given, shift=candidate - bad.position)
            num_bad += 1
            if num_bad > self._found.max_searched:
                break
        raise self._found.no_substitute(bad, num_bad) from bad.error

    def _fellow(self, position: int, number: int) -> Any:
        """Return the item of the next good sample of a group after a bad one, in turn; None if there is none."""
        if self._bad_fellows[0] != position:
            self._bad_fellows = position, set()
        bad, size = self._bad_fellows[1], self._samples.num_at(position)
        bad.add(number)
        for other in [*range(number + 1, size), *range(number)]:
            if other not in bad:
                try:
                    return self._trials.run({**self._samples.read(position, other), "__pad__": True})
                except (BadSampleError, CorruptDataError):
                    bad.add(other)
        return None

    def _candidates(self, position: int) -> Iterator[int]:
        """Give the positions of possible substitutes: in the lane of the position, backwards before it, then after it.

        Then those in the next lanes (the first lane follows the last): in each, backwards from the same offset, then
        after it.
        """
        lanes = self._order.options.lanes
        for turn in range(lanes):
            lane = (position + turn) % lanes
            last = lane + lanes * (int(self._order.lane_length[lane]) - 1)
            if last < 0:  # it has no samples
                continue
            start = min(position - position % lanes + lane, last) if turn else position
            yield from takewhile(partial(le, 0), self._bad.others(start if turn else start - lanes, -lanes))
            yield from takewhile(partial(ge, last), self._bad.others(start + lanes, lanes))

    def _good_sample(self, candidate: int) -> dict[str, Any] | None:
        """Return the sample of a position if it is good; else record that it is bad."""
        lane = candidate % self._order.options.lanes
        try:
            sample = self._samples.read(candidate)
            if self._last_good.get(lane) != candidate:
                self._trials.run(dict(sample))
                self._last_good[lane] = candidate
            return sample
        except (BadSampleError, CorruptDataError):
            self._bad.add(candidate)
            return None


class _KnownBad:
    """Positions whose samples are bad. A run of them is skipped in one step."""

    def __init__(self) -> None:
        self._positions: set[int] = set()
        self._after: dict[int, dict[int, int]] = {}

    def add(self, position: int) -> None:
        """Add a position."""
        self._positions.add(position)

    def others(self, position: int, step: int) -> Iterator[int]:
        """Give position, position + step, ... without end, and without those that are known to be bad by then."""
        while True:
            position = self._skip(position, step)
            yield position
            position += step

    def _skip(self, position: int, step: int) -> int:
        """Return the first of position, position + step, ... that is not known to be bad."""
        after, passed = self._after.setdefault(step, {}), []
        while position in self._positions:
            passed.append(position)
            position = after.get(position, position + step)
        after.update(dict.fromkeys(passed, position))
        return position


class _SamplesOf:
    """Reads single samples of an order. The most recently used shards stay open."""

    def __init__(self, source: AnySource, order: AnyOrder) -> None:
        self._source = source
        self._order = order
        self._orders: dict[Any, EpochOrder] = {}
        storage_of = cache(Source.storage)

        def shard(source: Source, number: int) -> LazyShard:
            return LazyShard(source.shards[number], partial(source.open_shard, storage_of(source), number))

        def names(source: Source, number: int) -> list[tuple[str, str]]:
            """Return key and file of each sample of a shard; none without sample tables."""
            with suppress(CorruptDataError):
                if source.manifest.samples is not None:
                    return read_names(storage_of(source), source.manifest.shards[number], source.manifest.samples)
            return []

        self._shard, self._names = lru_cache(_SHARDS_OPEN)(shard), lru_cache(1)(names)

    def place(self, position: int, item: int = 0) -> Place:
        """Return where the sample of a position is; of a pack or group, its sample number `item`."""
        return self._source.place(self._order, position, self._orders, item)

    def num_at(self, position: int) -> int:
        """Return how many samples a position has."""
        return len(self._order.locate(np.array([position])).row)

    def names_of(self, place: Place) -> tuple[str | None, str]:
        """Return the key and the file of a sample, if the dataset has sample tables: damaged samples have no key."""
        names = self._names(place.source, place.shard)
        return names[place.sample] if names else (None, "")

    def read(self, position: int, item: int = 0) -> dict[str, Any]:
        """Return the sample of a position, as a reader gives it; of a pack or group, its sample number `item`.

        Raises:
            CorruptDataError: It is damaged.
        """
        place = self.place(position, item)
        shard = self._shard(place.source, place.shard).get()
        sample = next(read_window(shard, np.array([place.sample])).samples())
        is_pad = not self._order.is_real(np.array([position]))[0]
        own = {name: sample.pop(name) for name in ("__key__", "__url__", "__position__", "__pad__")}
        return {**own, "__position__": position, "__pad__": bool(is_pad), **place.fields, **sample}
