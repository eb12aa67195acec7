"""`wdsplit verify` (is the dataset whole) and `wdsplit audit` (do the promises hold for a topology)."""

from __future__ import annotations

import sys
from typing import Any, TextIO

import click

from wdsplit.checks.audit import AuditOptions, Finding, audit
from wdsplit.checks.verify import EMITTED, verify
from wdsplit.cli.options import batch_size_option, engine_options, json_option, open_engine, order_options
from wdsplit.cli.terminal import FAILED, echo_json, progress_bar, stderr, totals_text
from wdsplit.urls import shown_url

__all__ = ["audit_command", "verify_command"]


@click.command(
    "verify",
    epilog="""Examples:

\b
  wdsplit verify data/train --jobs 8
  wdsplit verify s3://bucket/train --emit checksums""",
)
@click.argument("dataset")
@click.option(
    "--emit",
    type=click.Choice(EMITTED),
    multiple=True,
    help="Write a file beside each shard that is right: with checksums, NAME.tar.sums with the checksums of its "
    "samples, for Dataset(verify=True).",
)
@engine_options
@json_option
def verify_command(
    dataset: str,
    emit: tuple[str, ...],
    jobs: int | None,
    engine: str,
    address: str | None,
    log: TextIO | None,
    as_json: bool,
) -> None:
    """Check that every byte of DATASET is what its manifest says.

    Checks sizes, checksums, indexes, tar structure, end markers, fields and pads, and finds duplicate keys.
    """
    with progress_bar("verifying", log) as bar:
        report = verify(dataset, progress=bar.update, engine=open_engine(engine, address, jobs), emit=emit)
    manifest = report.manifest
    if as_json:
        names = ("cause", "place", "expected", "found", "remedy")
        problems = [{name: getattr(problem, name) for name in names} for problem in report.problems]
        echo_json({"dataset": dataset, "shards": len(manifest.shards), "problems": problems})
    else:
        for problem in report.problems:
            stderr(f"problem: {problem}")
        verdict = f"{len(report.problems):,} problems in" if report.problems else "all is well:"
        click.echo(f"{shown_url(dataset)}: {verdict} {totals_text(manifest)}")
    if report.problems:
        sys.exit(FAILED)


@click.command(
    "audit",
    epilog="""Examples:

\b
  wdsplit audit data/train --world-size 8 --workers 4 --batch-size 256 --epochs 3
  wdsplit audit data/train --world-size 2 --workers 2 --batch-size 64 --read""",
)
@click.argument("dataset")
@order_options
@batch_size_option(1)
@click.option("--epochs", type=click.IntRange(1), default=1, show_default=True, help="Epochs, counted from 0.")
@click.option("--read", is_flag=True, help="Run the real loaders too, and compare what they read.")
@json_option
def audit_command(dataset: str, workers: int, as_json: bool, **arguments: Any) -> None:
    """Prove the loading promises for DATASET and a topology.

    Same batches on any topology, equal steps, each sample exactly once, resume anywhere: checked over all positions
    of each epoch. Nothing is read but the manifest, unless --read is given. Also says how well batches are mixed: how
    often two samples of one batch share a batch again in the next epoch.
    """
    options = AuditOptions(num_workers=workers, **arguments)
    report = audit(dataset, options, progress=None if as_json else _echo)
    if as_json:
        echo_json([vars(finding) for finding in report.findings])
    if not report.held:
        sys.exit(FAILED)


def _echo(finding: Finding) -> None:
    mark = "held" if finding.held else "BROKEN"
    if finding.figure is not None:
        mark = f"{finding.figure:.2f}"
    click.echo(f"epoch {finding.epoch}  {finding.promise:<20} {mark:<6}  {finding.evidence}")
