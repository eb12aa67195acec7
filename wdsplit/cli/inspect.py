"""`wdsplit inspect` (what is in a dataset) and `wdsplit assign` (who reads what)."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from wdsplit.checks.inspect import Assignment, Inspection, assign, inspect
from wdsplit.cli.options import batch_size_option, json_option, order_options
from wdsplit.cli.terminal import echo_json, human_bytes, table
from wdsplit.loading.reading.lookup import find_sample
from wdsplit.shards.files import read_manifest
from wdsplit.storage.opening import open_readable_storage
from wdsplit.tar.names import RESERVED_FIELDS
from wdsplit.urls import shown_url

__all__ = ["assign_command", "inspect_command"]

_MAX_READERS = 2**20
_PREVIEW_CHARACTERS = 60


@click.command(
    "inspect",
    short_help="Say what is in DATASET, and show samples of it.",
    epilog="Example: wdsplit inspect data/train --samples 5",
)
@click.argument("dataset")
@click.option("--samples", type=click.IntRange(0), default=3, show_default=True, help="First samples to show.")
@click.option("--key", help="Show the sample with this key only.")
@click.option("--index", type=int, help="Show the sample with this number only, counted from 0, or from the end: -1.")
@json_option
def inspect_command(dataset: str, samples: int, key: str | None, index: int | None, as_json: bool) -> None:
    """Say what is in DATASET: totals, fields, the first samples; or show one sample."""
    key_or_index = key if key is not None else index
    if key_or_index is not None:
        if key is not None and index is not None:
            raise click.UsageError("--key and --index contradict each other")
        storage = open_readable_storage(dataset)
        sample = find_sample(storage, read_manifest(storage), key_or_index)
        if as_json:
            echo_json(_previews(sample))
        else:
            _show(sample)
        return
    found = inspect(dataset, samples)
    if as_json:
        echo_json(_as_json(dataset, found))
        return
    click.echo(
        f"{dataset}: {found.num_samples:,} samples and {found.num_pads:,} pads in {found.num_shards:,} "
        f"shards, {human_bytes(found.num_bytes)}\n"
        f"lanes {found.lanes}, window {found.window}, fingerprint {found.fingerprint}\n"
    )
    rows = [(field.name, field.column, field.type, field.encoding) for field in found.fields]
    click.echo(table(("field", "column", "type", "encoding"), rows))
    for sample in found.first_samples:
        click.echo()
        _show(sample)


def _as_json(dataset: str, found: Inspection) -> dict[str, Any]:
    return {
        "dataset": shown_url(dataset),
        "samples": found.num_samples,
        "pads": found.num_pads,
        "shards": found.num_shards,
        "bytes": found.num_bytes,
        "lanes": found.lanes,
        "window": found.window,
        "fingerprint": found.fingerprint,
        "fields": [dataclasses.asdict(field) for field in found.fields],
        "first_samples": list(map(_previews, found.first_samples)),
        "provenance": found.provenance,
    }


def _show(sample: dict[str, Any]) -> None:
    click.echo(f"{sample['__key__']}  ({sample['__url__']})")
    for name, value in sample.items():
        if name not in RESERVED_FIELDS:
            click.echo(f"  {name}: {_preview(value)}")


def _previews(sample: dict[str, Any]) -> dict[str, str]:
    return {name: _preview(value) for name, value in sample.items()}


def _preview(value: Any) -> str:
    """Return a value for people: short text as it is, other bytes by their number."""
    if not isinstance(value, bytes):
        return str(value)
    try:
        text = value.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not text.isprintable():
        return f"{len(value):,} bytes"
    return text if len(text) <= _PREVIEW_CHARACTERS else f"{text[:_PREVIEW_CHARACTERS]}... ({len(value):,} bytes)"


@click.command(
    "assign",
    short_help="Say which shards of DATASET each rank and worker reads.",
    epilog="Example: wdsplit assign data/train --world-size 8 --workers 4 --epoch 3",
)
@click.argument("dataset")
@order_options
@batch_size_option(1)
@click.option("--epoch", type=click.IntRange(0), default=0, show_default=True, help="Epoch.")
@click.option("--lanes", type=click.IntRange(1), help="Lanes.  [default: the dataset's]")
@json_option
def assign_command(dataset: str, world_size: int, workers: int, as_json: bool, **arguments: Any) -> None:
    """Say which shards of DATASET each rank and worker reads, in the order of its visits."""
    if world_size * max(1, workers) > _MAX_READERS:
        raise click.UsageError(f"--world-size x --workers is too large: at most {_MAX_READERS:,} readers are listed.")
    found = assign(dataset, world_size, workers, **arguments)
    if as_json:
        echo_json(dataclasses.asdict(found))
    else:
        click.echo(_readers_text(found))


def _readers_text(found: Assignment) -> str:
    rows = [(one.rank, one.worker, f"{one.samples:,}", _shard_list(one.shards)) for one in found.readers]
    lines = [
        table(("rank", "worker", "samples", "shards"), rows),
        f"\n{found.lanes} lanes, {found.pads:,} pads; "
        f"each window is read {found.read_amplification:.2f} times on average",
    ]
    if found.recut:
        lines.append("shards differ, so lanes were cut at equal counts: neighbours share the shards at their borders")
    if found.advice:
        lines.append(found.advice)
    return "\n".join(lines)


def _shard_list(shards: list[int]) -> str:
    return ", ".join(map(str, shards[:12])) + (f", ... ({len(shards):,} in all)" if len(shards) > 12 else "")
