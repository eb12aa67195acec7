"""The loader: one rank's batches, the same on any topology, with a state that resumes anywhere.

Composition of the dataset and its workers, threads or torch's worker processes. Each worker makes its part of every
step, a sub-batch; this process weaves the parts of a step into the batch, so the number of workers does not change it.

Only what cannot do without torch imports it: worker processes, and batches of tensors.
"""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
import pickle
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing.context import BaseContext
from typing import Any, Literal

import numpy as np

from wdsplit.errors import InputError, MissingDependencyError, PipelineError, StateError
from wdsplit.loading.dataset import Dataset, announce, checked_epoch
from wdsplit.loading.running import Running
from wdsplit.loading.transport.collate import Output, weave
from wdsplit.loading.transport.counters import Clock, Statistics
from wdsplit.loading.transport.thread_workers import Threads
from wdsplit.loading.worker import Parts
from wdsplit.order.split import Step, Steps, World, whole, worker_of
from wdsplit.order.state import State, dump_state, parse_state

__all__ = ["Loader"]

logger = logging.getLogger(__name__)


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
            through no stages of your own, because small parts of batches travel together.
        prefetch_bytes: Bytes that the parts made ahead by all workers may hold together; each may always make one.
        persistent_workers: Keep the worker processes from one epoch to the next.
        multiprocessing_context: How worker processes are started: `fork`, `forkserver` or `spawn`, or a context; None
            for Python's default.
        output: What is stacked comes as `torch` tensors or `numpy` arrays; None for tensors if torch is installed, else
            arrays. What a `collate_fn` makes is left as it is.

    Raises:
        InputError: An argument cannot be, or a stage of the dataset batches, shuffles or repeats.
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
    ) -> None:
        batch_size, num_workers, prefetch_factor = whole(batch_size), whole(num_workers), whole(prefetch_factor)
        problems = []
        context = multiprocessing_context
        method = context.get_start_method() if isinstance(context, BaseContext) else context
        if method is not None and method not in multiprocessing.get_all_start_methods():
            known = ", ".join(multiprocessing.get_all_start_methods())
            problems.append(f"multiprocessing_context = {context!r}: expected one of {known}")
        if workers not in ("process", "thread"):
            problems.append(f"workers = {workers!r}: expected 'process' or 'thread'")
        elif workers == "thread" and context is not None:
            problems.append(f"multiprocessing_context = {context!r}: expected None for threads")
        if output not in (None, "torch", "numpy"):
            problems.append(f"output = {output!r}: expected 'torch' or 'numpy'")
        if not isinstance(dataset, Dataset):
            problems.append(f"dataset is a {type(dataset).__name__}: expected a wdsplit.Dataset")
        for name, value, low in (
            ("batch_size", batch_size, 1),
            ("num_workers", num_workers, 0),
            ("prefetch_factor", prefetch_factor, 1),
            ("prefetch_bytes", whole(prefetch_bytes), 1),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                problems.append(f"{name} = {value!r}: expected an integer of at least {low}")
        if problems:
            raise InputError("the loader's arguments cannot be", found="; ".join(problems))
        dataset.check_one_to_one()
        has_torch = importlib.util.find_spec("torch") is not None
        if not has_torch and (output == "torch" or (num_workers and workers == "process")):
            raise _needs_torch("tensors" if output == "torch" else "worker processes")
        self.output: Output = output or ("torch" if has_torch else "numpy")
        self.dataset = dataset
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory and self.output == "torch" and _has_cuda()
        self.prefetch_factor = prefetch_factor
        self.prefetch_bytes = whole(prefetch_bytes)
        self.workers = workers
        self.persistent_workers = persistent_workers and num_workers > 0 and workers == "process"
        self.multiprocessing_context = method
        self._next = State(dataset.epoch, 0)
        self._reached: State | None = None
        self._epochs_set = dataset.epochs_set
        self._parts: Parts | None = None
        self._workers: Iterable[Any] | None = None
        self._current: weakref.ref[_Iteration] | None = None
        self._heard = False
        self._clock = Clock()
        self._counted = [0, 0, 0, 0]
        self._lengths: dict[World, int] = {}

    @property
    def epoch(self) -> int:
        """The epoch of the iteration under way, else of the next one."""
        start, current = self._start(), self._iteration()
        return current.epoch if current is not None and self._heard and not current.ended else start.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. A position that was loaded is kept if it lies in that epoch.

        Raises:
            InputError: The epoch is negative or no integer.
        """
        epoch = checked_epoch(epoch)
        self._start()
        self._go_to(epoch)

    def _go_to(self, epoch: int) -> None:
        """Choose an epoch; what an iteration of another one delivers does not count any more."""
        if self._next.epoch != epoch:
            self._next = State(epoch, 0)
        if self._reached is not None and self._reached.epoch != epoch:
            self._reached, self._heard = None, False

    @property
    def step(self) -> int:
        """Steps of the epoch before the next batch: where counting goes on after a resume, to end at `len(self)`.

        After a resume with another global batch, a position may lie between two steps: then those that are left count.
        """
        return self._step_at(self._state())

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
            length = len(Steps(self.dataset.order(self._start().epoch), world, self.batch_size))
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
        return dump_state(self._state(), dataset.source.fingerprint, dataset.options, dataset.world())

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
        self._start()
        self._next, self._reached, self._heard = state, None, False

    def __getstate__(self) -> dict[str, Any]:
        """Leave the workers out of a copy: it starts its own."""
        return {**self.__dict__, "_parts": None, "_workers": None, "_current": None}

    def __repr__(self) -> str:
        return f"Loader({self.dataset!r}, batch_size={self.batch_size}, num_workers={self.num_workers})"

    def _start(self) -> State:
        """Return where the next iteration begins; `set_epoch` may have been called on the dataset."""
        if self.dataset.epochs_set != self._epochs_set:
            self._epochs_set = self.dataset.epochs_set
            self._go_to(self.dataset.epoch)
        return self._next

    def _state(self) -> State:
        """Return how far this loader has got: in the iteration that counts, else where the next one begins."""
        start = self._start()
        return self._reached or start

    def _iteration(self) -> _Iteration | None:
        return self._current() if self._current is not None else None

    def __iter__(self) -> Iterator[Any]:
        """Give the batches of the epoch, or what is left of it after `load_state_dict`."""
        begin, world = self._start(), self.dataset.world()
        steps = Steps(self.dataset.order(begin.epoch), world, self.batch_size, begin.position)
        announce(self.dataset, world, self.num_workers)
        if not len(steps) and not begin.position:
            logger.warning(
                "%s: there are no batches: %d samples are fewer than a global batch of %d, and tail='drop' drops them",
                self.dataset.source.url,
                self.dataset.source.num_samples,
                self.batch_size * world.world_size,
            )
        iteration = _Iteration(self, begin.epoch, steps, self._begin(begin, world), self._clock)
        self._current, self._heard = weakref.ref(iteration), True
        self._next, self._reached = State(begin.epoch, 0), begin
        if not len(steps):
            self._next = self._reached = State(begin.epoch + 1, 0)
        return iteration

    def _delivered(self, iteration: _Iteration, state: State, last: bool) -> None:
        """Take note that an iteration has delivered a batch; one that another has followed does not count."""
        if self._heard and self._iteration() is iteration:
            self._reached = state
            if last:
                self._next = state

    def _failed(self, iteration: _Iteration) -> None:
        """Take note that an iteration has ended its workers after an error; they may serve another one by now."""
        if self._iteration() is iteration:
            self._workers = None

    def statistics(self) -> Statistics:
        """Return what this loader has delivered so far, and whether it or its consumer is the bottleneck."""
        made = [0] * 4 if self._parts is None else self._parts.counters.total()
        samples, num_bytes, windows_read, windows_reused = (a + b for a, b in zip(self._counted, made, strict=True))
        clock = self._clock
        times = clock.wait_s, clock.compute_s
        return Statistics(clock.batches, clock.samples, num_bytes, windows_read, windows_reused, *times, samples)

    def _begin(self, begin: State, world: World) -> Running:
        """Begin to make the workers' parts: step by step, worker by worker."""
        current = self._iteration()
        if current is not None and self.persistent_workers:
            current.parts.supersede()
        running = getattr(getattr(self._workers, "_iterator", None), "_workers", ())
        if not all(process.is_alive() for process in running):
            self._workers = None
        if self._parts is None or self._workers is None or not self.persistent_workers or self._parts.world != world:
            if self._parts is not None:
                self._counted = [a + b for a, b in zip(self._counted, self._parts.counters.total(), strict=True)]
            collated = self.collate_fn is None
            self._parts = Parts(self.dataset, self.batch_size, world, self.num_workers, collated, self.prefetch_bytes)
            self._workers = None if self._is_threaded else self._worker_parts(self._parts)
        self._parts.begin(begin.epoch, begin.position)
        try:
            parts = iter(self._workers) if self._workers is not None else self._threads(self._parts)
        except BaseException as error:
            self._workers = None
            if self.num_workers and isinstance(error, (AttributeError, TypeError, pickle.PicklingError)):
                raise _not_sent(error) from error
            raise
        return Running(parts, self._parts, self.persistent_workers, max(1, self.num_workers))

    @property
    def _is_threaded(self) -> bool:
        return self.workers == "thread" and self.num_workers > 0

    def _threads(self, parts: Parts) -> Threads:
        """Start a thread for each worker."""
        rank, world_size, num_workers = parts.world.rank, parts.world.world_size, self.num_workers
        worlds = [World(rank, world_size, worker, num_workers) for worker in range(num_workers)]
        return Threads(list(map(parts.of, worlds)), self.prefetch_factor, self.prefetch_bytes // num_workers)

    def _worker_parts(self, parts: Parts) -> Iterable[Any]:
        """Return the parts of all workers in turn; worker processes start when it is iterated."""
        if not self.num_workers:
            return parts
        from wdsplit.loading.process_workers import worker_processes

        return worker_processes(
            parts,
            self.num_workers,
            self.prefetch_factor,
            self.prefetch_bytes,
            self.persistent_workers,
            self.multiprocessing_context,
        )


class _Iteration:
    """The batches of one epoch, or of the rest of one; its state is explicit, so that it can be named at any time.

    Args:
        loader: The loader; it is told of each batch.
        epoch: The epoch.
        steps: Its steps, from where it begins.
        parts: The workers' parts of them.
        clock: Measures who waits for whom.
    """

    def __init__(self, loader: Loader, epoch: int, steps: Steps, parts: Running, clock: Clock) -> None:
        self.epoch = epoch
        self.parts = parts
        self.ended = False
        self._loader = loader
        self._clock = clock
        self._world_size = steps.world.world_size
        self._steps = iter(steps)
        self._left = len(steps)
        clock.begin()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        """Return the next batch."""
        if self.ended:
            raise StopIteration
        self._clock.enter()
        if not self._left:
            self._clock.leave(0)
            self.close()
            raise StopIteration
        delivered = 0
        try:
            step = next(self._steps)
            batch = self._batch(step)
            delivered = len(step.positions)
        except BaseException as error:
            self.close(failed=True, at_once=not isinstance(error, Exception))
            if isinstance(error, StopIteration):  # it would pass for the end of the epoch
                raise PipelineError(
                    "the collate_fn raised StopIteration",
                    expected="a batch of the samples that it is given",
                    remedy="catch it in the collate_fn",
                ) from error
            raise
        finally:
            self._clock.leave(delivered)
        self._left -= 1
        state = State(self.epoch, step.end) if self._left else State(self.epoch + 1, 0)
        self._loader._delivered(self, state, last=not self._left)
        return batch

    def _batch(self, step: Step) -> Any:
        """Take each worker's part of a step and put them together."""
        loader = self._loader
        num_workers = max(1, loader.num_workers)
        owner = worker_of(step.positions, self._world_size, num_workers)
        taken = []
        for worker in range(num_workers):
            part = self.parts.take()
            places = np.flatnonzero(owner == worker)
            if len(places):
                taken.append((places, part))
        if loader.collate_fn is None:
            batch = weave(taken, len(step.positions), loader.pin_memory, self.parts.lends, loader.output)
        else:
            samples: list[Any] = [None] * len(step.positions)
            for places, part in taken:
                for place, sample in zip(places.tolist(), part, strict=True):
                    samples[place] = sample
            batch = loader.collate_fn(samples)
        self.parts.delivered()
        return batch

    def close(self, failed: bool = False, at_once: bool = False) -> None:
        """End the iteration; workers end with it, unless they are persistent and all is well.

        Args:
            failed: Whether it ends because of an error.
            at_once: Whether worker processes shall not be waited for, because the program was interrupted.
        """
        self.ended = True
        self.parts.close(failed, at_once)
        if failed:
            self._loader._failed(self)

    def __del__(self) -> None:
        self.parts.close()


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


def _needs_torch(wanted: str) -> MissingDependencyError:
    return MissingDependencyError(
        "torch is not installed",
        place=wanted,
        remedy="use output='numpy' and workers='thread', which need no torch; or pip install 'wdsplit[torch]'",
    )
