"""`wdsplit verify` (is the dataset undamaged?) and `wdsplit audit` (are the loading promises kept?)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import wdsplit
from wdsplit.cli.help import command, option
from wdsplit.cli.options import (
    Running,
    batch_size_option,
    dataset_argument,
    engine_options,
    order_options,
    view_options,
)
from wdsplit.cli.progress import progress_bar
from wdsplit.cli.stored import erased_lines
from wdsplit.cli.terminal import FAILED, Result, bad, echo, error_text, good, totals_text, wrapped
from wdsplit.texts import counted
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from wdsplit.checks.audit import Finding

__all__ = ["audit_command", "verify_command"]

_MAX_SHOWN = 20


@command("verify", ["data/train --jobs 8", "s3://bucket/train"], dataset_argument, view_options, engine_options)
def verify_command(dataset: str, running: Running, **arguments: Any) -> Result:
    """Check every byte of DATASET against its manifest.

    Checks sizes, checksums, places of samples, tar structure, end markers, fields and pads, and finds duplicate keys.
    With --view or --where, checks all of each shard that contains a selected sample, and no other shards.

    Payloads are not decoded: `wdsplit bench --decode rgb8 --bad-samples-file bad.jsonl` lists images that fail.
    """
    with progress_bar("verifying") as bar:
        report = wdsplit.verify(
            dataset,
            progress=lambda done, total, num_bytes: bar.update(done, total, unit="shards", bytes=num_bytes),
            engine=running.open(),
            **arguments,
        )
    url, manifest, problems = shown_url(dataset), report.manifest, report.problems
    names = ("cause", "place", "expected", "found", "remedy")
    shown = [error_text("problem", str(problem)) for problem in problems[:_MAX_SHOWN]]
    if len(problems) > _MAX_SHOWN:
        shown.append(f"... and {counted(len(problems) - _MAX_SHOWN, 'more problem')} (--json shows all)")
    verdict = bad(f"{counted(len(problems), 'problem')} in") if problems else good("ok:")
    is_part = arguments["view"] is not None or arguments["where"] is not None
    part = f"{counted(report.num_shards, 'shard')} of the view, of " if is_part else ""
    lines = [f"{url}: {verdict} {part}{totals_text(manifest)}"]
    lines += erased_lines(dataset, report.with_erased)
    return Result(
        "\n".join(lines),
        {
            "dataset": dataset,
            "shards": report.num_shards,
            "problems": [{name: getattr(problem, name) for name in names} for problem in problems],
            "with_erased": report.with_erased,
        },
        problems=shown,
        code=FAILED if problems else 0,
    )


@command(
    "audit",
    [
        "data/train --world-size 8 --workers 4 --batch-size 256",
        "data/train --world-size 2 --workers 2 --batch-size 64 --read",
    ],
    dataset_argument,
    order_options,
    batch_size_option(1),
    option("Samples", "--epochs", "Check the first N epochs.", low=1, default=1),
    option(
        "Output",
        "--class-field NAME",
        "Field with the classes, to measure how they are mixed.  [default: cls, or fields that end in .cls]",
    ),
    option("Output", "--read", "Also run real loaders, and check what they read.", is_flag=True),
    view_options,
)
def audit_command(dataset: str, workers: int, **arguments: Any) -> Result:
    """Check the loading promises for DATASET and a topology.

    Checks all positions of each epoch: same batches on any topology, equal steps, each sample exactly once, resume
    anywhere.

    Also measures how well batches are mixed. Mixing of epochs: how often two samples of a batch share a batch again in
    the next epoch. Mixing of classes: chi-squared of a rank's batches over the classes. Random batches give the number
    of classes minus 1, sorted ones far more.

    Reads only the manifest and labels (of a large dataset, a sample of them), unless --read is given.
    """
    options, as_json = wdsplit.AuditOptions(num_workers=workers, **arguments), click.get_current_context().meta["json"]
    report = wdsplit.audit(dataset, options, progress=None if as_json else _echo)
    return Result(
        "",  # the findings were printed as they came
        [vars(finding) for finding in report.findings],
        code=0 if report.held else FAILED,
    )


def _echo(finding: Finding) -> None:
    mark = good("ok    ") if finding.held else bad("FAILED")
    if finding.figure is not None:
        mark = (bad if finding.remedy else good)(f"{finding.figure:<6.2f}")
    before = f"epoch {finding.epoch}  {finding.promise:<20} "
    taken = len(before) + len("FAILED  ")
    echo(f"{before}{mark}  {wrapped(finding.evidence, taken, taken)}")
