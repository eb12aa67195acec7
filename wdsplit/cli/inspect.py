"""`wdsplit inspect` (what is in a dataset) and `wdsplit assign` (who reads what)."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import wdsplit
from wdsplit.cli.conversion import label_lines
from wdsplit.cli.help import command, option
from wdsplit.cli.options import (
    batch_size_option,
    dataset_argument,
    join_option,
    order_options,
    refuse_given,
    view_options,
)
from wdsplit.cli.stored import erased_lines, joined_text, stale
from wdsplit.cli.terminal import MAX_NAME, Result, columns_text, names_text, span, table
from wdsplit.tar.names import RESERVED_FIELDS
from wdsplit.texts import class_name, counted, escaped, human_bytes, percent, safe_text
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from wdsplit.checks.contents import FieldContents, ImageSizes
    from wdsplit.checks.inspect import Inspection
    from wdsplit.shards.manifest import Manifest

__all__ = ["assign_command", "inspect_command"]

_PREVIEW_CHARACTERS, _MAX_RECIPE = 50, 100
_BAR_WIDTH, _SHARDS_SHOWN, _MANY_CLASSES, _LARGEST = 24, 12, 12, 10
_NUMBER = re.compile("-?(0|[1-9][0-9]*)")
"""A number of a sample; 007 is a key."""


@command(
    "inspect",
    ["data/train --samples 5", "data/train --sample 17 -o sample/"],
    dataset_argument,
    option(
        "Output",
        "--samples",
        "Show the first N samples; with 0, read no shard and count no classes.",
        low=0,
        default=3,
    ),
    option(
        "One sample",
        "--sample KEY|N",
        "Show only this sample, by its key or its number: counted from 0, or from the end (-1).",
    ),
    option("One sample", "--key KEY", "Show only the sample with this key, even if it is a number."),
    join_option("One sample"),
    option("Output", "-o, --output FOLDER", "With one sample: save its fields in this folder as KEY.FIELD."),
    option("Output", "-v, --verbose", "Also show columns, encodings, lanes, fingerprint and origin.", is_flag=True),
    view_options,
    summary="Summarize DATASET, and show samples.",
)
def inspect_command(
    dataset: str,
    samples: int,
    sample: str | None,
    key: str | None,
    join: tuple[str, ...],
    output: str | None,
    verbose: bool,
    view: str | None,
    where: str | None,
    version: int | None,
) -> Result:
    """Summarize DATASET: samples, classes, sizes, fields, first samples. Or show or save one sample.

    Counts are exact for local datasets of up to 65,536 samples and 512 MiB. Otherwise they are estimated from 1,024
    samples, or 256 of a remote dataset.
    """
    which = "--sample" if sample is not None else "--key" if key is not None else ""
    if which:
        refuse_given(which, {"view", "where", "key"} if which == "--sample" else {"view", "where"})
    if sample is not None and _NUMBER.fullmatch(sample):
        return _one_sample(dataset, int(sample), output, join, version)
    if sample is not None or key is not None:
        return _one_sample(dataset, sample or key or "", output, join, version)
    if output is not None or join:
        raise click.UsageError(f"{'--join' if join else '--output'} needs --sample or --key")
    found = wdsplit.inspect(dataset, samples, view=view, where=where, version=version)
    parts = [_summary(shown_url(dataset), found), *([_technical(found.manifest)] if verbose else [])]
    parts += [
        _sample_text(each, {field.name: field.names for field in found.manifest.fields}) for each in found.first_samples
    ]
    return Result("\n\n".join(parts), _value(dataset, found))


def _summary(dataset: str, found: Inspection) -> str:
    """Return a summary of the dataset."""
    manifest, contents = found.manifest, found.contents
    shards = counted(len(manifest.shards), "shard")
    size = f"{counted(found.num_samples, 'sample')} in {shards}, {human_bytes(manifest.num_bytes)}"
    if found.view:
        size = f"view {found.view}: {found.num_samples:,} of {counted(manifest.num_samples, 'sample')}"
    if manifest.history:
        size += f", version {manifest.version}"
    lines = [f"{dataset}: {size}", *label_lines(manifest.provenance.get("label"), manifest.fields), ""]
    if contents is None or not contents.num_read:
        lines.append(f"fields: {', '.join(field.name for field in manifest.fields)}")
    else:
        rows = []
        for one, field in zip(contents.fields, manifest.fields, strict=True):
            is_known = contents.is_exact or field.names
            many = "classes" if is_known else "or more classes"
            num_classes = counted(len(one.classes), "class" if is_known else many, many)
            if one.classes:
                drawn = "" if contents.is_exact else f", in a sample of {contents.num_read:,}"
                lines += [f"{num_classes} in {escaped(one.name)}{drawn}:", *_class_lines(one.classes), ""]
            other = safe_text(field.type, MAX_NAME) if one.images is None else _images_text(one.images)
            content = num_classes if one.classes else other
            rows.append((escaped(one.name), percent(one.num_present, contents.num_read), _sizes_text(one), content))
        how_many = counted(contents.num_read, "sample")
        exact = f"exact: all {how_many}" if contents.is_exact else f"estimated from {how_many}, evenly spaced"
        images = [field.images.num_read for field in contents.fields if field.images]
        if images and max(images) < contents.num_read:
            exact += f"; image sizes from {max(images):,} of them"
        lines += [table(("field", "present", "median bytes (range)", "content"), rows), exact]
    if manifest.samples is not None:
        lines.append(f"sample tables: {columns_text(manifest.samples)}")
    for view in found.views:
        share = percent(view.num_selected, view.num_samples)
        selection = safe_text(view.made_of, _MAX_RECIPE)
        lines.append(f"view {view.name}: {share} of the samples: {selection}{stale(view, found)}")
    for each in found.annotations:
        missing = f", {each.num_missing:,} missing" if each.num_missing else ""
        lines.append(f"annotation {each.name}: {joined_text(each)}{missing}{stale(each, found)}")
    lines += erased_lines(dataset, found.with_erased)
    return "\n".join([*lines, *(f"{name}: damaged: {cause}" for name, cause in found.damaged.items())])


def _class_lines(counts: Mapping[str, int]) -> list[str]:
    """Return a line with a bar for each class; if there are many, only for the largest."""
    few = counts if len(counts) <= _MANY_CLASSES else sorted(counts, key=lambda name: -counts[name])[:_LARGEST]
    shown = {name: counts[name] for name in few}
    names, most = [safe_text(name, MAX_NAME) for name in shown], max(1, *shown.values())
    longest, digits = max(map(len, names)), len(f"{most:,}")
    lines = []
    for name, count in zip(names, shown.values(), strict=True):
        bar = "#" * (max(1, round(count / most * _BAR_WIDTH)) if count else 0)  # empty only for 0
        lines.append(f"  {name:{longest}}  {count:>{digits},}  {bar}".rstrip())
    left = [count for name, count in counts.items() if name not in shown]
    if left:
        lines.append(f"  ... and {len(left):,} more, with {span(left)} samples each")
    return lines


def _images_text(images: ImageSizes) -> str:
    """Return the median width and height of images, and their ranges."""
    (narrowest, median_width, widest), (lowest, median_height, highest) = images.width, images.height
    ranges = f" ({narrowest}-{widest} x {lowest}-{highest})" if (narrowest, lowest) != (widest, highest) else ""
    return f"images {median_width} x {median_height}{ranges}"


def _sizes_text(found: FieldContents) -> str:
    """Return the median of a field's bytes, and their range."""
    if found.num_bytes is None:
        return ""
    least, median, most = found.num_bytes
    return f"{median:,}" + (f" ({least:,}-{most:,})" if least < most else "")


def _technical(found: Manifest) -> str:
    """Return the details for --verbose."""
    inputs = found.provenance.get("inputs") or []
    rows = [(field.name, field.column, field.type, field.encoding) for field in found.fields]
    lines = [
        f"lanes {found.lanes}, window {found.window}, pads {found.num_pads:,}, fingerprint {found.fingerprint}",
        "",
        table(("field", "column", "type", "encoding"), rows),
    ]
    for each in found.fields:
        if each.names:
            classes = counted(len(each.names), "class", "classes")
            lines.append(f"{classes} in {escaped(each.name)}: {names_text(each.names)}")
    paths = names_text([str(one.get("path", one)) for one in inputs])
    lines += ["", f"made from {counted(len(inputs), 'input')}: {paths}"]
    origin = (each for each in found.provenance.items() if each[0] != "inputs")
    return "\n".join([*lines, *(f"{name}: {json.dumps(value, ensure_ascii=False)}" for name, value in origin)])


def _one_sample(
    dataset: str, key_or_index: str | int, output: str | None, join: tuple[str, ...], version: int | None
) -> Result:
    """Show one sample, or save its fields as files."""
    from wdsplit.checks.samples import save_samples
    from wdsplit.loading.numbered import NumberedSamples
    from wdsplit.loading.opening import open_source

    source: Any = open_source(dataset, join=join, version=version)
    sample = NumberedSamples.of_all(source).sample(key_or_index)
    files = [] if output is None else save_samples([sample], Path(output))
    names = {field.name: field.names for field in source.all_fields}
    text = _sample_text(sample, names) if output is None else "\n".join(files)
    return Result(text, _previews(sample) | ({"__files__": files} if files else {}))


def _value(dataset: str, found: Inspection) -> dict[str, Any]:
    """Return the contents of a dataset as JSON values."""
    from wdsplit.shards.sample_tables import dump_schema

    manifest = found.manifest
    return {
        "dataset": shown_url(dataset),
        **({"view": found.view, "stored": manifest.num_samples} if found.view else {}),
        "samples": found.num_samples,
        "pads": manifest.num_pads,
        "shards": len(manifest.shards),
        "bytes": manifest.num_bytes,
        "lanes": manifest.lanes,
        "window": manifest.window,
        "fingerprint": manifest.fingerprint,
        "version": manifest.version,
        "with_erased": found.with_erased,
        "contents": None if found.contents is None else dataclasses.asdict(found.contents),
        "sample_columns": None if manifest.samples is None else dump_schema(manifest.samples),
        "views": [dataclasses.asdict(view) for view in found.views],
        "annotations": {
            each.name: {column.name: str(column.type) for column in each.schema}
            | {field.name: field.type for field in each.fields}
            for each in found.annotations
        },
        "damaged": found.damaged,
        "fields": [dataclasses.asdict(field) for field in manifest.fields],
        "first_samples": list(map(_previews, found.first_samples)),
        "provenance": manifest.provenance,
    }


def _sample_text(sample: dict[str, Any], names: Mapping[str, tuple[str, ...]]) -> str:
    """Return a sample: a line for each field, with the name of its class if `names` has those of the field."""
    lines = [f"{sample['__key__']}  ({sample['__url__']})"]
    for name, value in sample.items():
        if name not in RESERVED_FIELDS:
            text = _preview(value)
            of_class = class_name(text, names.get(name, ()))
            shown = f" ({safe_text(of_class, MAX_NAME)})" if of_class != text else ""
            lines.append(f"  {escaped(name)}: {text}{shown}")
    return "\n".join(lines)


def _previews(sample: dict[str, Any]) -> dict[str, str]:
    return {name: _preview(value) for name, value in sample.items()}


def _preview(value: Any) -> str:
    """Return a preview of a value: short text, or the number of bytes."""
    if not isinstance(value, bytes):
        return str(value)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not text.isprintable():
        return f"{len(value):,} bytes"
    return text if len(text) <= _PREVIEW_CHARACTERS else f"{text[:_PREVIEW_CHARACTERS]}... ({len(value):,} bytes)"


@command(
    "assign",
    ["data/train --world-size 8 --workers 4 --epoch 3"],
    dataset_argument,
    order_options,
    batch_size_option(1),
    option("Samples", "--epoch", "Epoch, counted from 0.", low=0, default=0),
    option("Training", "--lanes", "Override the number of lanes.  [default: the dataset's]", low=1),
    view_options,
    summary="Show which shards of DATASET each rank and worker reads.",
)
def assign_command(dataset: str, world_size: int, workers: int, **arguments: Any) -> Result:
    """Show which shards of DATASET each rank and worker reads, in reading order."""
    found = wdsplit.assign(dataset, world_size, workers, **arguments)
    rows = []
    for one in found.readers:
        more = f", ... ({len(one.shards):,} in total)" if len(one.shards) > _SHARDS_SHOWN else ""
        shards = ", ".join(map(str, one.shards[:_SHARDS_SHOWN])) + more
        rows.append((one.rank, one.worker, f"{one.samples:,}", shards))
    readings = f"each window is read {found.read_amplification:.2f} times on average"
    readers = table(("rank", "worker", "samples", "shards"), rows)
    lines = [readers, "", f"{counted(found.lanes, 'lane')}, {counted(found.pads, 'pad')}; {readings}"]
    if found.recut:
        lines.append("shards differ in size, so lanes were cut at equal counts: some lanes share a shard")
    return Result("\n".join([*lines, *([found.advice] if found.advice else [])]), dataclasses.asdict(found))
