"""`Dataset.preview`: some samples, as the report's contact sheet in a notebook, as lines in a terminal."""

from __future__ import annotations

from functools import partial

from wdsplit.checks.samples import spread_numbers
from wdsplit.errors import InputError, MissingDependencyError
from wdsplit.integers import whole
from wdsplit.loading.reading.source import AnySource, name_with_view
from wdsplit.notebook import STYLE, Preview
from wdsplit.reporting.samples import Card, cards
from wdsplit.reporting.subject import Subject
from wdsplit.texts import counted, safe_text

__all__ = ["preview"]

_MAX_SAMPLES, _NAME_CHARACTERS, _LINE_CHARACTERS = 200, 200, 160


def _line(card: Card) -> str:
    fields = [f"{item.field}: {item.text}" if item.field else item.text for item in card.items]
    parts = [card.key, *([card.file] if card.file else []), *([card.label] if card.label else []), *fields]
    return safe_text("  ".join(" ".join(part.split()) for part in parts), _LINE_CHARACTERS)


def preview(source: AnySource, n: int, seed: int) -> Preview:
    """Read samples from all over the files.

    Args:
        source: The dataset or mixture.
        n: Number of samples, 0 to 200.
        seed: Seed of the choice.

    Raises:
        InputError: `n` is invalid.
        WdsplitError: A shard cannot be read.
    """
    n = whole(n)
    if type(n) is not int or not 0 <= n <= _MAX_SAMPLES:
        raise InputError("invalid number of samples", expected=f"0 to {_MAX_SAMPLES}", found=repr(n))
    subject = Subject(source)
    names = [name for manifest in subject.manifests for name in manifest.class_names]
    found = cards(subject, spread_numbers(subject.num_stored, n, seed), next(iter(names), "cls"))
    name = name_with_view(subject.source)
    title = f"{len(found):,} of {counted(subject.num_stored, 'sample')} of {safe_text(name, _NAME_CHARACTERS)}"
    return Preview(title, tuple(found), list(map(_line, found)), partial(_html, title, found))


def _html(title: str, shown: list[Card]) -> str | None:
    """Return the cards as HTML; None without the libraries of the report."""
    try:
        from wdsplit.reporting.templates import TEMPLATES, Markup
    except MissingDependencyError:
        return None
    return TEMPLATES.get_template("preview.html.jinja").render(title=title, cards=shown, style=Markup(STYLE))
