"""The ranks of a job: their seeds, and how they meet to exchange values without waiting forever.

Before each exchange every rank leaves a note in the store of the process group and waits, for a limited time, for the
notes of the others. So a rank that is late, stuck or gone is named, whatever the backend is, and no rank enters a
collective that another does not enter.
"""

from __future__ import annotations

import contextlib
import importlib.util
import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import numpy as np
import xxhash

from wdsplit.errors import InputError, WdsplitError
from wdsplit.loading.world import detect_rank, is_group_initialised, job_store
from wdsplit.order.hashing import hash_stream
from wdsplit.order.limits import MAX_SEED
from wdsplit.order.split import whole
from wdsplit.texts import listed

__all__ = ["CheckError", "Rendezvous", "barrier", "names_of", "set_seed"]

Value = TypeVar("Value")

_SEED_DOMAIN = 13  # of the hash, beside those of `order`
_HERE, _LEFT = b"here", b"left"
_made: Counter[tuple[str, tuple[int, ...]]] = Counter()
"""Rendezvous made so far, by name and ranks: all ranks have the same count."""
_passed: dict[tuple[str, tuple[int, ...]], str] = {}
"""The key of this rank's note at the last meeting of a name."""
_groups: WeakValueDictionary[tuple[int, ...], Any] = WeakValueDictionary()
"""The groups that were made for meshes, by their members; torch keeps them until they are destroyed."""


class CheckError(WdsplitError, AssertionError):
    """A check of `wdsplit.debug` failed: ranks differ, or did not receive the expected samples."""


def names_of(ranks: Sequence[int]) -> str:
    """Return ranks as a text: `rank 1`, or `ranks 0, 2`."""
    return f"rank{'s' if len(ranks) != 1 else ''} {listed(ranks)}"


class Rendezvous:
    """Lets some ranks exchange values, any number of times.

    Args:
        group: A process group or DeviceMesh of the ranks that meet, None for the whole job; all of them must make a
            rendezvous of a name equally often.
        name: Its name in errors.
        timeout_s: Seconds that a rank waits for the others.

    Attributes:
        members: The ranks that meet, as the whole job counts them.
        place: The index of this process among them.

    Raises:
        InputError: The time is not a number above 0.
        TopologyError: This process is not in the group.
    """

    def __init__(self, group: Any, name: str, timeout_s: float) -> None:
        if isinstance(timeout_s, bool) or not isinstance(timeout_s, (int, float)) or not timeout_s > 0:
            raise InputError("invalid timeout_s", expected="seconds, more than 0", found=repr(timeout_s))
        if group is not None:
            detect_rank(group=group)
        self.members: tuple[int, ...] = (0,)
        self.place = 0
        if is_group_initialised():
            from torch import distributed
            from torch.distributed.device_mesh import DeviceMesh

            if isinstance(group, DeviceMesh) and group.ndim == 1:
                group = group.get_group()
            if isinstance(group, DeviceMesh):  # of several dimensions: it has no group
                self.members = tuple(sorted(group.mesh.flatten().tolist()))
            else:
                self.members = tuple(distributed.get_process_group_ranks(group or distributed.group.WORLD))
            self.place = self.members.index(distributed.get_rank())
        self._group = group
        self._name = name
        self._timeout_s = float(timeout_s)
        self._num_meetings = 0
        self._number = _made[name, self.members]
        _made[name, self.members] += 1

    def meet(self) -> None:
        """Wait until all ranks arrive here.

        Raises:
            CheckError: Some ranks did not arrive in time, or have ended; the error names them.
        """
        if len(self.members) == 1:
            return
        store, keys = job_store(), self._keys()
        own = keys[self.place]
        store.set(own, _HERE)
        self._num_meetings += 1
        try:
            store.wait(keys, timedelta(seconds=self._timeout_s))
        except Exception as error:  # torch raises several kinds
            try:
                missing = names_of(
                    [rank for rank, key in zip(self.members, keys, strict=True) if not store.check([key])]
                )
            except Exception as lost:
                raise CheckError(
                    "lost contact with the other ranks",
                    place=self._name,
                    expected="the store of the process group",
                    found=f"{type(lost).__name__}: {lost}",
                    remedy="find out why the rank or launcher that runs the store ended",
                ) from lost
            store.set(own, _LEFT + b": gave up waiting for " + missing.encode())
            raise CheckError(
                "some ranks did not arrive",
                place=self._name,
                expected=f"{len(keys)} ranks within {self._timeout_s:g} s",
                found=f"{missing} did not arrive",
                remedy="find where they are, for example with `py-spy dump --pid` (pip install py-spy): they wait for "
                "something else, perhaps for a rank that left its loop early and did arrive, or need more time "
                "(timeout_s)",
            ) from error
        notes = map(bytes, store.multi_get(keys) if store.has_extended_api() else map(store.get, keys))
        pairs = zip(self.members, notes, strict=True)
        left = [f"rank {rank} {note.decode(errors='replace')}" for rank, note in pairs if note != _HERE]
        if left:
            raise CheckError(
                "some ranks have ended",
                place=self._name,
                expected=f"{len(keys)} ranks",
                found=listed(left),
                remedy="find out why they ended, starting with the first; a timeout may mean that another rank left "
                "its loop early",
            )
        # All have met since this rank's note of the last meeting, so all have read it.
        which = self._name, self.members
        last, _passed[which] = _passed.get(which), own
        if last is not None:
            with contextlib.suppress(RuntimeError):  # not all stores can
                store.delete_key(last)

    def gathered(self, value: Value) -> list[Value]:
        """Meet, and return the values of all ranks, in the order of the members.

        Raises:
            CheckError: As of `meet`.
        """
        self.meet()
        if len(self.members) == 1:
            return [value]
        from torch import distributed
        from torch.distributed.device_mesh import DeviceMesh

        group, members = self._group, self.members
        if isinstance(group, DeviceMesh):
            group = _groups.get(members)
            if group is None:
                group = distributed.new_group(list(members), backend="gloo", use_local_synchronization=True)
                _groups[members] = group
        parts: list[Any] = [None] * len(members)
        distributed.all_gather_object(parts, value, group=group)
        return parts

    def gathered_or_raised(self, function: Callable[[], Value]) -> list[Value]:
        """Return a function's results on all ranks; if it fails on one of them, all raise its error.

        Raises:
            CheckError: As of `meet`; or the function failed on another rank with an error that is not wdsplit's, whose
                class this rank may not have.
        """
        value: Any = None
        own: Exception | None = None
        sent: Exception | None = None
        try:
            value = function()
        except WdsplitError as error:
            own = sent = error
        except Exception as error:
            own, found = error, f"{type(error).__name__}: {error}"[:1000]
            sent = CheckError("a check failed on one rank", found=found, remedy="see the error of that rank itself")
        outcomes = self.gathered((value, sent))
        if own is not None:
            raise own
        for member, (_, failure) in zip(self.members, outcomes, strict=True):
            if isinstance(failure, WdsplitError):
                raise failure.at(f"rank {member}")
        return [value for value, _ in outcomes]

    def leave(self, why: str) -> None:
        """Leave a note for the other ranks that this one has ended, and why."""
        if len(self.members) > 1 and is_group_initialised():
            job_store().set(self._keys()[self.place], _LEFT + b": " + why.encode()[:1000])

    def _keys(self) -> list[str]:
        members = xxhash.xxh3_64_hexdigest(repr(self.members).encode())
        folder = f"wdsplit/{self._name}/{members}/{self._number}/{self._num_meetings}"
        return [f"{folder}/{rank}" for rank in self.members]


def barrier(timeout_s: float = 60.0, group: Any = None, name: str = "barrier") -> None:
    """Wait until all ranks arrive here, and name those that do not: a way to find hangs.

    Put it where a training hangs, between two lines, with another name at each place. It works with any
    backend. Without a process group it returns at once.

    Args:
        timeout_s: Seconds to wait.
        group: A process group or DeviceMesh whose ranks meet; by default all.
        name: Name of the place in the error.

    Raises:
        CheckError: Some ranks did not arrive in time; every rank that did raises it, with their names.
        InputError: The time is not a number above 0.
        TopologyError: This process is not in the group.
    """
    Rendezvous(group, name, timeout_s).meet()


def set_seed(seed: int, rank: int | None = None) -> int:
    """Seed the global generators of Python, numpy and, if it is installed, torch (of the CPU and all GPUs).

    All are seeded with `hash_stream(seed, 13, rank)`, the splitmix64 hash that the order is made from (numpy's with its
    two halves). So ranks draw different numbers, no sum of seed and rank collides with another, and a run draws the
    same numbers again.

    Some values must be the same on all ranks, such as a model's parameters (unless they are broadcast, as DDP does).
    Then call `set_seed(seed, rank=0)` on all ranks, make the model, and call `set_seed(seed)`. The batches of a
    `Loader`, and `map_random`, depend only on the dataset's seed.

    Args:
        seed: 0 <= seed < 2**63.
        rank: At least 0; detected if None.

    Returns:
        The 64-bit hash that the generators were seeded with.

    Raises:
        InputError: The seed or the rank is not an integer from 0 to 2**63 - 1.
        TopologyError: The rank cannot be detected, because its sources contradict each other.
    """
    seed, rank = whole(seed), detect_rank().rank if rank is None else whole(rank)
    for name, number in (("seed", seed), ("rank", rank)):
        if type(number) is not int or not 0 <= number <= MAX_SEED:
            raise InputError(f"invalid {name}", expected="an integer from 0 to 2**63 - 1", found=repr(number))
    value = hash_stream(seed, _SEED_DOMAIN, rank)
    random.seed(value)
    np.random.seed([value & 0xFFFFFFFF, value >> 32])
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.manual_seed(value)
    return value
