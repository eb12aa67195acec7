"""`wdsplit annotate` and `map`: join to samples the columns and fields of a table, or what a function returns."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

import wdsplit
from wdsplit.annotating.options import DUPLICATES, AnnotateOptions, MapOptions
from wdsplit.cli.help import argument, command, option
from wdsplit.cli.options import NAMES, SIZE, Running, dataset_argument, engine_options, options_of, parse_mapping
from wdsplit.cli.progress import Bar, progress_bar
from wdsplit.cli.stored import drop_option, drop_stored, joined_text
from wdsplit.cli.terminal import Result
from wdsplit.texts import counted, human_bytes
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from wdsplit.annotating.writing import AnnotateProgress
    from wdsplit.shards.annotations import Annotation

__all__ = ["annotate_command", "map_command"]

_SHOWN = 10
_KEPT = "finished work is kept; continue with the same command and --resume"
_DOING = {
    "read": ("reading", "rows"),
    "rows": ("1/4 reading rows", "rows"),
    "keys": ("2/4 reading keys", "samples"),
    "load": ("3/4 loading", "rows"),
    "join": ("3/4 joining", "partitions"),
    "map": ("1/2 mapping", "samples"),
    "write": ("writing", "shards"),
}
"""What each pass does, and what it counts. Rows that are near each other in the table are written without the third."""


@command(
    "annotate",
    [
        "data/train scores.parquet --key id",
        "data/train 'scores/*.csv' --key id --columns score,language",
        "data/train latents.parquet --key id --map latent.npy=latent",
        "s3://bucket/train s3://bucket/scores/ --key id --engine ray",
        "data/train --drop quality",
    ],
    dataset_argument,
    argument("tables", nargs=-1, metavar="[TABLE...]"),
    option("Input", "--key COLUMN", "Column with the sample keys."),
    option("Output", "--name NAME", "Name of the annotation.  [default: name of the first file, without extension]"),
    options_of(
        AnnotateOptions,
        "Input",
        "columns mapping hive",
        columns={**NAMES, "help": "Join these columns under their own names.  [default: all]"},
        mapping={
            "flag": "--map",
            "multiple": True,
            "metavar": "NAME=COLUMN[,...]",
            "help": "Join this column under another name: as a field if NAME ends like txt or npy, else as a column. "
            "Columns that neither this nor --columns names are left out.",
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
    drop_option("annotation"),
    summary="Join columns of a table to the samples of DATASET.",
)
def annotate_command(
    dataset: str,
    tables: tuple[str, ...],
    key: str | None,
    name: str | None,
    mapping: tuple[str, ...],
    running: Running,
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
    if drop is not None:
        return drop_stored(dataset, "annotation", drop, wdsplit.drop_annotation)
    if not tables or key is None:
        raise click.UsageError("expected TABLE and --key COLUMN, or --drop NAME")
    arguments["mapping"] = parse_mapping("--map", mapping, "NAME=COLUMN, such as score=aesthetic_score")
    options, engine = AnnotateOptions(**arguments), running.open()
    with progress_bar("opening files", _KEPT) as bar:
        made = wdsplit.annotate(dataset, tables, key, name or "", options, partial(_show, bar, "4/4"), engine=engine)
    lines = _described(url, made)
    if made.num_missing:
        lines.append(f"missing: {counted(made.num_missing, 'sample')} without a row, null (--allow-missing)")
    if made.num_extra:
        lines.append(f"extra: {counted(made.num_extra, 'row')} without a sample, left out (--allow-extra)")
    if made.num_duplicates:
        lines.append(f"duplicate keys: {counted(made.num_duplicates, 'row')} left out (--allow-duplicates)")
    return Result("\n".join([*lines, bar.took]), {"dataset": url, **_as_json(made)})


def _show(bar: Bar, last: str, progress: AnnotateProgress) -> None:
    """Show the progress of an annotation, whose last pass has the number `last`."""
    doing, unit = _DOING[progress.name]
    if progress.name == "write":
        doing = f"{last} {doing}"
    amounts = {unit: progress.done} if unit in ("rows", "samples") else {}
    bar.update(progress.done, progress.total or None, doing, unit, **amounts)


def _described(url: str, made: Annotation) -> list[str]:
    """Return lines about a new annotation."""
    lines = [
        f"{url}: annotation {made.name!r}: {joined_text(made)}",
        f"rows for {made.num_samples - made.num_missing:,} of {counted(made.num_samples, 'sample')}, "
        f"{human_bytes(made.num_bytes)}",
    ]
    if made.fields:
        lines.append(f"to read the fields: wdsplit.Dataset({url!r}, join=[{made.name!r}])")
    return lines


def _as_json(annotation: Annotation) -> dict[str, Any]:
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


@command(
    "map",
    [
        "data/train embed:embed --name embedding --fields jpg --decode rgb8 --batch-size 64",
        "data/train captions:score --name quality --fields txt --jobs 8",
        "data/train captions:score --name quality --fields txt --update",
        "s3://bucket/train latents:encode --name latents --engine ray --on-error skip",
    ],
    dataset_argument,
    argument("function", metavar="MODULE:FUNCTION"),
    options_of(MapOptions, "Input", "fields join decode batch_size", fields=NAMES, join=NAMES, decode=NAMES),
    options_of(MapOptions, "Running", "on_error"),
    engine_options,
    option("Output", "--name NAME", "Name of the annotation.", required=True),
    options_of(MapOptions, "Output", "overwrite resume update"),
    summary="Store what a function returns for the samples of DATASET.",
)
def map_command(dataset: str, function: str, name: str, running: Running, **arguments: Any) -> Result:
    """Call a Python function with each sample of DATASET, shard by shard, and store what it returns.

    FUNCTION gets a sample, a dict of its fields, and returns a dict, or None. Numbers, dates and texts become columns,
    which conditions of `wdsplit view` can use. Bytes, arrays, lists, images and texts become fields, which
    `wdsplit.Dataset(DATASET, join=["NAME"])` reads. MODULE is imported from this folder, or is installed. No shard is
    changed. After an interrupt, continue with --resume. `wdsplit inspect` lists annotations, and
    `wdsplit annotate --drop` removes one.
    """
    url = shown_url(dataset)
    engine = running.open()
    with progress_bar("opening files", _KEPT) as bar:
        made = wdsplit.map_samples(
            dataset, function, name, MapOptions(**arguments), partial(_show, bar, "2/2"), engine=engine
        )
    lines, failed, num_failed = _described(url, made), made.provenance["failed"], made.provenance["num_failed"]
    if made.num_missing > num_failed:
        lines.append(f"missing: {counted(made.num_missing - num_failed, 'sample')} for which it returned None, null")
    if num_failed:
        lines.append(f"skipped: {counted(num_failed, 'sample')} that failed (--on-error skip); --json lists them")
        lines += [f"  {one['key']} ({one['shard']}, row {one['row']}): {one['error']}" for one in failed[:_SHOWN]]
    values = {"dataset": url, **_as_json(made), "num_failed": num_failed, "failed": failed}
    return Result("\n".join([*lines, bar.took]), values)
