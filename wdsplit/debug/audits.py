"""Was each sample delivered once: an audit of what a real training is given, over all its ranks.

It takes `__key__` and `__position__` from the batches, and trusts nothing that the loader says. The ranks compare at
the end of an epoch; until then a rank keeps up to 16 bytes a sample.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from wdsplit.debug.delivered import Delivery, Faults, compare_positions, find_repeated
from wdsplit.debug.identity import AUDITED, Identifier
from wdsplit.debug.ranks import CheckError, Ranks, Rendezvous, listed
from wdsplit.debug.record import Facts, Record, due_positions, num_due, sample_name
from wdsplit.errors import InputError
from wdsplit.loading.loader import Loader

__all__ = ["AUDITED", "Audit", "EpochAudit", "audit"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EpochAudit:
    """An epoch, or what was delivered of it, in which each sample came once.

    Attributes:
        epoch: The epoch.
        start: The position that it was resumed from, or 0.
        steps: Steps of this rank.
        samples: Samples that all ranks were given, pads left out.
        pads: Pads that they were given.
        complete: Whether it was iterated to its end on all ranks. Else gaps are looked for in the steps that they had.
        by: What the samples were identified by: `__key__`, `__position__` or both.
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
    identify: Callable[[Any], Mapping[str, Any]] | None = None,
    group: Any = None,
    timeout_s: float = 300.0,
) -> Audit:
    """Audit what a training is given: no sample twice in an epoch over all ranks, and none missing.

    Iterate what this gives instead of the loader; it has all that the loader has. At the end of each epoch the ranks
    compare what they were given; all of them fail if a sample came twice or not at all, or if they had other numbers of
    steps. An epoch that is left early is compared when the next one begins or the `with` ends, as far as it went. One
    that was resumed is audited from there on. If a rank fails, the others do not wait for it: they fail, too.

        with wdsplit.debug.audit(loader) as audited:
            for epoch in range(3):
                for batch in audited:
                    ...

    Args:
        loader: The loader; with one of several ranks, all of them must do the same.
        identify: Returns of a batch a dict of `__key__`, `__position__` and `__pad__`, or some of them. None if the
            batches are dicts that have them, or tuples of a dataset whose last stage is a `to_tuple` that names them.
        group: A process group or DeviceMesh whose ranks share an epoch; by default the dataset's, else all.
        timeout_s: Seconds that a rank waits for the others at the end of an epoch.

    Raises:
        InputError: It is no wdsplit.Loader, or the time is invalid; and, when it is iterated, a batch does not
            identify its samples.
        CheckError: When it is iterated, or left: a sample came twice, or is missing; or ranks had other numbers of
            steps, or did not come.
    """
    return Audit(loader, identify, group, timeout_s)


class Audit:
    """A loader whose deliveries are audited; made by `audit`. It has all that the loader has.

    Attributes:
        epochs: What was audited so far.
    """

    def __init__(
        self, loader: Loader, identify: Callable[[Any], Mapping[str, Any]] | None, group: Any, timeout_s: float
    ) -> None:
        if not isinstance(loader, Loader):
            raise InputError("cannot audit this object", expected="a wdsplit.Loader", found=type(loader).__name__)
        self.epochs: list[EpochAudit] = []
        self._loader = loader
        self._identify = Identifier(loader, identify)
        self._group = loader.dataset._group if group is None else group
        self._timeout_s = timeout_s
        self._rendezvous = Rendezvous(Ranks(), "audit", timeout_s)
        self._is_entered = False
        self._record: Record | None = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __enter__(self) -> Audit:
        self._rendezvous = Rendezvous(Ranks.in_group(self._group), "audit", self._timeout_s)
        self._is_entered = True
        world = self._loader.dataset.world()
        if len(self._rendezvous.ranks) == 1 and world.world_size > 1:
            logger.warning(
                "only what rank %d of %d is given is audited: torch.distributed is not initialised",
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
            self._is_entered = False
            self._rendezvous.leave("its audit is over" if error is None else f"{type(error).__name__}: {error}")

    def __iter__(self) -> Iterator[Any]:
        """Give the loader's batches."""
        if not self._is_entered:
            raise InputError("an audit is a context", remedy="with wdsplit.debug.audit(loader) as audited: ...")
        self._settle()
        self._record = record = Record(self._loader)
        for batch in self._loader:
            record.note(batch, self._identify)
            yield batch
        record.ended = True
        self._settle()

    def _settle(self) -> None:
        """Compare what was delivered since the last time, if anything was begun."""
        record, self._record = self._record, None
        if record is None or not self._is_entered:
            return
        facts = self._rendezvous.gathered(record.facts())
        total = sum(each.num_samples for each in facts)
        by: tuple[str, ...] = ()
        faults: Faults | None = None
        if all(each.has_keys for each in facts):
            by += ("__key__",)
            self._refuse_repeated(record, facts, find_repeated(self._rendezvous, record.hashes(), total))
        if all(each.has_positions for each in facts):
            by += ("__position__",)
            due = due_positions(record, facts)
            faults = compare_positions(self._rendezvous, record.positions(), total, due, record.stop)
            self._refuse_repeated(record, facts, faults)
        self._refuse_contradictions(record, facts)
        self._refuse_gaps(record, facts, faults)
        place, num_pads = self._rendezvous.ranks.place, sum(each.num_pads for each in facts)
        is_complete = all(each.complete for each in facts)
        found = EpochAudit(record.order.epoch, record.start, facts[place].steps, total, num_pads, is_complete, by)
        self.epochs.append(found)
        if place == 0:
            logger.info("%s: %s", self._loader.dataset.source.url, found)

    def _refuse_repeated(self, record: Record, facts: list[Facts], faults: Faults) -> None:
        if not faults.num_repeated:
            return
        known = self._described(record, [delivery for deliveries in faults.repeated for delivery in deliveries])
        texts = [f"{faults.num_repeated} deliveries too many"]
        for deliveries in faults.repeated:
            texts.append(f"{known[deliveries[0]][0]}: {listed(self._where(each, known) for each in deliveries)}")
        raise CheckError(
            f"samples were delivered more than once in epoch {record.order.epoch}",
            place=self._loader.dataset.source.url,
            expected="each sample once, on one rank",
            found="; ".join([*texts, *self._contradictions(facts)]),
            remedy="let the dataset detect its rank: leave out rank= and world_size=, and begin to iterate after "
            "init_process_group; set the same seed and epoch on all ranks. Ranks that shall have the same samples "
            "(tensor parallelism) need group=, of the Dataset or of the audit",
        )

    def _described(self, record: Record, deliveries: list[Delivery]) -> dict[Delivery, tuple[str, int]]:
        """Return the names and steps of some samples, each from the rank that it was delivered to."""
        place = self._rendezvous.ranks.place
        own = {each: record.describe(each[1], self._loader) for each in deliveries if each[0] == place}
        return {delivery: text for part in self._rendezvous.gathered(own) for delivery, text in part.items()}

    def _where(self, delivery: Delivery, known: Mapping[Delivery, tuple[str, int]]) -> str:
        return f"rank {self._rendezvous.ranks.members[delivery[0]]} in step {known[delivery][1]}"

    def _contradictions(self, facts: list[Facts]) -> list[str]:
        """Return where the ranks contradict each other."""
        members, first = self._rendezvous.ranks.members, facts[0]
        are_odd = {(each.rank, each.world_size) for each in facts} != {(rank, len(facts)) for rank in range(len(facts))}
        found = []
        for place, (member, each) in enumerate(zip(members, facts, strict=True)):
            if len(facts) > 1 and are_odd and (each.rank, each.world_size) != (place, len(facts)):
                found.append(f"rank {member} reads as rank {each.rank} of {each.world_size}")
            found += [
                f"rank {member} has {name} {value}, rank {members[0]} {first.settings[name]}"
                for name, value in each.settings.items()
                if value != first.settings[name]
            ]
        return found

    def _refuse_contradictions(self, record: Record, facts: list[Facts]) -> None:
        found = self._contradictions(facts)
        if record.order.options.tail != "uneven":
            found += self._unlike("begin at position", [each.start for each in facts])
        if found:
            raise CheckError(
                f"the ranks do not read one and the same epoch {record.order.epoch}",
                place=self._loader.dataset.source.url,
                expected=f"{len(facts)} ranks with the same options and epoch, from the same position on",
                found="; ".join(found),
                remedy="open the dataset with the same options on all ranks, call set_epoch on all, and give all of "
                "them the same state when they resume",
            )

    def _unlike(self, name: str, values: list[int]) -> list[str]:
        """Say what each rank has, if not all have the same."""
        if len(set(values)) == 1:
            return []
        pairs = zip(self._rendezvous.ranks.members, values, strict=True)
        return [f"{name}: {listed(f'rank {member} {value}' for member, value in pairs)}"]

    def _refuse_gaps(self, record: Record, facts: list[Facts], faults: Faults | None) -> None:
        """Refuse what was delivered unless it is what is due; without positions there are only numbers to compare."""
        texts = []
        if faults is None:
            delivered, due = sum(each.num_samples for each in facts), num_due(record, facts)
            if delivered != due:
                texts.append(f"{delivered} samples instead of {due}: keep __position__ to have them named")
        elif faults.num_unexpected:
            known = self._described(record, faults.unexpected)
            texts.append(f"{faults.num_unexpected} samples too many, from before the start or after the end")
            texts += [f"{known[each][0]}: {self._where(each, known)}" for each in faults.unexpected]
        if faults is not None and faults.num_missing:
            texts.append(f"{faults.num_missing} samples missing")
            texts += [self._missing(record, position) for position in faults.missing]
        if record.order.options.tail != "uneven":
            texts += self._unlike("steps", [each.steps for each in facts])
        if texts:
            raise CheckError(
                f"what was delivered is not epoch {record.order.epoch}",
                place=self._loader.dataset.source.url,
                expected=f"each sample from position {record.start} on, once",
                found="; ".join(texts),
                remedy="iterate the loader to its end on all ranks; nothing between it and the training may drop or "
                "replace samples or batches",
            )

    def _missing(self, record: Record, position: int) -> str:
        """Say which rank should have been given a position, and in which step."""
        world_size = record.world.world_size
        name = sample_name(self._loader, record.order, position)
        text = f"{name}, which rank {position % world_size} should have had"
        if record.order.options.tail == "uneven":
            return text
        step = record.first_step + (position - record.start) // (self._loader.batch_size * world_size)
        return f"{text} in step {step}"
