"""Helpers for all commands: exit codes, coloured messages, formatted numbers, types of options.

Results go to standard output, messages to standard error. Terminals get colours unless NO_COLOR or TERM=dumb is set;
FORCE_COLOR adds colours elsewhere.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from wdsplit.errors import InputError
from wdsplit.sizes import parse_size
from wdsplit.texts import counted, escaped, human_bytes
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    import pyarrow as pa

    from wdsplit.checks.inspect import Inspection
    from wdsplit.shards.annotations import Annotation
    from wdsplit.shards.manifest import Manifest
    from wdsplit.shards.views import StoredView

__all__ = [
    "BATCH_SIZE",
    "FAILED",
    "INTERRUPTED",
    "TERMINATED",
    "UNUSABLE",
    "LogHandler",
    "audit_line",
    "bad",
    "byte_size",
    "colour",
    "columns_text",
    "echo",
    "echo_json",
    "error_text",
    "good",
    "human_bytes",
    "largest",
    "listed",
    "rates_text",
    "say_next",
    "span",
    "stale",
    "stderr",
    "style",
    "table",
    "totals",
    "totals_text",
    "training_line",
    "wrapped",
]

FAILED, UNUSABLE, INTERRUPTED, TERMINATED = 1, 2, 130, 143

BATCH_SIZE = 64
"""The batch size in suggested commands."""

_LISTED, _MANY_CLASSES = 10, 12

_T = TypeVar("_T")


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


def say_next(*lines: str) -> None:
    """Suggest the next commands, if standard error is a terminal."""
    if sys.stderr.isatty():
        for number, line in enumerate(lines):
            stderr(f"{style('     ' if number else 'next:', fg='cyan')} {line}")


def audit_line(dataset: str, options: Mapping[str, Any]) -> str:
    """Return the command that audits a dataset for the ranks and workers in its options."""
    ranks, workers = options.get("world_size", 1), options.get("workers", 1)
    return f"wdsplit audit {shlex.quote(dataset)} --world-size {ranks} --workers {workers} --batch-size {BATCH_SIZE}"


def training_line(dataset: str, batch_size: int, num_workers: int) -> str:
    """Return the line of Python that reads a dataset."""
    return f"wdsplit.Loader(wdsplit.Dataset({dataset!r}), batch_size={batch_size}, num_workers={num_workers})"


class LogHandler(logging.Handler):
    """Prints log records of the library, above a progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        word = f"{style('warning:', fg='yellow', bold=True)} " if record.levelno >= logging.WARNING else ""
        stderr(f"{word}{self.format(record)}")


def totals(dataset: str, manifest: Manifest) -> dict[str, Any]:
    """Return the totals of a dataset, for JSON."""
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
    """Return the totals of a dataset as text."""
    return (
        f"{counted(len(manifest.shards), 'shard')}, {counted(manifest.num_samples, 'sample')}, "
        f"{counted(manifest.num_pads, 'pad')}, "
        f"{human_bytes(manifest.num_bytes)}"
    )


def columns_text(schema: pa.Schema) -> str:
    """Return names and types of columns as text."""
    return ", ".join(f"{column.name} ({column.type})" for column in schema)


def stale(stored: StoredView | Annotation, found: Inspection) -> str:
    """Return the mark of a view or annotation that was made for other shards than the dataset has; else nothing."""
    # The fingerprint of a view is that of its selection.
    made_for = stored.dataset if hasattr(stored, "dataset") else stored.fingerprint
    return "" if made_for == found.fingerprint else "; made for an earlier version of the dataset"


def rates_text(num_samples: int, num_bytes: int, elapsed_s: float) -> str:
    """Return the speed of writing or reading as text."""
    return f"{num_samples / elapsed_s:,.0f} samples/s, {human_bytes(num_bytes / elapsed_s)}/s"


def wrapped(text: str, indent: int = 2, first: int = 0) -> str:
    """Wrap the lines of a text to the width of the terminal; elsewhere, return it unchanged.

    Args:
        text: The text.
        indent: Spaces before continuation lines.
        first: Columns of the line that are already printed.
    """
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    wrapper = textwrap.TextWrapper(width, " " * first, " " * indent, break_long_words=False, break_on_hyphens=False)

    def fits(line: str) -> bool:
        return first + len(click.unstyle(line.replace(_ESCAPE, "\x1b"))) <= width

    return "\n".join(line if fits(line) else wrapper.fill(line)[first:] for line in text.splitlines())


def listed(names: Sequence[str]) -> str:
    """Return the first few names, separated by commas."""
    return ", ".join(map(escaped, names[:_LISTED])) + (", ..." if len(names) > _LISTED else "")


def span(numbers: Iterable[int]) -> str:
    """Return the least and the most of some numbers, or the one that all are."""
    found = list(numbers)
    low, high = min(found), max(found)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def largest(counts: Mapping[str, _T], size: Callable[[_T], int]) -> list[tuple[str, _T]]:
    """Return all classes if they are few; else the largest of them, by falling size."""
    classes = list(counts.items())
    return classes if len(classes) <= _MANY_CLASSES else sorted(classes, key=lambda each: -size(each[1]))[:_LISTED]


def echo_json(value: Any) -> None:
    """Print a value as indented JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    echo("".join(each if each.isprintable() or each == "\n" else json.dumps(each)[1:-1] for each in text))


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Return rows as aligned columns under a header; in a terminal, the last column is wrapped to fit its width."""
    texts = [[escaped(str(cell)) for cell in row] for row in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in texts]
    indent = min(sum(width + 2 for width in widths[:-1]), shutil.get_terminal_size().columns // 2)
    return "\n".join([style(lines[0], bold=True), *(wrapped(line, indent) for line in lines[1:])])


def byte_size(text: str) -> int:
    """Parse a number of bytes, such as 256MB, 1GiB or 500000; used as the type of an option."""
    try:
        return parse_size(text)
    except InputError as error:
        raise click.BadParameter(
            f"invalid size {text!r}: expected a number and a unit, such as 256MB or 1GiB"
        ) from error
