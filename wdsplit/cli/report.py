"""`wdsplit report`, a page about a dataset and whether training will wait, and `wdsplit croissant`, for catalogues."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import click

import wdsplit
from wdsplit.cli.help import argument, command, option
from wdsplit.cli.options import dataset_argument, join_option, options_of, parsed_by, seed_options, view_options
from wdsplit.cli.progress import progress_bar
from wdsplit.cli.terminal import Result
from wdsplit.reporting.cluster import DEFAULT_TOPOLOGIES, Cluster, Topology
from wdsplit.reporting.options import ReportOptions
from wdsplit.texts import human_bytes

__all__ = ["croissant_command", "report_command"]

_REPORT: dict[str, dict[str, Any]] = {"class_field": {"metavar": "NAME"}, "max_read": {"metavar": "SIZE"}}
_CLUSTER: dict[str, dict[str, Any]] = {
    "link_gbits": {"flag": "--link"},
    "latency_ms": {},
    "step_ms": {},
    "sample_ms": {},
    "slow_link": {},
    "ranks_per_node": {"low": 1},
    "price_per_1000_requests": {"flag": "--request-price"},
    "price_per_gb": {"flag": "--gb-price"},
}
"""The fields of `Cluster` that are options, with what differs."""


@command(
    "report",
    ["data/train -o report.html", "s3://bucket/train -o report.html --topology 16x8 --link 25"],
    argument("dataset", nargs=-1, required=True),
    option("Output", "-o, --output", "File to write.", type=click.Path(dir_okay=False), required=True),
    options_of(ReportOptions, "Output", "samples class_field max_read", **_REPORT),
    options_of(ReportOptions, "Training", "batch_size"),
    option(
        "Training",
        "--topology RxW",
        "Ranks x workers to compare. Repeatable. The summary is for that of the conversion if listed, else for "
        "8x4, else for the last.  [default: "
        f"{', '.join(f'{each.world_size}x{each.num_workers}' for each in DEFAULT_TOPOLOGIES)}, and that of the "
        "conversion]",
        name="topologies",
        type=parsed_by(Topology.parse),
        multiple=True,
    ),
    seed_options,
    join_option("Output"),
    view_options,
    options_of(Cluster, "Cluster model", " ".join(_CLUSTER), **_CLUSTER),
    summary="Write a page about DATASET: samples, classes, mixing, speed.",
    has_json=False,
)
def report_command(dataset: tuple[str, ...], output: str, topologies: tuple[Topology, ...], **arguments: Any) -> Result:
    """Write a page that shows what is in DATASET, how well it is mixed, and whether training will wait for data.

    The page is one file without scripts, and needs no network. Several datasets are shown as one mixture of all their
    samples.
    """
    names = [field.name for field in dataclasses.fields(Cluster) if field.name in arguments]
    cluster = Cluster(**{name: arguments.pop(name) for name in names})
    options = ReportOptions(topologies=topologies or DEFAULT_TOPOLOGIES, cluster=cluster, **arguments)
    with progress_bar("reading samples, making the page"):
        made = wdsplit.report(list(dataset), output, options)
    verdicts = [f"{each.question} {each.answer}. {each.text} {each.remedy}".rstrip() for each in made.verdicts]
    return Result("\n".join([*verdicts, f"{output}: {human_bytes(len(made.html.encode()))}"]))


@command(
    "croissant",
    ["data/train --license https://spdx.org/licenses/CC-BY-4.0", "s3://bucket/train -o croissant.json"],
    dataset_argument,
    option("Description", "--name", "Name of the dataset.  [default: that of its folder]"),
    option("Description", "--description TEXT", "What the dataset contains.  [default: its counts and fields]"),
    option("Description", "--license URL", "Its license."),
    option("Description", "--creator NAME", "The organization that made it."),
    option("Description", "--published DATE", "Date of its publication, such as 2026-11-26."),
    option("Description", "--url", "Its web page."),
    option("Description", "--source URL", "The data that it was made from."),
    option("Output", "-o, --output", "File to write, instead of printing.", type=click.Path(dir_okay=False)),
    summary="Describe DATASET for catalogues, in the Croissant format.",
    has_json=False,
)
def croissant_command(dataset: str, output: str | None, **described: Any) -> Result | None:
    """Describe DATASET in the Croissant format (JSON-LD): files, fields, columns, classes, and what the options say.

    Paths are relative to the dataset's folder, so publish the file as croissant.json in that folder. Samples are not
    read.
    """
    metadata = wdsplit.croissant(dataset, **described)
    if output is None:
        Result("", metadata).show(as_json=True)
        return None
    from wdsplit.storage.local import write_whole

    text = json.dumps(metadata, indent=2, ensure_ascii=False)
    write_whole(Path(output), f"{text}\n".encode())
    return Result(output)
