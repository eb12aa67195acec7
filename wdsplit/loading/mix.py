"""Several datasets as one: `wdsplit.mix`.

Composition of the order of a mixture and a reader for each source.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wdsplit.errors import InputError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.options import DatasetOptions, access_of, checked_options, with_flat_signature
from wdsplit.loading.reading.block import Block, Gathered, Objects
from wdsplit.loading.reading.read_ahead import Ahead
from wdsplit.loading.reading.reader import BlockReader, SampleReader
from wdsplit.loading.reading.source import Source
from wdsplit.loading.tars import open_dataset
from wdsplit.order.epoch import EpochOrder, Int64, OrderOptions
from wdsplit.order.mixture import MixedOrder, Quota, epoch_counts, source_seed
from wdsplit.order.split import World, assigned_lanes
from wdsplit.storage.given import located
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["MixedSource", "Mixture", "mix"]

_EPOCHS_OPEN = 2
"""Epochs of a source that are read at once: lanes come to the end of one at slightly different positions."""

Path = str | os.PathLike[str]


class MixedSource:
    """Reads a mixture.

    Args:
        sources: What is mixed.
        counts: For each the samples that it gives an epoch.
        options: The order's options; the window is each source's own.
    """

    def __init__(self, sources: Sequence[Source], counts: Sequence[int], options: OrderOptions) -> None:
        self.sources = tuple(sources)
        self.counts = tuple(counts)
        self.options = options
        self.url = f"mix({', '.join(source.url for source in sources)})"
        self._sizes = [source.num_samples for source in sources]
        self.order(0)  # refuses what no order can be made of

    @property
    def fingerprint(self) -> str:
        """What a state belongs to: for each source in turn its samples an epoch, its fingerprint and its window."""
        quotas = zip(self.sources, self.counts, strict=True)
        return " + ".join(f"{count} of {source.fingerprint}/{source.options.window}" for source, count in quotas)

    @property
    def num_samples(self) -> int:
        """Samples of an epoch, pads left out."""
        return sum(self.counts)

    @property
    def sample_bytes(self) -> int:
        """About how many bytes of a shard a sample takes, of the source that has the largest."""
        return max(source.sample_bytes for source in self.sources)

    def order(self, epoch: int) -> MixedOrder:
        """Return the order of an epoch."""
        return MixedOrder(self._sizes, self.counts, self.options, epoch)

    def reader(self, order: MixedOrder, world: World) -> BlockReader:
        """Return what reads the positions of an order for one of its readers."""
        return _MixedReader(self.sources, order, world)

    def samples_at_once(self, world: World) -> int:
        """Return how many samples a reader shall read at a time."""
        return max(source.samples_at_once(world) for source in self.sources)

    def __call__(self) -> Any:
        """Webdataset calls a pipeline's first stage; ours is bound to an epoch by `Dataset.__iter__` instead."""
        return self.sources[0]()


_MixedPlan = tuple[Int64, list[tuple[Quota, SampleReader, Any]]]
"""Positions, and what each source has to read of them."""


class _MixedReader:
    """Reads the samples of a mixture's positions, each source by a reader of its own: a `BlockReader`."""

    def __init__(self, sources: Sequence[Source], order: MixedOrder, world: World) -> None:
        self._sources = sources
        self._order = order
        self._num_lanes = len(assigned_lanes(order.options.lanes, world))
        access = sources[0].access
        self.ahead: Ahead | None = None
        if any(source.is_ahead for source in sources):
            shard_bytes = max(source.shard_bytes for source in sources)
            window_bytes = sum(source.options.window * source.sample_bytes for source in sources)
            self.ahead = access.ahead(world.num_workers, self._num_lanes * window_bytes, self._num_lanes * shard_bytes)
        self._readers: OrderedDict[tuple[int, int], SampleReader] = OrderedDict()
        self.num_read = 0
        self.num_reused = 0

    def plan(self, positions: Int64) -> _MixedPlan:
        """Return what is to be read for some positions."""
        quotas = []
        for quota in self._order.quotas(positions):
            reader = self._reader(quota.source, quota.source_epoch)
            quotas.append((quota, reader, reader.plan(quota.positions)))
        return positions, quotas

    def fetch(self) -> None:
        """Begin to fetch what was planned."""
        for reader in self._readers.values():
            reader.fetch()

    def carry_out(self, plan: _MixedPlan) -> Block:
        """Return the samples of a plan; their field `__source__` says where each is from."""
        positions, quotas = plan
        gathered = Gathered(len(positions))
        for quota, reader, own in quotas:
            read, reused = reader.num_read, reader.num_reused
            block = reader.carry_out(own)
            self.num_read += reader.num_read - read
            self.num_reused += reader.num_reused - reused
            fields: dict[str, Objects | str] = {"__source__": self._sources[quota.source].url, **block.fields}
            gathered.add(quota.rows, block.keys, block.urls, block.sizes, fields, {"__source__", *block.whole})
        return gathered.block(positions, self._order.pads(positions))

    def _reader(self, number: int, epoch: int) -> SampleReader:
        key = number, epoch
        if key not in self._readers:
            self._readers[key] = self._new_reader(number, epoch)
            if len(self._readers) > _EPOCHS_OPEN * len(self._sources):
                _, old = self._readers.popitem(last=False)
                old.fetch()
        self._readers.move_to_end(key)
        return self._readers[key]

    def _new_reader(self, number: int, epoch: int) -> SampleReader:
        source, options = self._sources[number], self._order.options
        own = replace(options, seed=source_seed(options.seed, number), window=source.options.window)
        order = EpochOrder(source.manifest.shards.num_real, own, epoch, equal_lanes=True)
        return source.reader_of(order, self._num_lanes, self.ahead)


class Mixture(Dataset):
    """The samples of several datasets, mixed; made by `mix`. A `Dataset` in all else."""

    def __init__(self, source: MixedSource, options: DatasetOptions) -> None:
        self._begin_with(source, options)


@with_flat_signature
def mix(
    weights: Mapping[Path, float] | None = None,
    *,
    repeat: Mapping[Path, float] | None = None,
    choose: Mapping[Path, int] | None = None,
    num_samples: int | None = None,
    **options: Unpack[DatasetOptions],
) -> Dataset:
    """Mix datasets: an epoch takes a quota of each, evenly spread.

    Give either `weights`, or `repeat` and `choose`. A dataset of which an epoch takes fewer samples than it has goes on
    in the next epoch where it stopped: no sample is seen a second time before all have been seen once. One of which it
    takes more begins anew, in another order. Samples have a field `__source__`: the dataset that they are from.

    Args:
        weights: For each dataset's folder its part of an epoch: `{"data/a": 0.7, "data/b": 0.3}`.
        repeat: For each dataset's folder how often its samples appear an epoch; 0.5 takes half of them.
        choose: For each dataset's folder how many of its samples an epoch takes.
        num_samples: Samples of an epoch, with `weights`; by default as many as all datasets have together.
        options: As of `Dataset`, for all datasets together (`read_ahead_bytes`, `connections`, `cache_size`) or the
            same for each. `tail` cannot be `uneven`; `lanes` is by default the most that one of the datasets has.

    Raises:
        InputError: The quotas, or an option, are invalid.
        DatasetNotFoundError: There is no finished dataset in a folder.
    """
    urls = _listed(weights, repeat, choose)
    chosen = checked_options(options)
    places, chosen["storage_options"] = located(urls, chosen["storage_options"], chosen["fs"])
    access = access_of(chosen)
    opened = [open_dataset(place, access, chosen["cache_dir"]) for place in places]
    lanes = chosen["lanes"] or max(manifest.lanes for _, manifest, _ in opened)
    order = OrderOptions(chosen["seed"], chosen["shuffle"], lanes, 1, chosen["tail"])
    sources = [
        Source(place, manifest, replace(order, window=manifest.window), chosen["fields"], own)
        for place, manifest, own in opened
    ]
    sizes = [source.num_samples for source in sources]
    by_weight, repeats, taken = (_in_order(asked, urls) for asked in (weights, repeat, choose))
    names = [source.url for source in sources]
    counts = epoch_counts(sizes, by_weight, repeats, taken, num_samples, names)
    return Mixture(MixedSource(sources, counts, order), chosen)


def _in_order(shares: Mapping[Path, Any] | None, urls: Sequence[str]) -> list[Any] | None:
    """Return the shares of the datasets; None for one that is not named."""
    if shares is None:
        return None
    named = {str(path): share for path, share in shares.items()}
    return [named.get(url) for url in urls]


def _listed(*asked: Mapping[Path, Any] | None) -> list[str]:
    """Return the datasets that are named, in their order."""
    cause, example = "cannot tell which datasets to mix", "such as {'data/a': 0.7, 'data/b': 0.3}"
    if not any(asked) or (asked[0] is not None and any(shares is not None for shares in asked[1:])):
        found = "both" if any(asked) else "neither"
        raise InputError(cause, expected=f"weights, {example}; or repeat= and choose=", found=found)
    urls: list[str] = []
    for shares in asked:
        if shares is not None and not isinstance(shares, Mapping):
            expected = f"a dict of folders and their shares, {example}"
            raise InputError(cause, expected=expected, found=type(shares).__name__)
        for path in shares or {}:
            if str(path) in urls:
                raise InputError("duplicate dataset", place=shown_url(str(path)), expected="one share of each dataset")
            urls.append(str(path))
    return urls
