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
from wdsplit.order.split import Steps, whole
from wdsplit.order.state import State

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
        first: The first step, as it is counted if none is skipped.
        last: The last step.
        begin: Begins to make the batches of some steps of a source.

    Raises:
        InputError: There are no such steps, some were delivered, or the tail is `uneven`.
    """
    state, world = progress.state, dataset.world()
    steps = Steps(progress.source_of(state).order(state.epoch), world, batch_size, state.position)
    start, end = _positions(dataset, steps, first, last)
    if not state.skips.covers(start, min(end, state.position)):
        raise _invalid(
            dataset, state.epoch, f"steps from {steps.first_number} on: earlier ones are already delivered", first, last
        )
    skips = state.skips.added(start, end)
    if skips == state.skips:
        return
    progress.skip(skips)
    batches = progress.under_way
    if batches is None:
        return
    batches.running.close(failed=True)  # even persistent workers: other batches are needed
    rest = Steps(steps.order, world, batch_size, state.position, skips)
    batches.go_on(rest, begin(batches.source, rest))
    if not batches.left:
        progress.deliver(batches, State(state.epoch + 1, 0), is_last=True)


def _positions(dataset: Dataset, steps: Steps, first: Any, last: Any) -> tuple[int, int]:
    """Return the positions of some steps: the first, and the one after the last."""
    epoch, num_steps = steps.order.epoch, steps.first_number + len(steps)
    if dataset.options.tail == "uneven":
        raise InputError(
            "steps cannot be skipped with tail='uneven'",
            place=dataset.source.url,
            expected="tail='pad' or 'drop', with which a step is the same on all ranks",
            remedy="open the dataset with another tail",
        )
    numbers = [whole(first), whole(last)]
    if not all(type(number) is int for number in numbers) or not 0 <= numbers[0] <= numbers[1] < num_steps:
        expected = f"0 <= first <= last < {num_steps}" if num_steps else "none: the epoch has no steps"
        raise _invalid(dataset, epoch, expected, first, last)
    begin, end = (
        steps.start + (number - steps.first_number) * steps.global_batch for number in (numbers[0], numbers[1] + 1)
    )
    return max(0, begin), min(end, steps.order.num_positions)


def _invalid(dataset: Dataset, epoch: int, expected: str, first: Any, last: Any) -> InputError:
    return InputError(
        "cannot skip these steps",
        place=f"{dataset.source.url}, epoch {epoch}",
        expected=expected,
        found=f"{first!r} to {last!r}",
    )
