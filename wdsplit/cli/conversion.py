"""Options and messages that the commands of a conversion share."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from wdsplit.cli.options import Decorator, with_options
from wdsplit.cli.terminal import byte_size, listed, totals_text
from wdsplit.conversion.plan.options import ConvertOptions, PlanOptions, attribute_texts
from wdsplit.errors import InputError
from wdsplit.shards.emit import check_emit
from wdsplit.texts import escaped

if TYPE_CHECKING:
    from wdsplit.cli.progress import Bar
    from wdsplit.conversion.driver import Progress
    from wdsplit.shards.manifest import Manifest

__all__ = [
    "conversion_options",
    "dataset_text",
    "given",
    "option_of",
    "parse_columns",
    "parse_mapping",
    "plan_options",
    "run_options",
    "show_progress",
]

_SHOWN_FIELDS = 20
_DOING = {"read": "reading", "scatter": "shuffling", "merge": "merging", "write": "writing"}

_FLAGS = {"mapping": "--map", "splits": "--split"}
"""Options whose flag differs from their name."""


def option_of(options: type, name: str, **changes: Any) -> Decorator:
    """Return the command-line option for a field of an options class, with its default, checks and help.

    Args:
        options: The class.
        name: The field.
        changes: Settings of `click.option` that replace these; `flag` is the option's name on the command line.
    """
    (one,) = (each for each in dataclasses.fields(options) if each.name == name)
    settings: dict[str, Any] = {"help": _help_text(options, name)}
    if "choices" in one.metadata:
        settings["type"] = click.Choice(one.metadata["choices"])
    elif "low" in one.metadata:
        settings["type"] = click.IntRange(one.metadata["low"])
    elif one.default is False:
        settings["is_flag"] = True
    if isinstance(one.default, (int, str)) and not isinstance(one.default, bool) and one.default != "":
        settings |= {"default": one.default, "show_default": True}
    settings |= changes
    return click.option(settings.pop("flag", _flag(name)), name, **settings)


def _flag(name: str) -> str:
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def _help_text(options: type, name: str) -> str:
    """Return the option's description from the class's docstring, with flags for the names of other options."""
    text = re.sub(r"`(\w+)`", lambda match: _flag(match[1]), attribute_texts(options)[name])
    text, separator, default = text.partition(" Default: ")
    return f"{text}  [default: {default.removesuffix('.')}]" if separator else text


def _repeatable(name: str) -> str:
    return f"{_help_text(PlanOptions, name)} Repeatable."


_SYNTAX: dict[str, dict[str, Any]] = {
    "shard_size": {"type": byte_size, "metavar": "SIZE"},
    "mapping": {
        "multiple": True,
        "metavar": "EXT=COLUMN",
        "help": "Write COLUMN as the field EXT; columns that neither this nor --columns names are left out. "
        "Repeatable.  [default: infer all]",
    },
    "columns": {
        "multiple": True,
        "metavar": "NAME[,NAME...]",
        "help": "Write these columns under inferred field names.",
    },
    "key": {"metavar": "COLUMN"},
    "where": {"multiple": True, "metavar": "CONDITION"},
    "splits": {
        "multiple": True,
        "metavar": "NAME=FRACTION,...",
        "help": "Split the rows into datasets OUTPUT/NAME, such as train=0.9,val=0.1, by a hash of the key or of "
        "--group-by.",
    },
    "group_by": {"metavar": "COLUMN"},
    "keep": {"multiple": True, "metavar": "COLUMN", "help": _repeatable("keep")},
    "no_keep": {"multiple": True, "metavar": "COLUMN", "help": _repeatable("no_keep")},
    "hive": {"flag": "--hive/--no-hive", "default": True, "show_default": True},
    "shuffle": {"flag": "--shuffle/--no-shuffle", "default": None},
}
"""Settings of options whose command-line form differs from Python's."""

_PLAN = {one.name: PlanOptions for one in dataclasses.fields(PlanOptions)}
_DECIDING = (
    "world_size workers shards samples_per_shard shard_size mapping columns key number_keys where limit "
    "skip_empty hive splits group_by pad allow_pads null class_names keep no_keep shuffle seed lanes window"
)

plan_options = with_options(
    [option_of(_PLAN.get(name, ConvertOptions), name, **_SYNTAX.get(name, {})) for name in _DECIDING.split()]
)
"""Adds the options that determine the dataset."""


def _parse_emit(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[str, ...]:
    """Parse the comma-separated names of --emit."""
    try:
        return check_emit(tuple(value.split(","))) if value is not None else ()
    except InputError as error:
        raise click.BadParameter(f"expected {error.expected}, found {error.found}") from error


run_options = with_options(
    [
        option_of(ConvertOptions, "memory", type=byte_size, metavar="SIZE"),
        option_of(ConvertOptions, "emit", callback=_parse_emit, metavar="NAME[,NAME...]"),
        option_of(ConvertOptions, "overwrite"),
    ]
)
"""Adds the options of a run that are not part of its plan: memory, emit, overwrite."""


def conversion_options(arguments: dict[str, Any], **more: Any) -> ConvertOptions:
    """Build the options of a conversion from a command's arguments."""
    mapping = parse_mapping(arguments.pop("mapping"), "EXT=COLUMN, such as jpg=image")
    own = {name: arguments.pop(name) for name in ("key", "number_keys", "limit", "skip_empty", "hive", "class_names")}
    columns, where, split = (arguments.pop(name) for name in ("columns", "where", "splits"))
    _refuse_empty("--where", where)
    for name, values, how in (("--where", where, "and"), ("--split", split, "a comma")):
        if len(values) > 1:
            raise click.BadParameter(f"given twice: give it once, joined by {how}", param_hint=repr(name))
    return ConvertOptions(
        plan=PlanOptions(**arguments),
        mapping=mapping,
        columns=parse_columns(columns),
        where="".join(where),
        splits=_splits(split[0]) if split else {},
        **own,
        **more,
    )


def parse_mapping(entries: Collection[str], form: str) -> dict[str, str]:
    """Parse the entries of --map; `form` is the expected form, with an example."""
    mapping: dict[str, str] = {}
    for entry in entries:
        name, separator, column = entry.partition("=")
        if not (name and separator and column) or name in mapping:
            problem = f"{name!r} is given twice" if name in mapping else f"expected {form}"
            raise click.BadParameter(f"{entry!r}: {problem}", param_hint="'--map'")
        mapping[name] = column
    return mapping


def parse_columns(values: Collection[str]) -> tuple[str, ...]:
    """Parse the comma-separated names of --columns."""
    _refuse_empty("--columns", values)
    return tuple(name.strip() for value in values for name in value.split(","))


def _refuse_empty(option: str, values: Collection[str]) -> None:
    """Refuse an option with an empty value."""
    if not all(value.strip(" ,") for value in values):
        raise click.BadParameter("empty value: omit the option to use everything", param_hint=repr(option))


def _splits(text: str) -> dict[str, float]:
    """Parse the value of --split."""
    splits: dict[str, float] = {}
    for entry in text.split(","):
        name, _, fraction = entry.strip().partition("=")
        try:
            value = float(fraction)
        except ValueError:
            value = math.nan
        if not name or name in splits or not math.isfinite(value):
            problem = f"{name!r} is given twice" if name in splits else "expected NAME=FRACTION, such as train=0.9"
            raise click.BadParameter(f"{entry!r}: {problem}", param_hint="'--split'")
        splits[name] = value
    return splits


def given(context: click.Context, names: Collection[str]) -> list[str]:
    """Return the flags of those of the parameters that the command line sets."""
    source = context.get_parameter_source
    return [
        parameter.opts[-1] if isinstance(parameter, click.Option) else parameter.make_metavar(context)
        for parameter in context.command.params
        if parameter.name in names and source(parameter.name) is ParameterSource.COMMANDLINE
    ]


def show_progress(bar: Bar, progress: Progress, name: str = "") -> None:
    """Show the progress of a conversion.

    Args:
        bar: The progress bar.
        progress: The progress.
        name: The split or the share, or empty.
    """
    amounts = {"samples": progress.samples, "bytes": progress.num_bytes}
    if progress.name != "write":
        amounts = {"rows": progress.done} if progress.name == "scatter" else {}
    bar.update(progress.done, progress.total, f"{_DOING[progress.name]} {name}".rstrip(), **amounts)


def dataset_text(manifest: Manifest, place: str) -> str:
    """Return a summary of a converted dataset."""
    provenance = manifest.provenance
    names = [escaped(f"{field.name} (from {field.column})") for field in manifest.fields]
    more = f", and {len(names) - _SHOWN_FIELDS} more" if len(names) > _SHOWN_FIELDS else ""
    lines = [f"{place}: {totals_text(manifest)}", f"fields: {', '.join(names[:_SHOWN_FIELDS])}{more}"]
    for field in manifest.fields:
        if field.names:
            lines.append(f"classes: {len(field.names):,} in {field.name}: {listed(field.names)}")
    if provenance["num_selected"] < provenance["num_rows"]:
        lines.append(f"selected: {provenance['num_selected']:,} of {provenance['num_rows']:,} rows")
    if provenance.get("num_empty"):
        lines.append(f"skipped: {provenance['num_empty']:,} rows in which every value is null (--skip-empty)")
    if provenance["num_dropped"]:
        which = "" if provenance["options"]["shuffle"] else "the last "
        lines.append(f"left out: {which}{provenance['num_dropped']:,} rows, to make the shards equal (--pad drop)")
    return "\n".join(lines)
