"""The ranks of a job: their seeds, and how they meet to exchange values without waiting forever.

Ranks exchange values over the store of the process group: each writes its own there, and waits for those of the others
for a limited time. So a rank that is late, stuck or gone is named, whatever the backend is.
"""

from __future__ import annotations

import contextlib
import importlib.util
import pickle
import random
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import xxhash

from wdsplit.errors import InputError, WdsplitError
from wdsplit.integers import whole
from wdsplit.loading.world import detect_rank, is_group_initialised, job_store
from wdsplit.order.hashing import hash_stream
from wdsplit.order.limits import MAX_SEED
from wdsplit.texts import listed

__all__ = ["CheckError", "Rendezvous", "barrier", "names_of", "set_seed"]

_SEED_DOMAIN = 13  # of the hash, beside those of `order`
_GONE = b"gone"  # in place of a value that is pickled
_made: Counter[tuple[str, tuple[int, ...]]] = Counter()
"""Rendezvous made so far, by name and ranks: all ranks have the same count."""
_passed: dict[tuple[str, tuple[int, ...]], str] = {}
"""The key of this rank's value at the last meeting of a name."""


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

            mesh = getattr(group, "mesh", None)
            if mesh is not None:
                self.members = tuple(sorted(mesh.flatten().tolist()))
            else:
                self.members = tuple(distributed.get_process_group_ranks(group or distributed.group.WORLD))
            self.place = self.members.index(distributed.get_rank())
        self._name, self._timeout_s, self._num_meetings = name, float(timeout_s), 0
        self._number = _made[name, self.members]
        _made[name, self.members] += 1

    def gathered(self, value: Any = None) -> list[Any]:
        """Wait until all ranks arrive here, and return their values, in the order of the members.

        Args:
            value: This rank's; pickled at most 8 MiB, the limit of the store.

        Raises:
            CheckError: Some ranks did not arrive in time; the error names them.
        """
        if len(self.members) == 1:
            return [value]
        members = xxhash.xxh3_64_hexdigest(repr(self.members).encode())
        folder = f"wdsplit/{self._name}/{members}/{self._number}/{self._num_meetings}"
        store, keys = job_store(), [f"{folder}/{rank}" for rank in self.members]
        own, found = keys[self.place], ""
        lost: Exception | None = None
        store.set(own, pickle.dumps(value))
        self._num_meetings += 1
        try:
            store.wait(keys, timedelta(seconds=self._timeout_s))
            dumped = list(map(bytes, store.multi_get(keys) if store.has_extended_api() else map(store.get, keys)))
            gone = [rank for rank, each in zip(self.members, dumped, strict=True) if each == _GONE]
            found = f"{names_of(gone)} gave up waiting" if gone else ""
        except Exception as error:  # torch raises several kinds
            lost = error
            try:
                late = [rank for rank, key in zip(self.members, keys, strict=True) if not store.check([key])]
                found = f"{names_of(late)} did not arrive" if late else "the last one arrived when the time was over"
                store.set(own, _GONE)  # so that those who come too late do not go on alone
            except Exception as silent:
                found = f"the store of the process group does not answer, its process may have ended: {silent}"
        if found:
            raise CheckError(
                "some ranks did not arrive",
                place=self._name,
                expected=f"{len(keys)} ranks within {self._timeout_s:g} s",
                found=found,
                remedy="find where they are, for example with `py-spy dump --pid` (pip install py-spy): they wait for "
                "something else, perhaps for a rank that left its loop early and did arrive; have ended, see their own "
                "errors; or need more time (timeout_s)",
            ) from lost
        # All have met since this rank's value of the last meeting, so all have read it.
        which = self._name, self.members
        last, _passed[which] = _passed.get(which), own
        if last is not None:
            with contextlib.suppress(RuntimeError):  # not all stores can
                store.delete_key(last)
        return list(map(pickle.loads, dumped))


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
    Rendezvous(group, name, timeout_s).gathered()


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
