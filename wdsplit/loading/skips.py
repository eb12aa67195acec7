"""Steps that a loader leaves out: `Loader.skip`.

Skips are positions in the epoch's order, so they are the same for all ranks and after any resume.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wdsplit.errors import InputError
from wdsplit.loading.batches import EpochProgress
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.reading.source import AnySource
from wdsplit.loading.running import Running
from wdsplit.order.seen import SeenSteps
from wdsplit.order.split import Steps, whole

__all__ = ["skip_steps"]


def skip_steps(
    progress: EpochProgress,
    dataset: Dataset,
    batch_size: int,
    first: int,
    last: int,
    begin: Callable[[AnySource, Steps], Running],
) -> None:
    """Leave steps out of the current epoch, else of the next one.

    Args:
        progress: The loader's progress.
        dataset: Its dataset.
        batch_size: Samples a batch and rank.
        first: The first step, as `Loader.step` counts.
        last: The last step.
        begin: Begins to make the batches of some steps of a source.

    Raises:
        InputError: There are no such steps, some were delivered, or the tail is `uneven`.
    """
    world = dataset.world()
    state = progress.state.in_steps_of(batch_size * world.world_size)
    source = progress.source_of(state)
    order = source.order(state.epoch)
    if dataset.options.tail == "uneven":
        raise InputError(
            "steps cannot be skipped with tail='uneven'",
            place=dataset.source.url,
            expected="tail='pad' or 'drop', with which a step is the same on all ranks",
            remedy="open the dataset with another tail",
        )
    seen, numbers = SeenSteps(order, batch_size, world.world_size, state), [whole(first), whole(last)]
    if not all(type(number) is int for number in numbers) or not 0 <= numbers[0] <= numbers[1] < len(seen):
        expected = f"0 <= first <= last < {len(seen)}" if len(seen) else "none: the epoch has no steps"
        raise _invalid(dataset, state.epoch, expected, first, last)
    due = seen.due(*numbers)
    if due is None:
        due_from = Steps(order, world, batch_size, state.position, state.skips).first_number
        expected = f"steps from {due_from} on: earlier ones are already delivered"
        raise _invalid(dataset, state.epoch, expected, first, last)
    skips = state.skips.added(due[0], min(due[1], order.num_positions))
    if skips == state.skips:
        return
    progress.skip(skips, source.view_at(state.epoch))
    batches = progress.under_way
    if batches is None:
        return
    batches.running.close(failed=True)  # even persistent workers: other batches are needed
    rest = Steps(order, world, batch_size, state.position, skips)
    batches.go_on(rest, begin(batches.source, rest))
    if not batches.left:
        progress.deliver(batches, progress.state.ended(), is_last=True)


def _invalid(dataset: Dataset, epoch: int, expected: str, first: Any, last: Any) -> InputError:
    return InputError(
        "cannot skip these steps",
        place=f"{dataset.source.url}, epoch {epoch}",
        expected=expected,
        found=f"{first!r} to {last!r}",
    )
