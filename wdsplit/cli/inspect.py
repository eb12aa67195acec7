"""`wdsplit inspect` (what is in a dataset) and `wdsplit assign` (who reads what)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import click

from wdsplit.cli.options import json_option, order_options
from wdsplit.cli.terminal import echo_json, human_bytes, table
from wdsplit.manifest import Manifest
from wdsplit.order import EpochOrder, OrderOptions
from wdsplit.sample import RESERVED_FIELDS
from wdsplit.shards import open_shard, read_manifest
from wdsplit.split import World, assigned_shards, reader_positions, readers_per_lane
from wdsplit.storage import Storage, open_storage

__all__ = ["assign_command", "inspect_command"]

_PREVIEW_CHARACTERS = 60
_POSITIONS_AT_ONCE = 1 << 20


@click.command("inspect", epilog="Example: wdsplit inspect data/train --samples 5")
@click.argument("dataset")
@click.option("--samples", type=click.IntRange(0), default=3, show_default=True, help="First samples to show.")
@json_option
def inspect_command(dataset: str, samples: int, as_json: bool) -> None:
    """Say what is in DATASET: totals, fields, the first samples."""
    storage = open_storage(dataset)
    manifest = read_manifest(storage)
    first = list(_first_samples(storage, manifest, samples))
    totals = {
        "dataset": dataset,
        "samples": manifest.num_samples,
        "pads": manifest.num_pads,
        "shards": len(manifest.shards),
        "bytes": manifest.num_bytes,
        "lanes": manifest.lanes,
        "window": manifest.window,
        "fingerprint": manifest.fingerprint,
    }
    if as_json:
        fields = [dataclasses.asdict(field) for field in manifest.fields]
        shown = [{name: _preview(value) for name, value in sample.items()} for sample in first]
        echo_json({**totals, "fields": fields, "first_samples": shown, "provenance": manifest.provenance})
        return
    click.echo(
        f"{dataset}: {manifest.num_samples:,} samples and {manifest.num_pads:,} pads in {len(manifest.shards):,} "
        f"shards, {human_bytes(manifest.num_bytes)}\n"
        f"lanes {manifest.lanes}, window {manifest.window}, fingerprint {manifest.fingerprint}\n"
    )
    rows = [(field.name, field.column, field.type, field.encoding) for field in manifest.fields]
    click.echo(table(("field", "column", "type", "encoding"), rows))
    for sample in first:
        click.echo(f"\n{sample['__key__']}  ({sample['__url__']})")
        for name, value in sample.items():
            if name not in RESERVED_FIELDS:
                click.echo(f"  {name}: {_preview(value)}")


def _first_samples(storage: Storage, manifest: Manifest, count: int) -> Iterator[dict[str, Any]]:
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
        return f"{len(value):,} bytes"
    if not text.isprintable():
        return f"{len(value):,} bytes"
    return text if len(text) <= _PREVIEW_CHARACTERS else f"{text[:_PREVIEW_CHARACTERS]}... ({len(value):,} bytes)"


@click.command("assign", epilog="Example: wdsplit assign data/train --world-size 8 --workers 4 --epoch 3")
@click.argument("dataset")
@order_options
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
    lanes: int | None,
    as_json: bool,
) -> None:
    """Say which shards of DATASET each rank and worker reads, in the order of its visits."""
    manifest = read_manifest(open_storage(dataset))
    options = OrderOptions(seed, shuffle, lanes or manifest.lanes, manifest.window, tail)
    order = EpochOrder(manifest.shards.num_real, options, epoch)
    readers = max(1, workers)
    worlds = [World(rank, world_size, worker, readers) for rank in range(world_size) for worker in range(readers)]
    entries = [_Assignment.of(order, world) for world in worlds]
    shared = readers_per_lane(options.lanes, world_size, readers)
    if as_json:
        echo_json(
            {
                "lanes": options.lanes,
                "readers_per_lane": shared,
                "recut": order.is_recut,
                "readers": list(map(vars, entries)),
            }
        )
        return
    rows = [(entry.rank, entry.worker, f"{entry.samples:,}", _shard_list(entry.shards)) for entry in entries]
    click.echo(table(("rank", "worker", "samples", "shards"), rows))
    click.echo(f"\n{options.lanes} lanes; each window is read by {shared} of the readers")
    if order.is_recut:
        click.echo("shards differ, so lanes were cut at equal counts: neighbours share the shards at their borders")


@dataclass(frozen=True)
class _Assignment:
    """What one reader reads."""

    rank: int
    worker: int
    samples: int
    shards: list[int]

    @classmethod
    def of(cls, order: EpochOrder, world: World) -> _Assignment:
        samples = sum(map(len, reader_positions(order, world, _POSITIONS_AT_ONCE)))
        return cls(world.rank, world.worker, samples, assigned_shards(order, world))


def _shard_list(shards: list[int]) -> str:
    return ", ".join(map(str, shards[:12])) + (f", ... ({len(shards):,} in all)" if len(shards) > 12 else "")
