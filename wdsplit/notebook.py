"""How objects look in a notebook: a small table, in the colours of the page around it; and previews of samples."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wdsplit.texts import safe_text

__all__ = ["STYLE", "Preview", "html_table", "make_preview"]

STYLE = """<style>
.wdsplit { --line: #8886; --box: #8881; --quiet: currentColor; --fair: currentColor; --link: currentColor; }
.wdsplit table { border-collapse: collapse; table-layout: auto; font-variant-numeric: tabular-nums; margin: 0 0 12px; }
.wdsplit p { margin: 4px 0; }
.wdsplit ul.cards { padding: 0; }
.wdsplit tbody tr, .wdsplit thead tr { background: none; }
.wdsplit th, .wdsplit td { text-align: left; vertical-align: top; padding: 2px 14px 2px 0; max-width: 80ch; }
.wdsplit th, .wdsplit td { border: 0; border-bottom: 1px solid var(--line); overflow-wrap: anywhere; }
.wdsplit td { white-space: pre-line; }
.wdsplit tbody th { font-weight: 500; white-space: nowrap; }
</style>""".replace(".wdsplit", ".wdsplit:not(#_)")
"""Notebooks have their own themes, so all colours are that of the text, more or less transparent. An id in a selector
wins against the rules of Jupyter, which align cells to the right."""

_CELL_CHARACTERS, _ROWS = 300, 50


@dataclass(frozen=True, repr=False)
class Preview:
    """Samples to look at. A notebook shows them as pictures, sounds and texts; `print` as a line for each.

    Attributes:
        title: The number of samples, and the dataset.
        cards: The samples.
        lines: A line for each sample.
        as_html: Returns the preview as HTML; None for the lines instead.
    """

    title: str
    cards: Sequence[Any]
    lines: Sequence[str]
    as_html: Callable[[], str | None]

    def __repr__(self) -> str:
        return "\n".join([f"<Preview: {self.title}>", *self.lines])

    def _repr_html_(self) -> str | None:
        return self.as_html()


make_preview: Callable[[Any, int, int], Preview]
"""Makes the preview of a source: its arguments are the source, the number of samples and the seed.

`wdsplit/__init__` sets it, which is imported before any module of the package: previews are made by `reporting`, far
above the datasets that show them.
"""


def html_table(title: str, rows: Iterable[Sequence[Any]], header: Sequence[str] = ()) -> str:
    """Return a table as HTML: texts shortened and escaped, integers with commas, the first 50 rows.

    Args:
        title: The text above the table.
        rows: The cells; the first of each row names the row.
        header: The names of the columns; empty for none.
    """
    shown = [[_cell(each) for each in row] for row in rows]
    body = "".join(f"<tr><th scope=row>{row[0]}</th>{_cells('td', row[1:])}</tr>" for row in shown[:_ROWS])
    head = f"<thead><tr>{_cells('th scope=col', map(_cell, header))}</tr></thead>" if header else ""
    more = f"<p>{len(shown) - _ROWS:,} more rows are left out.</p>" if len(shown) > _ROWS else ""
    table = f"<table>{head}<tbody>{body}</tbody></table>"
    return f'<div class="wdsplit">{STYLE}<p><strong>{_cell(title)}</strong></p>{table}{more}</div>'


def _cells(tag: str, cells: Iterable[str]) -> str:
    return "".join(f"<{tag}>{cell}</{tag.split()[0]}>" for cell in cells)


def _cell(value: Any) -> str:
    text = f"{value:,}" if type(value) is int else str(value)
    return html.escape(safe_text(text, _CELL_CHARACTERS, lines=True))
