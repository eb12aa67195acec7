"""The first stage of a dataset: it reads the samples of an epoch's positions.

It combines the manifest, the order and the reader.
"""

from __future__ import annotations

import copy
import functools
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from wdsplit.errors import CorruptDataError, InputError, StorageError, did_you_mean
from wdsplit.loading.reading.open_shard import OpenShard, explaining, open_shard, refuse_overwritten
from wdsplit.loading.reading.read_ahead import Ahead
from wdsplit.loading.reading.reader import BlockReader, CountingReader, Reading, SampleReader
from wdsplit.order.bundles import Form, Groups, Units, form_of, items_of, window_items
from wdsplit.order.epoch import EpochOrder, OrderOptions
from wdsplit.order.split import AnyOrder, World, assigned_lanes, reader_positions
from wdsplit.order.state import ViewMark
from wdsplit.order.units import GROUP, PLACE
from wdsplit.order.views import EpochViews
from wdsplit.shards.annotations import MISSING
from wdsplit.shards.manifest import Manifest, Shard
from wdsplit.storage.gathered import GatheredFiles, GatheredStorage
from wdsplit.storage.interface import ReadableStorage
from wdsplit.storage.opening import open_readable_storage
from wdsplit.texts import counted
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from typing_extensions import Self

    from wdsplit.loading.reading.cache import ShardCache

__all__ = ["Access", "AnySource", "Place", "Source", "name_with_view"]

logger = logging.getLogger(__name__)

_MIN_AT_ONCE, _MAX_AT_ONCE = 1024, 65_536
_BYTES_AT_ONCE = 64 * 1024**2
_MIN_FETCHED, _BYTES_FETCHED = 64, 16 * 1024**2
"""Fewer samples at a time if their windows are fetched into memory, which is then free sooner for the next ones."""
_READ_AHEAD_BYTES, _FIRST_AHEAD_BYTES = 128 * 1024**2, 32 * 1024**2
_MIN_CONNECTIONS = 4


@dataclass(frozen=True)
class Access:
    """How a dataset is reached.

    Attributes:
        storage_options: How to reach a remote store.
        read_ahead_bytes: Bytes of a remote dataset that all workers of a rank together fetch before they are needed.
            None for 32 MiB, or for the size of the windows that they keep if that is more, because these end at the
            same time; and for twice as much whenever a window comes too late, up to 128 MiB.
        connections: Concurrent requests of all these workers together: a first batch needs two for each lane.
        cache: Keeps the shards on the node's own disk.
        verify: Compare each sample that is read with its checksum.
        tars: The shards, if they are tars without a manifest beside them, with the indexes as companions.
        salvages: Give damaged samples as errors instead of raising them.
    """

    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    read_ahead_bytes: int | None = None
    connections: int = 64
    cache: ShardCache | None = None
    verify: bool = False
    tars: GatheredFiles | None = None
    salvages: bool = False

    def storage(self, url: str) -> ReadableStorage:
        """Return the storage of a dataset."""
        if self.tars is not None:
            return GatheredStorage(self.tars, self.storage_options)
        return open_readable_storage(url, self.storage_options)

    def ahead(self, num_workers: int, window_bytes: int, shard_bytes: int) -> Ahead:
        """Return an object that fetches ahead for one worker of a rank.

        Args:
            num_workers: Workers of the rank.
            window_bytes: Bytes of the windows that it keeps.
            shard_bytes: Bytes of the shards that it visits at a time: with a cache, the next ones are downloaded.
        """
        num_connections = max(_MIN_CONNECTIONS, self.connections // num_workers)
        num_bytes = max(_READ_AHEAD_BYTES // num_workers, window_bytes)
        if self.read_ahead_bytes is not None:
            num_bytes = self.read_ahead_bytes // num_workers
        planned_bytes = num_bytes if self.cache is None else num_bytes + shard_bytes
        first_bytes = max(_FIRST_AHEAD_BYTES // num_workers, window_bytes)
        if self.cache is not None or self.read_ahead_bytes is not None:
            first_bytes = planned_bytes
        return Ahead(num_bytes + window_bytes, planned_bytes, num_connections, self.cache is not None, first_bytes)

    def open_shard(
        self,
        storage: ReadableStorage,
        manifest: Manifest,
        shard: Shard,
        requested: Collection[str] | None,
        is_needed: Callable[[], bool] = lambda: True,
        directly: bool = False,
    ) -> OpenShard:
        """Open a shard, from the cache if there is one with room for it, else where it is.

        Args:
            storage: The dataset.
            manifest: Its manifest.
            shard: A shard of it.
            requested: The fields to read; None for all.
            is_needed: Called repeatedly; when it returns False, downloading and waiting end.
            directly: Open it where it is, whether there is a cache or not.
        """
        cache, names = None if directly else self.cache, manifest.field_names
        check_dataset = partial(refuse_overwritten, storage, manifest)
        with explaining(check_dataset):
            if cache is not None:
                try:
                    cached = cache.open(storage, shard, names, is_needed)
                except CorruptDataError as error:
                    if not self.salvages:
                        raise
                    logger.warning("%s/%s: not cached, because it is damaged: %s", storage.url, shard.path, error.cause)
                    cached = None
                if cached is not None:
                    file = cached.file

                    def again() -> OpenShard:
                        cache.discard(file)
                        return self.open_shard(storage, manifest, shard, requested)

                    return replace(cached, requested=requested, verifies=self.verify, again=functools.cache(again))
                if not is_needed():
                    raise StorageError("a shard is not needed any more", place=f"{storage.url}/{shard.path}")
            try:
                opened = open_shard(storage, shard, names, requested)
            except CorruptDataError:
                if not storage.is_remote:
                    raise
                opened = open_shard(storage, shard, names, requested)  # damaged on their way, perhaps
        companions = "" if self.tars is None else self.tars.companions
        return replace(opened, verifies=self.verify, check_dataset=check_dataset, companions=companions)


class Place(NamedTuple):
    """Where the sample of a position is.

    Attributes:
        source: The source that reads it.
        shard: Its shard's number.
        sample: Its place in the shard's tar.
        fields: Fields that are not in the tar: of mixtures and repeated samples.
    """

    source: Source
    shard: int
    sample: int
    fields: Mapping[str, Any] = {}


class AnySource(Protocol):
    """The first stage of a dataset: that of one, or a mixture.

    Attributes:
        url: Its name in messages.
        options: The options that its order depends on.
    """

    url: str
    options: OrderOptions

    @property
    def fingerprint(self) -> str:
        """Identifies the samples in a state."""

    @property
    def num_samples(self) -> int:
        """Samples of an epoch, pads left out; of the first, if epochs have different views."""
        return self.num_samples_at(0)

    def num_samples_at(self, epoch: int) -> int:
        """Return the samples of an epoch, pads left out."""

    def view_at(self, epoch: int) -> ViewMark | None:
        """Return the mark of an epoch's view for a state; None if it has all samples."""

    @property
    def view_text(self) -> str:
        """Which views epochs have, for people; empty if all have all samples."""

    @property
    def view_epochs(self) -> tuple[int, ...]:
        """The epochs with which another view begins, rising; 0 is one."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names by their numbers; empty if there are none."""

    @property
    def sample_bytes(self) -> int:
        """About how many bytes of a shard a sample takes."""

    def described(self) -> Mapping[str, Any]:
        """Return the main facts, for tables."""

    def order(self, epoch: int) -> AnyOrder:
        """Return the order of an epoch."""

    def reader(self, order: Any, world: World, ahead: Ahead | None = None) -> BlockReader:
        """Return a reader for the positions that one rank and worker has in an order of this source.

        Args:
            order: The order.
            world: The rank and worker.
            ahead: What fetches ahead; None for a new one, if there is anything to fetch.
        """

    def units_text(self, epoch: int) -> str:
        """Return what an epoch has, for people: so many samples, or packs or groups of them."""

    def positions_at_once(self, world: World, epoch: int) -> int:
        """Return how many positions a reader should read at a time."""

    def samples_a_position(self, epoch: int) -> float:
        """Return how many samples a position of an epoch has, on average."""

    def form_at(self, epoch: int) -> Form | None:
        """Return what packs or groups the positions of an epoch are; None if they have a sample each."""

    def place(self, order: Any, position: int, orders: dict[Any, EpochOrder], item: int = 0) -> Place:
        """Return where the sample of an order's position is, of a pack or group its sample number `item`.

        `orders` caches orders for further calls.
        """

    def __call__(self) -> Iterator[dict[str, Any]]:
        """Webdataset calls a pipeline's first stage; ours is bound to an epoch by `Dataset.__iter__` instead."""
        raise InputError(
            "the pipeline of a Dataset cannot be run by another pipeline",
            remedy="iterate the Dataset itself, or append its stages to it",
        )


def name_with_view(source: AnySource) -> str:
    """Return the name of a source in messages: its URL, and which views its epochs have."""
    return f"{source.url}, view {source.view_text}" if source.view_text else source.url


class Source(AnySource):
    """Reads one dataset.

    Args:
        url: The dataset's folder.
        manifest: Its manifest.
        options: The order's options.
        fields: The fields to read; None for all.
        access: How the dataset is reached.
        name: Its name in messages and samples; empty for its folder.
        joined: The side shards of joined fields, from `read_side_shards`.

    Attributes:
        all_fields: The fields of the manifest, and joined ones.
        shards: Its shards, each with the bytes of all files that are read for its samples.

    Raises:
        InputError: The dataset has no such field.
    """

    def __init__(
        self,
        url: str,
        manifest: Manifest,
        options: OrderOptions,
        fields: Collection[str] | None = None,
        access: Access | None = None,
        name: str = "",
        joined: Sequence[Manifest] = (),
    ) -> None:
        self.url = name or shown_url(url)
        self._url = url
        self.access = access or Access()
        of_sides = [[each for each in side.fields if each.name != MISSING] for side in joined]
        self.manifest = manifest
        self.all_fields = tuple(chain(manifest.fields, *of_sides))
        self.options = options
        self.views = EpochViews()
        self.fields = None if fields is None else frozenset(fields)
        self._last_order: tuple[int, Units | None, EpochOrder] | None = None
        parts = []
        for part, fields_of_part in zip((manifest, *joined), (manifest.fields, *of_sides), strict=True):
            names = frozenset(each.name for each in fields_of_part)
            parts.append((part, names if self.fields is None else names & self.fields))
        self._read = [(part, names) for part, names in parts if names] or parts[:1]
        self.shards = manifest.shards
        if joined:
            sizes = [part.shards.column("num_bytes")[: len(manifest.shards)] for part, _ in self._read]
            self.shards = manifest.shards.with_bytes(np.sum(sizes, axis=0))
        known = [each.name for each in self.all_fields]
        unknown = sorted((self.fields or frozenset()).difference(known))
        if unknown:
            raise InputError(
                "the dataset has no such field",
                place=self.url,
                expected=", ".join(known),
                found=", ".join(unknown),
                remedy=did_you_mean(unknown, known) or "if an annotation has it, join the annotation too",
            )

    def __getstate__(self) -> dict[str, Any]:
        """Leave the last order out of a copy: computing it is faster than sending it."""
        return {**self.__dict__, "_last_order": None}

    @property
    def fingerprint(self) -> str:
        """Identifies the samples in a state."""
        return self.manifest.fingerprint

    def selection_at(self, epoch: int) -> Units | None:
        """Return the units of an epoch; None for each sample once."""
        return self.views.selection_at(epoch)

    def with_views(self, views: EpochViews) -> Self:
        """Return the same source with other views."""
        source = copy.copy(self)
        source.views = views
        return source

    def with_manifest(self, manifest: Manifest, joined: Sequence[Manifest]) -> Self:
        """Return the same source of another version of the dataset, with side shards of that version, without views."""
        return type(self)(self._url, manifest, self.options, self.fields, self.access, name=self.url, joined=joined)

    def num_samples_at(self, epoch: int) -> int:
        """Return the samples that an epoch takes, pads left out."""
        selection = self.selection_at(epoch)
        return self.manifest.num_samples if selection is None else selection.num_samples

    def units_text(self, epoch: int) -> str:
        """Return what an epoch has, for people: so many samples, or packs or groups of them."""
        units = self.selection_at(epoch)
        items = items_of(units)
        form = form_of(units)
        if units is None or items is None or form is None:
            return counted(self.num_samples_at(epoch), "sample")
        return f"{counted(items.num_samples, 'sample')} in {counted(units.num_samples, form.noun)}"

    def view_at(self, epoch: int) -> ViewMark | None:
        """Return the mark of an epoch's view for a state; None if it has all samples."""
        view = self.views.at(epoch)
        return None if view is None else ViewMark(view.name, view.selection.fingerprint)

    @property
    def view_text(self) -> str:
        """Which views epochs have, for people; empty if all have all samples."""
        return str(self.views) if self.views else ""

    @property
    def view_epochs(self) -> tuple[int, ...]:
        """The epochs with which another view begins, rising; 0 is one."""
        return tuple(epoch for epoch, _ in self.views)

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names of `cls` if it is read, else of the one column of classes that is; empty without one.

        Raises:
            InputError: Several columns have class names.
        """
        fields = [each for each in self.all_fields if self.fields is None or each.name in self.fields]
        own = [each for each in fields if each.name == "cls"]
        read = own or list({each.column: each for each in fields if each.names}.values())
        if len(read) > 1:
            example = repr(read[0].name)
            raise InputError(
                "several columns have class names",
                place=self.url,
                expected="one column of classes",
                found=", ".join(f"column {each.column!r} in field {each.name!r}" for each in read),
                remedy=f"ask by field: dataset.manifest.class_names[{example}]; or read one: fields=[..., {example}]",
            )
        return read[0].names if read else ()

    @property
    def sample_bytes(self) -> int:
        """The mean number of bytes of a shard that a sample takes."""
        return self._num_bytes // max(1, self.manifest.num_samples + self.manifest.num_pads)

    @cached_property
    def is_ahead(self) -> bool:
        """Whether anything of the dataset can be fetched ahead."""
        return self.access.cache is not None or self.storage().has_latency

    @property
    def shard_bytes(self) -> int:
        """About how many bytes a shard has: the mean."""
        return self._num_bytes // max(1, len(self.shards))

    @cached_property
    def _num_bytes(self) -> int:
        return int(self.shards.column("num_bytes").sum())

    def described(self) -> Mapping[str, Any]:
        """Return the main facts, for tables."""
        lanes, window = self.options.lanes, self.options.window
        return replace(self.manifest, fields=self.all_fields, lanes=lanes, window=window).described()

    def order(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch. The last one is kept, so that threads and forked processes share it."""
        selection, last = self.selection_at(epoch), self._last_order
        if last is None or last[0] != epoch or last[1] is not selection:
            totals = self.manifest.shards.num_real
            self._last_order = last = epoch, selection, EpochOrder(totals, self.options, epoch, selection=selection)
        return last[2]

    def reader(self, order: EpochOrder, world: World, ahead: Ahead | None = None) -> SampleReader:
        """Return a reader for the positions that one rank and worker has in an order."""
        if ahead is None and self.is_ahead:
            ahead = self._ahead(order, world)
        return self.reader_of(order, len(assigned_lanes(self.options.lanes, world)), ahead)

    def _ahead(self, order: EpochOrder, world: World) -> Ahead:
        num_lanes = len(assigned_lanes(self.options.lanes, world))
        window_bytes = num_lanes * window_items(order.selection, self.options.window) * self.sample_bytes
        return self.access.ahead(world.num_workers, window_bytes, num_lanes * self.shard_bytes)

    def reader_of(self, order: EpochOrder, num_lanes: int, ahead: Ahead | None) -> SampleReader:
        """Return a reader for positions in `num_lanes` lanes of any order of this dataset's samples."""
        storage = self.storage()
        opener = partial(self.open_shard, storage)
        if not self.is_ahead:
            ahead = None
        if ahead is not None:
            is_left = threading.Event()  # `ahead` is not in use any more; its own threads do not count
            weakref.finalize(ahead, is_left.set).atexit = False
            opener = partial(opener, is_needed=lambda: not is_left.is_set())
        salvages_in = storage.url if self.access.salvages else None
        return SampleReader(opener, self.shards, order, num_lanes, len(self._read), ahead, salvages_in)

    def open_shard(
        self,
        storage: ReadableStorage,
        number: int,
        is_needed: Callable[[], bool] = lambda: True,
        directly: bool = False,
    ) -> OpenShard:
        """Open what is read of a shard, given its number: its tar, and side shards with joined fields.

        Args:
            storage: The storage of the dataset.
            number: The shard's number.
            is_needed: As for `Access.open_shard`.
            directly: Open them where they are, whether there is a cache or not.
        """
        first, *joined = (
            self.access.open_shard(storage, part, part.shards[number], names, is_needed, directly)
            for part, names in self._read
        )
        return replace(first, joined=tuple(joined), origin=f"{storage.url}/{self.shards[number].path}")

    def place(self, order: EpochOrder, position: int, orders: dict[Any, EpochOrder], item: int = 0) -> Place:
        """Return where the sample of a position is; of a pack or group, its sample number `item`."""
        located = order.locate(np.array([position]))
        fields = {order.part_name: int(located.part[item])} if order.part_name else {}
        fields |= {PLACE: item} if order.is_bundled else {}
        if isinstance(order.selection, Groups):
            shard, unit, _ = order.units(np.array([position]))
            groups = order.shard_units(int(shard[0])).items(unit).groups
            fields |= {} if groups is None else {GROUP: groups[item]}
        return Place(self, int(located.shard[item]), int(located.sample[item]), fields)

    def storage(self) -> ReadableStorage:
        """Return the storage of the dataset."""
        return self.access.storage(self._url)

    def samples_a_position(self, epoch: int) -> float:
        """Return how many samples a position of an epoch has, on average."""
        units = self.selection_at(epoch)
        items = items_of(units)
        return 1 if units is None or items is None or not units.num_samples else items.num_samples / units.num_samples

    def form_at(self, epoch: int) -> Form | None:
        """Return what packs or groups the positions of an epoch are; None if they have a sample each."""
        return form_of(self.selection_at(epoch))

    def counted(self, order: EpochOrder, world: World) -> Iterator[tuple[int, int, int]]:
        """Give one reader's requests, their bytes and their windows in an order, after each list of positions.

        Nothing is read. The dataset is taken to be in a store, wherever it is.
        """
        num_lanes, opener = len(assigned_lanes(self.options.lanes, world)), partial(self.open_shard, self.storage())
        reader = CountingReader(opener, self.shards, order, num_lanes, ahead=self._ahead(order, world))
        for _ in Reading(reader, reader_positions(order, world, self.positions_at_once(world, order.epoch, True))):
            yield reader.num_requests, reader.num_bytes, reader.num_windows

    def positions_at_once(self, world: World, epoch: int, is_streamed: bool | None = None) -> int:
        """Return how many positions a reader should read at a time: about a window of each of its lanes.

        Whether they are streamed is known from the dataset, unless it is given.
        """
        num_samples = len(assigned_lanes(self.options.lanes, world)) * self.options.window
        if is_streamed is None:
            is_streamed = self.is_ahead and self.access.cache is None
        min_samples, num_bytes = (_MIN_FETCHED, _BYTES_FETCHED) if is_streamed else (_MIN_AT_ONCE, _BYTES_AT_ONCE)
        at_once = max(min_samples, min(_MAX_AT_ONCE, num_samples, num_bytes // max(1, self.sample_bytes)))
        return max(1, int(at_once / self.samples_a_position(epoch)))
