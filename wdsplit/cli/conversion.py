"""What the commands of a conversion share: their options, and what they say of a dataset."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import click
from click.core import ParameterSource

from wdsplit.cli.options import with_options
from wdsplit.cli.terminal import Bar, byte_size, human_bytes
from wdsplit.conversion.driver import Progress
from wdsplit.conversion.plan.options import PADS, ConvertOptions, PlanOptions
from wdsplit.fields.encode import NULLS
from wdsplit.shards.manifest import Manifest
from wdsplit.shards.sidecars import SIDECARS

__all__ = ["conversion_options", "dataset_text", "given", "plan_options", "run_options", "show_progress"]

_SHOWN_FIELDS = 20
_DOING = {"scatter": "shuffling", "merge": "merging", "write": "writing"}

_OPTIONS = (
    click.option(
        "--world-size", type=click.IntRange(1), default=1, show_default=True, help="Ranks to make shards for."
    ),
    click.option(
        "--workers", type=click.IntRange(0), default=1, show_default=True, help="Worker processes of each rank."
    ),
    click.option("--shards", type=click.IntRange(1), help="Number of shards; a multiple of world size x workers."),
    click.option(
        "--samples-per-shard", type=click.IntRange(1), help="Samples of a shard, at most (about, with --group-by)."
    ),
    click.option("--shard-size", type=byte_size, metavar="SIZE", help="Bytes of a shard, about.  [default: 256MB]"),
    click.option(
        "--map",
        "mapping",
        multiple=True,
        metavar="EXT=COLUMN",
        help="Write a column as this field, and only the columns named so; repeatable.  [default: infer all]",
    ),
    click.option(
        "--columns",
        multiple=True,
        metavar="NAME[,NAME...]",
        help="Write these columns, besides those that --map names.",
    ),
    click.option(
        "--key", metavar="COLUMN", help="Column that holds the keys.  [default: number the rows; tars keep their keys]"
    ),
    click.option("--number-keys", is_flag=True, help="Number the samples of tars instead of keeping their keys."),
    click.option(
        "--where",
        multiple=True,
        metavar="CONDITION",
        help='Only the rows that meet it, as in "label < 10 and width >= 256".',
    ),
    click.option("--limit", type=click.IntRange(1), help="Only so many rows: the first that meet the condition."),
    click.option(
        "--split",
        multiple=True,
        metavar="NAME=FRACTION,...",
        help="Draw rows into datasets OUTPUT/NAME by a hash of the key, or of --group-by: train=0.9,val=0.1.",
    ),
    click.option("--group-by", metavar="COLUMN", help="Keep rows of one value together, in one split and one shard."),
    click.option(
        "--pad",
        type=click.Choice(PADS),
        default="repeat",
        show_default=True,
        help="Make shards equal by repeating samples, flagged; drop what is over; or leave +-1.",
    ),
    click.option(
        "--null",
        type=click.Choice(NULLS),
        default="error",
        show_default=True,
        help="Refuse null values, leave the member out, or write it with no bytes.",
    ),
    click.option(
        "--class-names",
        is_flag=True,
        help="Write the names of classes beside their numbers, as cls.txt; for ClassLabel columns of Hugging Face.",
    ),
    click.option("--shuffle", is_flag=True, help="Put the rows of the whole table into a random order."),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="What that order depends on."),
    click.option(
        "--lanes",
        type=click.IntRange(1),
        help="Lanes that the loader's order is woven from.  [default: world size x workers, multiplied to at least 16]",
    ),
    click.option(
        "--window",
        type=click.IntRange(1),
        help="Samples that the loader reads and shuffles together.  [default: about 8 MiB]",
    ),
)


plan_options = with_options(_OPTIONS)
"""Adds what decides the dataset."""


def conversion_options(arguments: dict[str, Any], **more: Any) -> ConvertOptions:
    """Build the options of a conversion from a command's arguments."""
    mapping: dict[str, str] = {}
    for entry in arguments.pop("mapping"):
        name, separator, column = entry.partition("=")
        if not (name and separator and column) or name in mapping:
            problem = "is given twice" if name in mapping else "is not of the form EXT=COLUMN, such as jpg=image"
            raise click.BadParameter(f"{entry!r} {problem}", param_hint="'--map'")
        mapping[name] = column
    own = {name: arguments.pop(name) for name in ("key", "number_keys", "limit", "class_names")}
    columns, where, split = (arguments.pop(name) for name in ("columns", "where", "split"))
    for name, values in (("--columns", columns), ("--where", where)):
        if not all(value.strip(" ,") for value in values):
            raise click.BadParameter("is empty: leave it out to take all", param_hint=repr(name))
    for name, values, how in (("--where", where, "and"), ("--split", split, "a comma")):
        if len(values) > 1:
            raise click.BadParameter(f"is given twice: give it once, joined by {how}", param_hint=repr(name))
    return ConvertOptions(
        plan=PlanOptions(**arguments),
        mapping=mapping,
        columns=tuple(name.strip() for value in columns for name in value.split(",")),
        where="".join(where),
        splits=_splits(split[0]) if split else {},
        **own,
        **more,
    )


def _splits(text: str) -> dict[str, float]:
    """Parse what --split names."""
    splits: dict[str, float] = {}
    for entry in text.split(","):
        name, _, fraction = entry.strip().partition("=")
        try:
            value = float(fraction)
        except ValueError:
            value = math.nan
        if not name or name in splits or not math.isfinite(value):
            problem = "is given twice" if name in splits else "is not of the form NAME=FRACTION, such as train=0.9"
            raise click.BadParameter(f"{entry!r} {problem}", param_hint="'--split'")
        splits[name] = value
    return splits


def _sidecars(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Parse what --emit names, parted by commas."""
    emit = tuple(value.split(",")) if value is not None else ()
    unknown = [name for name in emit if name not in SIDECARS]
    if unknown:
        raise click.BadParameter(f"{', '.join(map(repr, unknown))} is none of {', '.join(SIDECARS)}")
    return emit


run_options = with_options(
    (
        click.option(
            "--memory",
            type=byte_size,
            default="1GiB",
            show_default=True,
            metavar="SIZE",
            help="Memory that --shuffle and --group-by keep to, in all jobs of a machine together.",
        ),
        click.option(
            "--emit",
            callback=_sidecars,
            metavar="NAME[,NAME...]",
            help=f"Write what other readers want beside the shards; some of {', '.join(SIDECARS)}.",
        ),
        click.option(
            "--overwrite", is_flag=True, help="Replace the dataset, or the unfinished run, that is in OUTPUT."
        ),
    )
)
"""Adds what a run needs besides its plan: memory, emit, overwrite."""


def given(context: click.Context, names: Collection[str]) -> list[str]:
    """Return those of some parameters that stand on the command line, as they are written there."""
    source = context.get_parameter_source
    return [
        parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.make_metavar(context)
        for parameter in context.command.params
        if parameter.name in names and source(parameter.name) is ParameterSource.COMMANDLINE
    ]


def show_progress(bar: Bar, progress: Progress, name: str = "") -> None:
    """Show how far a conversion has got.

    Args:
        bar: Where to show it.
        progress: How far.
        name: The split or the share; empty if there are none.
    """
    amounts = {"samples": progress.samples, "bytes": progress.num_bytes}
    if progress.name != "write":
        amounts = {"rows": progress.done} if progress.name == "scatter" else {}
    bar.update(progress.done, progress.total, f"{_DOING[progress.name]} {name}".rstrip(), **amounts)


def dataset_text(manifest: Manifest, place: str) -> str:
    """Say what is in a dataset that was converted."""
    num_dropped, provenance = manifest.provenance["num_dropped"], manifest.provenance
    lines = [
        f"{place}: {len(manifest.shards):,} shards, {manifest.num_samples:,} samples, {manifest.num_pads:,} pads, "
        f"{human_bytes(manifest.num_bytes)}",
        _fields(manifest),
    ]
    if provenance["num_selected"] < provenance["num_rows"]:
        lines.append(f"selected: {provenance['num_selected']:,} of {provenance['num_rows']:,} rows")
    if num_dropped:
        which = "" if manifest.provenance["options"]["shuffle"] else "the last "
        lines.append(f"left out: {which}{num_dropped:,} rows, to make the shards equal (--pad drop)")
    return "\n".join(lines)


def _fields(manifest: Manifest) -> str:
    texts = [f"{field.name} (from {field.column})" for field in manifest.fields]
    more = f", and {len(texts) - _SHOWN_FIELDS} more" if len(texts) > _SHOWN_FIELDS else ""
    return f"fields: {', '.join(texts[:_SHOWN_FIELDS])}{more}"
