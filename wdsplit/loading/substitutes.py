"""Substitutes for bad samples, so that every position yields one item.

A bad sample of a pack is left out, as is one of a group of a budget; one of any other group is replaced by the next
good one of the group. If no sample of a pack or group is good, and elsewhere, it is replaced by the last good one
before it in its lane, else by the first one after it, else by one of the next lanes. This depends on the data and the
stages, not on the topology. A candidate is good if the stages accept it at its own position. It draws the random
numbers of that position wherever it is delivered: those of the bad sample may have made a stage fail. Each reader of a
bad sample reads and tries its candidates itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache, lru_cache, partial
from typing import Any

import numpy as np

from wdsplit.errors import CorruptDataError, InputError, PipelineError, WdsplitError
from wdsplit.loading.bad_samples import BadSample, Found
from wdsplit.loading.reading.read_ahead import LazyShard
from wdsplit.loading.reading.source import AnySource, Place, Source
from wdsplit.loading.reading.windows import DAMAGE, read_window
from wdsplit.loading.stages.randomness import Shift
from wdsplit.loading.transport.collate import LeftOut
from wdsplit.order.bundles import Grouping
from wdsplit.order.epoch import EpochOrder
from wdsplit.order.split import AnyOrder
from wdsplit.shards.sample_tables import read_names

__all__ = ["ApplyStages", "Substitutes"]

_SHARDS_OPEN = 16

ApplyStages = Callable[[Iterator[Any]], Iterator[Any]]
ApplyShifted = Callable[[Iterator[Any], Shift], Iterator[Any]]
"""Applies stages to samples; their positions are shifted before generators are seeded from them."""


class Substitutes:
    """Gives an item for each sample, made from a substitute if the sample is bad. For one reader and epoch."""

    def __init__(self, source: AnySource, order: AnyOrder, apply_stages: ApplyShifted, found: Found) -> None:
        self._order = order
        self._found = found
        self._chain = _Chain(apply_stages)
        self._trials = _Chain(apply_stages)
        self._samples = _Samples(source, order)
        self._form = source.form_at(order.epoch)
        self._bad_fellows: tuple[int, set[int]] = -1, set()
        self._bad = _KnownBad()
        self._last_good: dict[int, int] = {}

    def apply(self, samples: Iterator[dict[str, Any]]) -> Iterator[Any]:
        """Give an item for each sample, in their order.

        Raises:
            PipelineError: A stage gives several items for a sample, or too many samples are bad.
            WdsplitError: Storage fails, which is no fault of a sample.
        """
        run = self._chain.run
        last, number, num_good = -1, 0, 0  # of a pack or group: its samples so far, and how many of them were good
        for sample in samples:
            key, url, position, is_pad = (sample[name] for name in ("__key__", "__url__", "__position__", "__pad__"))
            if position != last:
                last, number, num_good = position, 0, 0
            try:
                item = run(sample)
                num_good += 1
            except _BadSampleError as bad:
                item = self._substituted(key, url, position, is_pad, bad.error, number, num_good)
            number += 1
            yield item
        self._chain.finish()

    def _substituted(
        self, key: str, url: str, position: int, is_pad: bool, error: Exception, number: int, num_good: int
    ) -> Any:
        """Return the item for a bad sample, made from its substitute.

        Of a pack or group, it is sample number `number`, and `num_good` of those before it were good.
        """
        place = self._samples.place(position, number)
        listed, file_name = self._samples.names_of(place)
        bad = BadSample(key or listed, url, place.sample, position, error, file_name)
        if not number:  # candidates are the first samples of packs
            self._bad.add(position)
        if not is_pad:  # the sample is counted where it is no pad
            self._found.note(bad)
        if isinstance(self._form, Grouping) and not self._form.budget:
            fellow = self._fellow(position, number)
            if fellow is not None:
                return fellow
        elif self._form is not None and (num_good or number + 1 < self._samples.num_at(position)):
            return LeftOut()
        num_bad = 1
        for candidate in self._candidates(position):
            sample = self._good_sample(candidate)
            if sample is not None:
                try:
                    return self._trials.run(
                        {**sample, "__position__": position, "__pad__": True}, shift=candidate - position
                    )
                except _BadSampleError:  # a stage depends on the position itself
                    pass
            num_bad += 1
            if num_bad > self._found.max_searched:
                break
        raise self._found.no_substitute(bad, num_bad) from error

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
                except (_BadSampleError, CorruptDataError):
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
            candidate = start + lanes if turn else position
            while (candidate := self._bad.skip(candidate - lanes, -lanes)) >= 0:
                yield candidate
            candidate = start
            while (candidate := self._bad.skip(candidate + lanes, lanes)) <= last:
                yield candidate

    def _good_sample(self, candidate: int) -> dict[str, Any] | None:
        """Return the sample of a position if it is good; else record that it is bad."""
        lane = candidate % self._order.options.lanes
        try:
            sample = self._samples.read(candidate)
            if self._last_good.get(lane) != candidate:
                self._trials.run(dict(sample))
                self._last_good[lane] = candidate
            return sample
        except (_BadSampleError, CorruptDataError):
            self._bad.add(candidate)
            return None


class _BadSampleError(Exception):
    """Says that a sample is bad, and why."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _Chain:
    """Runs the stages with one sample at a time. After an error they start again: a generator that raised has ended."""

    def __init__(self, apply_stages: ApplyShifted) -> None:
        self._apply_stages = apply_stages
        self._shift = Shift()
        self._items: Iterator[Any] | None = None
        self._next: list[dict[str, Any]] = []
        self._has_ended = False

    def run(self, sample: dict[str, Any], shift: int = 0) -> Any:
        """Return the stages' item for a sample; `shift` is added to its position before generators are seeded from it.

        Raises:
            _BadSampleError: The sample is damaged, a stage raises an error, or the stages give nothing for it.
            PipelineError: The stages give several items for a sample, or take another one first.
        """
        if DAMAGE in sample:
            raise _BadSampleError(sample[DAMAGE])
        key, url = sample["__key__"], sample["__url__"]
        if self._items is None:
            self._next, self._has_ended = [], False
            self._items = self._apply_stages(self._taken(), self._shift)
        self._shift.by = shift
        self._next.append(sample)
        try:
            item = next(self._items)
        except StopIteration:
            self._items = None
            if not self._has_ended:
                raise _not_one_to_one("a stage ended before its samples did", key, url) from None
            raise _BadSampleError(_dropped(key, url)) from None
        except Exception as error:
            self._items = None
            is_placed = isinstance(error, PipelineError) and bool(error.key)
            is_ours, is_damage = isinstance(error, WdsplitError), isinstance(error, (CorruptDataError, InputError))
            # Neither a failure of storage nor a mistake of the program is a bad sample.
            if isinstance(error, ImportError) or (is_ours and not (is_placed or is_damage)):
                raise
            raise _BadSampleError(error) from error
        if self._next:
            raise _not_one_to_one("a stage returned more than one item for the previous sample", key, url)
        if self._has_ended:
            raise _not_one_to_one("a stage took another sample before it returned an item", key, url)
        return item

    def finish(self) -> None:
        """Let the stages finish after their last sample.

        Raises:
            PipelineError: They give one more item.
        """
        items, self._items, self._next = self._items or iter(()), None, []
        for _ in items:
            raise _not_one_to_one("a stage returned more than one item for the last sample", "", "")

    def _taken(self) -> Iterator[dict[str, Any]]:
        """Give each sample once; a stage that takes a second one before it gives an item finds the end."""
        while self._next:
            yield self._next.pop()
        self._has_ended = True


def _dropped(key: str, url: str) -> PipelineError:
    return PipelineError(
        "a stage returned nothing for a sample",
        place=f"sample {key!r} of {url}",
        expected="one item",
        remedy="to leave samples out, choose the others with a view: Dataset(..., where=...)",
        key=key,
        url=url,
    )


def _not_one_to_one(cause: str, key: str, url: str) -> PipelineError:
    return PipelineError(
        cause,
        place=f"sample {key!r} of {url}" if key else "",
        expected="for on_bad_sample='substitute', stages that return one item per sample before they take the next",
        remedy="apply the stage to the Loader's batches, or open the dataset with on_bad_sample='raise'",
        key=key,
        url=url,
    )


class _KnownBad:
    """Positions whose samples are bad. A run of them is skipped in one step."""

    def __init__(self) -> None:
        self._positions: set[int] = set()
        self._after: dict[int, dict[int, int]] = {}

    def add(self, position: int) -> None:
        """Add a position."""
        self._positions.add(position)

    def skip(self, position: int, step: int) -> int:
        """Return the first of position, position + step, ... that is not known to be bad."""
        after, passed = self._after.setdefault(step, {}), []
        while position in self._positions:
            passed.append(position)
            position = after.get(position, position + step)
        after.update(dict.fromkeys(passed, position))
        return position


class _Samples:
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
