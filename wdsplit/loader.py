"""The loader: one rank's batches, the same on any topology, with a state that resumes anywhere.

Composition of the dataset and torch's worker processes. Each worker makes its part of every step, a sub-batch; this
process weaves the parts of a step into the batch, so the number of workers does not change it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset

from wdsplit.collate import collate, weave
from wdsplit.dataset import Dataset, announce
from wdsplit.errors import InputError, PipelineError, StateError, WdsplitError
from wdsplit.order import Int64
from wdsplit.split import Step, Steps, World, worker_of
from wdsplit.state import State, dump_state, parse_state
from wdsplit.world import with_worker

__all__ = ["Loader"]


class Loader:
    """Batches of a `Dataset` for this rank.

    Step t of an epoch holds the positions t B <= g < (t + 1) B of the global order, B = batch_size x world_size; this
    rank's batch holds every world_size-th of them, in order. All ranks have the same number of steps, `len(loader)`,
    unless the dataset's tail is `uneven`. Each full pass moves on to the next epoch; `set_epoch` chooses one.

    Without `collate_fn`, numbers, arrays and tensors are stacked; strings, bytes and all else come as lists.

    Args:
        dataset: The dataset, with stages that give one sample for each they take.
        batch_size: Samples a batch and rank.
        num_workers: Worker processes; 0 reads in this one.
        collate_fn: Makes a batch from the list of its samples, in this process.
        pin_memory: Put tensors into pinned memory, for copies to a GPU that do not block.
        prefetch_factor: Steps that each worker works ahead.
        persistent_workers: Keep the worker processes from one epoch to the next.
        multiprocessing_context: How workers are started: `fork`, `forkserver` or `spawn`; None for torch's default.

    Raises:
        InputError: An argument cannot be.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        *,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        prefetch_factor: int = 2,
        persistent_workers: bool = False,
        multiprocessing_context: str | None = None,
    ) -> None:
        problems = []
        if not isinstance(dataset, Dataset):
            problems.append(f"dataset is a {type(dataset).__name__}: expected a wdsplit.Dataset")
        for name, value, low in (
            ("batch_size", batch_size, 1),
            ("num_workers", num_workers, 0),
            ("prefetch_factor", prefetch_factor, 1),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < low:
                problems.append(f"{name} = {value!r}: expected an integer of at least {low}")
        if problems:
            raise InputError("the loader's arguments cannot be", found="; ".join(problems))
        self.dataset = dataset
        self.batch_size = batch_size
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.pin_memory = pin_memory and torch.cuda.is_available()
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = persistent_workers and num_workers > 0
        self.multiprocessing_context = multiprocessing_context
        self._loaded: State | None = None
        self._progress: State | None = None
        self._workers: DataLoader[Any] | None = None

    @property
    def epoch(self) -> int:
        """The epoch that the next iteration gives, or that the current one is in."""
        return self.dataset.epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next iteration. A position that was loaded is kept if it lies in that epoch."""
        self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        """Return the steps of a whole epoch."""
        return len(Steps(self.dataset.order(), self.dataset.world(), self.batch_size))

    def state_dict(self) -> dict[str, Any]:
        """Return how far this loader has got, as plain JSON values.

        Counts the batches that were delivered, not those that workers have prefetched. After the last batch of an
        epoch it names the beginning of the next one. It resumes on any number of ranks, workers and any batch size
        (with tail `uneven`: each rank its own state, on the same number of ranks).
        """
        return dump_state(self._state(), self.dataset.manifest.fingerprint, self.dataset.options, self.dataset.world())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to where a state dict was taken: the next iteration gives the rest of its epoch.

        Raises:
            StateError: The state is of another dataset or other options.
        """
        dataset = self.dataset
        state = parse_state(state_dict, dataset.manifest.fingerprint, dataset.options, dataset.world())
        num_positions = dataset.order(state.epoch).num_positions
        if state.position >= max(1, num_positions):
            raise StateError(
                "the state lies beyond the end of its epoch",
                expected=f"a position below {num_positions}",
                found=str(state.position),
                remedy="the state is damaged: use an earlier checkpoint",
            )
        self.dataset.set_epoch(state.epoch)
        self._loaded, self._progress = state, None

    def _state(self) -> State:
        for state in (self._progress, self._loaded):
            if state is not None and state.epoch == self.dataset.epoch:
                return state
        return State(self.dataset.epoch, 0)

    def __iter__(self) -> Iterator[Any]:
        """Give the batches of the epoch, or what is left of it after `load_state_dict`."""
        epoch = self.dataset.epoch
        start = self._loaded.position if self._loaded is not None and self._loaded.epoch == epoch else 0
        self._loaded, self._progress = None, State(epoch, start)
        world = self.dataset.world()
        steps = Steps(self.dataset.order(epoch), world, self.batch_size, start)
        announce(self.dataset, World(world.rank, world.world_size, 0, max(1, self.num_workers)))
        parts = self._parts(epoch, start, world)
        return self._batches(epoch, steps, parts)

    def _batches(self, epoch: int, steps: Steps, parts: Iterator[Any]) -> Iterator[Any]:
        left = len(steps)
        for step in steps:
            batch = self._batch(step, steps.world.world_size, parts)
            left -= 1
            self._progress = State(epoch, step.end) if left else State(epoch + 1, 0)
            if not left and self.dataset.epoch == epoch:
                self.dataset.set_epoch(epoch + 1)
            yield batch
        if not len(steps) and self.dataset.epoch == epoch:
            self._progress = State(epoch + 1, 0)
            self.dataset.set_epoch(epoch + 1)

    def _batch(self, step: Step, world_size: int, parts: Iterator[Any]) -> Any:
        """Take each worker's part of a step and put them together."""
        num_workers = max(1, self.num_workers)
        owner = worker_of(step.positions, world_size, num_workers)
        taken = []
        for worker in range(num_workers):
            part = next(parts)
            if isinstance(part, _Failure):
                raise part.error
            places = np.flatnonzero(owner == worker)
            if len(places):
                taken.append((places, part))
        if self.collate_fn is None:
            return weave(taken, len(step.positions), self.pin_memory)
        samples: list[Any] = [None] * len(step.positions)
        for places, part in taken:
            for place, sample in zip(places.tolist(), part, strict=True):
                samples[place] = sample
        return self.collate_fn(samples)

    def _parts(self, epoch: int, start: int, world: World) -> Iterator[Any]:
        """Give the workers' parts: step by step, worker by worker."""
        if not self.num_workers:
            parts = _Parts(self.dataset, self.batch_size, world, self.collate_fn is None)
            parts.begin(epoch, start)
            return iter(parts)
        if self._workers is None or not self.persistent_workers:
            self._workers = DataLoader(
                _Parts(self.dataset, self.batch_size, world, self.collate_fn is None),
                batch_size=None,
                num_workers=self.num_workers,
                collate_fn=_unchanged,
                prefetch_factor=self.prefetch_factor,
                persistent_workers=self.persistent_workers,
                multiprocessing_context=self.multiprocessing_context,
                generator=torch.Generator(),
            )
        shared = self._workers.dataset
        if not isinstance(shared, _Parts) or shared.world != world:
            raise InputError(
                "the rank has changed while persistent workers are running",
                found=f"{world}",
                remedy="make a new Loader after the process group has changed",
            )
        shared.begin(epoch, start)
        return iter(self._workers)


@dataclass(frozen=True)
class _Failure:
    """An error of ours on its way from a worker to the caller, without torch's wrapping."""

    error: WdsplitError


def _unchanged(part: Any) -> Any:
    return part


class _Parts(IterableDataset[Any]):
    """The sub-batches of one worker, one a step; None for a step in which it has no sample.

    Where to begin lies in shared memory, so that persistent workers see it too.
    """

    def __init__(self, dataset: Dataset, batch_size: int, world: World, collated: bool) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.world = world
        self.collated = collated
        self._begin = torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def begin(self, epoch: int, start: int) -> None:
        """Say where the next iteration begins."""
        self._begin[0], self._begin[1] = epoch, start

    def __iter__(self) -> Iterator[Any]:
        epoch, start = self._begin.tolist()
        world = with_worker(self.world)
        steps = Steps(self.dataset.source.order(epoch), self.world, self.batch_size, start)
        return self._guarded(steps, world)

    def _guarded(self, steps: Steps, world: World) -> Iterator[Any]:
        try:
            yield from self._sub_batches(steps, world)
        except WdsplitError as error:
            yield _Failure(error)

    def _sub_batches(self, steps: Steps, world: World) -> Iterator[Any]:
        counter = _Counter()
        chunks = _chunks(steps, world, self.dataset.manifest.window)
        samples = counter.count(self.dataset.source.read(steps.order, world, chunks))
        stream = self.dataset.through_stages(samples)
        expected = 0
        for step in steps:
            size = len(_own(step, world))
            expected += size
            part = list(islice(stream, size))
            if len(part) != size or counter.given != expected:
                raise _not_one_to_one(expected - size + len(part), counter.given)
            yield (collate(part) if self.collated else part) if size else None


class _Counter:
    """Counts the samples that the stages have taken."""

    def __init__(self) -> None:
        self.given = 0

    def count(self, samples: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for sample in samples:
            self.given += 1
            yield sample


def _own(step: Step, world: World) -> Int64:
    """Return the positions of a step that are this worker's."""
    mine = worker_of(step.positions, world.world_size, world.num_workers) == world.worker
    own: Int64 = step.positions[mine]
    return own


def _chunks(steps: Steps, world: World, size: int) -> Iterator[Int64]:
    """Give a worker's positions of all steps, put together to at least `size` at a time where there are as many."""
    held: list[Int64] = []
    for step in steps:
        held.append(_own(step, world))
        if sum(map(len, held)) >= size:
            yield np.concatenate(held)
            held = []
    if held:
        yield np.concatenate(held)


def _not_one_to_one(given: int, taken: int) -> PipelineError:
    return PipelineError(
        "a stage did not give one sample for each sample it took",
        expected="as many samples out as in, so that every rank has the same steps",
        found=f"{taken} samples in, {given} out",
        remedy="leave batching and shuffling to the Loader and the Dataset; do not drop samples in a stage "
        "(select, a map that returns None, a handler that skips): filter the table before it is converted",
    )
