"""Options and texts that the commands of a conversion share."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from wdsplit.cli.help import with_options
from wdsplit.cli.options import NAMES, SIZE, options_of, parse_mapping, refuse_empty
from wdsplit.cli.terminal import names_text, totals_text
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.texts import counted, escaped, listed

if TYPE_CHECKING:
    from wdsplit.cli.progress import Bar
    from wdsplit.conversion.driver import Progress
    from wdsplit.shards.manifest import Field, Manifest

__all__ = [
    "appended_text",
    "conversion_options",
    "dataset_text",
    "label_lines",
    "plan_options",
    "run_options",
    "show_progress",
]

_SHOWN_FIELDS = 20
_TYPED = ("text", "bytes", "media", "npy")
"""Encodings of fields that are named by their type alone, unless several columns have it."""
_DOING = {
    "read": ("reading", "rows"),
    "scatter": ("shuffling", "rows"),
    "merge": ("merging", "chunks"),
    "write": ("writing", "shards"),
}
"""What each pass does, and what it counts."""


_SYNTAX: dict[str, dict[str, Any]] = {
    "shard_size": {
        **SIZE,
        "help": "Approximate size of a shard, such as 256MB; a number alone is bytes.  "
        "[default: 256 MB, or less so that each lane has a shard]",
    },
    "mapping": {
        "flag": "--map",
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
        "flag": "--split",
        "multiple": True,
        "metavar": "NAME=FRACTION[,...]",
        "help": "Split the rows into datasets OUTPUT/NAME, such as train=0.9,val=0.1, by a hash of the key or of "
        "--split-by.",
    },
    "split_by": {"metavar": "COLUMN"},
    "keep": NAMES,
    "no_keep": NAMES,
    "hive": {"flag": "--hive/--no-hive", "default": True},
    "shuffle": {"flag": "--shuffle/--no-shuffle", "default": None},
    "memory": SIZE,
    "emit": NAMES,
}
"""Settings of options whose command-line form differs from Python's."""

plan_options = with_options(
    *(
        options_of(ConvertOptions, section, names, **_SYNTAX)
        for section, names in {
            "Input": "mapping columns key number_keys hive null classes keep no_keep",
            "Rows": "where limit splits split_by shuffle seed",
            "Shards": "world_size workers shards samples_per_shard shard_size pad allow_pads lanes window",
        }.items()
    )
)
"""Adds the options that determine the dataset."""

run_options = with_options(
    options_of(ConvertOptions, "Running", "memory", **_SYNTAX),
    options_of(ConvertOptions, "Output", "emit overwrite", **_SYNTAX),
)
"""Adds the options of a run that are not part of its plan: memory, emit, overwrite."""


def conversion_options(arguments: dict[str, Any]) -> ConvertOptions:
    """Build the options of a conversion from a command's arguments."""
    mapping = parse_mapping("--map", arguments.pop("mapping"), "EXT=COLUMN, such as jpg=image")
    form = "NAME=FRACTION, such as train=0.9"
    splits = {}
    for name, fraction in parse_mapping("--split", arguments.pop("splits"), form).items():
        try:
            splits[name] = float(fraction)
        except ValueError:
            splits[name] = math.nan
        if not math.isfinite(splits[name]):
            raise click.BadParameter(f"'{name}={fraction}': expected {form}", param_hint="'--split'")
    where = arguments.pop("where")
    refuse_empty("--where", where)
    if len(where) > 1:
        raise click.BadParameter("given twice: give it once, joined by and", param_hint="'--where'")
    return ConvertOptions(mapping=mapping, where="".join(where), splits=splits, **arguments)


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
    bar.update(progress.done, progress.total, " ".join(filter(None, (step, doing, name))), unit, **amounts)


def label_lines(label: str | None, fields: Sequence[Field]) -> list[str]:
    """Return a line that says which column is the label, and its classes if they have names; none without a label.

    Args:
        label: The column, from a plan or from the provenance of a manifest; None without one.
        fields: The fields of the samples.
    """
    field = next((one for one in fields if one.column == label and one.name == "cls"), None)
    if field is None:
        return []
    if not field.names:
        return [f"label: column {field.column!r} in {field.name}"]
    count = counted(len(field.names), "class", "classes")
    return [f"label: column {field.column!r}, {count} in {field.name}: {names_text(field.names)}"]


def appended_text(manifest: Manifest, place: str) -> str:
    """Return a summary of the latest version of a dataset."""
    if not manifest.history:
        return dataset_text(manifest, place)
    before, made = manifest.history[-2:]
    lines = [f"{place}: {totals_text(manifest)}"]
    if not made.erased:  # otherwise nothing was appended
        lines.append(
            f"version {made.number}: {counted(made.num_samples - before.num_samples, 'sample')} more than version "
            f"{before.number}, in {counted(made.num_shards - before.num_shards, 'shard')} of {made.folder}"
        )
    return "\n".join([*lines, *label_lines(manifest.provenance.get("label"), manifest.fields)])


def dataset_text(manifest: Manifest, place: str) -> str:
    """Return a summary of a converted dataset."""
    from wdsplit.fields.infer import prefix_of

    provenance = manifest.provenance
    names = [escaped(f"{field.name} (from {field.column})") for field in manifest.fields]
    said = label_lines(provenance.get("label"), manifest.fields)
    lines = [f"{place}: {totals_text(manifest)}", f"fields: {listed(names, _SHOWN_FIELDS)}"]
    typed = [field for field in manifest.fields if field.encoding in _TYPED]
    renamed = [field.name for field in typed if field.name.startswith(prefix_of(field.column))]
    for extension, count in Counter(name.rpartition(".")[2] for name in renamed).items():
        if count > 1:
            named = f"these fields begin with their columns' names; --map {extension}=COLUMN names one {extension}"
            lines.append(f"{count} columns would be {extension}: {named}")
    lines += said
    for field in manifest.fields:
        if field.names and not (said and field.column == provenance["label"]):
            lines.append(f"classes: {len(field.names):,} in {escaped(field.name)}: {names_text(field.names)}")
    if provenance["num_selected"] < provenance["num_rows"]:
        lines.append(f"selected: {provenance['num_selected']:,} of {counted(provenance['num_rows'], 'row')}")
    if provenance["num_dropped"]:
        which = "" if provenance["options"]["shuffle"] else "the last "
        dropped = counted(provenance["num_dropped"], "row")
        lines.append(f"left out: {which}{dropped}, to make the shards equal (--pad drop)")
    return "\n".join(lines)
