"""The subject of a report: a dataset or a mixture, with numbered samples.

Samples are numbered across all parts: part by part, shard by shard, without pads.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.checks.samples import parts_of, samples_at
from wdsplit.errors import CorruptDataError, InputError
from wdsplit.loading.opening import open_source
from wdsplit.loading.reading.source import AnySource
from wdsplit.order.epoch import Located, groups
from wdsplit.order.numbers import SampleNumbers
from wdsplit.order.views import EpochViews
from wdsplit.shards.manifest import Manifest
from wdsplit.shards.sample_tables import FILE_NAME, read_names
from wdsplit.storage.interface import ReadableStorage

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["Subject", "open_subject"]


class Subject:
    """A dataset or a mixture.

    Args:
        source: Its source, or that of a mixture, which has `sources`.

    Attributes:
        parts: The datasets.
        num_stored: Samples of all parts, without pads; in a view, the selected ones.
    """

    def __init__(self, source: AnySource) -> None:
        self.source = source
        if source.view_text:  # the views of the first epoch, in all epochs
            views = [EpochViews({0: part.views.at(0)}) for part in parts_of(source)]
            viewed: Any = source
            self.source = viewed.with_views(views if self.is_mixture else views[0])
        self.parts = parts_of(self.source)
        units = [part.selection_at(0) for part in self.parts]
        self.selections = [None if each is None else each.chosen for each in units]
        totals = [part.manifest.shards.num_real for part in self.parts]
        self.numberings = list(map(SampleNumbers, totals, self.selections))
        self._first_numbers = np.cumsum([0, *map(len, self.numberings)])
        self.num_stored = int(self._first_numbers[-1])

    @property
    def is_mixture(self) -> bool:
        """Whether an epoch is mixed from several datasets."""
        return hasattr(self.source, "sources")

    @property
    def manifests(self) -> list[Manifest]:
        """The manifest of each part."""
        return [part.manifest for part in self.parts]

    @property
    def is_remote(self) -> bool:
        """Whether reading a part takes requests."""
        return any(storage.has_latency for storage in self.storages)

    @cached_property
    def storages(self) -> list[ReadableStorage]:
        """The storage of each part."""
        return [part.storage() for part in self.parts]

    def numbers_of(self, part: Int64, shard: Int64, sample: Int64) -> Int64:
        """Return the numbers of samples by their places."""
        numbers = np.empty_like(sample)
        for each, rows in groups(part):
            numbers[rows] = self._first_numbers[each] + self.numberings[each].of(shard[rows], sample[rows])
        return numbers

    def places(self, numbers: Int64) -> Located:
        """Return where the samples with some numbers are."""
        part = np.searchsorted(self._first_numbers[1:], numbers, side="right")
        shard, sample = np.empty_like(numbers), np.empty_like(numbers)
        for each, rows in groups(part):
            shard[rows], sample[rows], _ = self.numberings[each].places(numbers[rows] - self._first_numbers[each])
        zeros = np.zeros_like(numbers)
        return Located(np.arange(len(numbers)), part, shard, sample, zeros > 0, zeros)

    def file_names(self, numbers: Sequence[int]) -> dict[int, str]:
        """Return the files that samples were made from, by their numbers; empty where the dataset does not say."""
        places, names = self.places(np.array(numbers, np.int64)), dict.fromkeys(numbers, "")
        for part, rows in groups(places.source):
            schema = self.manifests[part].samples
            if schema is None or FILE_NAME not in schema.names:
                continue
            for shard, some in groups(places.shard[rows]):
                found: list[tuple[str, str]] = []
                with suppress(CorruptDataError):
                    found = read_names(self.storages[part], self.manifests[part].shards[shard], schema)
                for row in rows[some].tolist() if found else ():
                    names[numbers[row]] = found[int(places.sample[row])][1]
        return names

    def samples(self, numbers: Iterable[int]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield samples with all payloads, by their numbers; each shard is opened once."""
        rising = np.array(sorted(set(numbers)), np.int64)
        yield from zip(rising.tolist(), samples_at(self.parts, self.places(rising)), strict=True)


def open_subject(
    dataset: Any,
    seed: int = 0,
    shuffle: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
    **choice: Any,
) -> Subject:
    """Open the dataset of a report.

    Args:
        dataset: A folder, or tars, as for `Dataset`; or a `Dataset` or mixture that is open. Several folders are a
            mixture that takes each sample of each once an epoch.
        seed: Seed of the order; an open dataset has its own.
        shuffle: As for `Dataset`; an open dataset has its own.
        storage_options: As for `Dataset`.
        fs: As for `Dataset`.
        **choice: `view`, `where`, `version` and `join`, as for `Dataset`, or None; an open dataset has its own.

    Raises:
        InputError: A choice was given with an open dataset, or a path is given twice.
        WdsplitError: It cannot be opened.
    """
    source = getattr(dataset, "source", None)
    if source is not None:
        if any(each is not None for each in choice.values()):
            raise InputError(
                "the view and the fields of an open dataset cannot be changed",
                place=source.url,
                expected="no view, where, version or join",
                remedy="open the dataset with them, or pass the path instead",
            )
        return Subject(source)
    how: dict[str, Any] = {"seed": seed, "shuffle": shuffle, "storage_options": storage_options, "fs": fs}
    how |= {name: value for name, value in choice.items() if value is not None}
    if isinstance(dataset, Sequence) and not isinstance(dataset, str):
        names = [os.fspath(path) for path in dataset]
        if len(names) > 1 and not any(name.endswith(".tar") for name in names):
            if len(set(names)) < len(names):
                raise InputError("duplicate dataset", found=", ".join(names), remedy="name each one once")
            from wdsplit.loading.mix import mix

            if "version" in how:
                how["version"] = dict.fromkeys(names, how["version"])
            return Subject(mix(repeat=dict.fromkeys(names, 1), **how).source)
        dataset = dataset[0] if len(names) == 1 else dataset
    return Subject(open_source(dataset, **how))
