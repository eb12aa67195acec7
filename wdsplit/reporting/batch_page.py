"""A page that shows the samples of some steps of training, as the report shows samples."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wdsplit.checks.batch import Batch
from wdsplit.checks.samples import label_field, parts_of
from wdsplit.reporting.samples import Card, cards_of
from wdsplit.reporting.templates import TEMPLATES
from wdsplit.storage.local import write_whole
from wdsplit.texts import safe_text

__all__ = ["save_batch_page"]

_MAX_CARDS, _MAX_BYTES, _NAME_CHARACTERS = 1000, 4_000_000, 200


@dataclass(frozen=True)
class _Step:
    """A step, as it is shown."""

    title: str
    anchor: str
    text: str
    cards: tuple[Card, ...]


def save_batch_page(batches: Sequence[Batch], path: str | os.PathLike[str]) -> None:
    """Write a page that shows the samples of some steps, at most the first thousand in all.

    Args:
        batches: The steps, of one dataset; at least one.
        path: The file to write.

    Raises:
        MissingDependencyError: Jinja is not installed.
        WdsplitError: A shard cannot be read, or the file cannot be written.
    """
    manifests = [part.manifest for part in parts_of(batches[0].source)]
    field = label_field(manifests[0])
    steps: list[_Step] = []
    num_cards, num_bytes = 0, _MAX_BYTES
    for batch in batches:
        shown = batch.once().take(slice(0, _MAX_CARDS - num_cards))
        numbers = range(num_cards, num_cards + len(shown))
        rows = zip(numbers, shown.ranks.tolist(), shown.positions.tolist(), strict=True)
        why = {number: f"rank {rank}, position {position}" for number, rank, position in rows}
        samples = zip(numbers, shown.samples(), strict=True)
        made = cards_of(samples, manifests, "" if field is None else field.name, why, num_bytes)
        num_bytes -= sum(item.num_bytes for card in made for item in card.items)
        num_cards += len(made)
        left = len(batch) - len(made)
        text = batch.summary + (f"; {left:,} of them are repeated, or left out here" if left else "")
        title = f"Epoch {batch.epoch}, step {batch.step}" + (" (skipped)" if batch.is_skipped else "")
        steps.append(_Step(title, f"epoch-{batch.epoch}-step-{batch.step}", text, tuple(made)))
    name = safe_text(batches[0].source.url, _NAME_CHARACTERS)
    page = TEMPLATES.get_template("batch.html.jinja").render(name=name, steps=steps)
    write_whole(Path(path), page.encode())
