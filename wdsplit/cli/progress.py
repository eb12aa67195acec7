"""Progress of a command: a bar on standard error if that is a terminal, JSON lines in a file."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TextIO

from wdsplit.cli.terminal import human_bytes, stderr
from wdsplit.engines.watching import watching

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Bar", "progress_bar"]

_LOG_EVERY_S = 1.0
_TEXT_WIDTH, _MAX_BAR_WIDTH = 66, 40


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
        self._first: tuple[int, float] | None = None
        """The units done at the first update, and its time."""

    def update(self, done: int, total: int, what: str, amounts: Mapping[str, float]) -> None:
        elapsed_s = time.monotonic() - self._started
        if self._first is None or what != self._last.get("what"):
            self._first = done, elapsed_s
        gained, took_s = done - self._first[0], elapsed_s - self._first[1]
        left_s = round(took_s * (total - done) / gained, 1) if gained > 0 else None
        self._last = {"what": what, "done": done, "total": total, **amounts, "left_s": left_s}
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
        progress: The bar in the terminal, if there is one.
        what: What is being done.
        log: The log, if there is one.
    """

    def __init__(self, progress: Progress | None, what: str, log: _Log | None = None) -> None:
        self._progress, self._what, self._log = progress, what, log
        self._task = None if progress is None else progress.add_task(what, total=None, count="", rates="")
        self._started = time.monotonic()
        self._first: Mapping[str, float] = {}
        """The amounts done before the start, if a conversion is resumed."""

    def update(self, done: int, total: int | None, what: str | None = None, **amounts: float) -> None:
        """Show how many units are done, and the rates of amounts such as samples and bytes.

        Args:
            done: Number of units done.
            total: Total number of units; None if unknown.
            what: What is being done, if that has changed.
            amounts: Amounts done so far, by unit.
        """
        if what is not None and what != self._what:
            self._what, self._started, self._first = what, time.monotonic(), amounts
            if self._progress is not None and self._task is not None:
                self._progress.reset(self._task)
        if self._progress is not None and self._task is not None:
            count = f"{done:,}" if total is None else f"{done:,}/{total:,}"
            rates = self._rates(amounts)
            self._progress.update(
                self._task, description=self._what, completed=done, total=total, count=count, rates=rates
            )
        if self._log is not None and total is not None:
            self._log.update(done, total, self._what, amounts)

    def prepare(self, what: str, done: int, total: int | None) -> None:
        """Show a preparation step; a total of one unit shows no count."""
        self.update(done, None if total == 1 else total, what)

    def _rates(self, amounts: Mapping[str, float]) -> str:
        elapsed_s = max(1e-3, time.monotonic() - self._started)
        rates = {unit: (amount - self._first.get(unit, 0)) / elapsed_s for unit, amount in amounts.items()}
        return ", ".join(
            f"{human_bytes(rate)}/s" if unit == "bytes" else f"{rate:,.0f} {unit}/s"
            for unit, rate in rates.items()
            if rate
        )


@contextmanager
def progress_bar(what: str, log: TextIO | None = None) -> Iterator[Bar]:
    """Show a bar with rate and time left while the block runs, if standard error is a terminal.

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
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(max(1, min(_MAX_BAR_WIDTH, console.width - _TEXT_WIDTH))),
        TextColumn("{task.fields[count]}"),
        TextColumn("{task.fields[rates]}"),
        TimeRemainingColumn(compact=True),
    )
    return Progress(*columns, console=console, transient=True, redirect_stdout=False)
