"""The loader: one rank's batches, the same on any topology, with a state that resumes anywhere.

Composition of the dataset and its workers, threads or torch's worker processes. Each worker makes a sub-batch of every
step; this process weaves them into the batch. Only what cannot do without torch imports it.
"""

from __future__ import annotations

import copy
import difflib
import importlib.util
import inspect
import logging
import multiprocessing
import pickle
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing.context import BaseContext
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from wdsplit.errors import InputError, MissingDependencyError, PipelineError, StateError
from wdsplit.loading.batches import Batches, EpochProgress, SubBatch
from wdsplit.loading.dataset import Dataset, announce, checked_epoch
from wdsplit.loading.running import Running
from wdsplit.loading.transport.collate import Output, weave
from wdsplit.loading.transport.counters import Clock, Statistics
from wdsplit.loading.transport.thread_workers import Threads
from wdsplit.loading.worker import SubBatches
from wdsplit.order.split import Steps, World, whole
from wdsplit.order.state import State, dump_state, parse_state

__all__ = ["Loader"]

logger = logging.getLogger(__name__)

ARGUMENTS_OF_TORCH = {
    "batch_sampler": "leave it out: batch_size and the order of the dataset decide",
    "drop_last": 'open the dataset with wdsplit.Dataset(..., tail="drop"), or tail="pad" to fill up the last step',
    "generator": "open the dataset with wdsplit.Dataset(..., seed=...), and draw random numbers in dataset.map_random",
    "in_order": "leave it out: batches always come in order",
    "pin_memory_device": "use pin_memory=True",
    "sampler": "leave it out: each rank reads its share of the dataset's own order",
    "shuffle": "open the dataset with wdsplit.Dataset(..., shuffle=True), its default, or shuffle=False",
    "timeout": "leave it out: a worker that dies is an error, and one that is slow is waited for",
    "worker_init_fn": "leave it out: workers are seeded; draw random numbers in dataset.map_random",
}
"""Arguments of torch's DataLoader that a Loader lacks, and what to write instead."""


class Loader:
    """Batches of a `Dataset` for this rank.

    Step t of an epoch holds the positions t B <= g < (t + 1) B of the global order, B = batch_size x world_size; this
    rank's batch holds every world_size-th of them, in order. All ranks have the same number of steps, `len(loader)`,
    unless the dataset's tail is `uneven`. Each full pass moves on to the next epoch; `set_epoch` chooses one.

    Without `collate_fn`, numbers, arrays and tensors are stacked; strings, bytes and all else come as lists.

    torch need not be installed for `output="numpy"`, unless workers are processes.

    Args:
        dataset: The dataset, with stages that give one sample for each they take.
        batch_size: Samples a batch and rank.
        num_workers: Workers; 0 reads in this thread.
        workers: What they are: `process`, each with an interpreter of its own; or `thread`, from which nothing is
            copied, for decoders that let other threads run.
        collate_fn: Makes a batch from the list of its samples, in this process.
        pin_memory: Put tensors into pinned memory, for copies to a GPU that do not block.
        prefetch_factor: Steps that each worker works ahead; up to 8 times as many where samples are small and go
            through no stages of your own, because small sub-batches travel together.
        prefetch_bytes: Bytes that the sub-batches made ahead by all workers may take; each may always make one.
        persistent_workers: Keep the worker processes from one epoch to the next.
        multiprocessing_context: How worker processes are started: `fork`, `forkserver` or `spawn`, or a context; None
            for Python's default.
        output: What is stacked comes as `torch` tensors or `numpy` arrays; None for tensors if torch is installed, else
            arrays. What a `collate_fn` makes is left as it is.

    Raises:
        InputError: An argument is invalid, or a stage of the dataset batches, shuffles or repeats.
        MissingDependencyError: torch is not installed, and worker processes or tensors are asked for.
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
        **unknown: NoReturn,
    ) -> None:
        if unknown:
            raise _unknown_argument(next(iter(unknown)))
        counts = {
            "batch_size": whole(batch_size),
            "num_workers": whole(num_workers),
            "prefetch_factor": whole(prefetch_factor),
            "prefetch_bytes": whole(prefetch_bytes),
        }
        context = multiprocessing_context
        method = context.get_start_method() if isinstance(context, BaseContext) else context
        problems = [*_wrong_choices(dataset, workers, output, method), *_wrong_counts(counts)]
        if problems:
            raise InputError("invalid Loader arguments", found="; ".join(problems))
        dataset.check_one_to_one()
        has_torch = importlib.util.find_spec("torch") is not None
        if not has_torch and (output == "torch" or (num_workers and workers == "process")):
            raise _needs_torch("tensors" if output == "torch" else "worker processes")
        self.output: Output = output or ("torch" if has_torch else "numpy")
        self.dataset = dataset
        self.batch_size: int = counts["batch_size"]
        self.num_workers: int = counts["num_workers"]
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory and self.output == "torch" and _has_cuda()
        self.prefetch_factor: int = counts["prefetch_factor"]
        self.prefetch_bytes: int = counts["prefetch_bytes"]
        self.workers = workers
        self.persistent_workers = persistent_workers and num_workers > 0 and workers == "process"
        self.multiprocessing_context = method
        self._progress = EpochProgress(dataset)
        self._sub_batches: SubBatches | None = None
        self._workers: Iterable[Any] | None = None
        self._running: weakref.ref[Running] | None = None
        self._clock = Clock()
        self._counted = [0, 0, 0, 0]
        self._lengths: dict[World, int] = {}

    @property
    def epoch(self) -> int:
        """The epoch of the iteration under way, else of the next one."""
        return self._progress.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. A position that was loaded is kept if it lies in that epoch.

        Raises:
            InputError: The epoch is negative or no integer.
        """
        self._progress.choose_epoch(checked_epoch(epoch))

    @property
    def step(self) -> int:
        """Steps of the epoch before the next batch: where counting goes on after a resume, to end at `len(self)`.

        After a resume with another global batch, a position may lie between two steps: then those that are left count.
        """
        return self._step_at(self._progress.state)

    def _step_at(self, state: State) -> int:
        """Return how many steps of its epoch a state has behind it: all but those that are left."""
        order, world = self.dataset.order(state.epoch), self.dataset.world()
        left = len(Steps(order, world, self.batch_size, state.position))
        return len(Steps(order, world, self.batch_size)) - left

    def __len__(self) -> int:
        """Return the steps of a whole epoch."""
        world = self.dataset.world()
        length = self._lengths.get(world)
        if length is None:
            length = len(Steps(self.dataset.order(self._progress.start.epoch), world, self.batch_size))
            if self.dataset.options.tail != "uneven":  # the same in every epoch
                self._lengths[world] = length
        return length

    def state_dict(self) -> dict[str, Any]:
        """Return how far this loader has got, as plain JSON values.

        Counts the batches that were delivered, not those that workers have prefetched. After the last batch of an
        epoch it names the beginning of the next one. It resumes on any number of ranks, workers and any batch size
        (with tail `uneven`: each rank its own state, on the same number of ranks).
        """
        dataset = self.dataset
        return dump_state(self._progress.state, dataset.source.fingerprint, dataset.options, dataset.world())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to where a state dict was taken: the next iteration gives the rest of its epoch.

        Raises:
            StateError: The state is of another dataset or other options.
        """
        dataset = self.dataset
        state = parse_state(state_dict, dataset.source.fingerprint, dataset.options, dataset.world())
        num_positions = dataset.order(state.epoch).num_positions
        if state.position >= max(1, num_positions):
            raise StateError(
                "the state lies beyond the end of its epoch",
                expected=f"a position below {num_positions}",
                found=str(state.position),
                remedy="the state is damaged: use an earlier checkpoint",
            )
        self._progress.resume(state)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the workers out of a copy: it starts its own."""
        progress = copy.copy(self._progress)
        return {**self.__dict__, "_progress": progress, "_sub_batches": None, "_workers": None, "_running": None}

    if not TYPE_CHECKING:  # type checkers would take any name for an attribute

        def __getattr__(self, name: str) -> NoReturn:
            hint = ""
            if name in ("batch_sampler", "sampler"):
                hint = ": each rank reads its share by itself, so iterate the wdsplit.Loader as it is, not prepared"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{hint}")

    def __repr__(self) -> str:
        return f"Loader({self.dataset!r}, batch_size={self.batch_size}, num_workers={self.num_workers})"

    def __iter__(self) -> Iterator[Any]:
        """Give the batches of the epoch, or what is left of it after `load_state_dict`."""
        start, world = self._progress.start, self.dataset.world()
        steps = Steps(self.dataset.order(start.epoch), world, self.batch_size, start.position)
        announce(self.dataset, world, self.num_workers)
        if not len(steps) and not start.position:
            logger.warning(
                "%s: there are no batches: %d samples are fewer than a global batch of %d, and tail='drop' drops them",
                self.dataset.source.url,
                self.dataset.source.num_samples,
                self.batch_size * world.world_size,
            )
        running = self._begin(start, world)
        self._running = weakref.ref(running)
        assemble = partial(self._assembled, running.lends)
        batches = Batches(start.epoch, steps, running, assemble, self._progress, self._clock)
        self._progress.begin(batches, start, is_empty=not len(steps))
        return batches

    def _assembled(self, borrowed: bool, sub_batches: Sequence[SubBatch], size: int) -> Any:
        """Return a batch of so many samples; `borrowed` sub-batches lie in memory that will be used again."""
        if self.collate_fn is None:
            return weave(sub_batches, size, self.pin_memory, borrowed, self.output)
        samples: list[Any] = [None] * size
        for places, sub_batch in sub_batches:
            for place, sample in zip(places.tolist(), sub_batch, strict=True):
                samples[place] = sample
        return self.collate_fn(samples)

    def statistics(self) -> Statistics:
        """Return what this loader has delivered so far, and whether it or its consumer is the bottleneck."""
        made = [0] * 4 if self._sub_batches is None else self._sub_batches.counters.total()
        samples, num_bytes, windows_read, windows_reused = (a + b for a, b in zip(self._counted, made, strict=True))
        clock = self._clock
        times = clock.wait_s, clock.compute_s
        return Statistics(clock.batches, clock.samples, num_bytes, windows_read, windows_reused, *times, samples)

    def _begin(self, start: State, world: World) -> Running:
        """Begin to make the workers' sub-batches: step by step, worker by worker."""
        running = self._running() if self._running is not None else None
        if running is not None and self.persistent_workers:
            running.supersede()
        sub_batches, workers = self._ready_workers(world)
        sub_batches.begin(start.epoch, start.position)
        try:
            parcels = self._threads(sub_batches) if workers is None else iter(workers)
        except BaseException as error:
            self._workers = None
            if self.num_workers and isinstance(error, (AttributeError, TypeError, pickle.PicklingError)):
                raise _not_sent(error) from error
            raise
        forget = partial(self._forget, workers)
        return Running(parcels, sub_batches, self.persistent_workers, max(1, self.num_workers), forget)

    def _ready_workers(self, world: World) -> tuple[SubBatches, Iterable[Any] | None]:
        """Return what workers make, and the workers: those of the last iteration if they stay and live, else new ones.

        Threads are always new, so for them the workers are None. Processes start when they are iterated.
        """
        processes = getattr(getattr(self._workers, "_iterator", None), "_workers", ())
        if not all(process.is_alive() for process in processes):
            self._workers = None
        kept = self._sub_batches
        if kept is not None and kept.world == world and self._workers is not None and self.persistent_workers:
            return kept, self._workers
        if kept is not None:
            self._counted = [a + b for a, b in zip(self._counted, kept.counters.total(), strict=True)]
        collated = self.collate_fn is None
        made = SubBatches(self.dataset, self.batch_size, world, self.num_workers, collated, self.prefetch_bytes)
        self._sub_batches, self._workers = made, None
        if not self.num_workers:
            self._workers = made
        elif self.workers == "process":
            from wdsplit.loading.process_workers import worker_processes

            ahead = self.prefetch_factor, self.prefetch_bytes
            how = self.persistent_workers, self.multiprocessing_context
            self._workers = worker_processes(made, self.num_workers, *ahead, *how)
        return made, self._workers

    def _forget(self, workers: Iterable[Any] | None) -> None:
        """Take note that workers have ended after an error, unless others have taken their place by now."""
        if self._workers is workers:
            self._workers = None

    def _threads(self, sub_batches: SubBatches) -> Threads:
        """Start a thread for each worker."""
        rank, world_size, num_workers = sub_batches.world.rank, sub_batches.world.world_size, self.num_workers
        worlds = [World(rank, world_size, worker, num_workers) for worker in range(num_workers)]
        parcels = [sub_batches.of_worker(world) for world in worlds]
        return Threads(parcels, self.prefetch_factor, self.prefetch_bytes // num_workers)


def _unknown_argument(name: str) -> InputError:
    known = [each for each in inspect.signature(Loader).parameters if each != "unknown"]
    near = difflib.get_close_matches(name, [*known, *ARGUMENTS_OF_TORCH], 1)
    remedy = ARGUMENTS_OF_TORCH.get(name) or (f"did you mean {near[0]!r}?" if near else "leave it out")
    return InputError(f"a Loader has no argument {name!r}", expected=f"some of {', '.join(known)}", remedy=remedy)


def _wrong_choices(dataset: Any, workers: str, output: str | None, method: str | None) -> list[str]:
    """Return what is wrong with the arguments that are no numbers."""
    problems = []
    if not isinstance(dataset, Dataset):
        problems.append(f"dataset is a {type(dataset).__name__}: expected a wdsplit.Dataset")
    if workers not in ("process", "thread"):
        problems.append(f"workers = {workers!r}: expected 'process' or 'thread'")
    elif workers == "thread" and method is not None:
        problems.append(f"multiprocessing_context = {method!r}: expected None for threads")
    if output not in (None, "torch", "numpy"):
        problems.append(f"output = {output!r}: expected 'torch' or 'numpy'")
    methods = multiprocessing.get_all_start_methods()
    if method is not None and method not in methods:
        problems.append(f"multiprocessing_context = {method!r}: expected one of {', '.join(methods)}")
    return problems


def _wrong_counts(counts: Mapping[str, Any]) -> list[str]:
    """Return which of the numbers are no integers, or too small."""
    problems = []
    for name, value in counts.items():
        low = 0 if name == "num_workers" else 1
        if type(value) is not int or value < low:
            problems.append(f"{name} = {value!r}: expected an integer of at least {low}")
    return problems


def _not_sent(error: Exception) -> PipelineError:
    return PipelineError(
        "the dataset cannot be sent to worker processes",
        expected="stages whose functions are defined at the top of a module",
        found=f"{type(error).__name__}: {error}",
        remedy="define them there instead of as a lambda or in another function; or use workers='thread', or "
        "multiprocessing_context='fork'",
    )


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _needs_torch(purpose: str) -> MissingDependencyError:
    return MissingDependencyError(
        "torch is not installed",
        place=purpose,
        remedy="use output='numpy' and workers='thread', which need no torch; or pip install 'wdsplit[torch]'",
    )
