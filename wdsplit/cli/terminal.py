"""What commands print: results, messages, tables, JSON; and their exit codes.

Results go to standard output, messages to standard error. Terminals get colours unless NO_COLOR or TERM=dumb is set;
FORCE_COLOR adds colours elsewhere.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from wdsplit.texts import counted, escaped, human_bytes, listed, safe_text

if TYPE_CHECKING:
    import pyarrow as pa

    from wdsplit.shards.manifest import Manifest

__all__ = [
    "FAILED",
    "INTERRUPTED",
    "MAX_NAME",
    "TERMINATED",
    "UNUSABLE",
    "HelpContext",
    "LogHandler",
    "Result",
    "bad",
    "colour",
    "columns_text",
    "echo",
    "error_text",
    "good",
    "names_text",
    "rates_text",
    "span",
    "stderr",
    "style",
    "table",
    "totals_text",
    "width",
    "wrapped",
]

FAILED, UNUSABLE, INTERRUPTED, TERMINATED = 1, 2, 130, 143

MAX_NAME = 36
"""Characters of a name that a dataset gives, such as that of a class, where others stand beside it."""

_LISTED = 10


@dataclass(frozen=True)
class Result:
    """What a command has found or done.

    Attributes:
        text: The result as text.
        value: The result for `--json`, as JSON values.
        problems: Texts for standard error, which come before `text`; in JSON, `value` has them.
        code: The exit code.
    """

    text: str
    value: Any = None
    problems: Sequence[str] = ()
    code: int = 0

    def show(self, as_json: bool) -> None:
        """Print the result."""
        if as_json:
            text = json.dumps(self.value, indent=2, ensure_ascii=False)
            echo("".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text))
            return
        for problem in self.problems:
            stderr(problem)
        if self.text:
            echo(wrapped(self.text))


def colour() -> bool | None:
    """Return whether to print colours; None for only to a terminal."""
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return False if os.environ.get("TERM") == "dumb" else None


_ESCAPE = f"[{os.urandom(8).hex()}]"
"""Stands for the escape characters of `style` until `echo`: no text of a file can contain it."""


def style(text: str, **styles: Any) -> str:
    """Return a text in a style of `click.style`, for `echo`."""
    return click.style(escaped(text, lines=True), **styles).replace("\x1b", _ESCAPE)


def echo(text: str = "", err: bool = False) -> None:
    """Print a text, with its invisible characters escaped: a dataset's names may have some. All output passes here."""
    shown = escaped(text, lines=True).replace(_ESCAPE, "\x1b")
    click.echo(shown, err=err, color=colour() if err else None)


def stderr(message: str) -> None:
    """Print a message to standard error."""
    echo(message, err=True)


class LogHandler(logging.Handler):
    """Prints log records of the library, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        word = f"{style('warning:', fg='yellow', bold=True)} " if record.levelno >= logging.WARNING else ""
        stderr(f"{word}{self.format(record)}")


class _Formatter(click.HelpFormatter):
    """Writes a help whose headings and names stand out in a terminal; click removes the colours elsewhere."""

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """Write the line with the arguments."""
        super().write_usage(prog, args, f"{click.style('Usage:', fg='green', bold=True)} ")

    def write_heading(self, heading: str) -> None:
        """Write the name of a section."""
        super().write_heading(click.style(heading, fg="green", bold=True))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Write options or commands."""
        super().write_dl([(click.style(name, fg="cyan"), text) for name, text in rows], col_max, col_spacing)


class HelpContext(click.Context):
    """The context of commands with a help in colour."""

    formatter_class = _Formatter


def good(text: str) -> str:
    """Colour the text of a good result."""
    return style(text, fg="green")


def bad(text: str) -> str:
    """Colour the text of a bad result or an error."""
    return style(text, fg="red", bold=True)


def error_text(word: str, error: str) -> str:
    """Return the coloured text of an error: `word`, the cause, then the named details."""
    cause, separator, details = error.partition("\n")
    details = re.sub(r"^  \w+:", lambda name: style(name[0], dim=True), details, flags=re.MULTILINE)
    details = details.replace(style("  remedy:", dim=True), style("  remedy:", fg="green"))
    return f"{bad(f'{word}:')} {style(cause, bold=True)}{separator}{details}"


# Layout


def width() -> int:
    """Return the width of the terminal; 80 without one."""
    return shutil.get_terminal_size().columns


def wrapped(text: str, indent: int = 2, first: int = 0) -> str:
    """Wrap the lines of a text to the width of the terminal, except styled ones; elsewhere, return it unchanged.

    Args:
        text: The text.
        indent: Spaces before continuation lines.
        first: Columns of the line that are already printed.
    """
    if not sys.stdout.isatty():
        return text
    wrapper = textwrap.TextWrapper(width(), " " * first, " " * indent, break_long_words=False, break_on_hyphens=False)
    return "\n".join(
        line if first + len(line) <= wrapper.width or _ESCAPE in line else wrapper.fill(line)[first:]
        for line in text.splitlines()
    )


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return rows as aligned columns under a header; in a terminal, the last column is wrapped to fit its width."""
    texts = [[escaped(str(cell)) for cell in row] for row in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = ["  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in texts]
    indent = min(sum(size + 2 for size in widths[:-1]), width() // 2)
    return "\n".join([style(lines[0], bold=True), *(wrapped(line, indent) for line in lines[1:])])


# Texts that several commands print


def names_text(names: Sequence[str]) -> str:
    """Return the first few names, separated by commas."""
    return listed(names, _LISTED, partial(safe_text, limit=MAX_NAME))


def span(numbers: Iterable[int]) -> str:
    """Return the least and the most of some numbers, or the one that all are."""
    found = list(numbers)
    low, high = min(found), max(found)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def totals_text(manifest: Manifest) -> str:
    """Return the totals of a dataset."""
    counts = (len(manifest.shards), "shard"), (manifest.num_samples, "sample"), (manifest.num_pads, "pad")
    return ", ".join([*(counted(*each) for each in counts), human_bytes(manifest.num_bytes)])


def columns_text(schema: pa.Schema) -> str:
    """Return names and types of columns."""
    return ", ".join(f"{column.name} ({column.type})" for column in schema)


def rates_text(num_samples: int, num_bytes: int, elapsed_s: float) -> str:
    """Return the speed of writing or reading."""
    return f"{num_samples / elapsed_s:,.0f} samples/s, {human_bytes(num_bytes / elapsed_s)}/s"
