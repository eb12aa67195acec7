"""`wdsplit convert --plan PLAN --part I/N`, and `wdsplit commit`: a conversion in parts, and its end."""

from __future__ import annotations

import re
import time
from typing import TextIO

import click

from wdsplit.cli.conversion import dataset_text
from wdsplit.cli.terminal import human_bytes, progress_bar, stderr
from wdsplit.conversion.parts import PartProgress, Pass, commit_parts, convert_part
from wdsplit.engines.local import Engine
from wdsplit.urls import shown_url

__all__ = ["commit_command", "run_part"]

_DOING = {"scatter": "shuffling", "merge": "merging", "write": "writing"}


def run_part(plan_path: str, part: str, only: Pass | None, engine: Engine, log: TextIO | None) -> None:
    """Write a part of a conversion, and say what is written."""
    match = re.fullmatch(r"(\d+)/(\d+)", part)
    if match is None:
        raise click.BadParameter(f"{part!r} is not of the form I/N, such as 3/16", param_hint="'--part'")
    started = time.monotonic()
    try:
        with progress_bar(f"part {part}", log) as bar:

            def report(progress: PartProgress) -> None:
                amounts = {"samples": progress.samples, "bytes": progress.num_bytes}
                amounts = {"scatter": {"rows": progress.done}, "merge": {}}.get(progress.name, amounts)
                bar.update(progress.done, progress.total, f"{_DOING[progress.name]} {part}", **amounts)

            done = convert_part(plan_path, int(match[1]), int(match[2]), only, report, engine=engine)
    except KeyboardInterrupt:
        stderr("what is published is kept; continue with the same command")
        raise
    click.echo(f"part {part}: {_done(done)}, took {time.monotonic() - started:.1f} s")


def _done(progress: PartProgress) -> str:
    """Say what a part has done."""
    there = f" ({progress.skipped:,} were there already)" if progress.skipped else ""
    if progress.name == "scatter":
        return f"{progress.done:,} rows scattered{there}"
    if progress.name == "merge":
        return f"{progress.done:,} parts of regions merged{there}"
    size = human_bytes(progress.num_bytes)
    return f"{progress.done:,} shards{there}, {progress.samples:,} samples and pads, {size}"


@click.command("commit", short_help="End a conversion in parts.", epilog="Example: wdsplit commit /shared/train.plan")
@click.argument("plan_path", metavar="PLAN")
def commit_command(plan_path: str) -> None:
    """End a conversion in parts that `wdsplit plan -o PLAN` has begun: from then on the dataset exists.

    Refused until all shards are there, whole. A conversion that has ended already is left as it is.
    """
    click.echo(dataset_text(commit_parts(plan_path), shown_url(plan_path)))
