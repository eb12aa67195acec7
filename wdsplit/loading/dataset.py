"""The dataset: an epoch's samples, for this rank and worker, through webdataset's stages.

Composition of the manifest, the order, the split and the reader into a `torch.utils.data.IterableDataset`. The fluid
interface copies a dataset with every stage, and workers hold copies of their own: `views.Shared` has what they share.
Passes are counted by each copy of this process alone: a worker cannot know whether the loop has taken
all that it has made, so ranks whose workers counted them could disagree.
"""

from __future__ import annotations

import multiprocessing.context
import os
import reprlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

from wdsplit import notebook
from wdsplit.errors import InputError, TopologyError, UnsizedError, WdsplitError
from wdsplit.integers import whole
from wdsplit.loading.announcing import announce, warn_of_dropped_samples, warn_of_same_samples
from wdsplit.loading.bad_samples import Found, with_file
from wdsplit.loading.fluid import FluidPipeline
from wdsplit.loading.numbered import NumberedSamples
from wdsplit.loading.opening import opened_source
from wdsplit.loading.options import (
    AllOptions,
    DatasetOptions,
    bad_samples_of,
    checked_epoch,
    checked_options,
    choice_of,
    with_flat_signature,
)
from wdsplit.loading.reading.reader import Reading
from wdsplit.loading.reading.source import AnySource
from wdsplit.loading.second_split import refuse_counting_trainer, refuse_second_split, refuse_splitters
from wdsplit.loading.stage_kinds import why_not_one_to_one
from wdsplit.loading.stages.columns import ColumnStage
from wdsplit.loading.substitutes import OneByOne, Substitutes
from wdsplit.loading.transport.collate import LeftOut
from wdsplit.loading.transport.counters import Counters
from wdsplit.loading.transport.shared_integers import SharedIntegers
from wdsplit.loading.views import Opened, Shared
from wdsplit.loading.world import detect_rank, is_worker, knows_rank, with_worker
from wdsplit.notebook import Preview, html_table
from wdsplit.order.split import AnyOrder, World, reader_positions
from wdsplit.order.trace import ShardDistribution, Trace
from wdsplit.texts import counted

if TYPE_CHECKING:
    from typing_extensions import Unpack


__all__ = ["Dataset"]


_INTERNALS = {
    *("pipeline", "repeat", "with_epoch", "with_length"),
    *("check_one_to_one", "column_stages", "compare_ranks", "moved_to", "process_group"),
    *("one_by_one", "replaces_bad_samples", "shared"),
}
"""Methods that webdataset's pipelines and wdsplit's loaders call, and users do not."""


class Dataset(FluidPipeline):
    """A torch IterableDataset of the samples in a dataset of `wdsplit convert`, or in any WebDataset tars.

        dataset = wdsplit.Dataset("data/train", seed=0).decode("pil").to_tuple("jpg", "cls")
        for image, label in dataset: ...

    Iterating yields this rank's and worker's part of an epoch. A sample is a dict of its fields as bytes, and

    - `__key__` (str) and `__url__` (str): its key and its shard;
    - `__position__` (int): its place in the epoch's global order;
    - `__pad__` (bool): True if it repeats a sample only to fill up the epoch.

    A complete pass in this process moves on to the next epoch, which has another order. Worker processes of torch's
    DataLoader cannot: call `set_epoch` before each pass.

    Stages such as `decode`, `map` and `to_tuple`, named as in webdataset, change the samples. The manifest, the options
    and the epoch fix the order: it is the same on any number of ranks and workers.

    Pass it to a `wdsplit.Loader`, which gives the same batches on any number of ranks and can resume, or to a
    `torch.utils.data.DataLoader`.

    Args:
        path: The dataset's folder; or WebDataset tars without a manifest: a tar, a glob, a brace expression, or a list
            of these, local or remote. Such tars are read once to index them. The indexes are kept in `cache_dir`, or
            below `$XDG_CACHE_HOME/wdsplit` or `~/.cache/wdsplit`; nothing is written beside the tars.
        seed: Seed of the shuffle, which also depends on the epoch.
        shuffle: Permute shards, windows and samples each epoch.
        tail: How to end an epoch: `pad` fills lanes and the last step with repeated samples, flagged; `drop` leaves out
            the incomplete last step; `uneven` does neither, so ranks may differ: for evaluation without collectives.
        lanes: Number of lanes (C), parallel sequences of shards; None for the dataset's, or for those of
            its view, which may be fewer where packs or groups are large. Another one changes the order.
        window: Samples in a window (Q), which are read and shuffled together; None for the dataset's. Another one
            changes the order.
        rank: This process's rank; detected if None.
        world_size: The number of ranks; detected if None. `rank=0, world_size=1` switches the split off.
        process_group: A torch process group, DeviceMesh or slice of one, to split among its ranks instead of all. Ranks
            at the same data-parallel place get the same samples.
        fields: The fields to read; None for all. Tars and side shards with none of them are not opened.
        join: Annotations whose fields samples get too, such as latents: names that `wdsplit annotate` gave. The order
            stays the same.
        limit: Use only the first `limit` samples, as if they were the whole dataset, to try out a program. None for
            all.
        version: The number of a version of a dataset that samples were appended to; None for the latest, or for that of
            the state that a `Loader` loads before its first batch. `wdsplit log` lists them.
        view: Use only the samples of a view: the name of a stored view, or a `wdsplit.View`. Or views by epoch:
            `{0: "easy", 10: None}` is "easy" in the epochs 0 to 9, and all samples from epoch 10 on. A view of such a
            dict may also be a dict of these options: `view`, `where`, ..., `allow_pads`.
        where: Use only the samples that meet a condition on their columns, such as `score > 0.5 and width >= 256`.
        keys: Use only the samples with these keys: a list, or a file of them.
        exclude: Leave out the samples with these keys: a list, or a file of them.
        repeat: A column of integers: how often each sample comes in an epoch, far apart; 0 leaves it out. `__repeat__`
            numbers the times from 0.
        expand: A column of integers: how many parts each sample has, such as clips of a video. The sample comes once
            for each, and is read once; `__part__` numbers them from 0, for a stage that makes the part.
        pack: A column of integers: how long each sample is, such as its tokens. Several samples are packed together. A
            position of the epoch is then a pack, and `batch_size` counts packs: see `Loader`.
        capacity: How long the samples of a pack are together at most.
        group: A column whose values are those of groups, such as the aspect ratios of images. A position of the epoch
            is then `size` samples of one value, other ones in each epoch, and a whole batch: see `Loader`. Or, with
            `budget`, a column of lengths: samples of similar length. `__group__` has the value, or the length.
        size: How many samples a group has; with `budget` at most.
        budget: How long the samples of a group are together at most, each counted as long as the longest.
        long: What to do with samples longer than a pack, or than the budget: raise an `error` (the default), `drop` or,
            of packs, `truncate` them.
        allow_pads: Allow groups of which more than a twentieth are samples repeated to fill them.
        storage_options: How to reach a remote store, where the environment does not say: options of s3fs (`key`,
            `secret`, `token`, `anon`, `profile`, `endpoint_url`, ...), and `deadline_s`, how long to retry a request.
        fs: The file system of `path`, an fsspec object such as `s3fs.S3FileSystem(...)`; each process makes its own
            copy. None to choose it by the path.
        read_ahead_bytes: Bytes of a remote dataset to prefetch, for all workers of a rank together; None for 32 MiB,
            or for the size of their windows, if that is more, and up to 128 MiB once windows come too late.
        connections: Concurrent requests to a remote store, for all workers of a rank together.
        cache_dir: A folder on the node's own disk to keep the shards of a remote dataset in, for all processes of the
            node and for later epochs and runs.
        cache_size: Size limit of the cache: bytes, or a text like `200GB`; None to fill the disk up to nine tenths.
        verify: Compare large samples of a local dataset with their hashes too, for which they are read whole. Small
            samples, and all that is fetched from a store, are always compared.
        on_bad_sample: What to do with a sample that is damaged, or for which a stage raises an error or returns
            nothing: `raise` the error; or `substitute` a good sample, of its lane if possible, flagged `__pad__`, so
            that all ranks stay in step. See docs/bad-samples.md.
        max_bad_samples: Bad samples to replace in an epoch on each rank before that rank raises an error: a number, or
            a float, the fraction of the samples that the rank reads. Pads do not count; 1.0 allows all.
        bad_samples_file: A local file that lists each bad sample once, as a line of JSON.

    Raises:
        DatasetNotFoundError: There is no finished dataset at `path`, or no such tar.
        CorruptDataError: The manifest or a tar is damaged.
        InputError: An option is invalid, or tars have invalid samples or duplicate keys.
        StorageError: The indexes of tars cannot be written.
    """

    @with_flat_signature(AllOptions)
    def __init__(
        self,
        path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        window: int | None = None,
        limit: int | None = None,
        version: int | None = None,
        **options: Unpack[AllOptions],
    ) -> None:
        window = whole(window)
        chosen = checked_options(options, window, AllOptions)
        source, opened = opened_source(path, window, limit, chosen, version)
        self._begin_with(source, [opened], chosen)

    def _begin_with(self, source: AnySource, opened: Sequence[Opened], options: DatasetOptions) -> None:
        super().__init__(source)
        self.shared = Shared(source, opened, choice_of(options))
        rank, world_size = options["rank"], options["world_size"]
        self._rank = None if rank is None and world_size is None else detect_rank(rank, world_size)
        self.process_group = options["process_group"]
        self._following = 0, 0
        self._finished = SharedIntegers(3)
        self._bad_samples = bad_samples_of(options)

    @property
    def source(self) -> AnySource:
        """The first stage, with its views."""
        return self.shared.source

    @property
    def epoch(self) -> int:
        """The epoch of the next iteration."""
        times_set, following = self._following
        return following if times_set == self.shared.epochs_set else self.shared.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration, here and in all workers, persistent or not.

            for epoch in range(10):
                dataset.set_epoch(epoch)
                for sample in dataset: ...

        An iteration under way keeps its epoch; call it between passes, so that persistent workers agree. It reaches all
        datasets that stages have made of this one or that it was made of, and their Loaders. Passes do not: each of
        these datasets and each `wdsplit.Loader` moves on by itself, from the epoch that was set.

        Raises:
            InputError: The epoch is not an integer of at least 0, or the caller would split the samples a second time.
        """
        refuse_second_split(self.source.url, self.world)
        self.shared.set_epoch(checked_epoch(epoch))

    @property
    def replaces_bad_samples(self) -> bool:
        """Whether bad samples are replaced."""
        return self._bad_samples is not None

    def compare_ranks(self) -> None:
        """Refuse to iterate if another rank has opened another version as the latest; warn if all get the same."""
        if self._rank is None and self.process_group is None:  # else ranks may have datasets of their own
            self.shared.refuse_other_version()
        elif self._rank == World() and not is_worker():
            warn_of_same_samples(self.source.url)

    def world(self) -> World:
        """Return rank and world size of this process.

            print(dataset.world().rank, dataset.world().world_size)

        Raises:
            TopologyError: Rank and world size contradict each other.
        """
        return self._rank or detect_rank(group=self.process_group)

    def at_rank(self, rank: int, world_size: int) -> Dataset:
        """Return the same dataset, with the same epoch, for another rank.

            parts = [dataset.at_rank(rank, world_size=2) for rank in range(2)]

        Raises:
            TopologyError: The dataset was opened with another rank, or there is no such rank.
        """
        given = World(whole(rank), whole(world_size))
        if (self._rank is not None or self.process_group is not None) and self.world() != given:
            raise TopologyError(
                "the dataset was opened for another rank",
                expected=f"rank {given.rank} of {given.world_size}",
                found=f"rank {self.world().rank} of {self.world().world_size}",
                remedy="leave out rank=, world_size= and process_group=",
            )
        return self.moved_to(given)

    def moved_to(self, world: World) -> Dataset:
        """Return the same dataset, with the same epoch, for a rank, whatever ranks it was opened for."""
        dataset: Dataset = self.compose()
        dataset._rank, dataset.process_group = world, None
        return dataset

    def order(self, epoch: int | None = None) -> AnyOrder:
        """Return the order of an epoch.

            print(dataset.order(epoch=3).num_samples)

        Args:
            epoch: The epoch; None for that of the next iteration.
        """
        return self.source.order(self.epoch if epoch is None else epoch)

    def __len__(self) -> int:
        """Raise UnsizedError: a loop that divides a length by the batch size would stop before its workers do.

        Each worker of torch's DataLoader has its own last batch, so no length is right for all loops.
        """
        refuse_counting_trainer(self, self.source.url)
        raise UnsizedError(
            "a Dataset has no length",
            place=self.source.url,
            found="the number of batches depends on ranks, workers and batch size",
            remedy="use len(wdsplit.Loader(dataset, batch_size)), the steps of this rank; the dataset has "
            f"{self.source.units_text(self.epoch)}: dataset.source.num_samples",
            url=self.source.url,
        )

    def __bool__(self) -> bool:
        """Return True, as objects without a length are."""
        return True

    def __dir__(self) -> list[str]:
        """List what users call, without what only pipelines and loaders need."""
        names = set(super().__dir__()) - _INTERNALS
        return sorted(name for name in names if name.startswith("__") or not name.startswith("_"))

    def __iter__(self) -> Iterator[Any]:
        """Yield this rank's and worker's part of the epoch, through all stages.

        Raises:
            InputError: The caller would split the samples a second time.
        """
        self.shared.follow()
        source, epoch, times_set = self.source, self.epoch, self.shared.epochs_set
        refuse_second_split(source.url, self.world)
        self.compare_ranks()
        world = with_worker(self.world())
        announce(source, epoch, world)
        warn_of_dropped_samples(source, world, self.pipeline[1:])
        # Ranks of unequal length that leave their loops together may have ended or not.
        moves_on = not is_worker() and (world.world_size == 1 or source.options.tail != "uneven")
        if not moves_on and source.options.shuffle and not world.rank and not world.worker:
            self._warn_of_repetition(epoch)
        on_end = self._move_on if moves_on else self._note_end
        return self._items(source, epoch, world, partial(on_end, times_set))

    def _items(self, source: AnySource, epoch: int, world: World, on_end: Callable[[int], None]) -> Iterator[Any]:
        """Give what the stages make of one reader's samples; then call `on_end` with the epoch."""
        order = source.order(epoch)
        positions = reader_positions(order, world, source.positions_at_once(world, epoch))
        blocks = Reading(source.reader(order, world), positions)
        samples: Iterator[Any] = chain.from_iterable(chain.from_iterable(block.lists() for block in blocks))
        readers, count = world.world_size * world.num_workers, partial(Counters(1).bad, 0, 1)
        stages, ones = self.pipeline[1:], None
        if self.replaces_bad_samples:
            ones, stages = self.one_by_one(source, order, readers, count), stages[self._first_not_one_to_one() :]
            samples = (item for item in ones.apply(samples) if not isinstance(item, LeftOut))
        try:
            yield from self._applied(stages, epoch, samples)
            if ones is not None:
                ones.finish()
        except Exception as error:  # by a name that is there even if this is closed while the program ends
            if isinstance(error, WdsplitError):
                with_file(error, source)
            raise
        on_end(epoch)

    def _move_on(self, times_set: int, epoch: int) -> None:
        """Go on to the next epoch after a complete pass, unless an epoch was set since it began."""
        if times_set == self.shared.epochs_set:
            self._following = times_set, epoch + 1

    def _note_end(self, times_set: int, epoch: int) -> None:
        self._finished.array[:2] = 1 + times_set, epoch

    def _warn_of_repetition(self, epoch: int) -> None:
        """Warn once, in any process, if the epoch has been read to its end and is read again."""
        cells = self._finished.array
        if cells.tolist() == [1 + self.shared.epochs_set, epoch, False]:
            cells[2] = True
            warnings.warn(
                f"{self.source.url}: epoch {epoch} is read again, in the same order: call dataset.set_epoch(epoch) "
                "before each epoch, or use wdsplit.Loader, which moves on by itself",
                stacklevel=3,
            )

    def one_by_one(self, source: AnySource, order: AnyOrder, readers: int, count: Callable[[], int]) -> OneByOne:
        """Return what runs the stages with one sample of an order at a time, and replaces bad ones.

        Up to the first stage that is known to take several: only before it an error means a bad sample.

        Args:
            source: The source of the samples.
            order: The order.
            readers: How many readers share its samples, and count bad ones separately.
            count: Counts a bad sample; returns how many were found in the epoch so far.
        """
        apply = partial(self._applied, self.pipeline[1:][: self._first_not_one_to_one()], order.epoch)
        if self._bad_samples is None:
            return OneByOne(source, apply)
        num_samples = round(order.num_samples * source.samples_a_position(order.epoch))
        found = Found(self._bad_samples, source.url, num_samples, order.epoch, readers, count)
        return Substitutes(source, order, apply, found)

    def _first_not_one_to_one(self) -> int:
        stages = self.pipeline[1:]
        return next((number for number, stage in enumerate(stages) if why_not_one_to_one(stage)), len(stages))

    def check_one_to_one(self) -> None:
        """Refuse stages that are known not to return one sample for each input.

        Stages that may drop samples (`select`) are accepted, because they may drop none.

        Raises:
            InputError: There are such stages; the error names all of them.
        """
        refuse_splitters(self.pipeline, self.source.url)
        reasons = [reason for reason in map(why_not_one_to_one, self.pipeline[1:]) if reason]
        if reasons:
            raise InputError(
                "the dataset has stages that cannot work in a Loader",
                place=self.source.url,
                expected="stages that return one sample for each input, so that every rank has the same steps",
                found="; ".join(reasons),
                remedy="remove them: the Loader makes batches, and the Dataset shuffles",
            )

    def column_stages(self) -> list[ColumnStage] | None:
        """Return the stages after the source if all of them work on columns, else None."""
        stages = self.pipeline[1:]
        if all(isinstance(stage, ColumnStage) and stage.is_columnar for stage in stages):
            return list(stages)
        return None

    def shard_distribution(self, num_workers: int = 0, batch_size: int = 1) -> ShardDistribution:
        """Return which shards this rank and its workers read in the next epoch, and what that costs.

            print(dataset.shard_distribution(num_workers=4, batch_size=256))

        Args:
            num_workers: Workers of each rank.
            batch_size: Samples per batch and rank.
        """
        source = self._single("shards")
        world = with_worker(self.world())
        if num_workers and world.num_workers == 1:
            world = World(world.rank, world.world_size, 0, num_workers)
        trace = Trace(source.order(self.epoch), world.world_size, world.num_workers, batch_size)
        return trace.of(world.rank, world.worker)

    get_shard_distribution_info = shard_distribution

    def sample(self, key_or_index: str | int) -> dict[str, Any]:
        """Return one sample, with its fields as bytes: by its key, or by its number in the dataset.

            print(dataset.sample("00000042")["cls"], dataset.sample(-1)["__key__"])

        Raises:
            SampleNotFoundError: There is no such sample.
        """
        return NumberedSamples.of_all(self._single("sample numbers")).sample(key_or_index)

    def preview(self, n: int = 12, seed: int | None = None) -> Preview:
        """Return some samples to look at, as they are stored: before any stage, and from all parts of the files.

            print(dataset.preview(6))

        A notebook shows pictures, sounds and texts; `print` shows a line for each sample. Thumbnails and the contact
        sheet need `wdsplit[report]`; without it a notebook shows lines too.

        Args:
            n: Number of samples, up to 200.
            seed: Seed that draws them; None for the dataset's.

        Raises:
            InputError: `n` is invalid.
            WdsplitError: A shard cannot be read.
        """
        return notebook.make_preview(self.source, n, self.options.seed if seed is None else seed)

    def __getitem__(self, index: Any) -> NoReturn:
        """Raise InputError: a Dataset can be iterated but not indexed; `sample` returns one stored sample."""
        raise InputError(
            "a Dataset cannot be indexed: iterate over it instead",
            place=self.source.url,
            found=f"dataset[{reprlib.repr(index)}]",
            remedy="dataset.sample(key_or_index) returns one stored sample; wdsplit.Samples has random access",
        )

    def __repr__(self) -> str:
        source, stages = self.source, counted(len(self.pipeline) - 1, "stage")
        view = f" (view: {source.view_text})" if source.view_text else ""
        return f"<{type(self).__name__} {source.url}: {source.units_text(self.epoch)}{view}, {stages}>"

    def _repr_html_(self) -> str:
        seed = f"seed {self.options.seed}" if self.options.shuffle else "not shuffled"
        stages = ", ".join(type(stage).__name__ for stage in self.pipeline[1:]) or "none"
        rows = {**self.source.described(), "epoch": f"{self.epoch}, {seed}", "stages": stages}
        if self.source.view_text:
            rows["view"] = f"{self.source.view_text}: {self.source.units_text(self.epoch)} in epoch {self.epoch}"
        return html_table(f"{type(self).__name__} {self.source.url}", rows.items())

    def __getstate__(self) -> dict[str, Any]:
        """Fix the rank before a copy is sent to a process that cannot detect it: a spawned worker of this rank."""
        state = dict(self.__dict__)
        spawning = multiprocessing.context.get_spawning_popen() is not None
        if self._rank is None and (self.process_group is not None or (spawning and knows_rank())):
            state["_rank"] = self.world()
        state["process_group"] = None
        if not spawning:  # the passes of a copy are its own
            state["_finished"] = SharedIntegers(3)
        return state
