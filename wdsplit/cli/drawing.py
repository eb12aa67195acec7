"""Drawings made of characters: bars, sparklines, and which rank and worker reads which shard.

They use block characters if the output can encode them, else plain ones, and are readable without colours.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, groupby
from math import ceil
from typing import TYPE_CHECKING

from wdsplit.cli.terminal import span, style

if TYPE_CHECKING:
    from wdsplit.checks.inspect import Assignment, ReaderShare

__all__ = ["bar", "draw_readers", "sparkline"]

_HEIGHTS, _PLAIN_HEIGHTS = " ▁▂▃▄▅▆▇█", " .:-=+*#@"
_SHADES, _PLAIN_SHADES = " ░▒▓█", " .:+#"
_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")
_MAX_ROWS = 32
_MAX_CELL, _MAX_WIDTH = 8, 400
_LEFT, _RIGHT = 14, 12
"""Widths of the columns for rank and worker, and for the samples."""


def _glyphs(blocks: str, plain: str) -> str:
    """Return `blocks` if the output can show them, else `plain`."""
    try:
        blocks.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return plain
    return plain if os.environ.get("TERM") == "dumb" else blocks


def _glyph(glyphs: str, share: float) -> str:
    """Return the character for a share from 0 to 1; only 0 is blank, and only 1 is full."""
    last = len(glyphs) - 1
    return glyphs[last if share >= 1 else 0 if share <= 0 else max(1, min(last - 1, round(share * last)))]


def bar(share: float, width: int) -> str:
    """Return a bar that fills a share (0 to 1) of the width; empty only for 0."""
    return _glyphs(_SHADES, _PLAIN_SHADES)[-1] * (max(1, round(share * width)) if share > 0 else 0)


def sparkline(shares: Sequence[float], width: int) -> str:
    """Return a character for each share (0 to 1); shares are averaged to fit the width."""
    each = max(1, -(-len(shares) // max(1, width)))
    parts = [shares[begin : begin + each] for begin in range(0, len(shares), each)]
    glyphs = _glyphs(_HEIGHTS, _PLAIN_HEIGHTS)
    return "".join(_glyph(glyphs, sum(part) / len(part)) for part in parts)


def draw_readers(found: Assignment, width: int) -> str:
    """Draw which rank and worker reads which shard: a row for each worker, or for each rank if there are many.

    Args:
        found: The shards of each rank and worker.
        width: Width of the terminal.
    """
    counts, room = found.shard_samples, max(1, min(width, _MAX_WIDTH) - _LEFT - _RIGHT)
    shades = _glyphs(_SHADES, _PLAIN_SHADES)
    each = max(1, -(-len(counts) // room))  # shards of a column
    cell = max(1, min(_MAX_CELL, room // max(1, len(counts))))  # characters of a column
    totals = Counter(shard // each for shard in range(len(counts)))

    def strip(shards: Iterable[int]) -> str:
        """Return a shade for each column, by the share of its shards that are in `shards`."""
        read = Counter(shard // each for shard in shards)
        return "".join(_glyph(shades, read[column] / total) * cell for column, total in totals.items())

    most = max(counts, default=0)
    tenths = [ceil(10 * count / max(1, most)) / 10 for count in counts]  # hides differences of a few samples
    sizes = sparkline(tenths, room)
    header = (f"shards 0 to {len(counts) - 1:,}" if counts else "no shards").ljust(len(sizes) * cell)
    lines = [
        style(f"{'rank':>4}  {'worker':>6}  {header}  {'samples':>10}", bold=True),
        f"{'size':>12}  {''.join(glyph * cell for glyph in sizes)}  {f'<= {most:,}':>10}",
    ]
    rows = _rows(found.readers)
    shown = rows if len(rows) <= _MAX_ROWS else rows[: _MAX_ROWS - 2]
    for rank, worker, samples, shards in shown:
        picture = style(strip(shards), fg=_COLOURS[rank % len(_COLOURS)])
        lines.append(f"{rank:>4}  {worker:>6}  {picture}  {samples:>10,}")
    left = rows[len(shown) :]
    if left:
        of_each = f"samples: {span(row[2] for row in left)}, shards: {span(len(row[3]) for row in left)}"
        lines.append(f" ...  {len(left):,} more ranks, each with {of_each}")
    if each > 1:
        lines.append(f"each column is {each:,} shards: {shades[1]} few of them read, {shades[-1]} all")
    return "\n".join(lines)


def _rows(readers: Sequence[ReaderShare]) -> list[tuple[int, str, int, set[int]]]:
    """Return rank, worker, number of samples and shards of each row."""
    if len(readers) <= _MAX_ROWS:
        return [(one.rank, str(one.worker), one.samples, set(one.shards)) for one in readers]
    rows = []
    for rank, group in groupby(readers, key=lambda one: one.rank):
        part = list(group)
        shards = set(chain.from_iterable(one.shards for one in part))
        rows.append((rank, "all" if len(part) > 1 else "0", sum(one.samples for one in part), shards))
    return rows
