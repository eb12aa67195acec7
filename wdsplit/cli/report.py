"""`wdsplit report`: a page about the samples of a dataset, how they are mixed, and whether training will wait."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

import wdsplit
from wdsplit.cli.help import argument, command, option
from wdsplit.cli.options import join_option, options_of, parsed_by, seed_options, view_options
from wdsplit.cli.terminal import Result
from wdsplit.reporting.cluster import DEFAULT_TOPOLOGIES, Cluster, Topology
from wdsplit.reporting.options import ReportOptions
from wdsplit.texts import human_bytes

__all__ = ["report_command"]

_REPORT: dict[str, dict[str, Any]] = {
    "class_field": {"metavar": "NAME"},
    "max_read": {"metavar": "SIZE"},
}
_CLUSTER: dict[str, dict[str, Any]] = {
    "link_gbits": {"flag": "--link"},
    "latency_ms": {},
    "step_ms": {},
    "sample_ms": {},
    "slow_link": {},
    "ranks_per_node": {"type": click.IntRange(1)},
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
)
def report_command(dataset: tuple[str, ...], output: str, topologies: tuple[Topology, ...], **arguments: Any) -> Result:
    """Write a page that shows what is in DATASET, how well it is mixed, and whether training will wait for data.

    The page is one file without scripts, and needs no network. Several datasets are shown as one mixture of all their
    samples.
    """
    names = [field.name for field in dataclasses.fields(Cluster) if field.name in arguments]
    cluster = Cluster(**{name: arguments.pop(name) for name in names})
    options = ReportOptions(topologies=topologies or DEFAULT_TOPOLOGIES, cluster=cluster, **arguments)
    made = wdsplit.report(list(dataset), output, options)
    verdicts = [f"{each.question} {each.answer}. {each.text} {each.remedy}".rstrip() for each in made.verdicts]
    return Result("\n".join([*verdicts, f"{output}: {human_bytes(len(made.html.encode()))}"]))
