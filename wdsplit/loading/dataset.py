"""The dataset: an epoch's samples, for this rank and worker, through webdataset's stages.

Composition of the manifest, the order, the split and the reader into a `torch.utils.data.IterableDataset`. The fluid
interface copies a dataset with every stage, and workers hold copies of their own: the epoch therefore lives in shared
memory, where `set_epoch` reaches all of them.
"""

from __future__ import annotations

import copy
import logging
import multiprocessing.context
import operator
import os
import reprlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from wdsplit.errors import InputError, TopologyError, UnsizedError
from wdsplit.loading.fluid import FluidPipeline
from wdsplit.loading.iteration import Iteration, resumable, why_not_one_to_one
from wdsplit.loading.options import DatasetOptions, access_of, checked_options, with_flat_signature
from wdsplit.loading.reading.lookup import find_sample
from wdsplit.loading.reading.source import AnySource, Source
from wdsplit.loading.second_split import refuse_counting_trainer, refuse_second_split, refuse_splitters
from wdsplit.loading.stages.columns import ColumnStage, Rename, ToTuple
from wdsplit.loading.stages.decoders import Handler, decode_sample_stage
from wdsplit.loading.stages.randomness import GeneratorKind, RandomMap
from wdsplit.loading.tars import open_dataset
from wdsplit.loading.transport.shared_integers import SharedIntegers
from wdsplit.loading.world import detect_rank, knows_rank, with_worker
from wdsplit.order.distribution import ShardDistribution, reading_advice, shard_distribution
from wdsplit.order.epoch import OrderOptions
from wdsplit.order.split import AnyOrder, World, whole
from wdsplit.shards.manifest import Manifest, first_samples

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

__all__ = ["Dataset", "announce", "checked_epoch"]

logger = logging.getLogger(__name__)


def checked_epoch(epoch: int) -> int:
    """Return an epoch as a plain integer; raise InputError if it is negative, too large or no integer."""
    if isinstance(epoch, bool) or not hasattr(epoch, "__index__") or not 0 <= operator.index(epoch) < 2**62:
        raise InputError("invalid epoch", expected="an integer of at least 0", found=repr(epoch))
    return operator.index(epoch)


_INTERNALS = {
    *("append", "close", "invoke", "iterator", "iterator1", "repeat", "stage", "with_epoch"),
    *("length", "nsamples", "pipeline", "repetitions", "size"),
    *("apply_stages", "check_one_to_one", "column_stages", "epochs_set"),
}
"""What webdataset's pipelines and our loaders need of a dataset, and no user calls."""


class SharedEpoch:
    """An epoch number in memory that stages and worker processes share, and how often it was set."""

    def __init__(self) -> None:
        self._cells = SharedIntegers(2)
        self._process = os.getpid()

    def get(self) -> int:
        """Return the epoch."""
        return int(self._cells.array[0])

    def set(self, epoch: int) -> None:
        """Set the epoch, and count that."""
        cells = self._cells.array
        cells[0] = epoch
        cells[1] += 1

    def times_set(self) -> int:
        """Return how often it was set.

        Only the process of a rank asks so, no worker. Ranks may have been started with one dataset, and must not see
        each other's epochs: so a process that did not make the numbers goes on with a copy.
        """
        if self._process != os.getpid():
            self._cells, self._process = copy.deepcopy(self._cells), os.getpid()
        return int(self._cells.array[1])


class Dataset(FluidPipeline):
    """An IterableDataset with webdataset's fluid stages: samples of a dataset of `wdsplit convert`, or of any tars.

    Iterating gives this rank's (and this worker's) part of the epoch as dicts of `__key__` (str), `__url__` (str),
    `__position__` (int, the sample's place in the epoch's global order), `__pad__` (bool, True if the sample is
    repeated only to fill up) and the fields as bytes, unless stages make something else of them. The order is a
    function of the manifest, the options and the epoch: the same on any number of ranks and workers.

    Use it with `wdsplit.Loader`, which gives the same batches on any topology and can resume; or with a plain
    `torch.utils.data.DataLoader`.

    Args:
        path: The dataset's folder; or WebDataset tars without a manifest: a tar, a glob, a brace expression, or a list
            of these, local or remote. Such tars are read once to index them; the indexes are kept in `cache_dir`, or
            below `$XDG_CACHE_HOME/wdsplit` or `~/.cache/wdsplit`, and nothing is written beside the tars.
        seed: What the shuffle depends on, besides the epoch.
        shuffle: Permute shards, windows and samples each epoch.
        tail: `pad` fills lanes and the last step with repeated samples, flagged; `drop` leaves out what is over;
            `uneven` does neither: ranks may differ, for evaluation without collectives.
        lanes: Lanes (C) instead of the dataset's own; changes the order.
        window: Samples of a window (Q) instead of the dataset's own; changes the order.
        rank: This process's rank; detected if None.
        world_size: The number of ranks; detected if None. `rank=0, world_size=1` switches the split off.
        group: A torch process group, DeviceMesh or slice of one, whose ranks count instead of all: ranks that hold the
            same data-parallel place get the same samples.
        fields: The fields to read; None for all.
        limit: Only the first samples of the dataset, so many, to try a program out: to all else they are the whole
            dataset. None, or more than there are, for all.
        storage_options: How to reach a remote store, if the environment does not say so: as of s3fs (`key`, `secret`,
            `token`, `anon`, `profile`, `endpoint_url`, ...), and `deadline_s`, for how long a request is tried.
        fs: The file system that `path` is on, an object of fsspec such as `s3fs.S3FileSystem(...)`; each process makes
            its own copy. None for what the path says itself.
        read_ahead_bytes: Of a remote dataset, the bytes that all workers of a rank fetch before they are needed,
            together; None for 128 MiB, or the windows that they hold, if that is more.
        connections: The requests that they have under way at the same time, together.
        cache_dir: A folder of the node's own disk, which keeps the shards of a remote dataset for all processes of the
            node and for later epochs and runs.
        cache_size: How much it may take: bytes, or a text like `200GB`; None for all that leaves a tenth of the disk.
        verify: Compare the bytes of each sample that is read with its checksum; a remote one that differs is fetched
            again, once. `wdsplit verify DATASET --emit checksums` makes the checksums.

    Raises:
        DatasetNotFoundError: There is no finished dataset at `path`, or no such tar.
        CorruptDataError: Its manifest, or a tar, is damaged.
        InputError: An option is invalid, or tars hold invalid samples or a key twice.
        StorageError: The indexes of tars cannot be written.
    """

    @with_flat_signature
    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        window: int | None = None,
        limit: int | None = None,
        **options: Unpack[DatasetOptions],
    ) -> None:
        window = whole(window)
        chosen = checked_options(options, window)
        url, manifest, access = open_dataset(path, access_of(chosen), chosen["cache_dir"], chosen["fs"])
        if limit is not None:
            manifest = first_samples(manifest, whole(limit))
        order = OrderOptions(
            chosen["seed"],
            chosen["shuffle"],
            chosen["lanes"] or manifest.lanes,
            window or manifest.window,
            chosen["tail"],
        )
        self._begin_with(Source(url, manifest, order, chosen["fields"], access), chosen)

    def _begin_with(self, source: AnySource, options: DatasetOptions) -> None:
        super().__init__(source)
        rank, world_size = options["rank"], options["world_size"]
        self._rank = None if rank is None and world_size is None else detect_rank(rank, world_size)
        self._group = options["group"]
        self._epoch = SharedEpoch()

    @property
    def source(self) -> AnySource:
        """The first stage."""
        source: AnySource = self.pipeline[0]
        return source

    @property
    def manifest(self) -> Manifest:
        """The dataset's manifest.

        Raises:
            InputError: The dataset is a mixture.
        """
        return self._single("a manifest").manifest

    def _single(self, what: str) -> Source:
        source = self.source
        if not isinstance(source, Source):
            raise InputError(
                f"a mixture has not {what} of its own",
                place=source.url,
                remedy="open the dataset that you mean with wdsplit.Dataset",
            )
        return source

    @property
    def options(self) -> OrderOptions:
        """What the order depends on."""
        return self.source.options

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration gives."""
        return self._epoch.get()

    @property
    def epochs_set(self) -> int:
        """How often an epoch was chosen."""
        return self._epoch.times_set()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, here and in all workers, persistent or not.

        Raises:
            InputError: The epoch is negative or no integer, or the caller would split the samples a second time.
        """
        refuse_second_split(self.source.url, self.world)
        self._epoch.set(checked_epoch(epoch))

    def world(self) -> World:
        """Return rank and world size of this process.

        Raises:
            TopologyError: They contradict each other.
        """
        return self._rank or detect_rank(group=self._group)

    def at_rank(self, rank: int, world_size: int) -> Dataset:
        """Return the same dataset, with the same epoch, for a rank that a library knows.

        Raises:
            TopologyError: The dataset was opened for another one, or there is no such rank.
        """
        given = World(whole(rank), whole(world_size))
        if (self._rank is not None or self._group is not None) and self.world() != given:
            raise TopologyError(
                "the dataset was opened for another rank",
                expected=f"rank {given.rank} of {given.world_size}",
                found=f"rank {self.world().rank} of {self.world().world_size}",
                remedy="leave out rank=, world_size= and group=",
            )
        dataset: Dataset = self.compose()
        dataset._rank, dataset._group = given, None
        return dataset

    def order(self, epoch: int | None = None) -> AnyOrder:
        """Return the order of an epoch, by default of the next iteration's."""
        return self.source.order(self.epoch if epoch is None else epoch)

    def __len__(self) -> int:
        """Raise UnsizedError: a loop that divides a length by the batch size would end before its workers do.

        Each worker of torch's DataLoader has a last batch of its own, so no length is right for all loops.
        """
        refuse_counting_trainer(self, self.source.url)
        raise UnsizedError(
            "a Dataset has no length",
            place=self.source.url,
            found="the number of batches depends on ranks, workers and batch size",
            remedy="loop over wdsplit.Loader(dataset, batch_size), whose len() is the steps of this rank; the dataset "
            f"has {self.source.num_samples} samples: dataset.source.num_samples",
            url=self.source.url,
        )

    def __bool__(self) -> bool:
        """Return True, as objects without a length are."""
        return True

    def __enter__(self) -> Self:
        """Return the dataset itself: what iterations open, they close."""
        return self

    def __exit__(self, *error: object) -> None:
        """Do nothing."""

    def __dir__(self) -> list[str]:
        """List what a user calls, not what pipelines and loaders need."""
        names = set(super().__dir__()) - _INTERNALS
        return sorted(name for name in names if name.startswith("__") or not name.startswith("_"))

    def __iter__(self) -> Iteration:
        """Give this rank's and worker's part of the epoch, through all stages; the iterator has a `state_dict`.

        Raises:
            InputError: The caller would split the samples a second time.
        """
        refuse_second_split(self.source.url, self.world)
        world = with_worker(self.world())
        announce(self, world)
        staged = self.compose()
        staged.pipeline[1:] = [resumable(stage, self.invoke) for stage in self.pipeline[1:]]
        return Iteration(self.source, self.epoch, world, staged.pipeline[1:], staged.apply_stages)

    def apply_stages(self, samples: Iterator[dict[str, Any]], epoch: int) -> Iterator[Any]:
        """Give what the stages after the source make of samples of an epoch."""
        self._refuse_repetitions()
        stream: Any = samples
        for stage in self.pipeline[1:]:
            stream = self.invoke(stage.at(epoch) if isinstance(stage, RandomMap) else stage, stream)
        return iter(stream)

    def _refuse_repetitions(self) -> None:
        if self.repetitions != 1:
            raise InputError(
                "repeat and with_epoch do not go with a Dataset",
                expected="one epoch an iteration",
                remedy="iterate again with set_epoch(epoch + 1)",
            )

    def check_one_to_one(self) -> None:
        """Refuse stages of which it is known that they cannot give one sample for each they take.

        Those that may drop samples (`select`) are let through: they may drop none.

        Raises:
            InputError: There are such stages; all are named.
        """
        self._refuse_repetitions()
        refuse_splitters(self.pipeline, self.source.url)
        reasons = [reason for reason in map(why_not_one_to_one, self.pipeline[1:]) if reason]
        if reasons:
            raise InputError(
                "the dataset has stages that cannot work in a Loader",
                place=self.source.url,
                expected="one sample for each that a stage takes, so that every rank has the same steps",
                found="; ".join(reasons),
                remedy="leave them out: the Loader makes the batches, and the Dataset shuffles by itself",
            )

    def column_stages(self) -> list[ColumnStage] | None:
        """Return the stages after the source if all of them work on columns; None if one does not."""
        stages = self.pipeline[1:]
        if all(isinstance(stage, ColumnStage) and stage.is_columnar for stage in stages) and self.repetitions == 1:
            return list(stages)
        return None

    def decode(
        self,
        *handlers: str | Handler,
        only: Sequence[str] | str | None = None,
        partial: bool = False,
        allow_pickle: bool = False,
        **options: Any,
    ) -> Dataset:
        """Decode the fields of each sample by their names, as webdataset's `decode` does, but unpickle nothing unasked.

        `help(wdsplit.decode_sample_stage)` describes the rest.

        Args:
            handlers: Names of image formats (`pil`, `rgb8`, `torchrgb`, ...), or functions of name and bytes.
            only: The fields that are decoded; None for all.
            partial: Leave values alone that are not bytes.
            allow_pickle: Decode pickles and object arrays too: they can run any code, so only if you trust the shards.
            options: `pre`, `post`, `max_field_bytes`.
        """
        if "handler" in options:
            raise InputError(
                "decode takes no handler for errors",
                expected="no handler=: a sample that was skipped would make ranks come apart",
                remedy="leave it out; decode such a field by a function of your own that returns something else for it",
            )
        return self._with(
            decode_sample_stage(*handlers, only=only, partial=partial, allow_pickle=allow_pickle, **options)
        )

    def map_random(
        self, function: Callable[..., Any], field: str | None = None, generator: GeneratorKind = "numpy"
    ) -> Dataset:
        """Map samples by a function of chance: the same on any topology, and after a resume.

        The function is called with the sample, or with the value of one field, and a generator that is seeded from the
        dataset's seed, the epoch and the sample's position.

        Args:
            function: Called with (sample, generator), or (value, generator) if `field` is given.
            field: The field that is replaced by what the function returns; None for the whole sample.
            generator: `numpy` (numpy.random.Generator), `torch` (torch.Generator), `python` (random.Random); or
                `global`: the function is called without one, while the global generators of all three are seeded, for
                transforms that draw from those. Threads share them, so `global` does not go with them.
        """
        number = sum(isinstance(stage, RandomMap) for stage in self.pipeline)
        return self._with(RandomMap(function, field, generator, self.options.seed, number))

    def _with(self, stage: Any) -> Dataset:
        dataset: Dataset = self.compose(stage)
        return dataset

    def to_tuple(self, *args: Any, **options: Any) -> Dataset:
        """Make each sample a tuple of the named fields, as webdataset's `to_tuple` does."""
        names = tuple(args[0].split()) if len(args) == 1 and isinstance(args[0], str) else args
        dataset: Dataset = super().to_tuple(*args, **options) if options else self._with(ToTuple(names))
        return dataset

    def rename(self, **names: Any) -> Dataset:
        """Give fields other names, `new="old"`, as webdataset's `rename` does."""
        has_options = bool({"handler", "keep"} & names.keys())
        dataset: Dataset = super().rename(**names) if has_options else self._with(Rename(names))
        return dataset

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names by their numbers, of the first field that has some; empty if none has.

        Raises:
            InputError: The dataset is a mixture.
        """
        return next((field.names for field in self._single("class names").manifest.fields if field.names), ())

    def shard_distribution(self, num_workers: int = 0, batch_size: int = 1) -> ShardDistribution:
        """Return which shards this rank and its workers read in the next epoch, and what that costs.

        Args:
            num_workers: Workers of each rank.
            batch_size: Samples a batch and rank.
        """
        source = self._single("shards")
        world = with_worker(self.world())
        if num_workers and world.num_workers == 1:
            world = World(world.rank, world.world_size, 0, num_workers)
        return shard_distribution(source.order(self.epoch), world, batch_size)

    get_shard_distribution_info = shard_distribution

    def sample(self, key_or_index: str | int) -> dict[str, Any]:
        """Return one sample, with its fields as bytes: by its key, or by its number in the dataset.

        Raises:
            SampleNotFoundError: There is no such sample.
        """
        source = self._single("numbers")
        return find_sample(source.storage(), source.manifest, key_or_index, source.access.open_directly)

    def __getitem__(self, index: Any) -> NoReturn:
        """Raise InputError: there are no items, only samples that come through the stages, and `sample`."""
        raise InputError(
            "a Dataset has no items: its samples come by iterating over it",
            place=self.source.url,
            found=f"dataset[{reprlib.repr(index)}]",
            remedy="dataset.sample(key_or_index) gives one sample, with its fields as bytes, before any stage",
        )

    def __repr__(self) -> str:
        stages = len(self.pipeline) - 1
        return f"<{type(self).__name__} {self.source.url}: {self.source.num_samples:,} samples, {stages} stages>"

    def __getstate__(self) -> dict[str, Any]:
        """Settle the rank before a copy goes to a process that cannot find it out: a spawned worker of this rank."""
        state = dict(self.__dict__)
        spawning = multiprocessing.context.get_spawning_popen() is not None
        if self._rank is None and (self._group is not None or (spawning and knows_rank())):
            state["_rank"] = self.world()
        state["_group"] = None
        return state


_announced: set[tuple[str, World, str]] = set()


def announce(dataset: Dataset, world: World, num_workers: int = 0) -> None:
    """Log once a process, dataset and world which rank and worker read, and what it costs if lanes are shared.

    Args:
        dataset: The dataset.
        world: The reader.
        num_workers: The workers of the rank, if its own process logs for all of them.
    """
    url, workers = dataset.source.url, f"{num_workers} workers"
    if not num_workers:
        workers = f"worker {world.worker} of {world.num_workers}"
    if (url, world, workers) in _announced:
        return
    _announced.add((url, world, workers))
    seed = dataset.options.seed
    logger.info("%s: rank %d of %d, %s, seed %d", url, world.rank, world.world_size, workers, seed)
    advice = reading_advice(dataset.options.lanes, world.world_size, num_workers or world.num_workers)
    if advice is not None and world.rank == 0 and world.worker == 0:
        logger.warning("%s: %s", url, advice)
