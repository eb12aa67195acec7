"""What the commands share: exit codes, progress bars, figures for people, types of options.

Progress goes to standard error and only to a terminal; results go to standard output.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, TextIO

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from wdsplit.errors import InputError
from wdsplit.shards.manifest import Manifest
from wdsplit.sizes import parse_size
from wdsplit.urls import shown_url

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "TERMINATED",
    "UNUSABLE",
    "Bar",
    "available_cpus",
    "byte_size",
    "echo_json",
    "human_bytes",
    "progress_bar",
    "rates_text",
    "stderr",
    "table",
    "totals",
    "totals_text",
]

FAILED, UNUSABLE, INTERRUPTED, TERMINATED = 1, 2, 130, 143

_LOG_EVERY_S = 1.0


def stderr(message: str) -> None:
    """Say something that is no result."""
    click.echo(message, err=True)


def available_cpus() -> int:
    """Return the processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def human_bytes(size: float) -> str:
    """Return a number of bytes for people, in decimal units."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} PB"


def totals(dataset: str, manifest: Manifest) -> dict[str, Any]:
    """Return how much is in a dataset, as JSON has it."""
    return {
        "dataset": shown_url(dataset),
        "samples": manifest.num_samples,
        "pads": manifest.num_pads,
        "shards": len(manifest.shards),
        "bytes": manifest.num_bytes,
        "lanes": manifest.lanes,
        "window": manifest.window,
    }


def totals_text(manifest: Manifest) -> str:
    """Return how much is in a dataset, for people."""
    return (
        f"{len(manifest.shards):,} shards, {manifest.num_samples:,} samples, {manifest.num_pads:,} pads, "
        f"{human_bytes(manifest.num_bytes)}"
    )


def rates_text(num_samples: int, num_bytes: int, elapsed_s: float) -> str:
    """Return how fast samples were written or read, for people."""
    return f"{num_samples / elapsed_s:,.0f} samples/s, {human_bytes(num_bytes / elapsed_s)}/s"


def echo_json(value: Any) -> None:
    """Print a value as indented JSON."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return rows as aligned columns under their header."""
    texts = [[str(cell) for cell in row] for row in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in texts)
    return "\n".join(line.rstrip() for line in lines)


def byte_size(text: str) -> int:
    """Parse a number of bytes, such as 256MB, 1GiB or 500000: the type of an option."""
    try:
        return parse_size(text)
    except InputError as error:
        raise click.BadParameter(
            f"invalid size {text!r}: expected a number and a unit, such as 256MB or 1GiB"
        ) from error


class _Rate(ProgressColumn):
    """Units a second of a task."""

    def render(self, task: Task) -> Text:
        elapsed = task.elapsed or 0.0
        parts = [
            f"{human_bytes(amount / elapsed)}/s" if unit == "bytes" else f"{amount / elapsed:,.0f} {unit}/s"
            for unit, amount in task.fields["amounts"].items()
            if elapsed > 0 and amount
        ]
        return Text(", ".join(parts))


class _Log:
    """Progress as JSON lines, for machines: one a second at the most, and one at the end.

    Args:
        file: What they are written to, each at once.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._started = time.monotonic()
        self._last_s = -_LOG_EVERY_S
        self._last: dict[str, Any] = {}
        self._refused = False
        self._first: tuple[int, float] | None = None
        """How much was done when the counting began, and when that was."""

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
        """Write a line: what happens, when, and how far all has got."""
        now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
        elapsed_s = round(time.monotonic() - self._started, 3)
        line = {"time": now, "event": event, "elapsed_s": elapsed_s, **self._last, **more}
        try:
            self._file.write(json.dumps(line, ensure_ascii=False) + "\n")
            self._file.flush()
        except OSError as error:
            if not self._refused:
                stderr(f"progress is not logged any more: {error.strerror}")
            self._refused = True


class Bar:
    """A progress bar in use."""

    def __init__(self, progress: Progress, what: str, log: _Log | None = None) -> None:
        self._progress = progress
        self._what = what
        self._task = progress.add_task(what, total=None, amounts={})
        self._log = log

    def update(self, done: int, total: int, what: str | None = None, **amounts: float) -> None:
        """Show how many of all units are done, and amounts (such as samples, bytes) whose rates are of interest."""
        self._progress.update(self._task, description=what, completed=done, total=total, amounts=amounts)
        if self._log is not None:
            self._log.update(done, total, what or self._what, amounts)


@contextmanager
def progress_bar(what: str, log: TextIO | None = None) -> Iterator[Bar]:
    """Show a bar with rate and time left while the block runs; nothing if standard error is not a terminal.

    Args:
        what: What is being done.
        log: Where to write the same as JSON lines, and how it ended.
    """
    lines = None if log is None else _Log(log)
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    try:
        with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
            yield Bar(progress, what, lines)
    except BaseException as error:
        if lines is not None:
            lines.write("failed", error=str(error) or type(error).__name__)
        raise
    if lines is not None:
        lines.write("done")
