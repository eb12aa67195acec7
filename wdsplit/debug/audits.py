"""An audit of a real training: whether each sample was delivered exactly once over all ranks.

It reads `__position__` and, where it exists, `__key__` from the batches, and does not trust the loader's own counts.
The ranks compare at the end of an epoch; until then a rank keeps up to 16 bytes a sample, and about 64 while it
compares.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import xxhash

from wdsplit.arrays import Int64, UInt64
from wdsplit.debug.ranks import CheckError, Rendezvous
from wdsplit.errors import InputError
from wdsplit.loading.loader import Loader
from wdsplit.loading.reading.source import Source
from wdsplit.loading.stages.columns import ToTuple
from wdsplit.order.epoch import EpochOrder
from wdsplit.order.split import Steps
from wdsplit.texts import listed

__all__ = ["AUDITED", "Audit", "EpochAudit", "audit"]

logger = logging.getLogger(__name__)

AUDITED = ("__key__", "__position__")
"""The fields that identify a sample: `dataset.to_tuple("jpg", "cls", *AUDITED)`."""

_AT_ONCE = 2**20
_MAX_EXAMPLES = 5

_WORDS = {
    "repeated": "deliveries too many",
    "unexpected": "samples too many, from before the start or after the end",
    "missing": "samples missing",
}

_NOT_THOSE, _REPEATED = "the delivered samples are not those of epoch", "samples were delivered more than once in epoch"
_ALL_BATCHES = (
    "iterate the loader to its end on all ranks; nothing between it and the training may drop or replace samples or "
    "batches"
)
_OWN_RANKS = (
    "let the dataset detect its rank: leave out rank= and world_size=, and begin to iterate after init_process_group. "
    "Ranks that should get the same samples (tensor parallelism) need process_group=, of the Dataset, or group=, of "
    "the audit"
)

_DELIVERY = np.dtype([("value", np.uint64), ("place", np.int64), ("step", np.int64), ("position", np.int64)])
"""A sample that a rank received, or should have: by its position or the hash of its key; the rank by its place."""
Deliveries = npt.NDArray[np.void]


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


def audit(loader: Loader, *, group: Any = None, timeout_s: float = 300.0) -> Audit:
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
        loader: The loader; on several ranks, all of them must audit theirs. Its batches are dicts with `__position__`
            and, if they have it, `__key__`; or tuples of a dataset whose last stage is a `to_tuple` with these.
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
        own = record.facts()
        try:
            facts = rendezvous.gathered(own)
        except CheckError as error:  # often because this rank, or the missing one, has left its loop early
            error.found = f"{error.found}; this rank has done {record.progress()}"
            raise
        names, url = [f"rank {member}" for member in rendezvous.members], self._loader.dataset.source.url
        others = [
            f"{name} has {what} {value}, {names[0]} {facts[0].settings[what]}"
            for name, each in zip(names, facts, strict=True)
            for what, value in each.settings.items()
            if value != facts[0].settings[what]
        ]
        if others:  # then positions mean other samples
            raise CheckError(
                f"the ranks do not read the same epoch {record.order.epoch}",
                place=url,
                expected=f"{len(facts)} ranks with the same options and epoch, from the same position on",
                found=listed(others),
                remedy="open the dataset with the same options on all ranks, call set_epoch on all, and give all of "
                "them the same state when they resume",
            )
        total, has_keys = sum(each.num_samples for each in facts), all(each.has_keys for each in facts)
        given, due = (record.deliveries(rendezvous.place, is_due, own.is_complete) for is_due in (False, True))
        faults = _compared(rendezvous, total, given, due)
        if has_keys and "repeated" not in faults:
            given["value"] = record.hashes()
            faults = _compared(rendezvous, total, given) | faults
        texts = []
        for kind, (number, examples) in faults.items():
            texts.append(f"{number} {_WORDS[kind]}")
            for rows in examples:
                where = listed(f"{names[row['place']]} in step {row['step']}" for row in rows)
                texts.append(f"{record.name_of(rows['position'][0])}{', due to' if kind == 'missing' else ':'} {where}")
        size = len(facts)
        if size > 1 and sorted(each.world for each in facts) != [(rank, size) for rank in range(size)]:
            texts += [
                f"{name} reads as rank {each.world[0]} of {each.world[1]}"
                for place, (name, each) in enumerate(zip(names, facts, strict=True))
                if each.world != (place, size)
            ]
        if record.order.options.tail != "uneven" and len({each.steps for each in facts}) > 1:
            texts += [f"steps: {listed(f'{name} {each.steps}' for name, each in zip(names, facts, strict=True))}"]
        if texts:
            cause, remedy = _NOT_THOSE, _ALL_BATCHES
            if "repeated" in faults:
                cause, remedy = _REPEATED, _OWN_RANKS
            expected = f"each sample from position {record.start} on, once, on one rank"
            cause = f"{cause} {record.order.epoch}"
            raise CheckError(cause, place=url, expected=expected, found="; ".join(texts), remedy=remedy)
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


class _Facts(NamedTuple):
    """The facts of a rank's iteration that other ranks need."""

    world: tuple[int, int]  # rank and world size, as its dataset has them
    settings: dict[str, Any]  # what must be the same on all ranks, by its name
    steps: int
    is_complete: bool  # it came to the end, or was given all batches
    num_samples: int  # without pads
    num_pads: int
    has_keys: bool


class _Record:
    """The samples that this rank received in an iteration, which is about to begin, and those that were due to it."""

    def __init__(self, loader: Loader) -> None:
        self._begin, self._dataset, self._batch_size = loader.progress.start, loader.dataset, loader.batch_size
        self.order, self.start = self._dataset.order(self._begin.epoch), self._begin.position
        self._view, self._world = self._dataset.source.view_at(self._begin.epoch), self._dataset.world()
        self.batches: Any = None
        self.ended = False
        self._positions: list[Int64] = []  # of each batch; pads are left out
        self._hashes: list[UInt64] = []
        self._num_pads = 0

    @property
    def _steps(self) -> Steps:
        skips = getattr(self.batches, "skips", self._begin.skips)  # more may be added during the iteration
        return Steps(self.order, self._world, self._batch_size, self.start, skips)

    def note(self, batch: Any) -> None:
        """Record the samples of a batch.

        Keys may repeat within an epoch of a mixture or a view, or if bad samples are replaced; packs have several. Then
        only positions count.
        """
        key, position = AUDITED
        last = self._dataset.pipeline[-1]
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
        positions = columns[position]
        positions = np.asarray(positions.cpu() if hasattr(positions, "cpu") else positions).astype(np.int64)
        is_real = np.asarray(self.order.is_real(positions))
        source = self._dataset.source
        is_bundled = source.form_at(self.order.epoch) is not None
        own = np.unique(positions) if is_bundled else positions  # all samples of a pack have its position
        own_real = np.asarray(self.order.is_real(own))
        self._positions.append(own[own_real])
        self._num_pads += int((~own_real).sum())
        repeats = self._dataset.replaces_bad_samples or bool(getattr(self.order, "part_name", ""))
        has_unique_keys = isinstance(source, Source) and not repeats and not is_bundled
        if columns.get(key) is not None and has_unique_keys:
            hashes = [xxhash.xxh3_64_intdigest(str(key).encode()) for key in columns[key]]
            self._hashes.append(np.array(hashes, np.uint64)[is_real])

    def progress(self) -> str:
        """Return how many batches were received, such as "4 of 10 steps"."""
        return f"{len(self._positions):,} of {len(self._steps):,} steps"

    def facts(self) -> _Facts:
        num_steps = len(self._positions)
        settings = {
            "epoch": self.order.epoch,
            "dataset": self._dataset.source.fingerprint,
            "view": self._view,
            "batch_size": self._batch_size,
            "start position": 0 if self.order.options.tail == "uneven" else self.start,
            **dataclasses.asdict(self._dataset.options),
        }
        return _Facts(
            world=(self._world.rank, self._world.world_size),
            settings=settings,
            steps=num_steps,
            is_complete=self.ended or num_steps >= len(self._steps),
            num_samples=sum(map(len, self._positions)),
            num_pads=self._num_pads,
            has_keys=len(self._hashes) == num_steps,
        )

    def hashes(self) -> UInt64:
        """Return the hashes of the keys of what this rank received."""
        return np.concatenate([np.zeros(0, np.uint64), *self._hashes])

    def deliveries(self, place: int, is_due: bool, is_complete: bool) -> Deliveries:
        """Return what this rank received, or what was due to it: in the whole epoch, or in its number of steps."""
        steps, positions = self._steps, self._positions
        if is_due:
            some = islice(steps, None if is_complete else len(positions))
            positions = [step.positions[self.order.is_real(step.positions)] for step in some]
        first = steps.skips.numbers(steps.start) + np.arange(len(positions)) * steps.global_batch
        rows = np.zeros(sum(map(len, positions)), _DELIVERY)
        rows["place"] = place
        rows["step"] = np.repeat(steps.skips.positions(first) // steps.global_batch, list(map(len, positions)))
        rows["position"] = rows["value"] = np.concatenate([np.zeros(0, np.int64), *positions])
        return rows

    def name_of(self, position: int) -> str:
        """Return a name for the sample at a position: its key, if that can be read."""
        if isinstance(self.order, EpochOrder):
            located = self.order.locate(np.array([position]))
            index = int(self.order.totals[: int(located.shard[0])].sum() + located.sample[0])
            with contextlib.suppress(Exception):  # the audit's own error matters more than one here
                return f"sample {str(self._dataset.sample(index)['__key__'])!r} at position {position}"
        return f"the sample at position {position}"


def _compared(
    rendezvous: Rendezvous, total: int, given: Deliveries, due: Deliveries | None = None
) -> dict[str, tuple[int, list[Deliveries]]]:
    """Find deliveries that were repeated, unexpected or missing over all ranks, which all must call this.

    Ranks exchange them in buckets of about a million, so that no rank stores all of them.

    Args:
        rendezvous: Where the ranks meet.
        total: Number of samples that all ranks received together.
        given: What this rank received.
        due: What it should have received; without it, only repeated deliveries are found.

    Returns:
        For each kind of fault their number, and the deliveries of some samples.
    """
    numbers, examples = Counter[str](), defaultdict[str, list[Deliveries]](list)
    num_buckets, tables = max(1, -(-total // _AT_ONCE)), [given] if due is None else [given, due]
    for bucket in range(num_buckets):
        parts = rendezvous.gathered([rows[rows["value"] % np.uint64(num_buckets) == bucket] for rows in tables])
        received, *expected = (np.concatenate(each) for each in zip(*parts, strict=True))
        values, counts = np.unique(received["value"], return_counts=True)
        numbers["repeated"] += len(received) - len(values)
        examples["repeated"] += [received[received["value"] == value] for value in values[counts > 1][:_MAX_EXAMPLES]]
        for each in expected:  # one table, or none
            for kind, rows, others in (("unexpected", received, each), ("missing", each, received)):
                alone = rows[~np.isin(rows["value"], others["value"])]
                numbers[kind] += len(alone)
                examples[kind] += np.split(alone[:_MAX_EXAMPLES], range(1, min(len(alone), _MAX_EXAMPLES)))
    return {kind: (number, examples[kind][:_MAX_EXAMPLES]) for kind, number in numbers.items() if number}
