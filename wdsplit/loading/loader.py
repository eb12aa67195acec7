"""The loader: one rank's batches, the same on any topology, with a state that resumes anywhere.

Composition of the dataset and its workers, threads or torch's worker processes. Each worker makes a sub-batch of every
step; this process weaves them into the batch. torch is imported only where it is needed.
"""

from __future__ import annotations

import copy
import importlib.util
import inspect
import logging
import multiprocessing
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import numpy as np

from wdsplit.errors import InputError, MissingDependencyError, TopologyError, did_you_mean
from wdsplit.integers import whole
from wdsplit.loading.announcing import announce
from wdsplit.loading.batches import Batches, MadeAhead, Running, SubBatch
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.options import checked_epoch
from wdsplit.loading.progress import Progress
from wdsplit.loading.reading.source import AnySource
from wdsplit.loading.statistics import Statistics
from wdsplit.loading.transport.batch_memory import Pool
from wdsplit.loading.transport.collate import Output, weave, weave_group, weave_packs
from wdsplit.loading.transport.counters import COUNTED, Clock
from wdsplit.loading.transport.thread_workers import NoWorkers, Parcels, Threads
from wdsplit.loading.worker import Following, SubBatches
from wdsplit.notebook import html_table
from wdsplit.order.bundles import Form, Grouping, Packing
from wdsplit.order.split import Steps, World

if TYPE_CHECKING:
    from wdsplit.loading.process_workers import Processes

__all__ = ["Loader", "loader_of"]

logger = logging.getLogger(__name__)

ARGUMENTS_OF_TORCH = {
    "batch_sampler": "leave it out: batch_size and the order of the dataset decide",
    "drop_last": 'open the dataset with wdsplit.Dataset(..., tail="drop"), or tail="pad" to fill up the last step',
    "generator": "open the dataset with wdsplit.Dataset(..., seed=...), and draw random numbers in dataset.map_random",
    "in_order": "leave it out: batches always come in order",
    "pin_memory_device": "use pin_memory=True",
    "sampler": "leave it out: each rank reads its share of the dataset's own order",
    "shuffle": "open the dataset with wdsplit.Dataset(..., shuffle=True), its default, or shuffle=False",
    "timeout": "leave it out: a dead worker is an error, and the loader waits for a slow one",
    "worker_init_fn": "leave it out: workers are seeded; draw random numbers in dataset.map_random",
}
"""Arguments of torch's DataLoader that a Loader does not have, and what to write instead."""


class Loader:
    """Batches of a `Dataset` for this rank.

        dataset = wdsplit.Dataset("data/train").decode("torchrgb").to_tuple("jpg", "cls")
        loader = wdsplit.Loader(dataset, batch_size=32, num_workers=2)
        for epoch in range(2):
            for images, labels in loader:
                train_step(images, labels)

    Each step takes the next batch_size x world_size samples of the epoch's global order; this rank's batch is every
    world_size-th of them. All ranks have the same number of steps, `len(loader)`, unless the dataset's tail is
    `uneven`. Each full pass moves on to the next epoch; `set_epoch` chooses one.

    Without `collate_fn`, numbers, arrays and tensors are stacked; strings, bytes and other values become lists. Of a
    view of packs, `batch_size` counts packs: arrays and tensors are joined along their first axis, with `__lengths__`,
    `__cu_seqlens__`, `__position_ids__` and `__segment_ids__`. Of a view of groups, each is a whole batch, with
    batch_size=1; samples of a budget are rows as long as the longest, with `__mask__` (docs/packs-and-buckets.md).

    Process workers and tensors need torch; `output="numpy"` with threads or no workers does not.

    Args:
        dataset: The dataset, with stages that return one sample for each input.
        batch_size: Samples per batch and rank; packs, or groups, of a view of these.
        num_workers: Number of workers; 0 reads in this thread.
        workers: Kind of workers: `process`, each with its own interpreter; or `thread`, without copies between
            processes, for decoders that release the GIL.
        collate_fn: Function that makes a batch from the list of its samples, in this process; of packs or groups, from
            a list of these, each a list of samples.
        pin_memory: Put tensors into pinned memory, for non-blocking copies to a GPU.
        prefetch_factor: Steps that each worker prefetches; up to 8 times as many where samples are small and no stages
            of your own change them, because workers then send several small sub-batches together.
        prefetch_bytes: Limit for the bytes that all workers prefetch; each worker may always prefetch one sub-batch.
        persistent_workers: Keep worker processes from one epoch to the next; and, whatever the workers are, fetch the
            first samples of the next epoch from a remote store while the last of this one are used, within
            `read_ahead_bytes` of the dataset.
        multiprocessing_context: How to start worker processes: `fork`, `forkserver` or `spawn`, or a context; None for
            Python's default.
        output: Stack into `torch` tensors or `numpy` arrays; None for tensors if torch is installed, else arrays. The
            result of a `collate_fn` is left as it is.
        pad_to: Of a view of packs, `capacity` gives each pack a row of its capacity, filled with zeros, and `__mask__`
            says where elements are; None joins all packs of a batch.

    Raises:
        InputError: An argument is invalid, or a stage of the dataset batches, shuffles or repeats.
        MissingDependencyError: torch is not installed, but worker processes or tensors are requested.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        num_workers: int = 0,
        workers: Literal["process", "thread"] = "process",
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        prefetch_factor: int = 2,
        prefetch_bytes: int = 2**30,
        persistent_workers: bool = False,
        multiprocessing_context: str | BaseContext | None = None,
        output: Output | None = None,
        pad_to: Literal["capacity"] | None = None,
        **unknown: NoReturn,
    ) -> None:
        if unknown:
            name, known = next(iter(unknown)), list(inspect.signature(Loader).parameters)[:-1]
            remedy = ARGUMENTS_OF_TORCH.get(name) or did_you_mean([name], [*known, *ARGUMENTS_OF_TORCH])
            expected = f"some of {', '.join(known)}"
            raise InputError(f"a Loader has no argument {name!r}", expected=expected, remedy=remedy or "leave it out")
        counts = {
            "batch_size": whole(batch_size),
            "num_workers": whole(num_workers),
            "prefetch_factor": whole(prefetch_factor),
            "prefetch_bytes": whole(prefetch_bytes),
        }
        context = multiprocessing_context
        method = context.get_start_method() if isinstance(context, BaseContext) else context
        problems = _problems(dataset, workers, output, method, **counts)
        if pad_to not in (None, "capacity"):
            problems.append(f"pad_to = {pad_to!r}: expected 'capacity' or None")
        if problems:
            raise InputError("invalid Loader arguments", found="; ".join(problems))
        dataset.check_one_to_one()
        _refuse_other_forms(dataset.source, counts["batch_size"], pad_to)
        has_torch = importlib.util.find_spec("torch") is not None
        if not has_torch and (output == "torch" or (num_workers and workers == "process")):
            raise MissingDependencyError(
                "torch is not installed",
                place="tensors" if output == "torch" else "worker processes",
                remedy="use output='numpy' and workers='thread', which need no torch; or pip install 'wdsplit[torch]'",
            )
        self.output: Output = output or ("torch" if has_torch else "numpy")
        self.pad_to = pad_to
        self.dataset = dataset
        self.batch_size: int = counts["batch_size"]
        self.num_workers: int = counts["num_workers"]
        self.collate_fn = collate_fn
        self.pin_memory = False
        if pin_memory and self.output == "torch":
            import torch

            self.pin_memory = torch.cuda.is_available()
        self.prefetch_factor: int = counts["prefetch_factor"]
        self.prefetch_bytes: int = counts["prefetch_bytes"]
        self.workers = workers
        self.persistent_workers = persistent_workers
        self.multiprocessing_context = method
        self.progress = Progress(dataset, self.batch_size)
        self._sub_batches: SubBatches | None = None
        self._processes: Processes | None = None
        self._running: weakref.ref[Running] | None = None
        self._pools: dict[int, Pool] = {}
        self._begun: Following = {}
        self.clock = Clock()
        self._counted = np.zeros(len(COUNTED), np.int64)
        self.make_ahead: Callable[[Steps], MadeAhead] | None = None  # set by `to_device` and `JaxLoader`

    @property
    def epoch(self) -> int:
        """The epoch of the current iteration, else of the next one."""
        return self.progress.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. A position from `load_state_dict` is kept if it is in that epoch.

            for epoch in range(loader.epoch, 10):
                loader.set_epoch(epoch)
                for batch in loader: ...

        Raises:
            InputError: The epoch is not an integer of at least 0.
        """
        self.progress.choose_epoch(checked_epoch(epoch))

    @property
    def step(self) -> int:
        """The number of the next step in the epoch: a resumed loop continues with it.

        Steps are counted from 0; those that `skip` leaves out count, too. So a step begins at the position
        step x batch_size x world_size of the epoch's order. After a resume with another global batch the position may
        be between two steps: then steps are counted so that the last one of the epoch keeps its number.
        """
        return self.progress.step_at(self.progress.state)

    def enumerate(self) -> Iterator[tuple[int, Any]]:
        """Iterate this loader, and yield each batch with the number of its step.

            for step, batch in loader.enumerate(): ...

        The numbers are those of `step`, `skip` and `wdsplit batch`. `enumerate(loader, loader.step)` yields the same as
        long as no step is skipped.
        """
        batches = iter(self)
        step = self.step
        for batch in batches:
            yield step, batch
            step = self.step

    def __len__(self) -> int:
        """Return the steps of a whole epoch, without skipped ones; of the current epoch, if epochs differ.

        After a resume, steps that were skipped before it count: they are left behind like delivered ones.
        """
        return self.progress.num_steps(self.progress.start.epoch)

    def skip(self, first: int, last: int) -> None:
        """Skip the steps `first` to `last`, both included, of the current epoch, or of the next one between epochs.

            loader.skip(3, 5)

        Call it on all ranks, before or during an iteration, and after `load_state_dict`, which brings the skips of the
        state. The samples are not read. All other steps keep their samples and numbers, in `step`, `enumerate` and
        `wdsplit batch`; a plain `enumerate(loader)` counts on as if none was skipped. `len(loader)` counts only steps
        that are given. The state remembers the skips, for any number of ranks and any batch size. Skipping a step twice
        is allowed. If all that is left of an epoch is skipped, the iteration under way ends, or the next one is empty;
        the one after it begins the next epoch.

        Args:
            first: The number of the first step to skip, as `step` counts.
            last: The number of the last step to skip.

        Raises:
            InputError: There are no such steps, some are already delivered, or the tail is `uneven`.
        """
        self.progress.skip(first, last, self._begin)

    def state_dict(self) -> dict[str, Any]:
        """Return the position of this loader as plain JSON values, for a checkpoint.

            torch.save({"model": model.state_dict(), "loader": loader.state_dict()}, "checkpoint.pt")

        It counts the batches that were delivered, not those that workers have prefetched. After the last batch of an
        epoch it is the beginning of the next one. It resumes on any number of ranks and workers, with any batch size
        (with tail `uneven`: each rank its own state, on the same number of ranks).
        """
        return self.progress.dumped()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where a state dict was taken: the next iteration yields the rest of its epoch.

            loader.load_state_dict(torch.load("checkpoint.pt")["loader"])
            for step, batch in loader.enumerate(): ...

        Raises:
            StateError: The state belongs to another dataset, another view or other options.
        """
        self.progress.load(state_dict)

    def reshape(self, rank: int, world_size: int, state_dict: Mapping[str, Any] | None = None) -> Loader:
        """Return a loader like this one for other ranks, after some were lost or added, in the same process.

            state = loader.state_dict()  # after an optimizer step
            loader = loader.reshape(rank=0, world_size=1, state_dict=state)

        The global batch, batch_size x world_size, stays the same, so steps keep their numbers and samples. All ranks
        must pass the same state, that of the step up to which the model is trained: one rank may have been given a
        batch more than another. Ranks that are new make a `Loader` and load that state (docs/elastic.md).

        Args:
            rank: The new rank of this process.
            world_size: The new number of ranks.
            state_dict: Where all ranks continue; None for where this loader is.

        Raises:
            TopologyError: There is no such rank, or the number of ranks does not divide the global batch.
            InputError: The dataset's tail is `uneven`, or a view has groups and the number of ranks changes.
            StateError: The state belongs to another dataset, another view or other options.
        """
        world, source = World(whole(rank), whole(world_size)), self.dataset.source
        if self.dataset.options.tail == "uneven":
            raise InputError(
                "a loader with tail='uneven' cannot be reshaped",
                place=source.url,
                expected="tail='pad' or 'drop', with which all ranks are at one position",
                remedy="open the dataset with another tail, or start the epoch again",
            )
        # A process group that was made anew already says other ranks than those of the last iteration.
        before = self.dataset.world() if self._sub_batches is None else self._sub_batches.world
        global_batch = self.batch_size * before.world_size
        if global_batch % world.world_size:
            fewer = max(count for count in range(1, world.world_size) if not global_batch % count)
            raise TopologyError(
                "the ranks do not divide the global batch",
                place=source.url,
                expected=f"a world_size that divides {global_batch} ({self.batch_size} x {before.world_size} ranks)",
                found=f"world_size {world.world_size}",
                remedy=f"continue on {fewer} of them; or make a wdsplit.Loader with another batch_size, and load the "
                "state",
            )
        batch_size = global_batch // world.world_size
        _refuse_other_forms(source, batch_size)
        reshaped = copy.copy(self)
        reshaped.dataset, reshaped.batch_size = self.dataset.moved_to(world), batch_size
        reshaped.progress = Progress(reshaped.dataset, batch_size)
        reshaped.load_state_dict(self.state_dict() if state_dict is None else state_dict)
        return reshaped

    def __getstate__(self) -> dict[str, Any]:
        """Leave workers and statistics out of a copy, which has its own."""
        workers = dict.fromkeys(("_sub_batches", "_processes", "_running"))
        counts = {"clock": Clock(), "_counted": np.zeros(len(COUNTED), np.int64)}
        return {**self.__dict__, "progress": copy.copy(self.progress), "_pools": {}, "_begun": {}, **workers, **counts}

    if not TYPE_CHECKING:  # type checkers would take any name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            hint = ""
            if name in ("batch_sampler", "sampler"):
                hint = (
                    ": each rank reads only its own share, so iterate the wdsplit.Loader itself, without preparing it"
                )
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def __repr__(self) -> str:
        return f"Loader({self.dataset!r}, batch_size={self.batch_size}, num_workers={self.num_workers})"

    def _repr_html_(self) -> str:
        world, workers = self.dataset.world(), f"{self.num_workers} ({self.workers})" if self.num_workers else "none"
        rows = {
            "dataset": self.dataset,
            "batch": f"{self.batch_size:,} a rank, {self.batch_size * world.world_size:,} in all",
            "rank": f"{world.rank} of {world.world_size}",
            "workers": workers,
            "next": f"step {self.step:,} of {len(self):,}, epoch {self.epoch}",
        }
        return html_table(type(self).__name__, rows.items())

    def __iter__(self) -> Batches:
        """Yield the batches of the epoch, or what is left of it after `load_state_dict`."""
        start, world, source = self.progress.start, self.dataset.world(), self.dataset.source
        start = start.in_steps_of(self.batch_size * world.world_size)
        self.dataset.compare_ranks()
        steps = Steps(source.order(start.epoch), world, self.batch_size, start.position, start.skips)
        announce(source, start.epoch, world, self.num_workers, self.batch_size)
        if not len(steps) and not start.position and not start.skips and steps.order.num_samples:
            logger.warning(
                "%s: there are no batches: %s are fewer than a global batch of %d, and tail='drop' drops them",
                source.url,
                source.units_text(start.epoch),
                self.batch_size * world.world_size,
            )
        running, form = self._begin(steps), source.form_at(start.epoch)
        assemble = partial(self._assembled, running.lends, form)
        is_formed, delivered = form is not None, self.progress.deliver
        batches = Batches(start, steps, running, assemble, delivered, self.clock, is_formed, self.make_ahead)
        self.progress.begin(batches)
        return batches

    def _assembled(self, borrowed: bool, form: Form | None, sub_batches: Sequence[SubBatch], size: int) -> Any:
        """Return a batch of so many units; `borrowed` sub-batches lie in memory that will be used again."""
        how = self.pin_memory, borrowed, self.output
        if self.collate_fn is None and isinstance(form, Grouping):
            return weave_group(sub_batches[0][1], *how)
        if self.collate_fn is None and isinstance(form, Packing):
            return weave_packs(sub_batches, *how, form.capacity if self.pad_to else None)
        if self.collate_fn is None:
            return weave(sub_batches, size, *how)
        samples: list[Any] = [None] * size
        for places, sub_batch in sub_batches:
            for place, sample in zip(places.tolist(), sub_batch, strict=True):
                samples[place] = sample
        return self.collate_fn(samples)

    def statistics(self) -> Statistics:
        """Return what this loader has delivered so far, and whether the loader or the training is the bottleneck.

            print(loader.statistics())

        Returns:
            Counts, bytes and seconds since the loader was made; as text, a summary with advice.
        """
        running, clock, state = self._sub_batches, self.clock, self.progress.state
        made = self._counted if running is None else self._counted + running.counters.total()
        return Statistics(
            **dict(zip(COUNTED, made.tolist(), strict=True)),
            batches=clock.batches,
            samples=clock.samples,
            wait_s=clock.wait_s,
            compute_s=clock.compute_s,
            epoch=state.epoch,
            position=state.position,
            rank=self.dataset.world().rank,
        )

    def _begin(self, steps: Steps) -> Running:
        """Begin to make the workers' sub-batches: step by step, worker by worker."""
        running = self._running() if self._running is not None else None
        if running is not None and self.persistent_workers and self._processes is not None:
            running.supersede()
        sub_batches = self._sub_batches_of(steps)
        sub_batches.begin(steps.order.epoch, steps.start)
        parcels: Parcels
        if self._processes is not None:
            parcels = self._processes.parcels()
        elif self.num_workers:
            of_workers = [
                sub_batches.of_worker(replace(steps.world, worker=worker, num_workers=self.num_workers))
                for worker in range(self.num_workers)
            ]
            parcels = Threads(of_workers, self.prefetch_factor, self.prefetch_bytes // self.num_workers)
        else:
            parcels = NoWorkers(sub_batches.of_worker(steps.world))
        are_kept = self.persistent_workers and self._processes is not None
        running = Running(parcels, sub_batches, are_kept, max(1, self.num_workers))
        self._running = weakref.ref(running)
        return running

    def _sub_batches_of(self, steps: Steps) -> SubBatches:
        """Return what workers make: persistent processes that live go on, if they have this version and skips."""
        kept, processes = self._sub_batches, self._processes
        if kept is not None:
            is_alike = kept.source is self.dataset.source and (kept.world, kept.skips) == (steps.world, steps.skips)
            if is_alike and self.persistent_workers and processes is not None and processes.are_alive():
                return kept
            self._counted = self._counted + kept.counters.total()
        made = SubBatches(
            self.dataset,
            self.batch_size,
            steps.world,
            self.num_workers,
            collated=self.collate_fn is None,
            prefetch_bytes=self.prefetch_bytes,
            skips=steps.skips,
            pools=self._pools,
            begun=self._begun if self.persistent_workers else None,
        )
        self._sub_batches, self._processes = made, None
        if self.num_workers and self.workers == "process":
            from wdsplit.loading.process_workers import Processes  # here, because it needs torch

            ahead = self.prefetch_factor, self.prefetch_bytes
            kind = self.persistent_workers, self.multiprocessing_context
            self._processes = Processes(made, self.num_workers, *ahead, *kind)
        return made


def loader_of(loader: Any) -> Loader:
    """Return the loader itself of an integration's loader, or of an audit.

    Raises:
        InputError: `loader` is none of these.
    """
    found = loader if isinstance(loader, Loader) else getattr(loader, "loader", getattr(loader, "_loader", None))
    if not isinstance(found, Loader):
        raise InputError(
            "not a wdsplit loader",
            expected="a wdsplit.Loader, the audit of one, or an integration's loader",
            found=type(loader).__name__,
        )
    return found


def _refuse_other_forms(source: AnySource, batch_size: int, pad_to: str | None = None) -> None:
    """Refuse batches of several groups, as a loader has one batch size for all epochs, and to pad what is no pack."""
    for epoch in source.view_epochs:
        form = source.form_at(epoch)
        if isinstance(form, Grouping) and batch_size != 1:
            raise InputError(
                "a group is a whole batch",
                place=source.url,
                expected=f"with groups {form}, which epoch {epoch} has, batch_size=1",
                found=f"batch_size={batch_size}",
                remedy="use batch_size=1, and choose with size= or budget= how many samples a group has",
            )
        if pad_to is not None and not isinstance(form, Packing):
            raise InputError(
                "there are no packs to pad",
                place=f"{source.url}, epoch {epoch}",
                expected="with pad_to, a view of packs: Dataset(..., pack=, capacity=)",
                remedy="leave out pad_to",
            )


def _problems(dataset: Any, workers: str, output: str | None, method: str | None, **counts: Any) -> list[str]:
    """Return what is wrong with the arguments of a loader."""
    problems = []
    if not isinstance(dataset, Dataset):
        problems.append(f"dataset is a {type(dataset).__name__}: expected a wdsplit.Dataset")
    choices = {
        "workers": (workers, ("process", "thread")),
        "output": (output, (None, "torch", "numpy")),
        "multiprocessing_context": (method, (None, *multiprocessing.get_all_start_methods())),
    }
    for name, (value, known) in choices.items():
        if value not in known:
            problems.append(f"{name} = {value!r}: expected {' or '.join(repr(each) for each in known if each)}")
    if workers == "thread" and method is not None:
        problems.append(f"multiprocessing_context = {method!r}: expected None for threads")
    for name, value in counts.items():
        low = 0 if name == "num_workers" else 1
        if type(value) is not int or value < low:
            problems.append(f"{name} = {value!r}: expected an integer of at least {low}")
    return problems
