"""The ranks that a check goes over: what they tell each other, and how they wait for each other.

Ranks meet before they exchange anything: each leaves a note in the store of the process group and waits, for a limited
time, for those of the others. So one that is late, stuck or gone is named, whatever the backend is, and nobody waits
without end in a collective.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from wdsplit.errors import InputError, WdsplitError
from wdsplit.world import detect_rank, is_group_initialised

__all__ = ["CheckError", "Meetings", "Ranks", "barrier", "listed", "names_of"]

Value = TypeVar("Value")

_HERE, _LEFT = b"here", b"left"
_made: Counter[tuple[str, tuple[int, ...]]] = Counter()
"""How many meetings of a name some ranks have arranged: all of them count alike."""


class CheckError(WdsplitError, AssertionError):
    """A check of `wdsplit.debug` has failed: ranks differ, or were not given what they should have been."""


def listed(items: Iterable[Any], most: int = 8) -> str:
    """Return some items as a text, and how many more there are."""
    texts = [str(item) for item in items]
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def names_of(ranks: Sequence[int]) -> str:
    """Return ranks as a text: `rank 1`, or `ranks 0, 2`."""
    return f"rank{'s' if len(ranks) != 1 else ''} {listed(ranks)}"


@dataclass(frozen=True)
class Ranks:
    """Some ranks of a job.

    Attributes:
        members: Their ranks in the whole job.
        place: Which of them this process is.
        group: Their process group; None if there is no other rank.
    """

    members: tuple[int, ...] = (0,)
    place: int = 0
    group: Any = None

    @classmethod
    def of(cls, group: Any = None) -> Ranks:
        """Return the ranks of a process group or DeviceMesh, by default of the whole job.

        Raises:
            TopologyError: This process is not in the group.
        """
        if group is not None:
            detect_rank(group=group)
        if not is_group_initialised():
            return cls()
        from torch import distributed
        from torch.distributed.device_mesh import DeviceMesh

        if isinstance(group, DeviceMesh):
            group = group.get_group() if group.ndim == 1 else _group_of(group)
        members = distributed.get_process_group_ranks(group or distributed.group.WORLD)
        return cls(tuple(members), distributed.get_rank(group), group)

    def __len__(self) -> int:
        return len(self.members)

    @property
    def rank(self) -> int:
        """This process's rank in the whole job."""
        return self.members[self.place]

    def gathered(self, value: Value) -> list[Value]:
        """Return the values of all ranks, in the order of the members; all of them must call this."""
        if len(self) == 1:
            return [value]
        from torch import distributed

        parts: list[Any] = [None] * len(self)
        distributed.all_gather_object(parts, value, group=self.group)
        return parts

    def gathered_or_raised(self, value: Value | WdsplitError) -> list[Value]:
        """Return the values of all ranks; if one of them has an error in its place, all raise it."""
        parts = self.gathered(value)
        for member, part in zip(self.members, parts, strict=True):
            if isinstance(part, WdsplitError):
                raise part if member == self.rank else part.at(f"rank {member}")
        return [part for part in parts if not isinstance(part, WdsplitError)]


def _group_of(mesh: Any) -> Any:
    """Return a process group of all ranks of a mesh of several dimensions, which has none itself."""
    from torch import distributed

    return distributed.new_group(mesh.mesh.flatten().tolist(), backend="gloo", use_local_synchronization=True)


class Meetings:
    """Where some ranks meet, as often as they like.

    Args:
        ranks: Those that meet; all of them must make this, for meetings of one name equally often.
        name: What the meetings are called in errors.
        timeout_s: How long a rank waits for the others.

    Raises:
        InputError: The time cannot be.
    """

    def __init__(self, ranks: Ranks, name: str, timeout_s: float) -> None:
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
            raise InputError("timeout_s cannot be", expected="seconds, more than 0", found=repr(timeout_s))
        self._ranks = ranks
        self._name = name
        self._timeout_s = float(timeout_s)
        self._held = 0
        self._arranged = f"{_made[name, ranks.members]}"
        _made[name, ranks.members] += 1

    def meet(self) -> None:
        """Wait until all ranks have come here.

        Raises:
            CheckError: Some did not come in time, or have left for good; they are named.
        """
        if len(self._ranks) == 1:
            return
        store, keys = _store(), self._keys()
        own = keys[self._ranks.place]
        store.set(own, _HERE)
        self._held += 1
        try:
            store.wait(keys, timedelta(seconds=self._timeout_s))
        except Exception as error:
            missing = self._missing(store, keys)
            store.set(own, _LEFT + b": gave up waiting for " + names_of(missing).encode())
            raise CheckError(
                "not all ranks have come",
                place=self._name,
                expected=f"{len(keys)} ranks within {self._timeout_s:g} s",
                found=f"{names_of(missing)} did not come",
                remedy="look where they are, for example with `py-spy dump --pid`: they wait for something else, have "
                "other steps than the rest, or need more time (timeout_s)",
            ) from error
        self._refuse_those_who_left([bytes(store.get(key)) for key in keys])

    def _missing(self, store: Any, keys: list[str]) -> list[int]:
        """Return who has left no note."""
        try:
            return [rank for rank, key in zip(self._ranks.members, keys, strict=True) if not store.check([key])]
        except Exception as error:
            raise CheckError(
                "the other ranks cannot be asked any more",
                place=self._name,
                expected="the store of the process group",
                found=f"{type(error).__name__}: {error}",
                remedy="see what ended the rank or the launcher that holds the store",
            ) from error

    def leave(self, why: str) -> None:
        """Tell those who wait, or will, that this rank does not come any more."""
        if len(self._ranks) > 1 and is_group_initialised():
            _store().set(self._keys()[self._ranks.place], _LEFT + b": " + why.encode()[:1000])

    def _keys(self) -> list[str]:
        folder = f"wdsplit/{self._name}/{'-'.join(map(str, self._ranks.members))}/{self._arranged}/{self._held}"
        return [f"{folder}/{rank}" for rank in self._ranks.members]

    def _refuse_those_who_left(self, notes: list[bytes]) -> None:
        left = [
            f"rank {rank} {note.decode(errors='replace')}"
            for rank, note in zip(self._ranks.members, notes, strict=True)
            if note != _HERE
        ]
        if left:
            raise CheckError(
                "not all ranks go on",
                place=self._name,
                expected=f"{len(notes)} ranks",
                found=listed(left),
                remedy="see what ended them: the error of the first that left is the one to mend",
            )


def _store() -> Any:
    """Return the store over which the ranks of the job have found each other."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


def barrier(timeout_s: float = 60.0, group: Any = None, name: str = "barrier") -> None:
    """Wait until all ranks have come here, and tell which did not: a detector of hangs.

    Put it where a training stands still, between two lines, with another name at each place. It works with any
    backend. Without a process group it returns at once.

    Args:
        timeout_s: Seconds to wait.
        group: A process group or DeviceMesh whose ranks meet; by default all.
        name: What to call the place in the error.

    Raises:
        CheckError: Some ranks did not come in time; every rank that did names them.
        InputError: The time cannot be.
        TopologyError: This process is not in the group.
    """
    Meetings(Ranks.of(group), name, timeout_s).meet()
