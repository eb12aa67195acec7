"""Progress of a command: a bar on standard error if that is a terminal, else some lines; JSON lines in a file."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, TextIO

from wdsplit.cli.terminal import stderr
from wdsplit.engines.watching import watching
from wdsplit.texts import human_bytes

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["Bar", "progress_bar"]

_LOG_EVERY_S = 1.0
_LINE_EVERY_S = 10.0
"""Time between two lines in a pipe, as in the log of a cluster's job; commands that take less print none."""
_TEXT_WIDTH, _MAX_BAR_WIDTH = 74, 40


class Bar:
    """The progress of a command: shown in a terminal or as a line now and then, and logged at most once a second.

    Args:
        progress: The bar in the terminal, if there is one.
        what: What is being done.
        log: A file for JSON lines, if there is one.
    """

    def __init__(self, progress: Progress | None, what: str, log: TextIO | None = None) -> None:
        self._progress, self._what, self._log = progress, what, log
        fields: dict[str, Any] = dict.fromkeys(("count", "rates", "left"), "")
        self._task = None if progress is None else progress.add_task(what, total=None, **fields)
        self._opened = self._started = time.monotonic()
        self._next_line_s, self._next_log_s = _LINE_EVERY_S, 0.0
        self._first: dict[str, float] = {}
        """The units and amounts done before the start, if a conversion is resumed."""
        self._logged: dict[str, Any] = {}

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
        if total is not None:
            left = None if left_s is None else round(left_s, 1)
            self._logged = {"what": self._what, "done": done, "total": total, **amounts, "left_s": left}
            if now - self._opened >= self._next_log_s:
                self._next_log_s = now - self._opened + _LOG_EVERY_S
                self.log("progress")
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
            self._next_line_s = now - self._opened + _LINE_EVERY_S
            stderr(f"{self._what}: {', '.join(filter(None, shown.values()))}")

    def log(self, event: str, **more: str) -> None:
        """Write a line of JSON to the log, if there is one: the event, its time and the progress."""
        if self._log is None:
            return
        elapsed_s = round(time.monotonic() - self._opened, 3)
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        line = {"time": now, "event": event, "elapsed_s": elapsed_s, **self._logged, **more}
        try:
            self._log.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._log.flush()
        except OSError as error:
            self._log = None
            stderr(f"stopped logging progress: {error.strerror}")


@contextmanager
def progress_bar(what: str, log: TextIO | None = None) -> Iterator[Bar]:
    """Show a bar with rate and time left while the block runs; outside of a terminal, print a line every 10 s.

    Preparation steps reported through `engines.watching` are shown too.

    Args:
        what: What is being done.
        log: A file for the progress, and for how the block ended, as JSON lines.
    """
    is_shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    with _shown() if is_shown else nullcontext() as progress:
        bar = Bar(progress, what, log)

        def prepare(step: str, done: int, total: int | None) -> None:
            bar.update(done, None if total == 1 else total, step)  # a total of one unit shows no count

        try:
            with watching(prepare):
                yield bar
        except BaseException as error:
            bar.log("failed", error=str(error) or type(error).__name__)
            raise
        bar.log("done")


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
