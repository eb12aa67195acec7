"""A worker's side of the loader: its sub-batch of every step.

Runs in a worker process, in a thread, or in the loader's own thread if there are no workers. What it gives is what the
loader's other side takes: parcels, lists of the sub-batches of one or more steps, in the order of the steps.
"""

from __future__ import annotations

import dataclasses
import gc
import pickle
import random
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice, pairwise, repeat, tee
from typing import Any

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.errors import PipelineError, WdsplitError
from wdsplit.loading.bad_samples import with_file
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.reading.block import Block
from wdsplit.loading.reading.read_ahead import Ahead
from wdsplit.loading.reading.reader import BlockReader, Reading
from wdsplit.loading.reading.source import AnySource
from wdsplit.loading.reading.windows import DAMAGE
from wdsplit.loading.stages.columns import only_names, requested_fields
from wdsplit.loading.stages.randomness import at_epoch
from wdsplit.loading.substitutes import OneByOne
from wdsplit.loading.transport.batch_memory import Pool, Room, Rooms, Slots
from wdsplit.loading.transport.collate import (
    collate,
    collate_columns,
    collate_group,
    collate_packs,
    in_bundles,
    spaced,
    without_left_out,
)
from wdsplit.loading.transport.counters import Counters
from wdsplit.loading.transport.shared_integers import SharedIntegers
from wdsplit.loading.transport.shared_segments import Bound, Ring, travelling
from wdsplit.loading.transport.thread_workers import Raised
from wdsplit.loading.world import with_worker
from wdsplit.order.bundles import Form, Grouping, Packing
from wdsplit.order.hashing import hash_stream
from wdsplit.order.skips import NO_SKIPS, Skips
from wdsplit.order.split import Steps, World, worker_of
from wdsplit.storage.traffic import Traffic

__all__ = ["Following", "SubBatches"]

_PARCEL_BYTES, _PARCEL_STEPS = 2 * 1024**2, 8
"""Sub-batches travel together until they are of so many bytes of shards, or so many steps: handing one over costs the
same whatever its size."""
_PARCELS_AHEAD = 4
"""Largest fraction of the prefetched bytes for one parcel."""
_EPOCH, _START, _SEED, _BEGUN, _ENDED = range(5)
"""The integers that the loader shares with its workers: where an iteration begins, what the loader's process was seeded
with, the number of the iteration that was begun last, and of the last one that has ended."""


class _Epoch(Reading):
    """What a worker reads of an epoch.

    Args:
        reader: Reads it.
        together: The positions of each step, in lists of steps whose samples are read together.
        traffic: Counts what is fetched.
    """

    def __init__(self, reader: BlockReader, together: Iterator[list[Int64]], traffic: Traffic) -> None:
        self.together, lists = tee(together)
        self.traffic = traffic
        super().__init__(reader, map(np.concatenate, lists))


_Mark = tuple[AnySource, World, int, int, Skips]
"""What is read of an epoch: the source, the worker, the epoch, where it begins, and what is left out."""
Following = dict[int, tuple[_Mark, Reading | None]]
"""What follows the epoch that each worker has read, which it may be fetching already."""


class SubBatches:
    """The sub-batches of one worker, one a step; None for a step in which it has no sample.

    They come in parcels. All workers have as many steps in a parcel; only the last before an error may have fewer.
    Where samples go through stages one by one there is one step in a parcel: nobody knows how long a stage takes.

    The start is in shared memory, so that persistent workers see it too.

    Args:
        dataset: The dataset.
        batch_size: Samples a batch and rank.
        world: Rank and world size.
        num_workers: Workers, 0 for none.
        collated: Whether a sub-batch is columns, else a list of samples.
        prefetch_bytes: Bytes that all workers may have made ahead.
        skips: Positions of the epoch that are left out; with others, other workers are needed.
        pools: Memory for the batches of workers of this process, by size.
        begun: What workers fetch from one iteration to the next; None to fetch nothing of the next epoch.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int,
        world: World,
        num_workers: int,
        collated: bool,
        prefetch_bytes: int,
        skips: Skips,
        pools: dict[int, Pool],
        begun: Following | None,
    ) -> None:
        self.dataset = dataset
        self.source = dataset.source
        self.batch_size = batch_size
        self.world = world
        self.collated = collated
        self.skips = skips
        self._steps_together = 1
        stages = dataset.column_stages() if collated else None
        slot_bytes = batch_size * max((getattr(stage, "row_bytes", 0) for stage in stages or ()), default=0)
        self.slot_bytes = slot_bytes if slot_bytes >= _PARCEL_BYTES else 0
        if num_workers and stages is not None and not self.slot_bytes:
            samples = max(map(self.source.samples_a_position, self.source.view_epochs))
            step_bytes = int(self.source.sample_bytes * samples * -(-batch_size // num_workers))
            parcel_bytes = min(_PARCEL_BYTES, prefetch_bytes // num_workers // _PARCELS_AHEAD)
            self._steps_together = max(1, min(_PARCEL_STEPS, parcel_bytes // max(1, step_bytes)))
        self.counters = Counters(max(1, num_workers))
        self.bound: Bound | None = None
        self.slots: Slots | None = None
        self._pools = pools
        self._rooms: Rooms | None = None
        self._begun = begun
        self._shared = SharedIntegers(5)
        self._iterations = 0
        self._ring: Ring | None = None

    def begin(self, epoch: int, start: int) -> None:
        """Say where the next iteration begins, and what this process was seeded with."""
        self.end()
        cells, seed = self._shared.array, 0
        if self.bound is not None:
            import torch  # here, because only worker processes need it

            seed = torch.initial_seed() & 0x7FFFFFFFFFFFFFFF
        else:
            self._rooms = Rooms(self._pools)
        cells[[_EPOCH, _START, _SEED]] = epoch, start, seed
        cells[_BEGUN] += 1

    def end(self) -> None:
        """Say that no more sub-batches of the iteration under way are needed: its workers stop, wherever they are."""
        cells = self._shared.array
        cells[_ENDED] = cells[_BEGUN]
        if self.bound is not None:
            self.bound.wake()
        if self.slots is not None:
            self.slots.wake()

    def __iter__(self) -> Iterator[Any]:
        """Give the parcels of the iteration that `begin` named: which one is settled now, not with the first.

        A worker process counts its iterations: when it starts, the loader may have gone on to another one already.
        """
        assert self.bound is not None
        if not self._iterations:
            gc.freeze()  # else each collection visits, and so copies, all that was in memory before the fork
        world = with_worker(self.world)
        epoch, start, seed = self._shared.array[[_EPOCH, _START, _SEED]].tolist()
        # No two workers, ranks or epochs draw the same numbers from the global generators.
        seed = hash_stream(seed, self.dataset.options.seed, epoch, start, *dataclasses.astuple(world))
        import torch

        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        self._iterations += 1
        parcels = self._guarded(epoch, start, world, self._iterations)
        return self._sent(parcels, world.worker, self.bound, self._need_of(self._iterations))

    def of_worker(self, world: World) -> Iterator[Any]:
        """Give the parcels of one worker of this process."""
        epoch, start, number = self._shared.array[[_EPOCH, _START, _BEGUN]].tolist()
        return self._guarded(epoch, start, world, number)

    def _need_of(self, number: int) -> Callable[[], bool]:
        """Return what tells whether an iteration, by its number, is under way."""
        cells = self._shared.array
        return lambda: bool(cells[_BEGUN] == number and cells[_ENDED] < number)

    def _guarded(self, epoch: int, start: int, world: World, number: int) -> Iterator[Any]:
        is_needed = self._need_of(number)
        try:
            steps = Steps(self.source.order(epoch), self.world, self.batch_size, start, self.skips)
            count = partial(self.counters.bad, world.worker, number)
            ones = self.dataset.one_by_one(self.source, steps.order, world.world_size, count)
            blocks = self._blocks(steps, world)
            form = self.source.form_at(epoch)
            is_stacked = form is None or (isinstance(form, Grouping) and not form.budget)
            stages = self.dataset.column_stages() if self.collated and is_stacked else None
            if stages is None:
                sub_batches = self._streamed(blocks, ones, is_needed, form)
            else:
                stages = [at_epoch(stage, epoch) for stage in stages]
                has_rooms = self.slot_bytes and form is None
                rooms = self._rooms_of(steps, world, is_needed) if has_rooms else repeat(None)
                sub_batches = (
                    self._columnar(block, stages, ones, room) if len(block) else None
                    for block, room in zip(blocks, rooms, strict=False)
                )
            yield from self._parcels(sub_batches, is_needed)
        except WdsplitError as error:
            yield [Raised(with_file(error, self.source))]

    def _parcels(self, sub_batches: Iterator[Any], is_needed: Callable[[], bool]) -> Iterator[list[Any]]:
        """Give sub-batches together, as long as they are needed; the first one by itself, so that it comes soon."""
        for size in chain([1], repeat(self._steps_together)):
            parcel: list[Any] = []
            try:
                for sub_batch in islice(sub_batches, size):
                    parcel.append(sub_batch)
                    if not is_needed():
                        return
            except Exception:
                if parcel:
                    yield parcel
                raise
            if not parcel:
                return
            yield parcel

    def _sent(self, parcels: Iterator[Any], worker: int, bound: Bound, is_needed: Callable[[], bool]) -> Iterator[Any]:
        """Give parcels as they travel from a worker process, and no more ahead than there is room for."""
        ring = self._ring = self._ring or Ring(bound.memories[worker], bound.num_slots)
        ring.restart()
        bound.restart(worker)
        try:
            for parcel in parcels:
                if isinstance(parcel[0], Raised):
                    yield [Raised(_portable(parcel[0].error, parcel[0].error))]
                    continue
                if all(sub_batch is None for sub_batch in parcel):
                    yield parcel
                    continue
                ready, size = travelling(parcel, may_be_large=self._steps_together == 1)
                if not bound.wait(worker, ring, size, is_needed):
                    return
                yield ring.place(ready, size)
        except WdsplitError as error:
            yield [Raised(error)]
        except Exception as error:
            raise _portable(error, type(error)) from error.__cause__

    def _blocks(self, steps: Steps, world: World) -> Iterator[Block]:
        """Give this worker's samples of each step; those of the next epoch are fetched with the last of them."""
        number, worker = steps.order.epoch, world.worker
        mark: _Mark = (self.source, world, number, steps.start, steps.skips)
        expected, begun = (mark, None) if self._begun is None else self._begun.pop(worker, (mark, None))
        if isinstance(begun, _Epoch) and expected == mark and not begun.reader.has_failed:
            epoch = begun
            self.counters.take_over(worker, epoch.traffic)
        else:
            epoch = self._epoch(steps, world)
        del begun  # one that is not continued would keep the bytes that it has fetched
        reader, left = epoch.reader, len(steps)
        is_ahead = reader.ahead is not None and not reader.ahead.is_downloading  # not whole shards, perhaps in vain
        is_alike = self.source.view_at(number) == self.source.view_at(number + 1)
        # After another epoch than the expected one, the next one may be another one again.
        if self._begun is not None and is_ahead and is_alike and expected == mark:
            epoch.follow = partial(self._next_epoch, number + 1, world, reader.ahead, epoch.traffic)
        num_read = num_reused = 0
        for owned, block in zip(epoch.together, epoch.traffic.counting(epoch), strict=True):
            self.counters.read(worker, reader.num_read - num_read, reader.num_reused - num_reused)
            num_read, num_reused = reader.num_read, reader.num_reused
            stops = np.cumsum(list(map(len, owned)))
            if block.units is not None:
                stops = np.searchsorted(block.units, stops)
            for first, stop in pairwise([0, *stops.tolist()]):
                sub_batch = block.cut(first, stop)
                self.counters.made(worker, len(sub_batch), sub_batch.num_bytes)
                left -= 1
                if not left and self._begun is not None:
                    self._begun[worker] = (self.source, world, number + 1, 0, NO_SKIPS), epoch.following
                yield sub_batch

    def _epoch(self, steps: Steps, world: World, ahead: Ahead | None = None, traffic: Traffic | None = None) -> _Epoch:
        """Return what a worker reads in some steps, with what fetches and counts, if it is that of another epoch."""
        reader = self.source.reader(steps.order, world, ahead)
        together = _together(steps, world, self.source.positions_at_once(world, steps.order.epoch))
        return _Epoch(reader, together, traffic or self.counters.traffic(world.worker))

    def _next_epoch(self, number: int, world: World, ahead: Ahead | None, traffic: Traffic) -> _Epoch:
        return self._epoch(Steps(self.source.order(number), self.world, self.batch_size), world, ahead, traffic)

    def _rooms_of(self, steps: Steps, world: World, is_needed: Callable[[], bool]) -> Iterator[Room | None]:
        """Give the memory for this worker's rows of each step's batch; None where it makes memory of its own."""
        for number, step in enumerate(steps):
            rows = spaced(
                np.flatnonzero(worker_of(step.positions, world.world_size, world.num_workers) == world.worker)
            )
            if not isinstance(rows, slice):
                yield None
            elif self.slots is not None:
                opened = partial(self.slots.opened, world.worker, is_needed, number)
                yield Room(rows, len(step.positions), opened)
            elif self._rooms is not None:
                yield Room(rows, len(step.positions), partial(self._rooms.opened, number))

    def _columnar(self, block: Block, stages: list[Any], ones: OneByOne, room: Room | None) -> Any:
        """Return a step's sub-batch by way of its columns, or sample by sample where they cannot be had."""
        # A worker process reads payloads that no stage needs directly into the memory that it shares with the loader.
        pending = self.bound is not None and not self.dataset.replaces_bad_samples and only_names(stages)
        columns: Any = None if DAMAGE in block.fields else block.columns(requested_fields(stages), pending)
        try:
            for stage in stages:
                columns = None if columns is None else stage.columns(columns, room)
        except Exception:
            if not self.dataset.replaces_bad_samples:
                raise
            columns = None
        if columns is not None:
            return collate_columns(columns) if room is None else room.marked(collate_columns(columns))
        return collate(list(ones.apply(block.samples())))

    def _streamed(
        self, blocks: Iterator[Block], ones: OneByOne, is_needed: Callable[[], bool], form: Form | None
    ) -> Iterator[Any]:
        """Give sub-batches sample by sample, as long as they are needed."""
        for block in blocks:
            sub_batch = list(ones.apply(block.samples(), is_needed))
            if not is_needed():
                return
            if not sub_batch:
                yield None
            elif block.units is None or form is None:
                yield collate(sub_batch) if self.collated else sub_batch
            else:
                good, sizes = without_left_out(sub_batch, block.units - block.units[0])
                if not self.collated:
                    yield in_bundles(good, sizes)
                elif isinstance(form, Packing):
                    yield collate_packs(good, sizes, form)
                else:
                    yield collate_group(good, form.budget) if form.budget else collate(good)
        ones.finish()


def _together(steps: Steps, world: World, max_samples: int) -> Iterator[list[Int64]]:
    """Give a worker's positions of some steps at a time: of one first, so that it comes soon, then of more and more."""
    pending: list[Int64] = []
    count, enough = 0, 1
    for step in steps:
        mine = worker_of(step.positions, world.world_size, world.num_workers) == world.worker
        pending.append(step.positions[mine])
        count += len(pending[-1])
        if count >= enough:
            yield pending
            enough = min(2 * max(enough, count), max_samples)
            pending, count = [], 0
    if pending:
        yield pending


def _portable(error: BaseException, sent: Any) -> BaseException:
    """Return an error that can leave this process: itself, unless what is sent of it cannot be pickled."""
    try:
        pickle.loads(pickle.dumps(sent))
        return error
    except Exception:
        return PipelineError(
            f"a stage failed with {type(error).__name__}, an error that cannot be pickled",
            found="".join(traceback.format_exception(error)).strip(),
            remedy="define the class of the error at the top of a module, or use workers='thread'",
        )
