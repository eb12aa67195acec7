"""Progress of a command: a bar on standard error if that is a terminal, else some lines; JSON lines in a file."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TextIO

from wdsplit.cli.terminal import human_bytes, stderr
from wdsplit.engines.watching import watching

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Bar", "progress_bar"]

_LOG_EVERY_S = 1.0
_LINE_EVERY_S = 10.0
"""Time between two lines in a pipe, as in the log of a cluster's job; commands that take less print none."""
_TEXT_WIDTH, _MAX_BAR_WIDTH = 74, 40


class _Log:
    """Writes progress as JSON lines: at most one per second, and one at the end.

    Args:
        file: The file; it is flushed after each line.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._started = time.monotonic()
        self._last_s = -_LOG_EVERY_S
        self._last: dict[str, Any] = {}
        self._refused = False

    def update(self, progress: dict[str, Any]) -> None:
        elapsed_s, self._last = time.monotonic() - self._started, progress
        if elapsed_s - self._last_s >= _LOG_EVERY_S:
            self._last_s = elapsed_s
            self.write("progress")

    def write(self, event: str, **more: str) -> None:
        """Write a line: the event, its time and the progress."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        elapsed_s = round(time.monotonic() - self._started, 3)
        line = {"time": now, "event": event, "elapsed_s": elapsed_s, **self._last, **more}
        try:
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error:
            if not self._refused:
                stderr(f"stopped logging progress: {error.strerror}")
            self._refused = True


class Bar:
    """A progress bar in use.

    Args:
        progress: The bar in the terminal, if there is one; without one, long commands print a line now and then.
        what: What is being done.
        log: The log, if there is one.
    """

    def __init__(self, progress: Progress | None, what: str, log: _Log | None = None) -> None:
        self._progress, self._what, self._log = progress, what, log
        fields: dict[str, Any] = dict.fromkeys(("count", "rates", "left"), "")
        self._task = None if progress is None else progress.add_task(what, total=None, **fields)
        self._opened = self._started = time.monotonic()
        self._next_line_s = _LINE_EVERY_S
        self._first: dict[str, float] = {}
        """The units and amounts done before the start, if a conversion is resumed."""

    def update(self, done: int, total: int | None, what: str | None = None, unit: str = "", **amounts: float) -> None:
        """Show how many units are done, the time left, and the rates of amounts such as samples and bytes.

        Args:
            done: Number of units done.
            total: Total number of units; None if unknown.
            what: What is being done, if that has changed.
            unit: What is counted, such as shards.
            amounts: Amounts done so far, by unit.
        """
        now = time.monotonic()
        if not self._first or (what or self._what) != self._what:
            self._what, self._started, self._first = what or self._what, now, {"": done, **amounts}
            if self._progress is not None and self._task is not None:
                self._progress.reset(self._task)
        elapsed_s, gained = max(1e-3, now - self._started), done - self._first[""]
        left_s = elapsed_s * (total - done) / gained if total and gained > 0 else None
        if self._log is not None and total is not None:
            left = None if left_s is None else round(left_s, 1)
            self._log.update({"what": self._what, "done": done, "total": total, **amounts, "left_s": left})
        shown: dict[str, Any] = {
            "count": f"{done:,}{'' if total is None else f'/{total:,}'} {unit}".rstrip(),
            "rates": self._rates(amounts, elapsed_s),
            "left": f"{timedelta(seconds=round(left_s))} left".removeprefix("0:") if left_s else "",
        }
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, description=self._what, completed=done, total=total, **shown)
        elif now - self._opened >= self._next_line_s:
            self._next_line_s = now - self._opened + _LINE_EVERY_S
            stderr(f"{self._what}: {', '.join(filter(None, shown.values()))}")

    def prepare(self, what: str, done: int, total: int | None) -> None:
        """Show a preparation step; a total of one unit shows no count."""
        self.update(done, None if total == 1 else total, what)

    def _rates(self, amounts: Mapping[str, float], elapsed_s: float) -> str:
        rates = {unit: (amount - self._first.get(unit, 0)) / elapsed_s for unit, amount in amounts.items()}
        return ", ".join(
            f"{human_bytes(rate)}/s" if unit == "bytes" else f"{rate:,.0f} {unit}/s"
            for unit, rate in rates.items()
            if rate
        )


@contextmanager
def progress_bar(what: str, log: TextIO | None = None) -> Iterator[Bar]:
    """Show a bar with rate and time left while the block runs; outside of a terminal, print a line every 10 s.

    Preparation steps reported through `engines.watching` are shown too.

    Args:
        what: What is being done.
        log: A file for the progress, and for how the block ended, as JSON lines.
    """
    lines = None if log is None else _Log(log)
    is_shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    try:
        with _shown() if is_shown else nullcontext() as progress:
            bar = Bar(progress, what, lines)
            with watching(bar.prepare):
                yield bar
    except BaseException as error:
        if lines is not None:
            lines.write("failed", error=str(error) or type(error).__name__)
        raise
    if lines is not None:
        lines.write("done")


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
