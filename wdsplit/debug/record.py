"""What a rank was given in an iteration, and what the other ranks need to know of that."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsplit.debug.identity import Identifier, key_hash
from wdsplit.loading.loader import Loader
from wdsplit.order.epoch import EpochOrder, Int64
from wdsplit.order.split import Steps

__all__ = ["Facts", "Record", "due_positions", "num_due", "sample_name"]

_POSITIONS_AT_ONCE = 1 << 20


@dataclass(frozen=True)
class Facts:
    """What a rank says of an iteration.

    Attributes:
        rank: Its rank, as its dataset has it.
        world_size: The number of ranks, as its dataset has it.
        settings: What must be the same on all ranks, by its name.
        start: The position that it began at.
        stop: The position after the last that is due to it: with the steps that it was given, or in the whole epoch if
            it came to the end.
        steps: The batches that it was given.
        complete: Whether it came to the end, or was given all batches.
        num_samples: Samples in them, pads left out.
        num_pads: Pads in them.
        has_keys: Whether they held keys.
        has_positions: Whether they held positions.
    """

    rank: int
    world_size: int
    settings: dict[str, Any]
    start: int
    stop: int
    steps: int
    complete: bool
    num_samples: int
    num_pads: int
    has_keys: bool
    has_positions: bool


class Record:
    """What this rank was given in an iteration.

    Attributes:
        order: The order of the epoch.
        world: The rank, as the dataset has it.
        start: The position that the iteration began at.
        stop: The position after the last of the whole epoch that should be given.
        first_step: The step that it began with.
        settings: What must be the same on all ranks, by its name.
        ended: Whether it was iterated until there were no more batches.

    Args:
        loader: The loader, about to be iterated.
    """

    def __init__(self, loader: Loader) -> None:
        begin, world, dataset = loader._progress.start, loader.dataset.world(), loader.dataset
        self.order = dataset.order(begin.epoch)
        self.start = begin.position
        self.world = world
        self.first_step = begin.position // (loader.batch_size * world.world_size)
        is_dropped = dataset.options.tail == "drop"
        self._steps = steps = Steps(self.order, world, loader.batch_size, begin.position)
        self.stop = steps.end if is_dropped else self.order.num_positions
        self.settings = {
            "epoch": begin.epoch,
            "dataset": dataset.source.fingerprint,
            "batch_size": loader.batch_size,
            **dataclasses.asdict(dataset.options),
        }
        self.ended = False
        self._hashes: list[npt.NDArray[np.uint64]] = []
        self._positions: list[Int64] = []
        self._ends: list[int] = []
        self._num_pads = 0

    def note(self, batch: Any, identify: Identifier) -> None:
        """Note what a batch holds."""
        found = identify(batch, self.order)
        columns = [column for column in (found.hashes, found.positions) if column is not None]
        if found.hashes is not None:
            self._hashes.append(found.hashes)
        if found.positions is not None:
            self._positions.append(found.positions)
        self._ends.append(len(columns[0]) + (self._ends[-1] if self._ends else 0))
        self._num_pads += found.num_pads

    def facts(self) -> Facts:
        """Return what the others must know."""
        num_steps = len(self._ends)
        is_complete = self.ended or num_steps >= len(self._steps)
        return Facts(
            self.world.rank,
            self.world.world_size,
            self.settings,
            self.start,
            self.stop if is_complete else self._end_of(num_steps),
            num_steps,
            is_complete,
            self._ends[-1] if self._ends else 0,
            self._num_pads,
            len(self._hashes) == num_steps,
            len(self._positions) == num_steps,
        )

    def _end_of(self, num_steps: int) -> int:
        """Return the position after the last that so many steps have, fewer than there are."""
        last = next(islice(self._steps, num_steps - 1, None)) if num_steps else None
        return self.start if last is None else last.end

    def hashes(self) -> npt.NDArray[np.uint64]:
        """Return the hashes of all keys, in the order of their deliveries."""
        return np.concatenate([np.zeros(0, np.uint64), *self._hashes])

    def positions(self) -> Int64:
        """Return all positions, in the order of their deliveries."""
        return np.concatenate([np.zeros(0, np.int64), *self._positions])

    def describe(self, index: int, loader: Loader) -> tuple[str, int]:
        """Return the name of a sample that was delivered, by its number among all, and the step."""
        step = self.first_step + int(np.searchsorted(self._ends, index, side="right"))
        hashes = self.hashes()[index : index + 1].tolist()
        if self._positions:
            return sample_name(loader, self.order, int(self.positions()[index]), *hashes), step
        return f"the sample whose key has the hash {hashes[0]:016x}", step


def sample_name(loader: Loader, order: Any, position: int, key_digest: int | None = None) -> str:
    """Return what to call the sample at a position: by its key, if that can be read and has the hash that is given."""
    if isinstance(order, EpochOrder):
        located = order.locate(np.array([position]))
        index = int(order.counts[: int(located.shard[0])].sum() + located.sample[0])
        with contextlib.suppress(Exception):  # whatever fails, the audit has something more important to say
            key = str(loader.dataset.sample(index)["__key__"])
            if key_digest in (None, key_hash(key)):
                return f"sample {key!r} at position {position}"
    return f"the sample at position {position}"


def due_positions(record: Record, facts: Sequence[Facts]) -> Callable[[Int64], npt.NDArray[np.bool_]]:
    """Return what tells which positions the ranks should have been given, in as many steps as they were."""
    world_size = record.world.world_size
    starts, stops = np.full(world_size, record.stop), np.zeros(world_size, np.int64)
    for each in facts:
        if each.rank < world_size:
            starts[each.rank] = min(starts[each.rank], each.start)
            stops[each.rank] = max(stops[each.rank], min(each.stop, record.stop))

    def expected(positions: Int64) -> npt.NDArray[np.bool_]:
        rank = positions % world_size
        is_due = (positions >= starts[rank]) & (positions < stops[rank])
        due: npt.NDArray[np.bool_] = is_due & record.order.is_real(positions)
        return due

    return expected


def num_due(record: Record, facts: Sequence[Facts]) -> int:
    """Return how many samples the ranks should have been given."""
    due, count = due_positions(record, facts), 0
    for first in range(0, record.stop, _POSITIONS_AT_ONCE):
        count += int(due(np.arange(first, min(record.stop, first + _POSITIONS_AT_ONCE))).sum())
    return count
