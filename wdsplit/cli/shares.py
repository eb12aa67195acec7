"""Conversion in shares: `wdsplit convert --plan PLAN --share I/N`, and `wdsplit commit`."""

from __future__ import annotations

import re
import time
from functools import partial
from typing import TYPE_CHECKING

import click

import wdsplit
from wdsplit.cli.conversion import dataset_text, show_progress
from wdsplit.cli.help import argument, command
from wdsplit.cli.options import Running
from wdsplit.cli.progress import progress_bar
from wdsplit.cli.terminal import echo, human_bytes, stderr, wrapped
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from wdsplit.conversion.convert import Progress
    from wdsplit.conversion.plan.options import PassName

__all__ = ["commit_command", "run_share"]


def run_share(plan_path: str, share: str, only: PassName | None, running: Running) -> None:
    """Write a share of a conversion, and print what was written."""
    match = re.fullmatch(r"(\d+)/(\d+)", share)
    if match is None:
        raise click.BadParameter(f"{share!r}: expected I/N, such as 3/16", param_hint="'--share'")
    engine, started = running.open(), time.monotonic()
    try:
        with progress_bar(f"share {share}", running.log) as bar:
            report = partial(show_progress, bar, name=share)
            done = wdsplit.convert_share(plan_path, int(match[1]), int(match[2]), only, report, engine=engine)
    except KeyboardInterrupt:
        stderr("published shards are kept; run the same command again to continue")
        raise
    echo(f"share {share}: {_done(done)}, took {time.monotonic() - started:.1f} s")


def _done(progress: Progress) -> str:
    """Return a summary of a share's work."""
    there = f" ({progress.skipped:,} already existed)" if progress.skipped else ""
    if progress.name == "scatter":
        return f"{progress.done:,} rows scattered{there}"
    if progress.name == "merge":
        return f"{progress.done:,} regions of chunks merged{there}"
    size = human_bytes(progress.num_bytes)
    return f"{progress.done:,} shards{there}, {progress.samples:,} samples and pads, {size}"


@command(
    "commit",
    ["/shared/train.plan"],
    argument("plan_path", metavar="PLAN"),
    summary="Finish a conversion in shares.",
)
def commit_command(plan_path: str) -> None:
    """Finish a conversion in shares that `wdsplit plan -o PLAN` started: write the manifest.

    Fails if a shard is missing or incomplete. Does nothing if the conversion is finished already.
    """
    echo(wrapped(dataset_text(wdsplit.commit_shares(plan_path), shown_url(plan_path))))
