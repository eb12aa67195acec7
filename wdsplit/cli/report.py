"""`wdsplit report`: a page about the samples of a dataset, how they are mixed, and whether training will wait."""

from __future__ import annotations

from typing import Any

import click

import wdsplit
from wdsplit.cli.help import REPORTING, HelpCommand
from wdsplit.cli.options import Decorator, batch_size_option, view_options, with_options
from wdsplit.cli.terminal import echo, human_bytes, wrapped
from wdsplit.errors import InputError
from wdsplit.reporting.cluster import DEFAULT_TOPOLOGIES, Cluster, Topology

__all__ = ["report_command"]


class _TopologyType(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic from click 8.2 on
    """Ranks x workers, such as 8x4."""

    name = "RxW"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Topology:
        try:
            return value if isinstance(value, Topology) else Topology.parse(value)
        except InputError as error:
            self.fail(f"{error.found!r}: expected {error.expected}", param, ctx)


def _number(name: str, default: float | None, text: str) -> Decorator:
    return click.option(name, type=float, metavar="N", default=default, show_default=default is not None, help=text)


_cluster_options = with_options(
    (
        _number("--link", Cluster.link_gbits, "Bandwidth between a node and the storage, in Gbit/s."),
        _number("--latency-ms", Cluster.latency_ms, "Milliseconds until the first byte of a request."),
        _number("--step-ms", Cluster.step_ms, "Milliseconds per training step."),
        _number(
            "--sample-ms",
            Cluster.sample_ms,
            "Milliseconds that a worker needs per sample.  [default: 0.1, and 10 per megapixel of its images]",
        ),
        click.option(
            "--ranks-per-node",
            type=click.IntRange(1),
            default=Cluster.ranks_per_node,
            show_default=True,
            help="Maximum number of ranks that share a node's link.",
        ),
        _number("--request-price", Cluster.price_per_1000_requests, "Price of 1,000 requests, in US dollars."),
        _number("--gb-price", Cluster.price_per_gb, "Price per GB of downloads, in US dollars."),
    )
)


@click.command(
    "report",
    cls=HelpCommand,
    groups=REPORTING,
    short_help="Write a page about DATASET: samples, classes, mixing, speed.",
    epilog="""Examples:

\b
  wdsplit report data/train -o report.html
  wdsplit report s3://bucket/train -o report.html --topology 16x8 --link 25""",
)
@click.argument("dataset", nargs=-1, required=True)
@click.option("-o", "--output", type=click.Path(dir_okay=False), required=True, help="File to write.")
@click.option("--samples", type=click.IntRange(0, 200), default=24, show_default=True, help="Show N samples.")
@click.option("--class-field", metavar="NAME", help="Field with the classes.  [default: found by name and values]")
@click.option(
    "--topology",
    "topologies",
    type=_TopologyType(),
    multiple=True,
    help="Ranks x workers to compare. Repeatable. The summary is for that of the conversion if listed, else for 8x4, "
    f"else for the last.  [default: {', '.join(f'{each.world_size}x{each.num_workers}' for each in DEFAULT_TOPOLOGIES)}"
    ", and that of the conversion]",
)
@batch_size_option(64)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the order.")
@click.option("--shuffle/--no-shuffle", default=True, show_default=True, help="Shuffle shards and samples.")
@click.option(
    "--max-read",
    metavar="SIZE",
    help="Read datasets up to this size completely, and sample larger ones.  [default: 256MiB, remote 64MiB]",
)
@view_options
@_cluster_options
def report_command(
    dataset: tuple[str, ...],
    output: str,
    topologies: tuple[Topology, ...],
    link: float,
    latency_ms: float,
    step_ms: float,
    sample_ms: float | None,
    ranks_per_node: int,
    request_price: float,
    gb_price: float,
    **arguments: Any,
) -> None:
    """Write a page that shows what is in DATASET, how well it is mixed, and whether training will wait for data.

    The page is one file without scripts, and needs no network. Several datasets are shown as one mixture of all their
    samples.
    """
    cluster = Cluster(
        link_gbits=link,
        latency_ms=latency_ms,
        step_ms=step_ms,
        sample_ms=sample_ms,
        ranks_per_node=ranks_per_node,
        price_per_1000_requests=request_price,
        price_per_gb=gb_price,
    )
    options = wdsplit.ReportOptions(topologies=topologies or DEFAULT_TOPOLOGIES, cluster=cluster, **arguments)
    made = wdsplit.report(list(dataset), output, options)
    for verdict in made.verdicts:
        echo(wrapped(f"{verdict.question} {verdict.answer}. {verdict.text} {verdict.remedy}".rstrip()))
    echo(f"{output}: {human_bytes(len(made.html.encode()))}")
