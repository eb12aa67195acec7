"""Random access: the samples of a dataset by number or by key, as a map-style dataset of torch.

There is no epoch and no rank here: torch's sampler decides which process gets which samples.
"""

from __future__ import annotations

import copy
import os
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.errors import InputError
from wdsplit.loading.fluid import FluidStages
from wdsplit.loading.numbered import NumberedSamples, checked_number, missing_key
from wdsplit.loading.opening import opened_source
from wdsplit.loading.options import (
    SamplesOptions,
    checked_epoch,
    checked_options,
    choice_of,
    with_flat_signature,
)
from wdsplit.loading.reading.source import Source
from wdsplit.loading.stage_kinds import why_not_one_to_one
from wdsplit.loading.substitutes import OneByOne
from wdsplit.loading.transport.shared_integers import SharedIntegers
from wdsplit.loading.views import Shared
from wdsplit.notebook import html_table
from wdsplit.texts import counted

if TYPE_CHECKING:
    from torch.utils.data import Dataset as TorchDataset
    from typing_extensions import Self, Unpack

    MapDataset = TorchDataset[dict[str, Any]]
else:
    try:
        from torch.utils.data import Dataset as MapDataset
    except ModuleNotFoundError:
        MapDataset = object

__all__ = ["Samples"]

_SAMPLES_AT_ONCE, _BYTES_AT_ONCE = 256, 16 * 1024**2
"""Limits of what an iteration reads at a time."""

_INSTEAD = {
    "batched": "let the loader make batches: DataLoader(samples, batch_size=...)",
    "shuffle": "let a sampler choose the order: DataLoader(samples, shuffle=True)",
    "select": "choose samples when they are opened: Samples(path, where=...)",
    "rsample": "let a sampler choose: torch.utils.data.RandomSampler(samples, num_samples=...)",
    "slice": "take a range: samples[10:20]",
}


class Samples(FluidStages, MapDataset):
    """The samples of a dataset by number or by key: a map-style dataset, for torch's samplers and for notebooks.

        samples = wdsplit.Samples("data/train").decode("torchrgb").to_tuple("jpg", "cls")
        len(samples), samples[3], samples[-1], samples["00000042"], samples[10:20]
        sampler = torch.utils.data.WeightedRandomSampler([1.0] * len(samples), len(samples))
        for images, labels in torch.utils.data.DataLoader(samples, batch_size=32, sampler=sampler): ...

    A sample is a dict of its fields as bytes, and `__key__` (str), `__url__` (str), `__position__` (int) and `__pad__`
    (False), unless stages change it. Numbers count through the shards in their order, without pads; with a view,
    through the samples of the view, packed or not. `__position__` is always the number in the whole dataset, as for
    `Dataset.sample(number)`.

    Stages of `Dataset` that return one sample for each input work here too: `map`, `map_dict`, `map_tuple`,
    `map_random` (seeded from `seed`, the epoch and `__position__`), `decode`, `rename`, `to_tuple` and so on.

    The samples of a batch are read together, shard by shard. The 1,024 shards that were used last stay open. Reading is
    slower than with a `Loader`, whose order suits the shards: use this where the order is not known in advance. Unlike
    a `wdsplit.Loader`, torch's DataLoader depends on its sampler for the split among ranks and for resuming.

    Args:
        path: The dataset's folder, or WebDataset tars, as for `Dataset`.
        seed: Seed of `map_random`, which also depends on the epoch.
        fields: The fields to read; None for all.
        join: As for `Dataset`: annotations whose fields samples get too.
        limit: Use only the first `limit` samples of the dataset; None for all.
        version: As for `Dataset`: the number of a version; None for the latest.
        view: Use only the samples of a view: the name of a stored view, or a `wdsplit.View`.
        where: Use only the samples that meet a condition on their columns, such as `score > 0.5 and width >= 256`.
        keys: Use only the samples with these keys: a list, or a file of them.
        exclude: Leave out the samples with these keys: a list, or a file of them.
        storage_options: As for `Dataset`.
        fs: As for `Dataset`.
        connections: Concurrent requests to a remote store, for all workers together.
        cache_dir: As for `Dataset`: a folder on the node's own disk to keep whole shards in.
        cache_size: As for `Dataset`.
        verify: As for `Dataset`: compare large local samples with their hashes too.

    Raises:
        DatasetNotFoundError: There is no finished dataset at `path`, or no such tar.
        CorruptDataError: The manifest or a tar is damaged.
        InputError: An option is invalid.
    """

    @with_flat_signature(SamplesOptions)
    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        limit: int | None = None,
        version: int | None = None,
        **options: Unpack[SamplesOptions],
    ) -> None:
        chosen = checked_options(options, kind=SamplesOptions)
        source, opened = opened_source(path, None, limit, chosen, version)
        if isinstance(chosen["view"], Mapping):
            raise InputError(
                "Samples takes one view, not a view for each epoch",
                place=source.url,
                expected="the name of a view, or a wdsplit.View",
                found=reprlib.repr(chosen["view"]),
            )
        viewed: Any = Shared(source, [opened], choice_of(chosen)).source
        self.pipeline: list[Any] = [viewed]
        self._reader = NumberedSamples(viewed)
        self._range = range(len(self._reader))
        self._epoch = SharedIntegers(1)

    @property
    def source(self) -> Source:
        """The first stage."""
        source: Source = self.pipeline[0]
        return source

    @property
    def epoch(self) -> int:
        """The epoch that `map_random` is seeded with."""
        return int(self._epoch.array[0])

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that seeds `map_random`, here and in all workers, persistent or not; at first it is 0.

            samples.set_epoch(3)

        The samples are the same in each. A DistributedSampler has a `set_epoch` of its own, for their order.

        Raises:
            InputError: The epoch is negative or no integer.
        """
        self._epoch.array[0] = checked_epoch(epoch)

    def compose(self, *stages: Any) -> Self:
        """Return the same samples with more stages: functions from an iterator to an iterator.

            def with_length(stored):
                for sample in stored:
                    yield {**sample, "length": len(sample["jpg"])}

            print(samples.compose(with_length)[3]["length"])

        Raises:
            InputError: A stage cannot give one sample for each it takes.
        """
        for stage in stages:
            reason = why_not_one_to_one(stage, strict=True)
            if reason:
                raise InputError(
                    "Samples has no such stage",
                    place=self.source.url,
                    expected="stages that return one sample for each input, such as map, decode and to_tuple",
                    found=reason,
                    remedy=_INSTEAD.get(reason.partition(":")[0], "leave it out"),
                )
        composed = copy.copy(self)
        composed.pipeline = [*self.pipeline, *stages]
        return composed

    def __len__(self) -> int:
        return len(self._range)

    def __bool__(self) -> bool:
        """Return True, as other datasets do, even without samples."""
        return True

    @overload
    def __getitem__(self, index: slice) -> Samples: ...

    @overload
    def __getitem__(self, index: int | str) -> Any: ...

    def __getitem__(self, index: Any) -> Any:
        """Return a sample by its number or key, or a range of samples, which is not read yet.

        Args:
            index: A number, from the end if it is negative; a key, escaped as in the tar or unescaped; or a slice of
                numbers.

        Raises:
            SampleNotFoundError: There is no such sample; also a KeyError and an IndexError.
            InputError: It is none of these.
            WdsplitError: A shard is missing or damaged.
        """
        if isinstance(index, slice):
            some = copy.copy(self)
            some._range = self._range[index]
            return some
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Iterable[int | str]) -> list[Any]:
        """Return several samples, in the requested order: torch's loaders call this for a batch.

        Args:
            indices: Numbers or keys, each as for `samples[...]`.
        """
        return list(self._staged(self._places(list(indices))))

    def __iter__(self) -> Iterator[Any]:
        """Yield all samples in the order of their numbers."""
        num_bytes = max(1, self.source.sample_bytes)
        at_once = max(1, min(_SAMPLES_AT_ONCE, _BYTES_AT_ONCE // num_bytes))
        for first in range(0, len(self), at_once):
            yield from self._staged(np.arange(first, min(len(self), first + at_once)))

    def __contains__(self, key: object) -> bool:
        """Tell whether one of these samples has a key."""
        try:
            return isinstance(key, str) and self._index(key) >= 0
        except LookupError:
            return False

    def _places(self, indices: list[Any]) -> Int64:
        """Return the places in this range of numbers or keys: int64 of shape (n,)."""
        places, count = np.array(indices), len(self)
        are_integers = places.dtype == np.int64 and places.ndim == 1
        if are_integers and ((places >= -count) & (places < count)).all():
            return places % max(1, count)
        return np.array([self._index(index) for index in indices], np.int64)

    def _index(self, index: Any) -> int:
        """Return the place in this range of a number or a key."""
        if not isinstance(index, str):
            return checked_number(index, len(self), self.source.url)
        number = self._reader.find(index)
        if number not in self._range:
            raise missing_key(index, len(self), self.source.url)
        return self._range.index(number)

    def _staged(self, places: Int64) -> Iterator[Any]:
        """Yield the results of the stages for samples at some places of this range, which are read together."""
        samples = self._reader.read(self._range.start + self._range.step * places)
        ones = OneByOne(self.source, partial(self._applied, self.pipeline[1:], self.epoch))
        yield from ones.apply(samples)
        ones.finish()

    def __dir__(self) -> list[str]:
        """List what users call."""
        names = set(super().__dir__()) - {"pipeline", *_INSTEAD, "unbatched", "listed", "unlisted"}
        return sorted(name for name in names if name.startswith("__") or not name.startswith("_"))

    def __repr__(self) -> str:
        view = f" (view: {self.source.view_text})" if self.source.view_text else ""
        stages = counted(len(self.pipeline) - 1, "stage")
        return f"<Samples {self.source.url}: {counted(len(self), 'sample')}{view}, {stages}>"

    def _repr_html_(self) -> str:
        stages = ", ".join(type(stage).__name__ for stage in self.pipeline[1:]) or "none"
        rows = {**self.source.described(), "samples": f"{len(self):,}", "stages": stages}
        return html_table(f"Samples {self.source.url}", rows.items())
