"""The dataset: an epoch's samples, for this rank and worker, through webdataset's stages.

Composition of the manifest, the order, the split and the reader into a `torch.utils.data.IterableDataset`. The fluid
interface copies a dataset with every stage, and workers hold copies of their own: the epoch therefore lives in shared
memory, where `set_epoch` reaches all of them.
"""

from __future__ import annotations

import dataclasses
import multiprocessing.context
import os
import reprlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from wdsplit.errors import InputError, TopologyError, UnsizedError
from wdsplit.loading.announcing import announce
from wdsplit.loading.epochs import SharedEpoch, checked_epoch
from wdsplit.loading.fluid import FluidPipeline
from wdsplit.loading.iteration import Iteration, resumable, why_not_one_to_one
from wdsplit.loading.opening import opened_source
from wdsplit.loading.options import DatasetOptions, bad_samples_of, checked_options, with_flat_signature
from wdsplit.loading.reading.lookup import find_sample
from wdsplit.loading.reading.source import AnySource, Source
from wdsplit.loading.second_split import refuse_counting_trainer, refuse_second_split, refuse_splitters
from wdsplit.loading.stages.columns import ColumnStage
from wdsplit.loading.staging import Staging
from wdsplit.loading.views import Opened, SharedSource, choice_of
from wdsplit.loading.world import detect_rank, knows_rank, with_worker
from wdsplit.notebook import html_table
from wdsplit.order.distribution import ShardDistribution, shard_distribution
from wdsplit.order.epoch import OrderOptions
from wdsplit.order.split import AnyOrder, World, whole
from wdsplit.shards.manifest import Manifest

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from wdsplit.reporting.preview import Preview

__all__ = ["Dataset"]


_INTERNALS = {
    *("append", "close", "invoke", "iterator", "iterator1", "repeat", "stage", "with_epoch"),
    *("length", "nsamples", "pipeline", "repetitions", "size"),
    *("check_one_to_one", "column_stages", "epochs_set", "is_view_set", "replaces_bad_samples", "staging"),
}
"""What webdataset's pipelines and our loaders need of a dataset, and no user calls."""


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
        view: Only the samples of a view: its name, as `wdsplit view` has stored it, or a `wdsplit.View`. Or views by
            epoch: `{0: "easy", 10: None}` is "easy" in the epochs 0 to 9, and all samples from epoch 10 on. A view of
            such a dict may also be a dict of the options `view`, `where`, `keys` and `exclude`.
        where: Only the samples that meet a condition on their columns, such as `score > 0.5 and width >= 256`.
        keys: Only the samples with these keys: a list, or a file of them.
        exclude: All samples but those with these keys: a list, or a file of them.
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
        on_bad_sample: What to do with a sample that is damaged, or for which a stage raises an error or gives nothing:
            `raise` the error; or `substitute`: a good sample, of its lane if possible, takes its place, flagged
            `__pad__`, so that all ranks stay in step. docs/bad-samples.md.
        max_bad_samples: How many bad samples are replaced in an epoch on each rank before an error is raised: a number,
            or a float, their part of the rank's samples.
        bad_samples_file: A local file to which each bad sample is appended once, as a line of JSON.

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
        source, opened = opened_source(path, window, limit, chosen)
        self._begin_with(source, [opened], chosen)

    def _begin_with(self, source: AnySource, opened: Sequence[Opened], options: DatasetOptions) -> None:
        super().__init__(source)
        self._source = SharedSource(source, opened, choice_of(options))
        rank, world_size = options["rank"], options["world_size"]
        self._rank = None if rank is None and world_size is None else detect_rank(rank, world_size)
        self._group = options["group"]
        self._epoch = SharedEpoch()
        self._bad_samples = bad_samples_of(options)

    @property
    def source(self) -> AnySource:
        """The first stage, with the views that were chosen last."""
        return self._source.get()

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

    @property
    def replaces_bad_samples(self) -> bool:
        """Whether others take the places of bad samples."""
        return self._bad_samples is not None

    def set_view(self, view: Any = None, *, where: Any = None, keys: Any = None, exclude: Any = None) -> None:
        """Choose the samples of the next iterations, here and in all copies of the dataset made by stages.

            for epoch in range(10):
                dataset.set_view("easy" if epoch < 5 else None)
                loader.set_epoch(epoch)
                for batch in loader: ...

        What was chosen before counts no more; a `limit` does. An iteration under way goes on as it began. A
        `wdsplit.Loader` starts persistent workers anew. Those of torch's own DataLoader cannot see a new view, and
        raise an error. All ranks must choose the same. Views by epoch, as `Dataset(view={0: "easy", 5: None})` has
        them, need no call, and a loader that resumes finds them by itself.

        Args:
            view: As of `Dataset`: the name of a view, a `wdsplit.View`, a dict of these by epoch; None for all samples.
            where: As of `Dataset`.
            keys: As of `Dataset`.
            exclude: As of `Dataset`.

        Raises:
            InputError: There is no such view, or an argument is invalid. Then the views stay as they were.
            WdsplitError: A view or a table of samples cannot be read.
        """
        self._source.set({"view": view, "where": where, "keys": keys, "exclude": exclude})

    @property
    def is_view_set(self) -> bool:
        """Whether `set_view` was called."""
        return self._source.is_set

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
            f"has {self.source.num_samples_at(self.epoch)} samples: dataset.source.num_samples",
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
        source, epoch = self.source, self.epoch
        refuse_second_split(source.url, self.world)
        outdated: Any = self._source.outdated()
        if outdated is not None:
            return outdated  # type: ignore[no-any-return]
        world = with_worker(self.world())
        announce(source, epoch, world)
        staging = self.staging()
        resumed = [resumable(stage, self.invoke) for stage in staging.others]
        return Iteration(source, epoch, world, dataclasses.replace(staging, others=resumed))

    def staging(self) -> Staging:
        """Return the stages after the source."""
        self._refuse_repetitions()
        stages = self.pipeline[1:]
        first = 0
        if self._bad_samples is not None:
            first = next((number for number, stage in enumerate(stages) if why_not_one_to_one(stage)), len(stages))
        return Staging(stages[:first], stages[first:], self.invoke, self._bad_samples)

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

    @property
    def classes(self) -> tuple[str, ...]:
        """The class names by their numbers; empty if no column has class names. All datasets of a mixture must agree.

        Raises:
            InputError: Several columns have class names (see `manifest.class_names`), or datasets of a mixture differ.
        """
        return self.source.classes

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

    def preview(self, n: int = 12, seed: int | None = None) -> Preview:
        """Return some samples to look at, as they are stored: before any stage, and from all over the files.

        A notebook shows pictures, sounds and texts; `print` shows a line for each. Thumbnails and the contact sheet
        need `wdsplit[report]`; without it there are lines.

        Args:
            n: How many samples, up to 200.
            seed: Which of them; None for the dataset's seed.

        Raises:
            InputError: `n` is invalid.
            WdsplitError: A shard cannot be read.
        """
        from wdsplit.reporting.preview import preview  # above this package: see docs/design/layout.md

        return preview(self.source, n, self.options.seed if seed is None else seed)

    def __getitem__(self, index: Any) -> NoReturn:
        """Raise InputError: there are no items, only samples that come through the stages, and `sample`."""
        raise InputError(
            "a Dataset has no items: its samples come by iterating over it",
            place=self.source.url,
            found=f"dataset[{reprlib.repr(index)}]",
            remedy="dataset.sample(key_or_index) gives one sample, with its fields as bytes, before any stage",
        )

    def __repr__(self) -> str:
        source, stages = self.source, len(self.pipeline) - 1
        view = f" (view: {source.view_text})" if source.view_text else ""
        num_samples = source.num_samples_at(self.epoch)
        return f"<{type(self).__name__} {source.url}: {num_samples:,} samples{view}, {stages} stages>"

    def _repr_html_(self) -> str:
        seed = f"seed {self.options.seed}" if self.options.shuffle else "not shuffled"
        stages = ", ".join(type(stage).__name__ for stage in self.pipeline[1:]) or "none"
        rows = {**self.source.described(), "epoch": f"{self.epoch}, {seed}", "stages": stages}
        if self.source.view_text:
            num_samples = self.source.num_samples_at(self.epoch)
            rows["view"] = f"{self.source.view_text}: {num_samples:,} samples in epoch {self.epoch}"
        return html_table(f"{type(self).__name__} {self.source.url}", rows.items())

    def __getstate__(self) -> dict[str, Any]:
        """Settle the rank before a copy goes to a process that cannot find it out: a spawned worker of this rank."""
        state = dict(self.__dict__)
        spawning = multiprocessing.context.get_spawning_popen() is not None
        if self._rank is None and (self._group is not None or (spawning and knows_rank())):
            state["_rank"] = self.world()
        state["_group"] = None
        return state
