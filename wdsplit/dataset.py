"""The dataset: an epoch's samples, for this rank and worker, through webdataset's stages.

Composition of the manifest, the order, the split and the reader into a `torch.utils.data.IterableDataset`. The fluid
interface copies a dataset with every stage, and workers hold copies of their own: the epoch therefore lives in shared
memory, where `set_epoch` reaches all of them.
"""

from __future__ import annotations

import logging
import multiprocessing.context
import operator
import os
from collections.abc import Iterator
from typing import Any

import torch
from webdataset.compat import FluidInterface
from webdataset.pipeline import DataPipeline

from wdsplit.errors import InputError
from wdsplit.manifest import Manifest
from wdsplit.order import EpochOrder, Int64, OrderOptions, Tail
from wdsplit.plan import default_window
from wdsplit.reader import SampleReader
from wdsplit.shards import read_manifest
from wdsplit.split import Steps, World, assigned_lanes, reader_positions, readers_per_lane, whole
from wdsplit.storage import open_storage
from wdsplit.world import detect_rank, is_group_initialised, with_worker

__all__ = ["Dataset", "announce", "checked_epoch"]

logger = logging.getLogger(__name__)


def checked_epoch(epoch: int) -> int:
    """Return an epoch as a plain integer.

    Raises:
        InputError: It is negative, too large or no integer.
    """
    if isinstance(epoch, bool) or not hasattr(epoch, "__index__") or not 0 <= operator.index(epoch) < 2**62:
        raise InputError("the epoch cannot be", expected="an integer of at least 0", found=repr(epoch))
    return operator.index(epoch)


class SharedEpoch:
    """An epoch number in memory that copies and worker processes share."""

    def __init__(self, epoch: int = 0) -> None:
        self._cell = torch.full((1,), epoch, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    @property
    def value(self) -> int:
        """The epoch."""
        return int(self._cell[0])

    @value.setter
    def value(self, epoch: int) -> None:
        self._cell[0] = epoch

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedEpoch:
        """Return an epoch of its own: a deep copy goes its own way."""
        return SharedEpoch(self.value)


class Source:
    """The first stage: reads the samples of given positions, or of this reader's whole epoch.

    Args:
        url: The dataset's folder.
        manifest: Its manifest.
        options: The order's options.
    """

    def __init__(self, url: str, manifest: Manifest, options: OrderOptions) -> None:
        self.url = url
        self.manifest = manifest
        self.options = options

    @property
    def chunk(self) -> int:
        """Samples that are read at a time: those that make about 8 MiB, whatever the window."""
        return default_window(self.manifest.num_bytes, self.manifest.num_samples + self.manifest.num_pads)

    def order(self, epoch: int) -> EpochOrder:
        """Return the order of an epoch."""
        return EpochOrder(self.manifest.shards.num_real, self.options, epoch)

    def read(self, order: EpochOrder, world: World, chunks: Iterator[Int64]) -> Iterator[dict[str, Any]]:
        """Give the samples at the positions of the chunks, which must be those of one reader, rising."""
        num_lanes = len(assigned_lanes(self.options.lanes, world))
        reader = SampleReader(open_storage(self.url), self.manifest, order, num_lanes)
        for positions in chunks:
            yield from reader.read(positions)

    def __call__(self) -> Iterator[dict[str, Any]]:
        """Webdataset calls a pipeline's first stage; ours is bound to an epoch by `Dataset.__iter__` instead."""
        raise InputError(
            "the pipeline of a Dataset cannot be run by another pipeline",
            remedy="iterate the Dataset itself, or append its stages to it",
        )


class Dataset(DataPipeline, FluidInterface):  # type: ignore[misc]
    """The samples of a dataset that `wdsplit convert` wrote: an IterableDataset with webdataset's fluid stages.

    Iterating gives this rank's (and this worker's) part of the epoch as dicts of `__key__` (str), `__url__` (str),
    `__position__` (int, the sample's place in the epoch's global order), `__pad__` (bool, True if the sample is
    repeated only to fill up) and the fields as bytes, unless stages make something else of them. The order is a
    function of the manifest, the options and the epoch: the same on any number of ranks and workers.

    Use it with `wdsplit.Loader`, which gives the same batches on any topology and can resume; or with a plain
    `torch.utils.data.DataLoader`.

    Args:
        path: The dataset's folder.
        seed: What the shuffle depends on, besides the epoch.
        shuffle: Permute shards, windows and samples each epoch.
        tail: `pad` fills lanes and the last step with repeated samples, flagged; `drop` leaves out what is over;
            `uneven` does neither: ranks may differ, for those who evaluate without collectives.
        lanes: Lanes (C) instead of the dataset's own; changes the order.
        window: Samples of a window (Q) instead of the dataset's own; changes the order.
        rank: This process's rank; detected if None.
        world_size: The number of ranks; detected if None. `rank=0, world_size=1` switches the split off.
        group: A torch process group whose ranks count instead of all.

    Raises:
        DatasetNotFoundError: There is no finished dataset at `path`.
        CorruptDataError: Its manifest is damaged.
        InputError: An option cannot be.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        seed: int = 0,
        shuffle: bool = True,
        tail: Tail = "pad",
        lanes: int | None = None,
        window: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        group: Any = None,
    ) -> None:
        manifest = read_manifest(open_storage(str(path)))
        options = OrderOptions(
            whole(seed),
            bool(shuffle),
            manifest.lanes if lanes is None else whole(lanes),
            manifest.window if window is None else whole(window),
            tail,
        )
        super().__init__(Source(str(path), manifest, options))
        self._rank = None if rank is None and world_size is None else detect_rank(rank, world_size)
        self._group = group
        self._epoch = SharedEpoch()

    @property
    def source(self) -> Source:
        """The first stage."""
        source: Source = self.pipeline[0]
        return source

    @property
    def manifest(self) -> Manifest:
        """The dataset's manifest."""
        return self.source.manifest

    @property
    def options(self) -> OrderOptions:
        """What the order depends on."""
        return self.source.options

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration gives."""
        return self._epoch.value

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, here and in all workers, persistent or not.

        Raises:
            InputError: The epoch is negative or no integer.
        """
        self._epoch.value = checked_epoch(epoch)

    def world(self) -> World:
        """Return rank and world size of this process.

        Raises:
            TopologyError: They contradict each other.
        """
        return self._rank or detect_rank(group=self._group)

    def order(self, epoch: int | None = None) -> EpochOrder:
        """Return the order of an epoch, by default of the next iteration's."""
        return self.source.order(self.epoch if epoch is None else epoch)

    def __len__(self) -> int:
        """Return how many samples this rank gets in an epoch, over all its workers, pads included.

        Stages that change the number (select, batched) are not known here.
        """
        return len(Steps(self.order(), self.world(), batch_size=1))

    def __iter__(self) -> Iterator[Any]:
        """Give this rank's and worker's part of the epoch, through all stages."""
        order, world = self.order(), with_worker(self.world())
        announce(self, world)
        chunks = reader_positions(order, world, self.source.chunk)
        return self.through_stages(self.source.read(order, world, chunks))

    def through_stages(self, samples: Iterator[dict[str, Any]]) -> Iterator[Any]:
        """Give what the stages after the source make of samples.

        Raises:
            InputError: The dataset was told to repeat.
        """
        if self.repetitions != 1:
            raise InputError(
                "repeat and with_epoch do not go with a Dataset",
                expected="one epoch an iteration",
                remedy="iterate again with set_epoch(epoch + 1)",
            )
        stream: Any = samples
        for stage in self.pipeline[1:]:
            stream = self.invoke(stage, stream)
        return iter(stream)

    def __getstate__(self) -> dict[str, Any]:
        """Settle the rank before a copy goes to a process that cannot find it out: a spawned worker of this rank."""
        state = dict(self.__dict__)
        spawning = multiprocessing.context.get_spawning_popen() is not None
        if self._rank is None and (self._group is not None or (spawning and is_group_initialised())):
            state["_rank"] = self.world()
        state["_group"] = None
        return state


_announced: set[tuple[str, World]] = set()


def announce(dataset: Dataset, world: World) -> None:
    """Log once a process, dataset and world who reads, and what it costs if lanes are shared."""
    if (dataset.source.url, world) in _announced:
        return
    _announced.add((dataset.source.url, world))
    logger.info(
        "%s: rank %d of %d, worker %d of %d, seed %d",
        dataset.source.url,
        world.rank,
        world.world_size,
        world.worker,
        world.num_workers,
        dataset.options.seed,
    )
    lanes = dataset.options.lanes
    shared = readers_per_lane(lanes, world.world_size, world.num_workers)
    if shared > 1 and world.rank == 0 and world.worker == 0:
        readers = world.world_size * world.num_workers
        logger.info(
            "%s: %d ranks x %d workers do not divide %d lanes, so each window is read by %d of them. The order is "
            "the same; reading is cheapest when ranks x workers divides the lanes, as with lanes=%d",
            dataset.source.url,
            world.world_size,
            world.num_workers,
            lanes,
            shared,
            -(-lanes // readers) * readers,
        )
