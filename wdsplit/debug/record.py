"""The samples that a rank received in an iteration, by key and position, and those that were due to it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import xxhash

from wdsplit.arrays import Int64, UInt64
from wdsplit.errors import InputError
from wdsplit.loading.loader import Loader
from wdsplit.loading.reading.source import Source
from wdsplit.loading.stages.columns import ToTuple
from wdsplit.order.epoch import EpochOrder
from wdsplit.order.split import Step, Steps

__all__ = ["AUDITED", "Facts", "Identify", "Record", "Samples"]

AUDITED = ("__key__", "__position__")
"""The fields that identify a sample: `dataset.to_tuple("jpg", "cls", *AUDITED)`."""

_KEY, _POSITION = AUDITED

Identify = Callable[[Any], Mapping[str, Any]]


class Samples(NamedTuple):
    """Samples of steps, pads left out: arrays of shape (samples,)."""

    values: UInt64  # what identifies them: positions, or hashes of keys
    steps: Int64
    positions: Int64


class Facts(NamedTuple):
    """The facts of a rank's iteration that other ranks need."""

    rank: int  # as its dataset has it; so is the world size
    world_size: int
    settings: dict[str, Any]  # what must be the same on all ranks, by its name
    start: int  # the position that it began at
    steps: int
    is_complete: bool  # it came to the end, or was given all batches
    num_samples: int  # without pads
    num_pads: int
    has_keys: bool


class Record:
    """The samples that this rank received in an iteration.

    Attributes:
        order: The order of the epoch.
        start: The position that the iteration began at.
        ended: Whether it was iterated until there were no more batches.
        skips: The positions that are left out; the loader may leave more out while it is iterated.

    Args:
        loader: The loader, about to be iterated.
        identify: Function from a batch to a dict of `__position__` (int) and, if it has them, `__key__` (str); None to
            look for them by name.
    """

    def __init__(self, loader: Loader, identify: Identify | None) -> None:
        begin, self._dataset = loader.progress.start, loader.dataset
        self.order, self.start, self.skips = self._dataset.order(begin.epoch), begin.position, begin.skips
        self.ended = False
        self._view = self._dataset.source.view_at(begin.epoch)
        self._world, self._batch_size = self._dataset.world(), loader.batch_size
        self._identify = identify
        self._hashes: list[UInt64] = []
        self._positions: list[Int64] = []
        self._num_pads = 0

    @property
    def _steps(self) -> Steps:
        return Steps(self.order, self._world, self._batch_size, self.start, self.skips)

    def note(self, batch: Any) -> None:
        """Record the samples of a batch.

        Keys may repeat within an epoch of a mixture, or if bad samples are replaced: then only positions count.

        Raises:
            InputError: The batch has no positions.
        """
        if self._identify is not None:
            batch = self._identify(batch)
        last = self._dataset.pipeline[-1]
        if isinstance(batch, (tuple, list)) and isinstance(last, ToTuple) and len(batch) == len(last.names):
            batch = dict(zip(last.names, batch, strict=True))
        columns = batch if isinstance(batch, Mapping) else {}
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
        has_unique_keys = isinstance(self._dataset.source, Source) and not self._dataset.replaces_bad_samples
        if columns.get(_KEY) is not None and has_unique_keys:
            hashes = [xxhash.xxh3_64_intdigest(str(key).encode()) for key in columns[_KEY]]
            self._hashes.append(np.array(hashes, np.uint64)[is_real])

    def progress(self) -> str:
        """Return how many batches were received, such as "4 of 10 steps"."""
        return f"{len(self._positions):,} of {len(self._steps):,} steps"

    def facts(self) -> Facts:
        """Return the facts that other ranks need."""
        num_steps = len(self._positions)
        settings = {
            "epoch": self.order.epoch,
            "dataset": self._dataset.source.fingerprint,
            "view": self._view,
            "batch_size": self._batch_size,
            **dataclasses.asdict(self._dataset.options),
        }
        return Facts(
            rank=self._world.rank,
            world_size=self._world.world_size,
            settings=settings,
            start=self.start,
            steps=num_steps,
            is_complete=self.ended or num_steps >= len(self._steps),
            num_samples=sum(map(len, self._positions)),
            num_pads=self._num_pads,
            has_keys=len(self._hashes) == num_steps,
        )

    def given(self, by_key: bool) -> Samples:
        """Return the samples that this rank received, identified by their keys or their positions."""
        found = self._samples(self._positions)
        return found._replace(values=np.concatenate([found.values[:0], *self._hashes])) if by_key else found

    def due(self, is_complete: bool) -> Samples:
        """Return the samples that this rank should have received: in the whole epoch, or in its number of steps."""
        steps: list[Step] = list(islice(self._steps, None if is_complete else len(self._positions)))
        return self._samples([step.positions[self.order.is_real(step.positions)] for step in steps])

    def _samples(self, positions: list[Int64]) -> Samples:
        """Return the samples of some steps, by the positions of each."""
        size = self._batch_size * self._world.world_size
        begins = self.skips.positions(self.skips.numbers(self.start) + np.arange(len(positions)) * size)
        together = np.concatenate([np.zeros(0, np.int64), *positions])
        return Samples(together.astype(np.uint64), np.repeat(begins // size, list(map(len, positions))), together)

    def name_of(self, position: int) -> str:
        """Return a name for the sample at a position: its key, if that can be read."""
        if isinstance(self.order, EpochOrder):
            located = self.order.locate(np.array([position]))
            index = int(self.order.totals[: int(located.shard[0])].sum() + located.sample[0])
            with contextlib.suppress(Exception):  # the audit's own error matters more than one here
                return f"sample {str(self._dataset.sample(index)['__key__'])!r} at position {position}"
        return f"the sample at position {position}"
