"""The state dict of a loader: one integer of progress, and the dataset and options that it is valid for.

Pure (no I/O). Plain JSON values, so that it can travel in any checkpoint. It does not depend on ranks, workers or
batches: a run may resume on other numbers of each.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from wdsplit.errors import StateError
from wdsplit.order.epoch import OrderOptions
from wdsplit.order.skips import NO_SKIPS, Skips
from wdsplit.order.split import World

__all__ = [
    "STATE_VERSION",
    "State",
    "ViewMark",
    "dump_state",
    "is_stored_name",
    "parse_state",
    "refuse_other_view",
]

STATE_VERSION = 1

_COUNT_LIMIT = 2**62

_NAME, _FINGERPRINT = "view", "view_fingerprint"


_SHOWN_DIGITS = 8
_STORED_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class ViewMark:
    """The view of an epoch: its name for people, and its selection's fingerprint. Only fingerprints are compared."""

    name: str = field(compare=False)
    fingerprint: str

    def __str__(self) -> str:
        return f"{self.name!r} ({self.fingerprint[:_SHOWN_DIGITS]})"


@dataclass(frozen=True)
class State:
    """How far an epoch has got: every position below `position` was delivered or skipped, no other was delivered.

    Attributes:
        epoch: The epoch.
        position: The position.
        skips: The positions of this epoch that are left out.
        view: The view of that epoch; None if it has all samples.
        global_batch: Samples of a step over all ranks; None if it is not known.
        since: The position from which on steps have this global batch.
        previous: The end of the previous epoch, if it was delivered to its end.
    """

    epoch: int
    position: int
    view: ViewMark | None = None
    skips: Skips = NO_SKIPS
    global_batch: int | None = None
    since: int = 0
    previous: State | None = None

    def in_steps_of(self, global_batch: int) -> State:
        """Return this state for a loader with such a global batch: if it is another one, its steps begin here."""
        if global_batch == self.global_batch:
            return self
        return replace(self, global_batch=global_batch, since=self.position)

    def ended(self) -> State:
        """Return the beginning of the next epoch, if this is the end of one."""
        return State(self.epoch + 1, 0, global_batch=self.global_batch, previous=replace(self, previous=None))


def dump_state(state: State, fingerprint: str, options: OrderOptions, world: World) -> dict[str, Any]:
    """Return the state as a dict of plain JSON values.

    Args:
        state: The state.
        fingerprint: The manifest's fingerprint.
        options: The order's options; a state is only valid for the same ones.
        world: Rank and world size. They are written only where ranks advance unevenly.
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
    values |= _steps_values(state)
    if state.previous is not None:
        values["previous"] = {"position": state.previous.position, **_steps_values(state.previous)}
    return values


def _steps_values(state: State) -> dict[str, Any]:
    """Return what tells which steps led to a position, for `wdsplit batch`: a run may resume with another batch."""
    values: dict[str, Any] = {}
    if state.global_batch is not None:
        values["global_batch"] = state.global_batch
    if state.since:
        values["since"] = state.since
    if state.skips:
        values["skipped"] = [list(each) for each in state.skips.ranges]
    if state.view is not None:
        values |= {_NAME: state.view.name, _FINGERPRINT: state.view.fingerprint}
    return values


def refuse_other_view(found: ViewMark | None, here: ViewMark | None, epoch: int, place: str = "") -> None:
    """Refuse a state of another view: its position means other samples.

    Raises:
        StateError: The views have different fingerprints, or one of them is that of all samples.
    """
    if found == here:
        return
    given = "the same view=, where=, keys= and exclude="
    if found is None:
        given = "all samples, without view=, where=, keys= and exclude="
    elif is_stored_name(found.name):
        given = f"view={found.name!r}"
    remedy = f"open the dataset with {given}"
    if found and here and found.name == here.name:
        remedy = "the view has been overwritten since, with other samples"
    raise StateError(
        "the state belongs to another view of the dataset",
        place=place,
        expected=f"a state {_of(here)}, as epoch {epoch} has here",
        found=f"a state {_of(found)}",
        remedy=f"{remedy}; or start the epoch again without the state",
    )


def _of(view: ViewMark | None) -> str:
    return f"of the view {view}" if view else "of all samples, without a view"


def is_stored_name(name: Any) -> bool:
    """Tell whether a stored view may have this name; other names describe conditions, or several choices at once."""
    return isinstance(name, str) and _STORED_NAME.fullmatch(name) is not None


def _view_in(values: Mapping[str, Any]) -> ViewMark | None:
    """Return the view that a state dict names.

    Raises:
        StateError: Name and fingerprint are not both texts.
    """
    name, fingerprint = values.get(_NAME), values.get(_FINGERPRINT)
    if name is None and fingerprint is None:
        return None
    if not isinstance(name, str) or not isinstance(fingerprint, str):
        raise _damaged(f"{_NAME} and {_FINGERPRINT}: texts, or neither", f"{name!r} and {fingerprint!r}")
    return ViewMark(name, fingerprint)


def parse_state(values: Mapping[str, Any], fingerprint: str, options: OrderOptions, world: World) -> State:
    """Return the state of a dict, if it belongs to this dataset, these options and, with tail `uneven`, this rank.

    The caller checks the view, by `refuse_other_view`.

    Raises:
        StateError: It does not; the error names all differences.
    """
    if not isinstance(values, Mapping):
        raise StateError("not a state dict", expected="a dict", found=type(values).__name__)
    found = []
    for name, expected in dump_state(State(0, 0), fingerprint, options, world).items():
        there = values.get(name)
        if name not in ("epoch", "position"):
            if there != expected:
                found.append(f"{name}: {there!r} in the state, {expected!r} here")
        elif isinstance(there, bool) or not isinstance(there, int) or not 0 <= there < _COUNT_LIMIT:
            found.append(f"{name}: {there!r} in the state, expected an integer from 0 to 2**62 - 1")
    if found:
        raise StateError(
            "the state does not belong to this dataset and these options",
            found="; ".join(found),
            remedy="open the dataset with the options of the saved state (seed, shuffle, lanes, window, tail, limit, "
            "version; for a mixture also the same datasets in the same order, with the same shares or schedule), "
            "and with tail `uneven` give each rank its own state; or start the epoch again without the state",
        )
    state = _parse_steps(values, values["epoch"], options)
    previous = values.get("previous")
    if previous is None:
        return state
    if not isinstance(previous, Mapping) or not state.epoch:
        raise _damaged("previous: the end of the previous epoch", previous)
    return replace(state, previous=_parse_steps(previous, state.epoch - 1, options))


def _parse_steps(values: Mapping[str, Any], epoch: int, options: OrderOptions) -> State:
    """Return the state of a dict that `_steps_values` made, and its position."""
    position, since, global_batch = (values.get(name) for name in ("position", "since", "global_batch"))
    since = 0 if since is None else since
    if not type(position) is type(since) is int or not 0 <= since <= position < _COUNT_LIMIT:
        raise _damaged("0 <= since <= position", f"since {since!r}, position {position!r}")
    if type(global_batch) is not int or global_batch < 1:
        global_batch = None
    skips = _parse_skips(values.get("skipped", ()), options)
    return State(epoch, position, _view_in(values), skips, global_batch, since)


def _damaged(expected: str, found: Any) -> StateError:
    return StateError(
        "the state is damaged", expected=expected, found=str(found)[:200], remedy="use an earlier checkpoint"
    )


def _parse_skips(ranges: Any, options: OrderOptions) -> Skips:
    """Return the skipped positions of a state dict."""
    skips = NO_SKIPS
    try:
        for begin, end in ranges:
            if not (type(begin) is type(end) is int and 0 <= begin < end < _COUNT_LIMIT) or options.tail == "uneven":
                raise ValueError
            skips = skips.added(begin, end)
    except (TypeError, ValueError):
        raise _damaged("pairs of skipped positions, begin and end; none with tail `uneven`", ranges) from None
    return skips
