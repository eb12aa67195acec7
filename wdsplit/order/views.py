"""The view of each epoch: a selection of samples with a name.

Pure (no I/O). A view applies from its epoch on, until another one begins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from wdsplit.order.selection import Selection
from wdsplit.order.state import ViewMark

__all__ = ["AnyView", "EpochViews", "mark_of"]


class AnyView(Protocol):
    """A selection with a name."""

    @property
    def name(self) -> str:
        """The name for people."""

    @property
    def selection(self) -> Selection:
        """The samples that it holds."""


@dataclass(frozen=True)
class _Unnamed:
    """A selection that nobody has named."""

    selection: Selection
    name: str = "a selection"


class EpochViews:
    """The view of each epoch. Immutable.

    Args:
        by_epoch: The views by the epochs that they begin with; None for all samples. Epochs before the first have all
            samples.
    """

    def __init__(self, by_epoch: Mapping[int, AnyView | None] | None = None) -> None:
        begins = {0: None, **(by_epoch or {})}
        self._begins = sorted(begins)
        self._views = [begins[epoch] for epoch in self._begins]

    @classmethod
    def of(cls, selection: Selection | None) -> EpochViews:
        """Return views with one selection for all epochs; None for all samples."""
        return cls({0: None if selection is None else _Unnamed(selection)})

    def __bool__(self) -> bool:
        """Return whether any epoch has a view."""
        return any(view is not None for view in self._views)

    def __iter__(self) -> Iterator[tuple[int, AnyView | None]]:
        """Give each first epoch and the view from there on."""
        return iter(zip(self._begins, self._views, strict=True))

    def only(self, epoch: int) -> EpochViews:
        """Return the view of an epoch, for all epochs."""
        return EpochViews({0: self.at(epoch)})

    def at(self, epoch: int) -> AnyView | None:
        """Return the view of an epoch; None for all samples."""
        return self._views[bisect_right(self._begins, epoch) - 1]

    def selection_at(self, epoch: int) -> Selection | None:
        """Return the samples that an epoch takes; None for all."""
        view = self.at(epoch)
        return None if view is None else view.selection

    def __str__(self) -> str:
        """Say which view an epoch has: "easy", or "easy, from epoch 10 on all samples"."""
        texts = ["all samples" if view is None else view.name for view in self._views]
        later = zip(self._begins[1:], texts[1:], strict=True)
        return ", ".join([texts[0], *(f"from epoch {epoch} on {text}" for epoch, text in later)])


def mark_of(view: AnyView | None) -> ViewMark | None:
    """Return the mark of a view for a state; None for all samples."""
    return None if view is None else ViewMark(view.name, view.selection.fingerprint)
