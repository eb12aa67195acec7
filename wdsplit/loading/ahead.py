"""Batches that are made, and copied to a device, before they are requested."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from wdsplit.order.split import Step

__all__ = ["Ahead"]


class Ahead:
    """Makes the batches of an iteration ahead.

    Args:
        depth: Batches to make ahead of the requested one, at least 0.
        copied: Begins to copy a step's batch, and returns the copy.
        delivered: Called with each copy when it is requested, before the next batch is made.
    """

    def __init__(
        self, depth: int, copied: Callable[[Step, Any], Any], delivered: Callable[[Any], object] | None = None
    ) -> None:
        self._depth = depth
        self._copied = copied
        self._delivered = delivered
        self._made: deque[tuple[Step, Any, int]] = deque()
        self._error: Exception | None = None

    def take(self, make: Callable[[], tuple[Step, Any, int]], left: int) -> tuple[Step, Any, int]:
        """Return the next step, its copied batch and its number of samples.

        An error in a later batch is raised when that is requested.

        Args:
            make: Makes the next step that was not made yet: the step, its batch and its number of samples.
            left: Steps that were not delivered, the next one included; at least 1.
        """
        self._fill(make, 1)
        if not self._made:
            assert self._error is not None
            raise self._error
        taken = self._made.popleft()
        if self._delivered is not None:
            self._delivered(taken[1])
        self._fill(make, min(self._depth, left - 1))
        return taken

    def _fill(self, make: Callable[[], tuple[Step, Any, int]], count: int) -> None:
        while len(self._made) < count and self._error is None:
            try:
                step, batch, num_samples = make()
                self._made.append((step, self._copied(step, batch), num_samples))
            except Exception as error:
                self._error = error
