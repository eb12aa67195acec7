"""Make the picture at the top of the README: `python -m tools.make_overview docs/overview.svg`.

Sorted tables become equal, shuffled shards, and two ranks with two workers each read them in one order.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

COLOURS = ("#4063d8", "#389826", "#cb3c33", "#9558b2")
INK, PALE, LINE = "#24292f", "#f6f8fa", "#afb8c1"
CELL, GAP = 14, 3
ROWS, SHARDS, SHARD_SAMPLES, RANKS, STEPS = 12, 4, 12, 2, 3
WIDTH, HEIGHT = 880, 300


def text(x: float, y: float, words: str, size: int = 13, anchor: str = "middle", weight: str = "normal") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" font-weight="{weight}">{words}</text>'


def box(x: float, y: float, width: float, height: float) -> str:
    return f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{PALE}" stroke="{LINE}"/>'


def cells(x: float, y: float, colours: list[str], columns: int) -> Iterator[str]:
    """Give squares, a row of so many columns under another; a colour is a class."""
    for number, colour in enumerate(colours):
        row, column = divmod(number, columns)
        left, top = x + column * (CELL + GAP), y + row * (CELL + GAP)
        yield f'<rect x="{left}" y="{top}" width="{CELL}" height="{CELL}" rx="2" fill="{colour}"/>'


def arrow(x: float, y: float, length: float, words: str) -> Iterator[str]:
    yield f'<path d="M{x} {y}h{length - 6}" stroke="{INK}" stroke-width="1.6" marker-end="url(#head)"/>'
    yield text(x + length / 2, y - 9, words)


def drawn() -> Iterator[str]:
    """Give the parts of the picture, from left to right."""
    tables = [colour for colour in COLOURS for _ in range(ROWS)]
    shuffled = random.Random(3).sample(tables, len(tables))
    yield text(80, 36, "tables", 15, weight="bold")
    for number in range(2):
        top = 54 + number * 114
        yield box(36, top, 88, 104)
        yield from cells(47, top + 3, tables[number * 24 : number * 24 + 24], 4)
    yield text(80, 294, "parquet, CSV, images, tars", 12)

    yield from arrow(138, 158, 120, "wdsplit convert")
    yield text(368, 36, "equal, shuffled shards", 15, weight="bold")
    for number in range(SHARDS):
        top = 54 + number * 57
        yield box(272, top, 192, 47)
        yield text(280, top + 28, f"{number:06}.tar", 12, "start")
        yield from cells(356, top + 8, shuffled[number * SHARD_SAMPLES : (number + 1) * SHARD_SAMPLES], 6)
    yield text(368, 294, "disk, NFS, S3", 12)

    yield from arrow(478, 158, 120, "wdsplit.Loader")
    yield text(738, 36, "equal batches, in one order", 15, weight="bold")
    order = random.Random(5).sample(shuffled, len(shuffled))
    for rank in range(RANKS):
        top = 54 + rank * 114
        yield box(612, top, 252, 104)
        yield text(624, top + 24, f"rank {rank}", 13, "start", "bold")
        for step in range(STEPS):
            left = 624 + step * 80
            first = (step * RANKS + rank) * 8
            yield from cells(left, top + 40, order[first : first + 8], 4)
            yield text(left + 33, top + 94, f"step {step}", 12)
    yield text(738, 294, "each sample once; resume on any ranks", 12)


def main() -> None:
    marker = (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="6" markerHeight="6" orient="auto">'
        f'<path d="M0 0 8 4 0 8z" fill="{INK}"/></marker></defs>'
    )
    picture = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT + 12}" width="{WIDTH}" '
        f'font-family="Helvetica, Arial, sans-serif" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{HEIGHT + 12}" rx="8" fill="#ffffff"/>',
        marker,
        *drawn(),
        "</svg>\n",
    ]
    Path(sys.argv[1]).write_text("\n".join(picture), encoding="utf-8")


if __name__ == "__main__":
    main()
