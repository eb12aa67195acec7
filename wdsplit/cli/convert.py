"""`wdsplit convert` and `wdsplit plan`, its dry run."""

from __future__ import annotations

import math
import os
import time
from typing import Any

import click

from wdsplit.cli.options import json_option, with_options
from wdsplit.cli.terminal import Bar, available_cpus, byte_size, echo_json, human_bytes, progress_bar, stderr, table
from wdsplit.converter import Progress, convert, convert_splits
from wdsplit.encode import NULLS
from wdsplit.manifest import Manifest
from wdsplit.options import PADS, ConvertOptions, PlanOptions
from wdsplit.plan import Plan
from wdsplit.planning import plan_splits
from wdsplit.sidecars import SIDECARS

__all__ = ["convert_command", "plan_command"]

_SHOWN_FIELDS = 20

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


_plan_options = with_options(_OPTIONS)


def _options(arguments: dict[str, Any], **more: Any) -> ConvertOptions:
    """Build the options from a command's arguments."""
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


@click.command(
    "plan",
    epilog="Example: wdsplit plan 'raw/train-*.parquet' --world-size 8 --workers 4",
)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@_plan_options
@json_option
def plan_command(inputs: tuple[str, ...], as_json: bool, **arguments: Any) -> None:
    """Say what convert would do with the same options; nothing is written.

    INPUT is a file, a folder of them, a glob or a brace expression; or such a URL (s3://, gs://, hf://, https://).
    """
    plans = plan_splits(inputs, _options(arguments))
    if as_json:
        summaries = {name: plan.summary() for name, plan in plans.items()}
        echo_json(summaries.get("", summaries))
    else:
        click.echo("\n\n".join((f"{name}: " if name else "") + _plan_text(plan) for name, plan in plans.items()))


def _sidecars(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Parse what --emit names, parted by commas."""
    emit = tuple(value.split(",")) if value is not None else ()
    unknown = [name for name in emit if name not in SIDECARS]
    if unknown:
        raise click.BadParameter(f"{', '.join(map(repr, unknown))} is none of {', '.join(SIDECARS)}")
    return emit


@click.command(
    "convert",
    epilog="""Examples:

\b
  wdsplit convert raw/ data/train --world-size 8 --workers 4
  wdsplit convert 'raw/train-*.parquet' data/train --map jpg=image --map cls=label
  wdsplit convert raw/ data/train --world-size 8 --workers 4 --resume
  wdsplit convert raw/ s3://bucket/train --world-size 8 --workers 4""",
)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.argument("output")
@_plan_options
@click.option("--jobs", type=click.IntRange(1), help="Tasks at a time.  [default: one a processor]")
@click.option(
    "--memory",
    type=byte_size,
    default="1GiB",
    show_default=True,
    metavar="SIZE",
    help="Memory that --shuffle and --group-by keep to, in all jobs together.",
)
@click.option(
    "--emit",
    callback=_sidecars,
    metavar="NAME[,NAME...]",
    help=f"Write what other readers want beside the shards; some of {', '.join(SIDECARS)}.",
)
@click.option("--overwrite", is_flag=True, help="Replace the dataset, or the unfinished run, that is in OUTPUT.")
@click.option("--resume", is_flag=True, help="Continue the unfinished run that is in OUTPUT.")
def convert_command(
    inputs: tuple[str, ...],
    output: str,
    jobs: int | None,
    memory: int,
    emit: tuple[str, ...],
    overwrite: bool,
    resume: bool,
    **arguments: Any,
) -> None:
    """Rewrite tables into a dataset of balanced WebDataset shards.

    INPUT is a file, a folder of them, a glob or a brace expression; OUTPUT is a folder, or s3://bucket/folder.
    The number of shards is a multiple of world size x workers, and all shards are equal, so that ranks are. The bytes
    of the shards do not depend on --jobs. A run that was interrupted is continued with --resume.
    """
    options = _options(
        arguments, jobs=jobs or available_cpus(), memory=memory, emit=emit, overwrite=overwrite, resume=resume
    )
    started = time.monotonic()
    last: dict[str, Progress] = {}
    try:
        with progress_bar("converting") as bar:

            def report(plan: Plan, progress: Progress) -> None:
                last[progress.split] = progress
                _show(bar, plan, progress)

            if options.splits:
                manifests = convert_splits(inputs, output, options, report)
            else:
                manifests = {"": convert(inputs, output, options, report)}
    except KeyboardInterrupt:
        shards = sum(progress.shards for progress in last.values())
        if shards or any(progress.scattered for progress in last.values()):
            stderr(f"{shards} shards are published; continue with the same command and --resume")
        raise
    for name, manifest in manifests.items():
        click.echo(_summary(manifest, os.path.join(output, name) if name else output, last[name]))
    click.echo(_rates(list(manifests.values()), list(last.values()), time.monotonic() - started))


def _show(bar: Bar, plan: Plan, progress: Progress) -> None:
    """Show how far a conversion has got."""
    name = f" {progress.split}" if progress.split else ""
    if progress.scattered is not None:
        bar.update(progress.scattered, plan.num_rows, f"shuffling{name}", rows=progress.scattered)
    else:
        amounts = {"samples": progress.samples, "bytes": progress.num_bytes}
        bar.update(progress.shards, plan.num_shards, f"writing{name}", **amounts)


def _plan_text(plan: Plan) -> str:
    fields = table(
        ("field", "column", "type", "encoding"),
        [(field.name, field.column, field.type, field.encoding) for field in plan.fields],
    )
    lines = [
        f"{plan.num_rows:,} rows{_of_all(plan.num_rows, plan.table.total_rows)} in {len(plan.table.files):,} files "
        f"-> {plan.num_shards:,} shards of {plan.most_samples:,} samples",
        f"pads {plan.num_pads:,}, rows left out {plan.num_dropped:,}, lanes {plan.lanes}, "
        f"keys {'from column ' + repr(plan.key) if plan.key else 'number the rows'}",
        f"plan {plan.hash}",
        "",
        fields,
    ]
    return "\n".join(lines)


def _of_all(num_rows: int, total: int) -> str:
    """Say how many rows there are, if some are left out."""
    return f" of {total:,}" if num_rows < total else ""


def _summary(manifest: Manifest, output: str, progress: Progress) -> str:
    num_dropped, provenance = manifest.provenance["num_dropped"], manifest.provenance
    lines = [
        f"{output}: {len(manifest.shards):,} shards, {manifest.num_samples:,} samples, {manifest.num_pads:,} pads, "
        f"{human_bytes(manifest.num_bytes)}",
        _fields(manifest),
    ]
    if provenance["num_selected"] < provenance["num_rows"]:
        lines.append(f"selected: {provenance['num_selected']:,} of {provenance['num_rows']:,} rows")
    if num_dropped:
        which = "" if manifest.provenance["options"]["shuffle"] else "the last "
        lines.append(f"left out: {which}{num_dropped:,} rows, to make the shards equal (--pad drop)")
    if progress.skipped:
        lines.append(f"resumed: {progress.skipped:,} shards were there already")
    return "\n".join(lines)


def _fields(manifest: Manifest) -> str:
    texts = [f"{field.name} (from {field.column})" for field in manifest.fields]
    more = f", and {len(texts) - _SHOWN_FIELDS} more" if len(texts) > _SHOWN_FIELDS else ""
    return f"fields: {', '.join(texts[:_SHOWN_FIELDS])}{more}"


def _rates(manifests: list[Manifest], progress: list[Progress], elapsed_s: float) -> str:
    num_samples = sum(manifest.num_samples for manifest in manifests)
    num_bytes = sum(manifest.num_bytes for manifest in manifests)
    rates = f"{num_samples / elapsed_s:,.0f} samples/s, {human_bytes(num_bytes / elapsed_s)}/s"
    return f"took {elapsed_s:.1f} s" + ("" if any(one.skipped for one in progress) else f" ({rates})")
