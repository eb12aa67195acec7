"""What the commands share: exit codes, progress bars, figures for people, types of options.

Progress goes to standard error and only to a terminal; results go to standard output.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from wdsplit.errors import InputError
from wdsplit.sizes import parse_size

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "UNUSABLE",
    "Bar",
    "available_cpus",
    "byte_size",
    "echo_json",
    "human_bytes",
    "progress_bar",
    "stderr",
    "table",
]

FAILED, UNUSABLE, INTERRUPTED = 1, 2, 130


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
        raise click.BadParameter(f"{text!r} is no size; expected a number and a unit such as 256MB or 1GiB") from error


class _Rate(ProgressColumn):
    """Units a second, from what the task was told."""

    def render(self, task: Task) -> Text:
        elapsed = task.elapsed or 0.0
        parts = [
            f"{human_bytes(amount / elapsed)}/s" if unit == "bytes" else f"{amount / elapsed:,.0f} {unit}/s"
            for unit, amount in task.fields["amounts"].items()
            if elapsed > 0 and amount
        ]
        return Text(", ".join(parts))


class Bar:
    """A progress bar in use."""

    def __init__(self, progress: Progress, what: str) -> None:
        self._progress = progress
        self._task = progress.add_task(what, total=None, amounts={})

    def update(self, done: int, total: int, what: str | None = None, **amounts: float) -> None:
        """Show how many of all units are done, and amounts (such as samples, bytes) whose rates are of interest."""
        self._progress.update(self._task, description=what, completed=done, total=total, amounts=amounts)


@contextmanager
def progress_bar(what: str) -> Iterator[Bar]:
    """Show a bar with rate and time left while the block runs; nothing if standard error is no terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        yield Bar(progress, what)
