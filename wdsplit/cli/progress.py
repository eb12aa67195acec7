"""Progress of a command: a bar on standard error if that is a terminal, else some lines."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from wdsplit.cli.terminal import stderr
from wdsplit.engines.watching import watching
from wdsplit.texts import human_bytes

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Bar", "progress_bar"]

_LINE_EVERY_S, _VERBOSE_LINE_EVERY_S = 10.0, 3.0
"""Time between two lines in a pipe, as in the log of a cluster's job; commands that take less print none."""
_TEXT_WIDTH, _MAX_BAR_WIDTH = 74, 40


class Bar:
    """The progress of a command: shown in a terminal, or as a line now and then.

    Args:
        progress: The bar in the terminal, if there is one.
        what: What is being done.
    """

    def __init__(self, progress: Progress | None, what: str) -> None:
        self._progress, self._what = progress, what
        fields: dict[str, Any] = dict.fromkeys(("count", "rates", "left"), "")
        self._task = None if progress is None else progress.add_task(what, total=None, **fields)
        self._opened = self._started = time.monotonic()
        is_verbose = logging.getLogger("wdsplit").isEnabledFor(logging.INFO)
        self._line_every_s = self._next_line_s = _VERBOSE_LINE_EVERY_S if is_verbose else _LINE_EVERY_S
        self._first: dict[str, float] = {}
        """The units and amounts done before the start, if a conversion is resumed."""
        self.has_started = False
        """Whether the work has started, after its preparation."""

    @property
    def elapsed_s(self) -> float:
        """Seconds since the bar was opened; more than 0."""
        return max(1e-3, time.monotonic() - self._opened)

    @property
    def took(self) -> str:
        """A text of these seconds."""
        return f"took {self.elapsed_s:.1f} s"

    def update(self, done: int, total: int | None, what: str | None = None, unit: str = "", **amounts: float) -> None:
        """Show the progress of the work: how much is done, the time left, and the rates of some amounts.

        Args:
            done: Number of units done.
            total: Total number of units; None if unknown.
            what: What is being done, if that has changed.
            unit: What is counted, such as shards.
            amounts: Amounts done so far, such as samples and bytes, by unit.
        """
        self.has_started = True
        self._show(done, total, what, unit, **amounts)

    def prepare(self, what: str, done: int, total: int | None) -> None:
        """Show the progress of a step before the work; without a count if that has one unit."""
        self._show(done, None if total == 1 else total, what)

    def _show(self, done: int, total: int | None, what: str | None, unit: str = "", **amounts: float) -> None:
        now = time.monotonic()
        if not self._first or (what or self._what) != self._what:
            self._what, self._started, self._first = what or self._what, now, {"": done, **amounts}
            if self._progress is not None and self._task is not None:
                self._progress.reset(self._task)
        elapsed_s, gained = max(1e-3, now - self._started), done - self._first[""]
        left_s = elapsed_s * (total - done) / gained if total and gained > 0 else None
        rates = {unit: (amount - self._first.get(unit, 0)) / elapsed_s for unit, amount in amounts.items()}
        shown: dict[str, Any] = {
            "count": f"{done:,}{'' if total is None else f'/{total:,}'} {unit}".rstrip(),
            "rates": ", ".join(
                f"{human_bytes(rate)}/s" if unit == "bytes" else f"{rate:,.0f} {unit}/s"
                for unit, rate in rates.items()
                if rate
            ),
            "left": f"{timedelta(seconds=round(left_s))} left".removeprefix("0:") if left_s else "",
        }
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=self._what, completed=done, total=total, **shown)
        elif now - self._opened >= self._next_line_s:
            self._next_line_s = now - self._opened + self._line_every_s
            stderr(f"{self._what}: {', '.join(filter(None, shown.values()))}")


@contextmanager
def progress_bar(what: str, kept: str = "") -> Iterator[Bar]:
    """Show a bar with rate and time left while the block runs; outside of a terminal, print a line now and then.

    That is every 10 s, or every 3 s with --verbose. Preparation steps that `engines.watching` reports are shown too.

    Args:
        what: What is being done.
        kept: What to say if the work is interrupted: what is kept, and how to continue.
    """
    is_shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    with _shown() if is_shown else nullcontext() as progress:
        bar = Bar(progress, what)
        try:
            with watching(bar.prepare):
                yield bar
        except KeyboardInterrupt:
            if bar.has_started and kept:
                stderr(kept)
            raise


def _shown() -> Progress:
    """Return a bar in the terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(max(1, min(_MAX_BAR_WIDTH, console.width - _TEXT_WIDTH))),
        TextColumn("{task.fields[count]}"),
        TextColumn("{task.fields[rates]}"),
        TextColumn("{task.fields[left]}"),
    )
    return Progress(*columns, console=console, transient=True, redirect_stdout=False)
