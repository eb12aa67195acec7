"""Views: units of samples with a name, and the view of each epoch.

Pure (no I/O). A view applies from its epoch on, until another one begins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from wdsplit.order.bundles import Units, form_of
from wdsplit.order.units import Repeats
from wdsplit.texts import counted

__all__ = ["EpochViews", "View"]


@dataclass(frozen=True)
class View:
    """What an epoch takes of a dataset: some samples, each once or several times, alone or in packs or groups.

    Attributes:
        name: The name of the stored view, or a description of the criteria.
        selection: The units of each shard.
        lanes: Lanes of an epoch, unless others are given; 0 for those of the dataset.
        figures: How well packs or groups are filled: see `wdsplit.shards.views.described_units`.
    """

    name: str
    selection: Units
    lanes: int = 0
    figures: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __repr__(self) -> str:
        selection = self.selection
        text = f"{selection.chosen.num_samples:,} of {int(selection.totals.sum()):,} samples"
        if isinstance(selection, Repeats):
            text += f", {selection.num_samples:,} {'parts' if selection.kind == 'expand' else 'with repetitions'}"
        form = form_of(selection)
        if form is not None:
            text += f", in {counted(selection.num_samples, form.noun)}"
        return f"<View {self.name!r}: {text}>"


class EpochViews:
    """The view of each epoch. Immutable.

    Args:
        by_epoch: The views by the epochs that they begin with; None for all samples. Epochs before the first have all
            samples.
    """

    def __init__(self, by_epoch: Mapping[int, View | None] | None = None) -> None:
        begins = {0: None, **(by_epoch or {})}
        self._begins = sorted(begins)
        self._views = [begins[epoch] for epoch in self._begins]

    def __bool__(self) -> bool:
        """Return whether any epoch has a view."""
        return any(view is not None for view in self._views)

    def __iter__(self) -> Iterator[tuple[int, View | None]]:
        """Give each first epoch and the view from there on."""
        return iter(zip(self._begins, self._views, strict=True))

    @property
    def lanes(self) -> int:
        """The fewest lanes that a view asks for; 0 if none does."""
        return min((view.lanes for view in self._views if view is not None and view.lanes), default=0)

    def at(self, epoch: int) -> View | None:
        """Return the view of an epoch; None for all samples."""
        return self._views[bisect_right(self._begins, epoch) - 1]

    def selection_at(self, epoch: int) -> Units | None:
        """Return the units of an epoch; None for each sample once."""
        view = self.at(epoch)
        return None if view is None else view.selection

    def __str__(self) -> str:
        """Say which view an epoch has: "easy", or "easy, from epoch 10 on all samples"."""
        texts = ["all samples" if view is None else view.name for view in self._views]
        later = zip(self._begins[1:], texts[1:], strict=True)
        return ", ".join([texts[0], *(f"from epoch {epoch} on {text}" for epoch, text in later)])
