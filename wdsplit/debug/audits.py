"""An audit of a real training: whether each sample was delivered exactly once over all ranks.

It reads `__position__` from the batches, and does not trust the loader's own counts. Each rank compares what it
received with its part of the order. Parts of different ranks have no position in common, so the ranks only compare
whose part each has read.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from wdsplit.arrays import Int64
from wdsplit.debug.ranks import CheckError, Rendezvous
from wdsplit.errors import InputError
from wdsplit.loading.loader import Loader
from wdsplit.loading.stages.columns import ToTuple
from wdsplit.order.split import Steps
from wdsplit.texts import listed

__all__ = ["AUDITED", "Audit", "EpochAudit", "audit"]

logger = logging.getLogger(__name__)

AUDITED = ("__position__",)
"""The field that identifies a sample: `dataset.to_tuple("jpg", "cls", *AUDITED)`."""

_MAX_EXAMPLES = 5


@dataclass(frozen=True)
class EpochAudit:
    """An epoch, or what was delivered of it, in which each sample came once.

    Attributes:
        epoch: The epoch.
        start: The position that it was resumed from, or 0.
        steps: Steps of this rank.
        samples: Samples that all ranks were given, pads left out.
        pads: Pads that they were given.
        complete: Whether it was iterated to its end on all ranks. Otherwise only the steps that they had are checked
            for gaps.
    """

    epoch: int
    start: int
    steps: int
    samples: int
    pads: int
    complete: bool

    def __str__(self) -> str:
        ending = "nothing is missing" if self.complete else "left before its end"
        resumed = f" from position {self.start:,} on" if self.start else ""
        return f"epoch {self.epoch}{resumed}: {self.samples:,} samples, each once; pads: {self.pads:,}; {ending}"


def audit(loader: Loader, *, group: Any = None, timeout_s: float = 300.0) -> Audit:
    """Audit the samples that a training receives: over all ranks, none twice in an epoch, and none missing.

    Iterate the audited loader instead of the loader itself; it has the same attributes. At the end of each epoch the
    ranks compare their samples. All of them raise an error if a sample came twice or not at all, or if ranks had
    different numbers of steps. An epoch that is left early is compared, as far as it went, when the next one begins or
    the `with` block ends. A resumed epoch is audited from where it resumed.

        with wdsplit.debug.audit(loader) as audited:
            for epoch in range(3):
                for batch in audited:
                    ...

    Args:
        loader: The loader; on several ranks, all of them must audit theirs. Its batches are dicts with `__position__`,
            or tuples of a dataset whose last stage is a `to_tuple` with it.
        group: A process group or DeviceMesh whose ranks share an epoch; by default the dataset's, else all.
        timeout_s: Seconds that a rank waits for the others at the end of an epoch.

    Raises:
        InputError: It is not a `wdsplit.Loader`, or the time is invalid; or, during the iteration, a batch does not
            identify its samples.
        CheckError: During the iteration or at its end: a sample came twice or is missing, ranks had different numbers
            of steps, or some did not arrive.
    """
    return Audit(loader, group, timeout_s)


class Audit:
    """A loader whose batches are audited; made by `audit`. It has all attributes of the loader.

    Attributes:
        epochs: The epochs that were audited so far.
    """

    def __init__(self, loader: Loader, group: Any, timeout_s: float) -> None:
        if not isinstance(loader, Loader):
            raise InputError("cannot audit this object", expected="a wdsplit.Loader", found=type(loader).__name__)
        self.epochs: list[EpochAudit] = []
        self._loader = loader
        self._group = loader.dataset.process_group if group is None else group
        self._timeout_s = timeout_s
        self._rendezvous: Rendezvous | None = None
        self._record: _Record | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __enter__(self) -> Audit:
        self._rendezvous = Rendezvous(self._group, "audit", self._timeout_s)
        world = self._loader.dataset.world()
        if len(self._rendezvous.members) == 1 and world.world_size > 1:
            what = "auditing only rank %d of %d: torch.distributed is not initialised"
            logger.warning(what, world.rank, world.world_size)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is None:
            self._settle()
        self._rendezvous = None

    def __iter__(self) -> Iterator[Any]:
        """Yield the loader's batches."""
        if self._rendezvous is None:
            raise InputError("an audit is a context", remedy="with wdsplit.debug.audit(loader) as audited: ...")
        self._settle()
        # The record reads the loader's position, which the iteration moves.
        self._record = record = _Record(self._loader)
        record.batches = batches = iter(self._loader)
        for batch in batches:
            record.note(batch)
            yield batch
        record.ended = True
        self._settle()

    def _settle(self) -> None:
        """Compare the samples delivered since the last comparison, if an iteration has started."""
        record, self._record, rendezvous = self._record, None, self._rendezvous
        if record is None or rendezvous is None:
            return
        try:
            facts: list[_Facts] = rendezvous.gathered(record.facts())
        except CheckError as error:  # often because this rank, or the missing one, has left its loop early
            error.found = f"{error.found}; this rank has done {record.progress()}"
            raise
        url, ranks = self._loader.dataset.source.url, dict(zip(rendezvous.members, facts, strict=True))
        for faults_of, cause, expected, remedy in _FAULTS:
            if faults := faults_of(ranks):
                expected = expected.format(record.start)
                raise CheckError(f"{cause} epoch {record.epoch}", url, expected, "; ".join(faults), remedy)
        counts = sum(own.num_samples for own in facts), sum(own.num_pads for own in facts)
        is_complete, steps = all(own.is_complete for own in facts), facts[rendezvous.place].steps
        self.epochs.append(EpochAudit(record.epoch, record.start, steps, *counts, is_complete))
        if rendezvous.place == 0:
            logger.info("%s: %s", url, self.epochs[-1])


class _Facts(NamedTuple):
    """The facts of a rank's iteration that other ranks need."""

    world: tuple[int, int]  # rank and world size, as its dataset has them
    settings: dict[str, Any]  # what must be the same on all ranks, by its name
    steps: int
    is_complete: bool  # it came to the end, or was given all batches
    num_samples: int  # without pads
    num_pads: int
    faults: list[str]  # samples that are missing, or that it should not have received


def _other_settings(ranks: dict[int, _Facts]) -> list[str]:
    """Return what ranks have set otherwise than the first of them."""
    first, *others = ranks
    expected = ranks[first].settings
    return [
        f"rank {rank} has {what} {value}, rank {first} {expected[what]}"
        for rank in others
        for what, value in ranks[rank].settings.items()
        if value != expected[what]
    ]


def _other_worlds(ranks: dict[int, _Facts]) -> list[str]:
    """Return which rank each reads as, unless they are the ranks of one world."""
    worlds = sorted(own.world for own in ranks.values())
    if len(ranks) == 1 or worlds == [(rank, len(ranks)) for rank in range(len(ranks))]:
        return []
    return [f"rank {rank} reads as rank {own.world[0]} of {own.world[1]}" for rank, own in ranks.items()]


def _other_samples(ranks: dict[int, _Facts]) -> list[str]:
    """Return what is wrong with the samples of each rank, and the numbers of steps if they differ."""
    faults = [f"rank {rank}: {fault}" for rank, own in ranks.items() for fault in own.faults]
    is_even = all(own.settings["tail"] != "uneven" for own in ranks.values())
    if is_even and len({own.steps for own in ranks.values()}) > 1:
        faults.append(f"steps: {listed(f'rank {rank} {own.steps}' for rank, own in ranks.items())}")
    return faults


_EACH_ONCE = "each sample from position {} on, once, on one rank"
_FAULTS = (
    (
        _other_settings,
        "the ranks do not read the same",
        "ranks with the same options and epoch, from the same position on",
        "open the dataset with the same options on all ranks, call set_epoch on all, and give all of them the same "
        "state when they resume",
    ),
    (
        _other_worlds,
        "samples were delivered more than once in",
        _EACH_ONCE,
        "let the dataset detect its rank: leave out rank= and world_size=, and begin to iterate after "
        "init_process_group. Ranks that should get the same samples (tensor parallelism) need process_group=, of the "
        "Dataset, or group=, of the audit",
    ),
    (
        _other_samples,
        "the delivered samples are not those of",
        _EACH_ONCE,
        "iterate the loader to its end on all ranks; nothing between it and the training may drop, repeat or replace "
        "samples or batches. `wdsplit batch DATASET --step N` lists the keys of a step",
    ),
)
"""What may be wrong, in the order in which it is looked for: what finds it, the cause, what is expected, what helps."""


class _Record:
    """The samples that this rank received in an iteration, which is about to begin."""

    def __init__(self, loader: Loader) -> None:
        begin, self._dataset, self._batch_size = loader.progress.start, loader.dataset, loader.batch_size
        self.epoch, self.start, self._skips = begin.epoch, begin.position, begin.skips
        self._order, self._world = self._dataset.order(begin.epoch), self._dataset.world()
        self._view = self._dataset.source.view_at(begin.epoch)
        self.batches: Any = None
        self.ended = False
        self._positions: list[Int64] = []  # of each batch; pads are left out
        self._num_pads = 0

    @property
    def _steps(self) -> Steps:
        skips = getattr(self.batches, "skips", self._skips)  # more may be added during the iteration
        return Steps(self._order, self._world, self._batch_size, self.start, skips)

    def note(self, batch: Any) -> None:
        """Record the samples of a batch; all samples of a pack have its position."""
        (position,), last = AUDITED, self._dataset.pipeline[-1]
        if isinstance(batch, (tuple, list)) and isinstance(last, ToTuple) and len(batch) == len(last.names):
            batch = dict(zip(last.names, batch, strict=True))
        columns = batch if isinstance(batch, Mapping) else {}
        if columns.get(position) is None:
            raise InputError(
                "the audit cannot tell which samples a batch holds",
                expected=position,
                found=", ".join(map(str, columns)) or "a batch without names",
                remedy="let the dataset keep it: .to_tuple('jpg', 'cls', *wdsplit.debug.AUDITED), or in a map return "
                "{**sample, ...}; a collate_fn must return a dict with it",
            )
        own = columns[position]
        own = np.asarray(own.cpu() if hasattr(own, "cpu") else own).astype(np.int64)
        own = own if self._dataset.source.form_at(self.epoch) is None else np.unique(own)
        is_real = np.asarray(self._order.is_real(own))
        self._positions.append(own[is_real])
        self._num_pads += int((~is_real).sum())

    def progress(self) -> str:
        """Return how many batches were received, such as "4 of 10 steps"."""
        return f"{len(self._positions):,} of {len(self._steps):,} steps"

    def facts(self) -> _Facts:
        """Compare what was received with what this rank's part of the order has."""
        settings = {
            "epoch": self.epoch,
            "dataset": self._dataset.source.fingerprint,
            "view": self._view,
            "batch_size": self._batch_size,
            "start position": 0 if self._order.options.tail == "uneven" else self.start,
            **dataclasses.asdict(self._dataset.options),
        }
        num_steps, steps = len(self._positions), self._steps
        is_complete = self.ended or num_steps >= len(steps)
        planned = [step.positions for step in islice(steps, None if is_complete else num_steps)]
        due = self._numbered([positions[self._order.is_real(positions)] for positions in planned])
        received, faults = self._numbered(self._positions), list[str]()
        is_right = np.zeros(len(received), np.bool_)
        is_right[np.unique(received[:, 0], return_index=True)[1]] = True  # when it came first
        is_right &= np.isin(received[:, 0], due[:, 0])
        missing = due[~np.isin(due[:, 0], received[:, 0])]
        for what, rows in (("missing", missing), ("too many", received[~is_right])):
            if len(rows):
                where = listed((f"position {one} in step {step}" for one, step in rows.tolist()), _MAX_EXAMPLES)
                faults.append(f"{len(rows):,} samples {what}: {where}")
        world = self._world.rank, self._world.world_size
        return _Facts(world, settings, num_steps, is_complete, len(received), self._num_pads, faults)

    def _numbered(self, batches: list[Int64]) -> Int64:
        """Return the position of each sample of some steps, and the number of its step: int64 of shape (samples, 2)."""
        steps = self._steps
        first = steps.skips.numbers(steps.start) + np.arange(len(batches)) * steps.global_batch
        numbers = np.repeat(steps.skips.positions(first) // steps.global_batch, list(map(len, batches)))
        return np.stack([np.concatenate([np.zeros(0, np.int64), *batches]), numbers], axis=1)
