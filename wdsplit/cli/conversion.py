"""Options and messages that the commands of a conversion share."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from wdsplit.cli.help import Decorator, option, with_options
from wdsplit.cli.options import NAMES, parse_names, refuse_empty
from wdsplit.cli.terminal import byte_size, listed, totals_text
from wdsplit.conversion.plan.options import ConvertOptions, attribute_texts
from wdsplit.errors import InputError
from wdsplit.shards.emit import check_emit
from wdsplit.texts import counted, escaped, safe_text

if TYPE_CHECKING:
    from wdsplit.cli.progress import Bar
    from wdsplit.conversion.driver import Progress
    from wdsplit.shards.manifest import Field, Manifest

__all__ = [
    "conversion_options",
    "dataset_text",
    "label_lines",
    "options_of",
    "parse_mapping",
    "plan_options",
    "run_options",
    "show_progress",
]

_SHOWN_FIELDS, _MAX_NAME = 20, 36
_DOING = {
    "read": ("reading", "rows"),
    "scatter": ("shuffling", "rows"),
    "merge": ("merging", "chunks"),
    "write": ("writing", "shards"),
}
"""What each pass does, and what it counts."""

_NEXT_ENTRY = re.compile(r",(?=[^,=]*=)")
"""A comma between two entries of --map; another one belongs to the name of a column."""

_FLAGS = {"mapping": "--map", "splits": "--split"}
"""Options whose flag differs from their name."""


def options_of(options: type, section: str, names: str, **changes: Mapping[str, Any]) -> Decorator:
    """Return the command-line options for fields of an options class, with their defaults, checks and help.

    Args:
        options: The class.
        section: The section of the help.
        names: The fields.
        changes: By field, settings of `click.option` that replace these; `flag` is the option's name on the command
            line.
    """
    fields = {field.name: field for field in dataclasses.fields(options)}
    made = []
    for name in names.split():
        one = fields[name]
        settings: dict[str, Any] = {"help": _help_text(options, name)}
        if "choices" in one.metadata:
            settings["type"] = click.Choice(one.metadata["choices"])
        elif "low" in one.metadata:
            settings["type"] = click.IntRange(one.metadata["low"])
        elif one.default is False:
            settings["is_flag"] = True
        elif str(one.type).startswith("float"):
            settings |= {"type": float, "metavar": "N"}
        if isinstance(one.default, (int, float, str)) and not isinstance(one.default, bool) and one.default != "":
            settings["default"] = one.default
        settings |= changes.get(name, {})
        made.append(option(section, settings.pop("flag", _flag(name)), name, **settings))
    return with_options(made)


def _flag(name: str) -> str:
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def _help_text(options: type, name: str) -> str:
    """Return the option's description from the class's docstring, with flags for the names of other options."""
    text = re.sub(r"`(\w+)`", lambda match: _flag(match[1]), attribute_texts(options)[name])
    text, separator, default = text.partition(" Default: ")
    return f"{text}  [default: {default.removesuffix('.')}]" if separator else text


_SYNTAX: dict[str, dict[str, Any]] = {
    "shard_size": {
        "type": byte_size,
        "metavar": "SIZE",
        "help": "Approximate size of a shard, such as 256MB; a number alone is bytes.  "
        "[default: 256 MB, or less so that each lane has a shard]",
    },
    "mapping": {
        "multiple": True,
        "metavar": "EXT=COLUMN[,...]",
        "help": "Write COLUMN as the field EXT; columns that neither this nor --columns names are left out.  "
        "[default: infer all]",
    },
    "columns": {**NAMES, "help": "Write these columns under inferred field names."},
    "key": {"metavar": "COLUMN"},
    "classes": {"metavar": "COLUMN"},
    "where": {"multiple": True, "metavar": "CONDITION"},
    "splits": {
        "multiple": True,
        "metavar": "NAME=FRACTION[,...]",
        "help": "Split the rows into datasets OUTPUT/NAME, such as train=0.9,val=0.1, by a hash of the key or of "
        "--group-by.",
    },
    "group_by": {"metavar": "COLUMN"},
    "keep": NAMES,
    "no_keep": NAMES,
    "hive": {"flag": "--hive/--no-hive", "default": True},
    "shuffle": {"flag": "--shuffle/--no-shuffle", "default": None},
}
"""Settings of options whose command-line form differs from Python's."""

plan_options = with_options(
    [
        options_of(ConvertOptions, section, names, **_SYNTAX)
        for section, names in {
            "Input": "mapping columns key number_keys hive null classes class_names class_depth keep no_keep",
            "Rows": "where limit skip_empty splits group_by shuffle seed",
            "Shards": "world_size workers shards samples_per_shard shard_size pad allow_pads lanes window",
        }.items()
    ]
)
"""Adds the options that determine the dataset."""


def _parse_emit(context: click.Context, parameter: click.Parameter, values: Collection[str]) -> tuple[str, ...]:
    """Parse the names of --emit."""
    try:
        return check_emit(parse_names(context, parameter, values))
    except InputError as error:
        raise click.BadParameter(f"expected {error.expected}, found {error.found}") from error


run_options = with_options(
    [
        options_of(ConvertOptions, "Running", "memory", memory={"type": byte_size, "metavar": "SIZE"}),
        options_of(ConvertOptions, "Output", "emit overwrite", emit={**NAMES, "callback": _parse_emit}),
    ]
)
"""Adds the options of a run that are not part of its plan: memory, emit, overwrite."""


def conversion_options(arguments: dict[str, Any]) -> ConvertOptions:
    """Build the options of a conversion from a command's arguments."""
    mapping = parse_mapping(arguments.pop("mapping"), "EXT=COLUMN, such as jpg=image")
    where, split = (arguments.pop(name) for name in ("where", "splits"))
    refuse_empty("--where", where)
    if len(where) > 1:
        raise click.BadParameter("given twice: give it once, joined by and", param_hint="'--where'")
    return ConvertOptions(
        mapping=mapping,
        where="".join(where),
        splits=_splits(",".join(split)) if split else {},
        **arguments,
    )


def parse_mapping(entries: Collection[str], form: str) -> dict[str, str]:
    """Parse the entries of --map, repeated or separated by commas; `form` is the expected form, with an example."""
    mapping: dict[str, str] = {}
    for entry in (part for each in entries for part in _NEXT_ENTRY.split(each)):
        name, separator, column = entry.partition("=")
        if not (name and separator and column) or name in mapping:
            problem = f"{name!r} is given twice" if name in mapping else f"expected {form}"
            raise click.BadParameter(f"{entry!r}: {problem}", param_hint="'--map'")
        mapping[name] = column
    return mapping


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


def show_progress(bar: Bar, progress: Progress, name: str = "", step: str = "") -> None:
    """Show the progress of a conversion.

    Args:
        bar: The progress bar.
        progress: The progress.
        name: The split or the share, or empty.
        step: Which step this is, of how many, or empty.
    """
    doing, unit = _DOING[progress.name]
    amounts = {"samples": progress.samples, "bytes": progress.num_bytes}
    if progress.name != "write":
        amounts = {"rows": progress.done} if progress.name == "scatter" else {}
    what = " ".join(filter(None, (step, doing, name)))
    bar.update(progress.done, progress.total, what, unit, **amounts)


def label_lines(label: Any, fields: Sequence[Field]) -> list[str]:
    """Return a line that says which column is the label and how many classes it has; none without a label.

    Args:
        label: The attributes of a `Label`, from a plan or from the provenance of a manifest; None without one.
        fields: The fields of the samples.
    """
    label = label if isinstance(label, Mapping) else {}
    of_label = (one for one in fields if one.column == label.get("column") and one.name == "cls")
    field, num_classes = next(of_label, None), label.get("num_classes")
    if field is None or not isinstance(num_classes, int):
        return []
    count = f"{'' if label.get('is_exact') else 'at least '}{counted(num_classes, 'class', 'classes')}"
    names = f": {listed([safe_text(name, _MAX_NAME) for name in field.names])}" if field.names else ""
    guess = "; chosen for its few values: --classes names another column" if label.get("is_guessed") else ""
    return [f"label: column {field.column!r}, {count} in {field.name}{names}{guess}"]


def dataset_text(manifest: Manifest, place: str) -> str:
    """Return a summary of a converted dataset."""
    provenance = manifest.provenance
    names = [escaped(f"{field.name} (from {field.column})") for field in manifest.fields]
    more = f", and {len(names) - _SHOWN_FIELDS} more" if len(names) > _SHOWN_FIELDS else ""
    lines = [f"{place}: {totals_text(manifest)}", f"fields: {', '.join(names[:_SHOWN_FIELDS])}{more}"]
    said = label_lines(provenance.get("label"), manifest.fields)
    lines += said
    for field in manifest.fields:
        if field.names and not (said and field.column == provenance["label"]["column"]):
            lines.append(f"classes: {len(field.names):,} in {escaped(field.name)}: {listed(field.names)}")
    if provenance["num_selected"] < provenance["num_rows"]:
        lines.append(f"selected: {provenance['num_selected']:,} of {counted(provenance['num_rows'], 'row')}")
    if provenance.get("num_empty"):
        lines.append(f"skipped: {counted(provenance['num_empty'], 'row')} in which every value is null (--skip-empty)")
    if provenance["num_dropped"]:
        which = "" if provenance["options"]["shuffle"] else "the last "
        lines.append(
            f"left out: {which}{counted(provenance['num_dropped'], 'row')}, to make the shards equal (--pad drop)"
        )
    return "\n".join(lines)
