"""`wdsplit annotate`: join columns and fields of a table to the samples of a dataset."""

from __future__ import annotations

import json
import keyword
import shlex
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TextIO

import click

import wdsplit
from wdsplit.annotating.options import DUPLICATES, AnnotateOptions
from wdsplit.cli.help import argument, command, option
from wdsplit.cli.options import (
    NAMES,
    SIZE,
    Running,
    dataset_argument,
    engine_options,
    json_option,
    options_of,
    parse_mapping,
)
from wdsplit.cli.progress import progress_bar
from wdsplit.cli.stored import drop_stored, joined_text, list_stored, stored_options
from wdsplit.cli.terminal import Result, stderr
from wdsplit.texts import counted, human_bytes
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from wdsplit.annotating.writing import AnnotateProgress
    from wdsplit.shards.annotations import Annotation

__all__ = ["annotate_command", "as_json", "described", "following", "shown_progress"]

_DOING = {
    "read": ("reading", "rows"),
    "rows": ("reading rows", "rows"),
    "keys": ("reading keys", "samples"),
    "join": ("joining", ""),
    "map": ("mapping", "samples"),
    "write": ("writing", ""),
}


@command(
    "annotate",
    [
        "data/train scores.parquet --key id",
        "data/train 'scores/*.csv' --key id --columns score,language",
        "data/train latents.parquet --key id --map latent.npy=latent",
        "s3://bucket/train s3://bucket/scores/ --key id --engine ray",
        "data/train --list",
        "data/train --drop quality",
    ],
    dataset_argument,
    argument("tables", nargs=-1, metavar="[TABLE...]"),
    option("Input", "--key", metavar="COLUMN", help="Column with the sample keys."),
    option(
        "Output",
        "--name",
        metavar="NAME",
        help="Name of the annotation.  [default: name of the first file, without extension]",
    ),
    options_of(
        AnnotateOptions,
        "Input",
        "columns mapping hive",
        columns={**NAMES, "help": "Join these columns under their own names.  [default: all]"},
        mapping={
            "flag": "--map",
            "multiple": True,
            "metavar": "NAME=COLUMN[,...]",
            "help": "Join this column under another name: as a field if NAME ends like txt or npy, else as a column.",
        },
        hive={"flag": "--hive/--no-hive", "default": True},
    ),
    options_of(
        AnnotateOptions,
        "Matching",
        "allow_missing allow_extra allow_duplicates",
        allow_duplicates={"type": click.Choice(DUPLICATES)},
    ),
    engine_options,
    options_of(AnnotateOptions, "Running", "memory", memory=SIZE),
    options_of(AnnotateOptions, "Output", "overwrite resume"),
    stored_options("annotation"),
    json_option,
    summary="Join columns of a table to the samples of DATASET.",
)
def annotate_command(
    dataset: str,
    tables: tuple[str, ...],
    key: str | None,
    name: str | None,
    mapping: tuple[str, ...],
    running: Running,
    lists: bool,
    drop: str | None,
    **arguments: Any,
) -> Result:
    """Join columns of a table to the samples of DATASET, by their keys.

    TABLE is a file of any format that `wdsplit convert` reads, a folder, a glob or a brace expression. Conditions of
    `wdsplit view` can then use numbers, texts and dates. Bytes, texts, lists and tensors become fields, which
    `wdsplit.Dataset(DATASET, join=["NAME"])` reads. No shard is changed.

    The keys in the table are the sample keys, or the values of the column that `wdsplit convert --key` named. If the
    dataset was converted without --key, they are row numbers. After an interrupt, continue with --resume.
    """
    url = shown_url(dataset)
    if lists:
        return list_stored(dataset, "annotation", ("samples", "missing", "columns and fields"), _row, as_json)
    if drop is not None:
        return drop_stored(dataset, "annotation", drop, wdsplit.drop_annotation)
    if not tables or key is None:
        raise click.UsageError("expected TABLE and --key COLUMN, or --list, or --drop NAME")
    arguments["mapping"] = parse_mapping("--map", mapping, "NAME=COLUMN, such as score=aesthetic_score")
    options, engine = AnnotateOptions(**arguments), running.open()
    with shown_progress(running.log) as (show, took):
        made = wdsplit.annotate(dataset, tables, key, name or "", options, show, engine=engine)
    lines = described(url, made)
    if made.num_missing:
        lines.append(f"missing: {counted(made.num_missing, 'sample')} without a row, null (--allow-missing)")
    if made.num_extra:
        lines.append(f"extra: {counted(made.num_extra, 'row')} without a sample, left out (--allow-extra)")
    if made.num_duplicates:
        lines.append(f"duplicate keys: {counted(made.num_duplicates, 'row')} left out (--allow-duplicates)")
    return Result("\n".join([*lines, took()]), {"dataset": url, **as_json(made)}, following(url, made))


@contextmanager
def shown_progress(log: TextIO | None) -> Iterator[tuple[Callable[[AnnotateProgress], None], Callable[[], str]]]:
    """Show the progress of an annotation while the block runs; say how to continue it when it is interrupted.

    Yields what is called with the progress, and what returns how long it took.
    """
    has_started, started = False, time.monotonic()
    try:
        with progress_bar("opening files", log) as bar:

            def show(progress: AnnotateProgress) -> None:
                nonlocal has_started
                has_started = True
                doing, unit = _DOING[progress.name]
                amounts = {unit: progress.done} if unit else {}
                bar.update(progress.done, progress.total or None, doing, unit, **amounts)

            yield show, lambda: f"took {time.monotonic() - started:.1f} s"
    except KeyboardInterrupt:
        if has_started:
            stderr("finished work is kept; continue with the same command and --resume")
        raise


def described(url: str, made: Annotation) -> list[str]:
    """Return lines about a new annotation."""
    lines = [
        f"{url}: annotation {made.name!r}: {joined_text(made)}",
        f"rows for {made.num_samples - made.num_missing:,} of {counted(made.num_samples, 'sample')}, "
        f"{human_bytes(made.num_bytes)}",
    ]
    if made.fields:
        lines.append(f"to read the fields: wdsplit.Dataset({url!r}, join=[{made.name!r}])")
    return lines


def following(url: str, made: Annotation) -> list[str]:
    """Return commands to try next with a new annotation."""
    return [f"wdsplit view {url} good --where {_example(made)}"] if made.schema.names else []


def _example(made: Annotation) -> str:
    """Return an example of a condition on the first column, quoted for a shell."""
    import pyarrow as pa

    numbers = [field for field in made.schema if pa.types.is_integer(field.type) or pa.types.is_floating(field.type)]
    field = [*numbers, *made.schema][0]
    is_plain = field.name.isidentifier() and not keyword.iskeyword(field.name)
    column = field.name if is_plain else f"column({json.dumps(field.name, ensure_ascii=False)})"
    return shlex.quote(f"{column} > 0.5" if numbers else f"{column} is not None")


def as_json(annotation: Annotation) -> dict[str, Any]:
    """Return an annotation as JSON values."""
    from wdsplit.shards.sample_tables import dump_schema

    return {
        "name": annotation.name,
        "columns": dump_schema(annotation.schema),
        "fields": [{"name": field.name, "column": field.column, "type": field.type} for field in annotation.fields],
        "samples": annotation.num_samples,
        "missing": annotation.num_missing,
        "extra": annotation.num_extra,
        "duplicates": annotation.num_duplicates,
        "bytes": annotation.num_bytes,
    }


def _row(found: Annotation) -> tuple[str, ...]:
    return f"{found.num_samples - found.num_missing:,}", f"{found.num_missing:,}", joined_text(found)
