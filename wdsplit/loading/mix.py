"""Several datasets as one: `wdsplit.mix`.

It combines the order of a mixture with a reader for each source.
"""

from __future__ import annotations

import os
import reprlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from wdsplit.arrays import Int64
from wdsplit.errors import InputError, did_you_mean
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.opening import opened_source
from wdsplit.loading.options import DatasetOptions, checked_options, with_flat_signature
from wdsplit.loading.reading.block import Block, gathered
from wdsplit.loading.reading.read_ahead import Ahead
from wdsplit.loading.reading.reader import BlockReader, SampleReader
from wdsplit.loading.reading.source import AnySource, Place, Source
from wdsplit.loading.views import Opened
from wdsplit.order.bundles import Form
from wdsplit.order.epoch import EpochOrder, OrderOptions
from wdsplit.order.mixture import EpochShares, MixedOrder, Quota, source_seed
from wdsplit.order.schedule import Schedule
from wdsplit.order.shares import epoch_counts
from wdsplit.order.split import World, assigned_lanes
from wdsplit.order.state import ViewMark
from wdsplit.order.views import EpochViews
from wdsplit.storage.given import located
from wdsplit.texts import counted
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["MixedSource", "Mixture", "mix"]

_EPOCHS_OPEN = 2
"""Epochs of a source that are read at the same time: lanes end an epoch at slightly different positions."""

Path = str | os.PathLike[str]
SharesOf = Callable[[Sequence[int]], Sequence[int] | Schedule]


class MixedSource(AnySource):
    """The source of a mixture."""

    def __init__(self, sources: Sequence[Source], shares_of: SharesOf, options: OrderOptions) -> None:
        self.sources = tuple(sources)
        self.options = options
        self.url = f"mix({', '.join(source.url for source in sources)})"
        self._shares_of = shares_of
        self._shares: dict[tuple[int, ...], Sequence[int] | Schedule] = {}
        for epoch in self.view_epochs:
            self.order(epoch)  # refuses what no order can be made of

    def counts_at(self, epoch: int) -> tuple[int, ...]:
        """Return the samples of each source in an epoch."""
        shares = self._epoch_shares(epoch)
        return shares.counts if isinstance(shares, EpochShares) else tuple(shares)

    def _sizes_at(self, epoch: int) -> list[int]:
        return [source.num_samples_at(epoch) for source in self.sources]

    def _shares_at(self, epoch: int) -> Sequence[int] | Schedule:
        """Return the shares for the views of an epoch."""
        sizes = tuple(self._sizes_at(epoch))
        if sizes not in self._shares:
            self._shares[sizes] = self._shares_of(sizes)
        return self._shares[sizes]

    def _epoch_shares(self, epoch: int) -> Sequence[int] | EpochShares:
        shares = self._shares_at(epoch)
        return shares.epoch(epoch) if isinstance(shares, Schedule) else shares

    def with_views(self, views: Sequence[EpochViews]) -> MixedSource:
        """Return the same mixture with other views of its sources."""
        sources = [source.with_views(own) for source, own in zip(self.sources, views, strict=True)]
        return MixedSource(sources, self._shares_of, self.options)

    @cached_property
    def fingerprint(self) -> str:
        """Identifies the mixture in a state: for each source its samples in an epoch, its fingerprint and its window.

        The samples are counted without views; `view_at` identifies the views.
        """
        shares = self._shares_of([source.manifest.num_samples for source in self.sources])
        if isinstance(shares, Schedule):
            sources = " + ".join(f"{source.fingerprint}/{source.options.window}" for source in self.sources)
            return f"schedule of {shares.fingerprint} of {sources}"
        quotas = zip(self.sources, shares, strict=True)
        return " + ".join(f"{count} of {source.fingerprint}/{source.options.window}" for source, count in quotas)

    def num_samples_at(self, epoch: int) -> int:
        """Return the samples of an epoch, pads left out."""
        return sum(self.counts_at(epoch))

    def units_text(self, epoch: int) -> str:
        """Return what an epoch has, for people: so many samples, or packs or groups of them."""
        form = self.form_at(epoch)
        return counted(self.num_samples_at(epoch), "sample" if form is None else form.noun)

    def view_at(self, epoch: int) -> ViewMark | None:
        """Return the mark of the sources' views in an epoch for a state; None if all have all samples."""
        marks = [source.view_at(epoch) for source in self.sources]
        if not any(marks):
            return None
        named = (mark.name if mark else "all samples" for mark in marks)
        names = ", ".join(f"{source.url}: {name}" for source, name in zip(self.sources, named, strict=True))
        found = (mark.fingerprint if mark else "" for mark in marks)
        own = zip(self.counts_at(epoch), found, strict=True)
        return ViewMark(names, xxhash.xxh3_128_hexdigest(repr(list(own)).encode()))

    @property
    def view_text(self) -> str:
        """The views of the sources as text; empty if all have all samples."""
        return "; ".join(f"{source.url}: {source.view_text}" for source in self.sources if source.view_text)

    @property
    def view_epochs(self) -> tuple[int, ...]:
        """The epochs with which a source begins another view, rising; 0 is one."""
        return tuple(sorted({epoch for source in self.sources for epoch in source.view_epochs}))

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names of all sources.

        Raises:
            InputError: Sources have different ones.
        """
        first, *others = self.sources
        for other in others:
            if other.classes != first.classes:
                raise InputError(
                    "the datasets of a mixture have different class names",
                    place=other.url,
                    expected=f"{reprlib.repr(first.classes)}, as {first.url} has them",
                    found=reprlib.repr(other.classes),
                    remedy="convert them with one list of classes: the same number means different classes",
                )
        return first.classes

    @property
    def sample_bytes(self) -> int:
        """About how many bytes of a shard a sample takes, of the source that has the largest."""
        return max(source.sample_bytes for source in self.sources)

    def described(self) -> Mapping[str, Any]:
        """Return the main facts for a table: for each dataset its samples in an epoch."""
        rows = zip(self.sources, self.counts_at(0), self._sizes_at(0), strict=True)
        schedule = self._shares_at(0)
        when = "in epoch 0" if isinstance(schedule, Schedule) else "an epoch"
        taken: dict[str, Any] = {source.url: f"{count:,} {when}, of {size:,}" for source, count, size in rows}
        if isinstance(schedule, Schedule):
            taken["schedule"] = schedule.described()
        return {"samples": self.num_samples, **taken, "order": counted(self.options.lanes, "lane")}

    def order(self, epoch: int) -> MixedOrder:
        """Return the order of an epoch."""
        order_of = partial(self.order_of, epoch=epoch)
        return MixedOrder(self._sizes_at(epoch), self._epoch_shares(epoch), self.options, epoch, order_of)

    def order_of(self, source: int, source_epoch: int, epoch: int) -> EpochOrder:
        """Return a source's own order in one of its epochs, with its view in an epoch of the mixture."""
        one = self.sources[source]
        options = replace(self.options, seed=source_seed(self.options.seed, source), window=one.options.window)
        selection = one.selection_at(epoch)
        return EpochOrder(one.manifest.shards.num_real, options, source_epoch, equal_lanes=True, selection=selection)

    def reader(self, order: MixedOrder, world: World, ahead: Ahead | None = None) -> BlockReader:
        """Return a reader for the positions that one rank and worker has in an order."""
        return _MixedReader(self, order, world, ahead)

    def place(self, order: MixedOrder, position: int, orders: dict[Any, EpochOrder], item: int = 0) -> Place:
        """Return where the sample of a position is; of a pack or group, its sample number `item`."""
        quota = next(order.quotas(np.array([position])))
        key = quota.source, quota.source_epoch
        if key not in orders:
            orders[key] = self.order_of(*key, order.epoch)
        source = self.sources[quota.source]
        place = source.place(orders[key], int(quota.positions[0]), orders, item)
        return place._replace(fields={"__source__": source.url, **place.fields})

    def samples_a_position(self, epoch: int) -> float:
        """Return how many samples a position of an epoch has, on average: of the source that has the most."""
        return max(source.samples_a_position(epoch) for source in self.sources)

    def form_at(self, epoch: int) -> Form | None:
        """Return what packs or groups the positions of an epoch are; None if they have a sample each.

        Raises:
            InputError: Sources have different ones.
        """
        forms = [source.form_at(epoch) for source in self.sources]
        names = [f"{form.noun}s {form}" if form else "single samples" for form in forms]
        if len(set(names)) > 1:
            raise InputError(
                "the datasets of a mixture have different packs or groups",
                place=self.url,
                expected="packs of one capacity, all truncated or none; groups of one size and budget; or neither",
                found=", ".join(f"{source.url}: {name}" for source, name in zip(self.sources, names, strict=True)),
                remedy="give each dataset a view of the same kind",
            )
        return forms[0]

    def positions_at_once(self, world: World, epoch: int) -> int:
        """Return how many positions a reader should read at a time."""
        return max(source.positions_at_once(world, epoch) for source in self.sources)


_MixedPlan = tuple[Int64, list[tuple[Quota, SampleReader, Any]]]
"""Positions, and the plan of each source for its part of them."""


class _MixedReader:
    """Reads the samples of a mixture's positions, each source by a reader of its own: a `BlockReader`."""

    def __init__(self, mixture: MixedSource, order: MixedOrder, world: World, ahead: Ahead | None) -> None:
        self._mixture = mixture
        self._sources = sources = mixture.sources
        self._order = order
        self._num_lanes = len(assigned_lanes(order.options.lanes, world))
        access = sources[0].access
        self.ahead = ahead
        if ahead is None and any(source.is_ahead for source in sources):
            shard_bytes = max(source.shard_bytes for source in sources)
            window_bytes = sum(source.options.window * source.sample_bytes for source in sources)
            self.ahead = access.ahead(world.num_workers, self._num_lanes * window_bytes, self._num_lanes * shard_bytes)
        self._readers: OrderedDict[tuple[int, int], SampleReader] = OrderedDict()
        self.num_read = 0
        self.num_reused = 0

    def plan(self, positions: Int64) -> _MixedPlan:
        """Return a plan for some positions."""
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
        """Return the samples of a plan; the field `__source__` names the dataset of each."""
        positions, quotas = plan
        blocks, rows, is_bundled = [], [np.zeros(0, np.int64)], False
        for quota, reader, own in quotas:
            read, reused = reader.num_read, reader.num_reused
            block = reader.carry_out(own)
            self.num_read += reader.num_read - read
            self.num_reused += reader.num_reused - reused
            names = np.full(len(block), self._sources[quota.source].url, object)
            blocks.append(block.with_field("__source__", names))
            rows.append(quota.rows if block.units is None else quota.rows[block.units])
            is_bundled = block.units is not None
        row = np.concatenate(rows)
        by_row = np.argsort(row, kind="stable")
        place = np.empty_like(by_row)
        place[by_row] = np.arange(len(by_row))
        stops = np.cumsum(list(map(len, blocks)))
        parts = [
            (place[stop - len(block) : stop], block, np.arange(len(block)))
            for stop, block in zip(stops.tolist(), blocks, strict=True)
        ]
        units = row[by_row]
        fills = np.concatenate([np.zeros(0, np.bool_), *(block.pads for block in blocks)])[by_row]  # of groups
        found = gathered(parts, positions[units], ~self._order.is_real(positions[units]) | fills)
        return replace(found, units=units) if is_bundled else found

    @property
    def has_failed(self) -> bool:
        """Whether something that is needed next could not be fetched."""
        return any(reader.has_failed for reader in self._readers.values())

    def _reader(self, number: int, epoch: int) -> SampleReader:
        key = number, epoch
        if key not in self._readers:
            order = self._mixture.order_of(number, epoch, self._order.epoch)
            reader = self._mixture.sources[number].reader_of(order, self._num_lanes, self.ahead)
            self._readers[key] = reader
            if len(self._readers) > _EPOCHS_OPEN * len(self._sources):
                _, old = self._readers.popitem(last=False)
                old.fetch()
        self._readers.move_to_end(key)
        return self._readers[key]


class Mixture(Dataset):
    """The mixed samples of several datasets, made by `mix`; otherwise a `Dataset`."""

    def __init__(self, source: MixedSource, opened: Sequence[Opened], options: DatasetOptions) -> None:
        self._begin_with(source, opened, options)


_CAUSE = "cannot tell which datasets to mix"
_EXAMPLE = "such as {'data/a': 0.7, 'data/b': 0.3}"


class _MixArguments:
    """The arguments of `mix` that define the mixture; see there.

    Attributes:
        urls: The datasets, in the order in which they are first named.

    Raises:
        InputError: They contradict each other, or name no dataset.
    """

    def __init__(self, weights: Any, repeat: Any, num_samples: Any, schedule: Any) -> None:
        given = [each for each in (schedule, weights, repeat) if each is not None]
        if len(given) != 1 or not given[0]:
            raise InputError(
                _CAUSE,
                expected=f"weights, {_EXAMPLE}; or repeat=; or schedule=",
                found="several of them" if any(given) else "none of them",
            )
        points = [] if schedule is None else schedule
        is_listed = isinstance(points, Sequence) and not isinstance(points, str)
        if not is_listed or not all(isinstance(point, Sequence) and len(point) == 2 for point in points):
            raise InputError(
                "invalid schedule",
                expected="a list of pairs of a position and its weights, such as "
                "[(0, {'data/a': 0.9, 'data/b': 0.1}), (1_000_000, {'data/a': 0.5, 'data/b': 0.5})]",
                found=f"a {type(points).__name__}",  # folders may be URLs with secrets
            )
        named = []
        for shares in [each for _, each in points] or [repeat if weights is None else weights]:
            if not isinstance(shares, Mapping):
                expected = f"a dict of folders and their shares, {_EXAMPLE}"
                raise InputError(_CAUSE, expected=expected, found=type(shares).__name__)
            own = [str(path) for path in shares]
            for url in own:
                if own.count(url) > 1:
                    raise InputError("duplicate dataset", place=shown_url(url), expected="one share per dataset")
            named += own
        self.urls = list(dict.fromkeys(named))
        self._points, self._num_samples = points, num_samples
        self._shares = weights, repeat

    def shares(self, sizes: Sequence[int], names: Sequence[str]) -> list[int] | Schedule:
        """Return how many samples of each dataset an epoch takes, or the schedule.

        Raises:
            InputError: No mixture can have these shares.
        """
        if self._points:
            points = [(position, self._in_order(weights, 0)) for position, weights in self._points]
            return Schedule(points, sizes, names, self._num_samples)
        weights, repeats = (None if each is None else self._in_order(each, None) for each in self._shares)
        return epoch_counts(sizes, names, weights, repeats, self._num_samples)

    def _in_order(self, shares: Mapping[Path, Any], otherwise: Any) -> list[Any]:
        """Return the shares of all datasets; `otherwise` for one that is not named."""
        named = {str(path): share for path, share in shares.items()}
        return [named.get(url, otherwise) for url in self.urls]


@with_flat_signature(DatasetOptions)
def mix(
    weights: Mapping[Path, float] | None = None,
    *,
    repeat: Mapping[Path, float] | None = None,
    num_samples: int | None = None,
    schedule: Sequence[tuple[int, Mapping[Path, float]]] | None = None,
    datasets: Mapping[str, Path] | None = None,
    version: Mapping[Path, int] | None = None,
    **options: Unpack[DatasetOptions],
) -> Dataset:
    """Mix datasets: each epoch has a fixed number of samples from each dataset, evenly spread.

        dataset = wdsplit.mix({"data/a": 0.7, "data/b": 0.3}, num_samples=100)
        loader = wdsplit.Loader(dataset.decode(), batch_size=32)

    Pass either `weights`, or `repeat`, or `schedule`. If an epoch uses fewer samples than a dataset has,
    the next epoch continues there: no sample is seen a second time before all have been seen once. If it uses more, the
    dataset starts again in another order. The field `__source__` of a sample names its dataset.

    Args:
        weights: Folder of each dataset to its share of an epoch: `{"data/a": 0.7, "data/b": 0.3}`.
        repeat: Folder of each dataset to how often an epoch repeats it; 0.5 uses half of its samples.
        num_samples: Samples in an epoch, with `weights` or `schedule`; by default as many as all datasets have
            together.
        schedule: Weights that change over time: pairs of a position and its weights, the first at position 0.
            Positions count the samples of the mixture over all epochs: epoch E begins at E x `num_samples`. Weights
            stay until the next point. A dataset that a point does not name has weight 0 there.
        datasets: Names of datasets to their folders, to use in all other arguments instead of the folders:
            `{"easy": "data/a", "hard": "data/a"}` for two views of one dataset. `__source__` is then the name.
        version: Folder of each dataset to the number of its version; by default the latest.
        options: Options of `Dataset`, for all datasets together (`read_ahead_bytes`, `connections`, `cache_size`) or
            the same for each. `tail` cannot be `uneven`; `lanes` is by default the largest of the datasets' own.
            `view`, `where`, `keys` and `exclude` may be dicts of folders: `view={"data/a": "easy"}`. The shares then
            refer to the views, and an epoch continues in a dataset as if all earlier epochs had used the same view.

    Raises:
        InputError: The shares, or an option, are invalid.
        DatasetNotFoundError: There is no finished dataset in a folder.
    """
    asked = _MixArguments(weights, repeat, num_samples, schedule)
    chosen = checked_options(options)
    of_folders = list[dict[str, Any]]()
    for what, given in (("datasets", datasets), ("version", version)):
        if not isinstance(given or {}, Mapping):
            raise InputError(
                f"invalid {what}",
                expected=f"a dict with the datasets that have one, such as {{{asked.urls[0]!r}: ...}}",
                found=repr(given),
            )
        of_folders.append({str(name): value for name, value in (given or {}).items()})
        unknown = [name for name in of_folders[-1] if name not in asked.urls]
        if unknown:
            raise InputError(
                f"{what} names a dataset that is not mixed",
                expected=f"some of {', '.join(asked.urls)}",
                found=", ".join(unknown),
                remedy=did_you_mean(unknown, asked.urls),
            )
    names, versions = of_folders
    folders = [str(names.get(url, url)) for url in asked.urls]
    places, chosen["storage_options"] = located(folders, chosen["storage_options"], chosen["fs"])
    chosen["fs"] = None
    known, sources = list[Opened](), list[Source]()
    for url, place in zip(asked.urls, places, strict=True):
        source, opened = opened_source(place, None, None, chosen, versions.get(url), url if url in names else "")
        sources.append(source)
        known.append(opened._replace(name=url))
    lanes = chosen["lanes"] or max(source.options.lanes for source in sources)
    for source in sources:
        source.options = replace(source.options, lanes=lanes)
    shares_of = partial(asked.shares, names=[source.url for source in sources])
    order = OrderOptions(chosen["seed"], chosen["shuffle"], lanes, 1, chosen["tail"])
    return Mixture(MixedSource(sources, shares_of, order), known, chosen)
