"""An audit of a real training: whether each sample was delivered exactly once over all ranks.

It reads `__position__` and, where it exists, `__key__` from the batches, and does not trust the loader's own counts.
The ranks compare at the end of an epoch; until then a rank keeps up to 16 bytes a sample, and about 64 while it
compares.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from wdsplit.arrays import Int64, UInt64
from wdsplit.debug.ranks import CheckError, Rendezvous, listed
from wdsplit.debug.record import AUDITED, Facts, Identify, Record, Samples
from wdsplit.errors import InputError
from wdsplit.loading.loader import Loader

__all__ = ["AUDITED", "Audit", "EpochAudit", "audit"]

logger = logging.getLogger(__name__)

_AT_ONCE = 2**20
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
        by: What the samples were identified by: `__position__`, or both it and `__key__`.
    """

    epoch: int
    start: int
    steps: int
    samples: int
    pads: int
    complete: bool
    by: tuple[str, ...]

    def __str__(self) -> str:
        ending = "nothing is missing" if self.complete else "left before its end"
        resumed = f" from position {self.start:,} on" if self.start else ""
        return (
            f"epoch {self.epoch}{resumed}: {self.samples:,} samples, each once, by {' and '.join(self.by)}; "
            f"pads: {self.pads:,}; {ending}"
        )


def audit(
    loader: Loader,
    *,
    identify: Identify | None = None,
    group: Any = None,
    timeout_s: float = 300.0,
) -> Audit:
    """Audit the samples that a training receives: over all ranks, none twice in an epoch, and none missing.

    Iterate the audited loader instead of the loader itself; it has the same attributes. At the end of each epoch the
    ranks compare their samples. All of them raise an error if a sample came twice or not at all, or if ranks had
    different numbers of steps. An epoch that is left early is compared, as far as it went, when the next one begins or
    the `with` block ends. A resumed epoch is audited from where it resumed. If a rank fails, the others fail too.

        with wdsplit.debug.audit(loader) as audited:
            for epoch in range(3):
                for batch in audited:
                    ...

    Args:
        loader: The loader; on several ranks, all of them must audit theirs.
        identify: Function from a batch to a dict of `__position__` (int) and, if it has them, `__key__` (str). None if
            batches are dicts with these fields, or tuples of a dataset whose last stage is a `to_tuple` with them.
        group: A process group or DeviceMesh whose ranks share an epoch; by default the dataset's, else all.
        timeout_s: Seconds that a rank waits for the others at the end of an epoch.

    Raises:
        InputError: It is not a `wdsplit.Loader`, or the time is invalid; or, during the iteration, a batch does not
            identify its samples.
        CheckError: During the iteration or at its end: a sample came twice or is missing, ranks had different numbers
            of steps, or some did not arrive.
    """
    return Audit(loader, identify, group, timeout_s)


class Audit:
    """A loader whose batches are audited; made by `audit`. It has all attributes of the loader.

    Attributes:
        epochs: The epochs that were audited so far.
    """

    def __init__(self, loader: Loader, identify: Identify | None, group: Any, timeout_s: float) -> None:
        if not isinstance(loader, Loader):
            raise InputError("cannot audit this object", expected="a wdsplit.Loader", found=type(loader).__name__)
        self.epochs: list[EpochAudit] = []
        self._loader = loader
        self._identify = identify
        self._group = loader.dataset.group if group is None else group
        self._timeout_s = timeout_s
        self._rendezvous: Rendezvous | None = None
        self._record: Record | None = None

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
            logger.warning(
                "auditing only rank %d of %d: torch.distributed is not initialised",
                world.rank,
                world.world_size,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._settle()
        except BaseException as failure:
            error = failure
            raise
        finally:
            rendezvous, self._rendezvous = self._rendezvous, None
            why = "its audit is over"
            if error is not None:
                done = f" (after {self._record.progress()})" if self._record is not None else ""
                why = f"{type(error).__name__}: {error}"[:900] + done
            if rendezvous is not None:
                rendezvous.leave(why)

    def __iter__(self) -> Iterator[Any]:
        """Yield the loader's batches."""
        if self._rendezvous is None:
            raise InputError("an audit is a context", remedy="with wdsplit.debug.audit(loader) as audited: ...")
        self._settle()
        self._record = record = Record(self._loader, self._identify)
        batches = iter(self._loader)
        for batch in batches:
            record.note(batch)
            record.skips = getattr(batches, "skips", record.skips)
            yield batch
        record.ended = True
        self._settle()

    def _settle(self) -> None:
        """Compare the samples delivered since the last comparison, if an iteration has started."""
        record, self._record, rendezvous = self._record, None, self._rendezvous
        if record is None or rendezvous is None:
            return
        own = record.facts()
        try:
            facts = rendezvous.gathered(own)
        except CheckError as error:  # often because this rank, or the missing one, has left its loop early
            error.found = f"{error.found}; this rank has done {record.progress()}"
            raise
        names, url = [f"rank {member}" for member in rendezvous.members], self._loader.dataset.source.url
        _refuse_other_epochs(url, record, facts, names)
        total, has_keys = sum(each.num_samples for each in facts), all(each.has_keys for each in facts)
        found = _compared(rendezvous, record.given(by_key=False), total, record.due(own.is_complete))
        if has_keys and not found.num_repeated:
            by_key = _compared(rendezvous, record.given(by_key=True), total)
            found.num_repeated, found.repeated = by_key.num_repeated, by_key.repeated
        _refuse_faults(url, record, facts, names, found)
        epoch = EpochAudit(
            epoch=record.order.epoch,
            start=record.start,
            steps=own.steps,
            samples=total,
            pads=sum(each.num_pads for each in facts),
            complete=all(each.is_complete for each in facts),
            by=AUDITED if has_keys else AUDITED[1:],
        )
        self.epochs.append(epoch)
        if rendezvous.place == 0:
            logger.info("%s: %s", url, epoch)


class _Delivery(NamedTuple):
    """A sample that a rank received, or should have."""

    place: int  # of the rank among those that compare
    step: int
    position: int


@dataclass
class _Faults:
    """Faults of the deliveries: their numbers, and some examples."""

    num_repeated: int = 0  # deliveries too many
    repeated: list[list[_Delivery]] = field(default_factory=list)  # for some values all their deliveries
    num_missing: int = 0
    missing: list[_Delivery] = field(default_factory=list)
    num_unexpected: int = 0
    unexpected: list[_Delivery] = field(default_factory=list)


def _compared(rendezvous: Rendezvous, given: Samples, total: int, due: Samples | None = None) -> _Faults:
    """Find samples that were delivered more than once; and, if those due are known, missing and unexpected ones.

    Ranks exchange them in buckets of about a million, so that no rank stores all of them.

    Args:
        rendezvous: Where the ranks meet; all of them must call this.
        given: What this rank received.
        total: Number of samples that all ranks received together.
        due: What it should have received; None if that is not known.
    """
    faults, num_buckets = _Faults(), max(1, -(-total // _AT_ONCE))
    buckets = [_cut(samples, num_buckets) for samples in ([given] if due is None else [given, due])]
    for own in zip(*buckets, strict=True):
        parts = rendezvous.gathered(own)
        values, deliveries = _joined([part[0] for part in parts])
        by_value = np.argsort(values, kind="stable")
        _, first, counts = np.unique(values[by_value], return_index=True, return_counts=True)
        faults.num_repeated += len(values) - len(first)
        for group in np.flatnonzero(counts > 1)[: _MAX_EXAMPLES - len(faults.repeated)]:
            rows = by_value[first[group] : first[group] + counts[group]]
            faults.repeated.append(_examples(deliveries[rows], []))
        if due is not None:
            expected, places = _joined([part[1] for part in parts])
            missing, unexpected = places[~np.isin(expected, values)], deliveries[~np.isin(values, expected)]
            faults.num_missing += len(missing)
            faults.missing += _examples(missing, faults.missing)
            faults.num_unexpected += len(unexpected)
            faults.unexpected += _examples(unexpected, faults.unexpected)
    return faults


def _cut(samples: Samples, num_buckets: int) -> list[Samples]:
    """Cut samples into buckets by their values."""
    bucket = samples.values % np.uint64(num_buckets)
    order = np.argsort(bucket, kind="stable")
    cuts = np.searchsorted(bucket[order], np.arange(1, num_buckets).astype(np.uint64))
    values, steps, positions = samples
    return [Samples(values[rows], steps[rows], positions[rows]) for rows in np.split(order, cuts)]


def _joined(parts: Sequence[Samples]) -> tuple[UInt64, Int64]:
    """Return the values of all ranks, and place, step and position of each: int64 of shape (samples, 3)."""
    values, steps, positions = (np.concatenate(column) for column in zip(*parts, strict=True))
    places = np.repeat(np.arange(len(parts)), [len(part.values) for part in parts])
    return values, np.column_stack([places, steps, positions])


def _examples(rows: Int64, known: Sequence[_Delivery]) -> list[_Delivery]:
    """Return some of the deliveries, fewer if some are known already."""
    return [_Delivery(*row) for row in rows[: _MAX_EXAMPLES - len(known)].tolist()]


def _unlike(what: str, values: Sequence[int], names: Sequence[str]) -> list[str]:
    """Say what each rank has, if not all have the same."""
    pairs = zip(names, values, strict=True)
    return [f"{what}: {listed(f'{name} {value}' for name, value in pairs)}"] if len(set(values)) > 1 else []


def _refuse_other_epochs(url: str, record: Record, facts: Sequence[Facts], names: Sequence[str]) -> None:
    """Refuse ranks that read a different epoch: their positions would mean other samples."""
    first = facts[0].settings
    found = [
        f"{name} has {what} {value}, {names[0]} {first[what]}"
        for name, each in zip(names, facts, strict=True)
        for what, value in each.settings.items()
        if value != first[what]
    ]
    if record.order.options.tail != "uneven":
        found += _unlike("begin at position", [each.start for each in facts], names)
    if found:
        raise CheckError(
            f"the ranks do not read the same epoch {record.order.epoch}",
            place=url,
            expected=f"{len(facts)} ranks with the same options and epoch, from the same position on",
            found=listed(found),
            remedy="open the dataset with the same options on all ranks, call set_epoch on all, and give all of "
            "them the same state when they resume",
        )


def _refuse_faults(url: str, record: Record, facts: Sequence[Facts], names: Sequence[str], found: _Faults) -> None:
    """Raise an error unless the delivered samples are the expected ones; all ranks have the same arguments."""

    def where(delivery: _Delivery) -> str:
        return f"{names[delivery.place]} in step {delivery.step}"

    texts = []
    if found.num_repeated:
        texts.append(f"{found.num_repeated} deliveries too many")
        texts += [f"{record.name_of(each[0].position)}: {listed(map(where, each))}" for each in found.repeated]
    if found.num_unexpected:
        texts.append(f"{found.num_unexpected} samples too many, from before the start or after the end")
        texts += [f"{record.name_of(each.position)}: {where(each)}" for each in found.unexpected]
    if found.num_missing:
        texts.append(f"{found.num_missing} samples missing")
        texts += [f"{record.name_of(each.position)}, due to {where(each)}" for each in found.missing]
    ranks = [(each.rank, each.world_size) for each in facts]
    if len(facts) > 1 and sorted(ranks) != [(rank, len(facts)) for rank in range(len(facts))]:
        texts += [
            f"{name} reads as rank {rank} of {world_size}"
            for place, (name, (rank, world_size)) in enumerate(zip(names, ranks, strict=True))
            if (rank, world_size) != (place, len(facts))
        ]
    if record.order.options.tail != "uneven":
        texts += _unlike("steps", [each.steps for each in facts], names)
    if not texts:
        return
    cause = f"the delivered samples are not those of epoch {record.order.epoch}"
    remedy = (
        "iterate the loader to its end on all ranks; nothing between it and the training may drop or replace samples "
        "or batches"
    )
    if found.num_repeated:
        cause = f"samples were delivered more than once in epoch {record.order.epoch}"
        remedy = (
            "let the dataset detect its rank: leave out rank= and world_size=, and begin to iterate after "
            "init_process_group. Ranks that should get the same samples (tensor parallelism) need group=, of the "
            "Dataset or of the audit"
        )
    expected = f"each sample from position {record.start} on, once, on one rank"
    raise CheckError(cause, place=url, expected=expected, found="; ".join(texts), remedy=remedy)
