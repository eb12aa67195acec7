"""`wdsplit view`: select samples of a dataset by a condition or lists of keys, and store the selection."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

import click

import wdsplit
from wdsplit.cli.help import CHOOSING, HelpCommand
from wdsplit.cli.options import engine_options, json_option, open_engine
from wdsplit.cli.progress import progress_bar
from wdsplit.cli.stored import list_stored
from wdsplit.cli.terminal import echo, echo_json, say_next, table, wrapped
from wdsplit.texts import counted, percent, safe_text
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from wdsplit.shards.views import StoredView
    from wdsplit.views.make import MadeView

__all__ = ["view_command"]

_MANY_CLASSES, _CLASSES_SHOWN = 12, 10
_MAX_NAME, _MAX_RECIPE = 36, 100


_EPILOG = """Examples:

\b
  wdsplit view data/train good --where "score > 0.5 and label != 'other'"
  wdsplit view data/train clean --exclude bad.jsonl
  wdsplit view data/train --list"""

_HELP = """
Select samples of DATASET, and store the selection as the view NAME. wdsplit.Dataset(DATASET, view=NAME) then reads
only these samples. No shard is changed or copied: a view takes about one bit per sample.

Conditions have the syntax of `wdsplit convert --where`. They can use the columns of the sample tables (num_bytes,
width and height of images, and columns that `wdsplit convert` kept) and of annotations.
"""


@click.command(
    "view",
    cls=HelpCommand,
    groups=CHOOSING,
    help=_HELP,
    epilog=_EPILOG,
    short_help="Select samples of DATASET, and store the selection under a name.",
)
@click.argument("dataset")
@click.argument("name", required=False)
@click.option(
    "--where",
    metavar="CONDITION",
    help="Keep the samples that meet this condition. Quote class names.",
)
@click.option(
    "--keys",
    metavar="FILE",
    help="Keep the samples with the keys in this file: text with one key per line, .jsonl with `key` in each line, or "
    ".csv, .tsv or .parquet with a column `key` or `__key__`.",
)
@click.option("--exclude", metavar="FILE", help="Leave out the samples with the keys in this file (as for --keys).")
@click.option("--view", "base", metavar="BASE", help="Select only from the samples of this view.")
@click.option("--allow-missing", is_flag=True, help="Warn about --keys without a sample, instead of failing.")
@click.option("--overwrite", is_flag=True, help="Replace the view of this name.")
@click.option("--list", "lists", is_flag=True, help="List the views of DATASET.")
@click.option("--drop", metavar="NAME", help="Remove this view, but no sample.")
@engine_options
@json_option
def view_command(
    dataset: str,
    name: str | None,
    lists: bool,
    drop: str | None,
    jobs: int | None,
    engine: str,
    address: str | None,
    log: TextIO | None,
    as_json: bool,
    **asked: Any,
) -> None:
    """Make a view, list the views, or remove one."""
    if lists and drop is not None:
        raise click.UsageError("--list and --drop cannot be combined")
    if name is not None and (lists or drop is not None):
        raise click.UsageError(f"NAME {name!r}: not allowed with {'--list' if lists else '--drop NAME'}")
    if name is None and not lists and drop is None:
        raise click.UsageError("expected the NAME of a view to make, or --list, or --drop NAME")
    if name is None and any(asked.values()):
        raise click.UsageError("conditions and keys need the NAME of a view to make, without --list and --drop")
    if drop is not None:
        wdsplit.drop_view(dataset, drop)
        echo(f"{shown_url(dataset)}: removed view {drop!r}")
    elif name is None:
        _list(dataset, as_json)
    else:
        _make(dataset, name, asked, open_engine(engine, address, jobs), log, as_json)


def _make(dataset: str, name: str, asked: Mapping[str, Any], engine: Any, log: TextIO | None, as_json: bool) -> None:
    """Make a view, and print a summary of it."""
    options = {"view" if option == "base" else option: value for option, value in asked.items()}
    started = time.monotonic()
    with progress_bar("choosing samples", log) as bar:

        def show(done: int, num_shards: int, samples: int) -> None:
            bar.update(done, num_shards, unit="shards", samples=samples)

        made = wdsplit.make_view(dataset, name, **options, engine=engine, progress=show)
    if as_json:
        echo_json({"dataset": shown_url(dataset), **dataclasses.asdict(made.stored), **_more(made)})
        return
    echo(wrapped(_summary(shown_url(dataset), made, time.monotonic() - started)))
    say_next(f"wdsplit.Dataset({shown_url(dataset)!r}, view={name!r})")


def _more(made: MadeView) -> dict[str, Any]:
    return {"num_shards": made.num_shards, "num_empty_shards": made.num_empty_shards, "classes": made.classes}


def _summary(dataset: str, made: MadeView, elapsed_s: float) -> str:
    """Return a summary of a new view."""
    stored = made.stored
    lines = [
        f"{dataset}: view {stored.name!r} keeps {stored.num_selected:,} of {counted(stored.num_samples, 'sample')} "
        f"({percent(stored.num_selected, stored.num_samples)})",
        f"shards without a selected sample: {made.num_empty_shards:,} of {made.num_shards:,}",
    ]
    for option in ("keys", "exclude"):
        if option in stored.recipe:
            one = stored.recipe[option]
            counts = [counted(one["keys"], "key"), counted(one["duplicates"], "duplicate")]
            lines.append(f"--{option} {one['from']}: {', '.join(counts)}, {one['missing']:,} without a sample")
    for column, classes in made.classes.items():
        lines += ["", *_class_table(column, classes)]
    return "\n".join([*lines, f"took {elapsed_s:.1f} s"])


def _class_table(column: str, classes: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return a line for each class; if there are many, only for the largest."""
    rows = list(classes.items())
    if len(rows) > _MANY_CLASSES:
        rows.sort(key=lambda row: -row[1][0])
    shown = rows[: len(rows) if len(rows) <= _MANY_CLASSES else _CLASSES_SHOWN]
    total = sum(kept for _, (kept, _) in rows)
    cells = [
        (safe_text(name, _MAX_NAME), f"{kept:,}", percent(kept, total), f"{every:,}", percent(kept, every))
        for name, (kept, every) in shown
    ]
    text = table((column, "kept", "share of view", "all", "share kept"), cells)
    return [text, *([f"... and {len(rows) - len(shown):,} more classes"] if len(shown) < len(rows) else [])]


def _list(dataset: str, as_json: bool) -> None:
    """List the views of a dataset."""
    from wdsplit.shards.views import scan_views

    def made_for(view: StoredView) -> str:
        return view.dataset

    header = ("view", "samples", "share", "selection")
    list_stored(dataset, header, scan_views, made_for, _row, dataclasses.asdict, as_json)


def _row(found: StoredView) -> tuple[str, ...]:
    share = percent(found.num_selected, found.num_samples)
    return f"{found.num_selected:,}", share, safe_text(found.made_of, _MAX_RECIPE)
