"""`wdsplit view`: select samples of a dataset by a condition or lists of keys, and store the selection."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

import wdsplit
from wdsplit.cli.help import argument, command, option
from wdsplit.cli.options import Running, dataset_argument, engine_options
from wdsplit.cli.progress import progress_bar
from wdsplit.cli.stored import drop_option, drop_stored
from wdsplit.cli.terminal import Result
from wdsplit.texts import counted, percent
from wdsplit.urls import shown_url

__all__ = ["view_command"]


@command(
    "view",
    [
        "data/train good --where \"score > 0.5 and label != 'other'\"",
        "data/train clean --exclude bad.jsonl",
        "data/train balanced --repeat weight",
        "data/train packed --pack tokens --capacity 8192",
        "data/train buckets --group aspect --size 32",
        "data/train good --update",
        "data/train --drop good",
    ],
    dataset_argument,
    argument("name", required=False),
    option("Samples", "--where CONDITION", "Keep the samples that meet this condition. Quote class names."),
    option(
        "Samples",
        "--keys FILE",
        "Keep the samples with the keys in this file: text with one key per line, .jsonl with `key` in each line, "
        "or .csv, .tsv or .parquet with a column `key` or `__key__`.",
    ),
    option("Samples", "--exclude FILE", "Leave out the samples with the keys in this file (as for --keys)."),
    option(
        "Samples", "--repeat COLUMN", "Let each sample come as often as this column of integers says; 0 leaves it out."
    ),
    option(
        "Samples",
        "--expand COLUMN",
        "Let each sample come once for each of its parts, such as clips; this column says how many it has.",
    ),
    option(
        "Packs and groups",
        "--pack COLUMN",
        "Pack several samples into one; this column of integers says how long each is, such as its tokens.",
    ),
    option("Packs and groups", "--capacity N", "How long the samples of a pack are together at most.", type=int),
    option(
        "Packs and groups",
        "--group COLUMN",
        "Group samples of one value of this column into batches, other ones in each epoch. With --budget, this "
        "column of integers says how long each is, and samples of similar length are grouped.",
    ),
    option("Packs and groups", "--size N", "How many samples a group has; with --budget at most.", type=int),
    option(
        "Packs and groups",
        "--budget N",
        "How long the samples of a group are together at most, each counted as long as the longest.",
        type=int,
    ),
    option(
        "Packs and groups",
        "--allow-pads",
        "Allow groups of which more than 5 % are samples repeated to fill them.",
        is_flag=True,
    ),
    option(
        "Packs and groups",
        "--long",
        "What to do with samples longer than a pack, or than the budget (truncate: of packs only).  [default: error]",
        type=click.Choice(["error", "drop", "truncate"]),
    ),
    option("Samples", "--view BASE", "Select only from the samples of this view."),
    option("Samples", "--allow-missing", "Warn about --keys without a sample, instead of failing.", is_flag=True),
    option("Output", "--overwrite", "Replace the view of this name.", is_flag=True),
    option(
        "Output",
        "--update",
        "Make the view again by its own conditions, for the latest version of DATASET.",
        is_flag=True,
    ),
    drop_option("view"),
    engine_options,
    summary="Select samples of DATASET, and store the selection under a name.",
)
def view_command(dataset: str, name: str | None, drop: str | None, running: Running, **chosen: Any) -> Result:
    """Select samples of DATASET, and store the selection as the view NAME.

    wdsplit.Dataset(DATASET, view=NAME) then reads only these samples. No shard is changed or copied: a view takes about
    one bit per sample, of packs and groups two bytes more.

    Conditions have the syntax of `wdsplit convert --where`. They can use the columns of the sample tables (num_bytes,
    width and height of images, and columns that `wdsplit convert` kept) and of annotations.
    """
    url = shown_url(dataset)
    if drop is not None:
        return drop_stored(dataset, "view", drop, wdsplit.drop_view)
    if name is None:
        raise click.UsageError("expected the NAME of a view to make, or --drop NAME")
    with progress_bar("choosing samples") as bar:
        made = wdsplit.make_view(
            dataset,
            name,
            **chosen,
            engine=running.open(),
            progress=lambda done, total, samples: bar.update(done, total, unit="shards", samples=samples),
        )
    stored = made.stored
    lines = [
        f"{url}: view {name!r} keeps {stored.num_selected:,} of {counted(stored.num_samples, 'sample')} "
        f"({percent(stored.num_selected, stored.num_samples)})",
        f"shards without a selected sample: {made.num_empty_shards:,} of {made.num_shards:,}",
    ]
    recipe = stored.recipe
    if stored.form:
        lines += made.units
    elif stored.kind != "select":
        lines.append(f"an epoch has {counted(stored.num_units, 'sample')}: --{stored.kind} {recipe[stored.kind]}")
    for which in ("keys", "exclude"):
        if which in recipe:
            one = recipe[which]
            counts = [counted(one["keys"], "key"), counted(one["duplicates"], "duplicate")]
            lines.append(f"--{which} {one['from']}: {', '.join(counts)}, {one['missing']:,} without a sample")
    lines.append(bar.took)
    facts = {"num_shards": made.num_shards, "num_empty_shards": made.num_empty_shards}
    value = {"dataset": url, **dataclasses.asdict(stored), **facts}
    return Result("\n".join(lines), value)
