"""The state dict of a loader: one integer of progress, and what it is only valid for.

Pure (no I/O). Plain JSON values, so that it can travel in any checkpoint. It says nothing of ranks, workers or batches:
a run may resume on other numbers of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from wdsplit.errors import StateError
from wdsplit.order.epoch import OrderOptions
from wdsplit.order.split import World

__all__ = ["STATE_VERSION", "State", "differences", "dump_state", "parse_state"]

STATE_VERSION = 1

_COUNT_LIMIT = 2**62


@dataclass(frozen=True)
class State:
    """How far an epoch has got: every position below `position` was delivered, no other."""

    epoch: int
    position: int


def dump_state(state: State, fingerprint: str, options: OrderOptions, world: World) -> dict[str, Any]:
    """Return the state as a dict of plain JSON values.

    Args:
        state: Epoch and position.
        fingerprint: The manifest's fingerprint.
        options: The order's options; a state is only valid for the same ones.
        world: Rank and world size. They only matter, and are only written, where ranks advance unevenly.
    """
    values = {
        "version": STATE_VERSION,
        "epoch": state.epoch,
        "position": state.position,
        "fingerprint": fingerprint,
        **dataclasses.asdict(options),
    }
    if options.tail == "uneven":
        values |= {"rank": world.rank, "world_size": world.world_size}
    return values


def differences(values: Mapping[str, Any], here: Mapping[str, Any], counts: Collection[str]) -> list[str]:
    """Return where a state dict differs from one that would be made here, a text for each name.

    Args:
        values: The state dict.
        here: The one that would be made here.
        counts: The names that say how far it has got: any integer is good that an epoch may be.

    Raises:
        StateError: It is no dict.
    """
    if not isinstance(values, Mapping):
        raise StateError("not a state dict", expected="a dict", found=type(values).__name__)
    found = []
    for name, expected in here.items():
        there = values.get(name)
        if name not in counts:
            if there != expected:
                found.append(f"{name}: {there!r} in the state, {expected!r} here")
        elif isinstance(there, bool) or not isinstance(there, int) or not 0 <= there < _COUNT_LIMIT:
            found.append(f"{name}: {there!r} in the state, expected an integer from 0 to 2**62 - 1")
    return found


def parse_state(values: Mapping[str, Any], fingerprint: str, options: OrderOptions, world: World) -> State:
    """Return the state that a dict holds, if it belongs to this dataset, these options and, if need be, this rank.

    Raises:
        StateError: It does not; all differences are named.
    """
    found = differences(values, dump_state(State(0, 0), fingerprint, options, world), counts=("epoch", "position"))
    if found:
        raise StateError(
            "the state does not belong to this dataset and these options",
            found="; ".join(found),
            remedy="open the dataset with the options it was saved with (seed, shuffle, lanes, window, tail, limit; "
            "for a mixture also the same datasets in the same order, with the same shares), "
            "and with tail `uneven` give each rank its own state; or start the epoch again without the state",
        )
    return State(values["epoch"], values["position"])
