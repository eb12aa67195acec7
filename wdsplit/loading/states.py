"""The state dicts of a dataset's loaders: how they are written, and which of them the dataset accepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wdsplit.errors import StateError
from wdsplit.loading.dataset import Dataset
from wdsplit.order.state import State, dump_state, parse_state, refuse_other_view

__all__ = ["dumped_state", "loaded_state", "refuse_view_of"]


def dumped_state(dataset: Dataset, state: State, batch_size: int) -> dict[str, Any]:
    """Return a state as plain JSON values; before the first position the epoch's view is that of the dataset."""
    world = dataset.world()
    if not (state.position or state.skips):
        state = replace(state, view=dataset.source.view_at(state.epoch))
    state = state.in_steps_of(batch_size * world.world_size)
    return dump_state(state, dataset.source.fingerprint, dataset.options, world)


def loaded_state(dataset: Dataset, values: Mapping[str, Any]) -> State:
    """Return the state of a state dict.

    Raises:
        StateError: It is of another dataset, another view or other options, or it is damaged. Before its first
            sample, an epoch without skips may have any view.
    """
    state = parse_state(values, dataset.source.fingerprint, dataset.options, dataset.world())
    if state.position or state.skips:
        refuse_view_of(dataset, state)
    num_positions = dataset.order(state.epoch).num_positions
    if state.position >= max(1, num_positions):
        raise StateError(
            "the state is past the end of its epoch",
            expected=f"a position below {num_positions}",
            found=str(state.position),
            remedy="the state is damaged: use an earlier checkpoint",
        )
    return state


def refuse_view_of(dataset: Dataset, state: State) -> None:
    """Refuse a state of another view than its epoch has in the dataset.

    Raises:
        StateError: It is.
    """
    refuse_other_view(state.view, dataset.source.view_at(state.epoch), state.epoch, dataset.source.url)
