"""A worker's side of the loader: its part of every step.

Runs in a worker process, or in the loader's own if there is none. What it gives is what the loader's other side takes:
one item a step, in the order of the steps.
"""

from __future__ import annotations

import dataclasses
import pickle
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from wdsplit.collate import Column, collate
from wdsplit.dataset import Dataset
from wdsplit.errors import PipelineError, WdsplitError
from wdsplit.order import Int64, hash_stream
from wdsplit.split import Step, Steps, World, worker_of
from wdsplit.world import is_worker_process, with_worker

__all__ = ["Failure", "Packed", "Parts"]


@dataclass(frozen=True)
class Failure:
    """An error of ours on its way from a worker to the caller, without torch's wrapping."""

    error: WdsplitError


@dataclass(frozen=True)
class Packed:
    """A part on its way from a worker, as bytes.

    torch would send each tensor of a list through a file of its own, and a process may only have so many.
    """

    data: bytes

    def unpack(self) -> Any:
        """Return the part."""
        return pickle.loads(self.data)


def _packed(part: Any) -> Any:
    """Pack what is neither a failure nor columns of which each is one tensor, or a list of texts or bytes."""
    if part is None or isinstance(part, Failure) or all(map(_travels_well, _columns_of(part))):
        return part
    return Packed(pickle.dumps(part, protocol=5))


def _columns_of(part: Any) -> list[Any]:
    if isinstance(part, dict):
        return list(part.values())
    return list(part) if isinstance(part, tuple) else [part]


def _travels_well(column: Any) -> bool:
    if not isinstance(column, Column):
        return False
    return column.kind != "other" or set(map(type, column.data)) <= {str, bytes, type(None)}


class Parts(IterableDataset[Any]):
    """The sub-batches of one worker, one a step; None for a step in which it has no sample.

    Where to begin lies in shared memory, so that persistent workers see it too.
    """

    def __init__(self, dataset: Dataset, batch_size: int, world: World, collated: bool) -> None:
        self.dataset = dataset
        self.batch_size = batch_size
        self.world = world
        self.collated = collated
        self._begin = torch.zeros(3, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def begin(self, epoch: int, start: int) -> None:
        """Say where the next iteration begins, and what this process was seeded with."""
        seed = torch.initial_seed() & 0x7FFFFFFFFFFFFFFF
        self._begin[0], self._begin[1], self._begin[2] = epoch, start, seed

    def __iter__(self) -> Iterator[Any]:
        """Give the sub-batches of the iteration that `begin` named: which one is settled now, not with the first."""
        epoch, start, seed = self._begin.tolist()
        world = with_worker(self.world)
        steps = Steps(self.dataset.source.order(epoch), self.world, self.batch_size, start)
        parts = self._guarded(steps, world)
        if not is_worker_process():
            return parts
        _seed_generators(hash_stream(seed, self.dataset.options.seed, epoch, start, *dataclasses.astuple(world)))
        return map(_packed, parts)

    def _guarded(self, steps: Steps, world: World) -> Iterator[Any]:
        try:
            yield from self._sub_batches(steps, world)
        except WdsplitError as error:
            yield Failure(error)

    def _sub_batches(self, steps: Steps, world: World) -> Iterator[Any]:
        counter = _Counter()
        chunks = _chunks(steps, world, self.dataset.source.chunk)
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
    count = 0
    for step in steps:
        held.append(_own(step, world))
        count += len(held[-1])
        if count >= size:
            yield np.concatenate(held)
            held, count = [], 0
    if held:
        yield np.concatenate(held)


def _not_one_to_one(given: int, taken: int) -> PipelineError:
    return PipelineError(
        "a stage did not give one sample for each sample it took",
        expected="as many samples out as in, so that every rank has the same steps",
        found=f"{taken} samples in, {given} out" + (", and then no more" if taken == given else ""),
        remedy="leave batching and shuffling to the Loader and the Dataset; do not drop samples in a stage "
        "(select, a map that returns None, a handler that skips): filter the table before it is converted",
    )


def _seed_generators(state: int) -> None:
    """Seed the global generators of a worker process, so that no two workers, ranks or epochs draw the same numbers."""
    torch.manual_seed(state)
    random.seed(state)
    np.random.seed(state & 0xFFFFFFFF)
