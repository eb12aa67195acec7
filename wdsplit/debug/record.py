"""The samples that a rank received in an iteration, by key and position, and those that the ranks should receive."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from wdsplit.arrays import Int64
from wdsplit.errors import InputError
from wdsplit.loading.loader import Loader
from wdsplit.loading.reading.source import Source
from wdsplit.loading.stages.columns import ToTuple
from wdsplit.order.epoch import EpochOrder
from wdsplit.order.split import Steps

__all__ = ["AUDITED", "Facts", "Identify", "Record"]

AUDITED = ("__key__", "__position__")
"""The fields that identify a sample: `dataset.to_tuple("jpg", "cls", *AUDITED)`."""

_KEY, _POSITION = AUDITED

Identify = Callable[[Any], Mapping[str, Any]]


@dataclass(frozen=True)
class Facts:
    """The facts of a rank's iteration that other ranks need."""

    rank: int  # as its dataset has it; so is the world size
    world_size: int
    settings: dict[str, Any]  # what must be the same on all ranks, by its name
    start: int  # the position that it began at
    stop: int  # the position after the last that is due to it with these steps; if complete, in the whole epoch
    steps: int
    is_complete: bool  # it came to the end, or was given all batches
    num_samples: int  # without pads
    num_pads: int
    has_keys: bool


class Record:
    """The samples that this rank received in an iteration.

    Attributes:
        order: The order of the epoch.
        world: The rank, as the dataset has it.
        start: The position that the iteration began at.
        ended: Whether it was iterated until there were no more batches.
        skips: The positions that are left out; the loader may leave more out while it is iterated.

    Args:
        loader: The loader, about to be iterated.
        identify: Function from a batch to a dict of `__position__` (int) and, if it has them, `__key__` (str); None to
            look for them by name.
    """

    def __init__(self, loader: Loader, identify: Identify | None) -> None:
        begin, dataset = loader.progress.start, loader.dataset
        self.order, self.world, self.start = dataset.order(begin.epoch), dataset.world(), begin.position
        self.skips = begin.skips
        self.ended = False
        self._view = dataset.source.view_at(begin.epoch)
        self._loader = loader
        self._identify = identify
        self._hashes: list[npt.NDArray[np.uint64]] = []
        self._positions: list[Int64] = []
        self._num_pads = 0

    @property
    def _steps(self) -> Steps:
        return Steps(self.order, self.world, self._loader.batch_size, self.start, self.skips)

    @property
    def stop(self) -> int:
        """The position after the last of the whole epoch that is due."""
        return self._steps.end if self.order.options.tail == "drop" else self.order.num_positions

    def note(self, batch: Any) -> None:
        """Record the samples of a batch.

        Keys may repeat within an epoch of a mixture, or if bad samples are replaced: then only positions count.

        Raises:
            InputError: The batch has no positions.
        """
        columns = self._columns(batch)
        if columns.get(_POSITION) is None:
            raise InputError(
                "the audit cannot tell which samples a batch holds",
                expected=_POSITION,
                found=", ".join(map(str, columns)) or "a batch without names",
                remedy="let the dataset keep it: .to_tuple('jpg', 'cls', *wdsplit.debug.AUDITED), or in a map return "
                "{**sample, ...}; or pass identify=, a function that finds it in a batch and returns a dict",
            )
        positions = columns[_POSITION]
        positions = np.asarray(positions.cpu() if hasattr(positions, "cpu") else positions).astype(np.int64)
        is_real = np.asarray(self.order.is_real(positions))
        self._positions.append(positions[is_real])
        self._num_pads += int((~is_real).sum())
        dataset = self._loader.dataset
        has_unique_keys = isinstance(dataset.source, Source) and not dataset.replaces_bad_samples
        if columns.get(_KEY) is not None and has_unique_keys:
            hashes = [xxhash.xxh3_64_intdigest(str(key).encode()) for key in columns[_KEY]]
            self._hashes.append(np.array(hashes, np.uint64)[is_real])

    def _columns(self, batch: Any) -> Mapping[str, Any]:
        """Return the columns of a batch: a dict, or a tuple of a dataset whose last stage is a `to_tuple`."""
        if self._identify is not None:
            batch = self._identify(batch)
        last = self._loader.dataset.pipeline[-1]
        if isinstance(batch, (tuple, list)) and isinstance(last, ToTuple) and len(batch) == len(last.names):
            return dict(zip(last.names, batch, strict=True))
        return batch if isinstance(batch, Mapping) else {}

    def progress(self) -> str:
        """Return how many batches were received, such as "4 of 10 steps"."""
        return f"{len(self._positions):,} of {len(self._steps):,} steps"

    def facts(self) -> Facts:
        """Return the facts that other ranks need."""
        dataset, num_steps, all_steps = self._loader.dataset, len(self._positions), self._steps
        settings = {
            "epoch": self.order.epoch,
            "dataset": dataset.source.fingerprint,
            "view": self._view,
            "batch_size": self._loader.batch_size,
            **dataclasses.asdict(dataset.options),
        }
        is_complete = self.ended or num_steps >= len(all_steps)
        last = next(islice(all_steps, num_steps - 1, None)) if num_steps and not is_complete else None
        return Facts(
            rank=self.world.rank,
            world_size=self.world.world_size,
            settings=settings,
            start=self.start,
            stop=self.stop if is_complete else self.start if last is None else last.end,
            steps=num_steps,
            is_complete=is_complete,
            num_samples=sum(map(len, self._positions)),
            num_pads=self._num_pads,
            has_keys=len(self._hashes) == num_steps,
        )

    def hashes(self) -> npt.NDArray[np.uint64]:
        """Return hashes of all keys, in the order of their deliveries."""
        return np.concatenate([np.zeros(0, np.uint64), *self._hashes])

    def positions(self) -> Int64:
        """Return all positions, in the order of their deliveries."""
        return np.concatenate([np.zeros(0, np.int64), *self._positions])

    def steps(self) -> Int64:
        """Return the step of each delivery."""
        size = self._loader.batch_size * self.world.world_size
        begins = self.skips.positions(self.skips.numbers(self.start) + np.arange(len(self._positions)) * size)
        return np.repeat(begins // size, list(map(len, self._positions)))

    def name_of(self, position: int) -> str:
        """Return a name for the sample at a position: its key, if that can be read."""
        if isinstance(self.order, EpochOrder):
            located = self.order.locate(np.array([position]))
            index = int(self.order.totals[: int(located.shard[0])].sum() + located.sample[0])
            with contextlib.suppress(Exception):  # the audit's own error matters more than one here
                return f"sample {str(self._loader.dataset.sample(index)['__key__'])!r} at position {position}"
        return f"the sample at position {position}"

    def missing_name_of(self, position: int) -> str:
        """Return a name for a missing sample, with the rank that lacks it and, unless `uneven`, the step."""
        world_size = self.world.world_size
        text = f"{self.name_of(position)}, which rank {position % world_size} should have had"
        if self.order.options.tail == "uneven":
            return text
        global_batch = self._loader.batch_size * world_size
        return f"{text} in step {self.start // global_batch + (position - self.start) // global_batch}"

    def due(self, facts: Sequence[Facts]) -> Callable[[Int64], npt.NDArray[np.bool_]]:
        """Return a function that tells which positions the ranks should have received in the steps that they had."""
        world_size = self.world.world_size
        starts, stops = np.full(world_size, self.stop), np.zeros(world_size, np.int64)
        for each in facts:
            if each.rank < world_size:
                starts[each.rank] = min(starts[each.rank], each.start)
                stops[each.rank] = max(stops[each.rank], min(each.stop, self.stop))

        def is_due(positions: Int64) -> npt.NDArray[np.bool_]:
            rank = self.skips.numbers(positions) % world_size
            is_read = (positions >= starts[rank]) & (positions < stops[rank]) & ~self.skips.contains(positions)
            due: npt.NDArray[np.bool_] = is_read & self.order.is_real(positions)
            return due

        return is_due
