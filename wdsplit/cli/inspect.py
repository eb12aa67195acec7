"""`wdsplit inspect` (what is in a dataset) and `wdsplit assign` (who reads what)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import click

from wdsplit.cli.options import batch_size_option, json_option, order_options
from wdsplit.cli.terminal import echo_json, human_bytes, table, totals
from wdsplit.loading.reading.lookup import find_sample
from wdsplit.loading.reading.open_shard import open_shard
from wdsplit.order.distribution import Readers, reading_advice
from wdsplit.order.epoch import EpochOrder, OrderOptions
from wdsplit.order.split import readers_per_lane
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import Manifest
from wdsplit.storage.interface import ReadableStorage
from wdsplit.storage.opening import open_readable_storage
from wdsplit.tar.names import RESERVED_FIELDS

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
    storage = open_readable_storage(dataset)
    manifest = read_manifest(storage)
    key_or_index = key if key is not None else index
    if key_or_index is not None:
        if key is not None and index is not None:
            raise click.UsageError("--key and --index contradict each other")
        sample = find_sample(storage, manifest, key_or_index)
        if as_json:
            echo_json(_previews(sample))
        else:
            _show(sample)
        return
    first = list(_first_samples(storage, manifest, samples))
    if as_json:
        fields = [dataclasses.asdict(field) for field in manifest.fields]
        more = {"fields": fields, "first_samples": list(map(_previews, first)), "provenance": manifest.provenance}
        echo_json({**totals(dataset, manifest), "fingerprint": manifest.fingerprint, **more})
        return
    click.echo(
        f"{dataset}: {manifest.num_samples:,} samples and {manifest.num_pads:,} pads in {len(manifest.shards):,} "
        f"shards, {human_bytes(manifest.num_bytes)}\n"
        f"lanes {manifest.lanes}, window {manifest.window}, fingerprint {manifest.fingerprint}\n"
    )
    rows = [(field.name, field.column, field.type, field.encoding) for field in manifest.fields]
    click.echo(table(("field", "column", "type", "encoding"), rows))
    for sample in first:
        click.echo()
        _show(sample)


def _show(sample: dict[str, Any]) -> None:
    click.echo(f"{sample['__key__']}  ({sample['__url__']})")
    for name, value in sample.items():
        if name not in RESERVED_FIELDS:
            click.echo(f"  {name}: {_preview(value)}")


def _previews(sample: dict[str, Any]) -> dict[str, str]:
    return {name: _preview(value) for name, value in sample.items()}


def _first_samples(storage: ReadableStorage, manifest: Manifest, count: int) -> Iterator[dict[str, Any]]:
    """Give the first samples of the dataset, pads left out."""
    for shard, num_real in enumerate(manifest.shards.num_real.tolist()):
        if count <= 0:
            return
        taken = min(count, num_real)
        if taken:
            window = open_shard(storage, manifest.shards[shard]).window(0, taken)
            yield from window.take(range(taken), [0] * taken, [False] * taken)
        count -= taken


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
def assign_command(
    dataset: str,
    world_size: int,
    workers: int,
    epoch: int,
    seed: int,
    shuffle: bool,
    tail: Any,
    batch_size: int,
    lanes: int | None,
    as_json: bool,
) -> None:
    """Say which shards of DATASET each rank and worker reads, in the order of its visits."""
    num_workers = max(1, workers)
    if world_size * num_workers > _MAX_READERS:
        raise click.UsageError(f"--world-size x --workers is too large: at most {_MAX_READERS:,} readers are listed.")
    manifest = read_manifest(open_readable_storage(dataset))
    options = OrderOptions(seed, shuffle, lanes or manifest.lanes, manifest.window, tail)
    order = EpochOrder(manifest.shards.num_real, options, epoch)
    readers = Readers(order, world_size, num_workers, batch_size)
    figures = {
        "lanes": options.lanes,
        "readers_per_lane": readers_per_lane(options.lanes, world_size, num_workers),
        "recut": order.is_recut,
        "read_amplification": readers.read_amplification,
        "pads": readers.num_pads,
        "advice": reading_advice(options.lanes, world_size, num_workers),
    }
    entries: list[dict[str, Any]] = [
        {
            "rank": rank,
            "worker": worker,
            "samples": readers.num_given(rank, worker),
            "shards": readers.shards(rank, worker),
        }
        for rank in range(world_size)
        for worker in range(num_workers)
    ]
    if as_json:
        echo_json({**figures, "readers": entries})
    else:
        click.echo(_readers_text(entries, figures))


def _readers_text(entries: list[dict[str, Any]], figures: dict[str, Any]) -> str:
    rows = [(one["rank"], one["worker"], f"{one['samples']:,}", _shard_list(one["shards"])) for one in entries]
    lines = [
        table(("rank", "worker", "samples", "shards"), rows),
        f"\n{figures['lanes']} lanes, {figures['pads']:,} pads; "
        f"each window is read {figures['read_amplification']:.2f} times on average",
    ]
    if figures["recut"]:
        lines.append("shards differ, so lanes were cut at equal counts: neighbours share the shards at their borders")
    if figures["advice"]:
        lines.append(figures["advice"])
    return "\n".join(lines)


def _shard_list(shards: list[int]) -> str:
    return ", ".join(map(str, shards[:12])) + (f", ... ({len(shards):,} in all)" if len(shards) > 12 else "")
