"""`wdsplit convert`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TextIO

import click

from wdsplit.cli.conversion import (
    conversion_options,
    dataset_text,
    given,
    option_of,
    plan_options,
    run_options,
    show_progress,
)
from wdsplit.cli.options import engine_options, open_engine
from wdsplit.cli.shares import run_share
from wdsplit.cli.terminal import progress_bar, rates_text, stderr
from wdsplit.conversion.convert import Progress, convert, convert_splits
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.run import Run
from wdsplit.conversion.shares import PASSES, Pass
from wdsplit.engines.local import Engine
from wdsplit.errors import WdsplitError
from wdsplit.storage.opening import open_storage

__all__ = ["convert_command"]


@click.command(
    "convert",
    epilog="""Examples:

\b
  wdsplit convert raw/ data/train --world-size 8 --workers 4
  wdsplit convert 'raw/train-*.parquet' data/train --map jpg=image --map cls=label
  wdsplit convert raw/ data/train --world-size 8 --workers 4 --resume
  wdsplit convert raw/ s3://bucket/train --world-size 8 --workers 4
  wdsplit convert s3://bucket/raw/ s3://bucket/train --engine ray --address ray://head:10001
  wdsplit convert --plan /shared/train.plan --share 3/16""",
)
@click.argument("inputs", nargs=-1, metavar="INPUT...")
@click.argument("output", required=False, metavar="OUTPUT")
@plan_options
@engine_options
@run_options
@option_of(ConvertOptions, "resume")
@click.option("--plan", "plan_path", metavar="PLAN", help="Write a share of what `wdsplit plan -o` started.")
@click.option("--share", metavar="I/N", help="With --plan: which share, 0/N to N-1/N.")
@click.option(
    "--pass",
    "only",
    type=click.Choice(PASSES),
    help="With --plan: the pass. --shuffle and --group-by take several, one after another: `wdsplit plan` says which.",
)
@click.pass_context
def convert_command(
    context: click.Context,
    /,
    inputs: tuple[str, ...],
    output: str | None,
    jobs: int | None,
    engine: str,
    address: str | None,
    log: TextIO | None,
    memory: int,
    emit: tuple[str, ...],
    overwrite: bool,
    resume: bool,
    plan_path: str | None,
    share: str | None,
    only: Pass | None,
    **arguments: Any,
) -> None:
    """Rewrite tables into a dataset of balanced WebDataset shards.

    INPUT is a file, a folder of them, a glob or a brace expression; OUTPUT is a folder, or s3://bucket/folder.
    The number of shards is a multiple of world size x workers, and all shards are equal, so that ranks are. The bytes
    of the shards do not depend on --jobs and --engine. A run that was interrupted is continued with --resume.

    With --plan PLAN --share I/N, and nothing but --jobs, --log and --pass besides, a share of a conversion is written
    that `wdsplit plan -o PLAN` started; one that died is run again. `wdsplit commit PLAN` ends the conversion.
    """
    if plan_path is not None or share is not None or only is not None:
        _refuse_more(context, plan_path, share)
        run_share(str(plan_path), str(share), only, open_engine(engine, address, jobs), log)
        return
    if output is None or not inputs:
        missing = "inputs" if output is not None or not inputs else "output"
        raise click.MissingParameter(ctx=context, param=next(p for p in context.command.params if p.name == missing))
    options = conversion_options(arguments, memory=memory, emit=emit, overwrite=overwrite, resume=resume)
    _convert(inputs, output, options, partial(open_engine, engine, address, jobs), log)


def _convert(
    inputs: tuple[str, ...], output: str, options: ConvertOptions, make_engine: Callable[[], Engine], log: TextIO | None
) -> None:
    """Convert, and say what was written; if it is interrupted, how to continue."""
    started = time.monotonic()
    last: dict[str, Progress] = {}
    try:
        with progress_bar("converting", log) as bar:

            def report(progress: Progress) -> None:
                last[progress.split] = progress
                show_progress(bar, progress, progress.split)

            if options.splits:
                manifests = convert_splits(inputs, output, options, report, engine=make_engine())
            else:
                manifests = {"": convert(inputs, output, options, report, engine=make_engine())}
    except KeyboardInterrupt:
        _say_how_to_resume(output, last)
        raise
    elapsed_s = time.monotonic() - started
    for name, manifest in manifests.items():
        click.echo(dataset_text(manifest, _folder(output, name)))
        if last[name].skipped:
            click.echo(f"resumed: {last[name].skipped:,} shards were there already")
    num_samples = sum(manifest.num_samples for manifest in manifests.values())
    num_bytes = sum(manifest.num_bytes for manifest in manifests.values())
    is_resumed = any(progress.skipped for progress in last.values())
    rates = "" if is_resumed else f" ({rates_text(num_samples, num_bytes, elapsed_s)})"
    click.echo(f"took {elapsed_s:.1f} s{rates}")


def _folder(output: str, split: str) -> str:
    return os.path.join(output, split) if split else output


def _say_how_to_resume(output: str, last: Mapping[str, Progress]) -> None:
    """Say that an interrupted conversion can be continued, given the last progress of each split; unless it cannot."""
    try:
        runs = [Run(open_storage(_folder(output, name)).with_short_deadline()) for name in last]
        if not any(run.is_unfinished for run in runs):
            return
    except WdsplitError:  # a store that does not answer: the run may be there
        pass
    shards = sum(progress.done for progress in last.values() if progress.name == "write")
    kept = f"{shards} shards are published" if shards else "what is published is kept"
    stderr(f"{kept}; continue with the same command and --resume")


def _refuse_more(context: click.Context, plan_path: str | None, share: str | None) -> None:
    """Refuse whatever would be ignored beside a share of a plan: the plan has decided it."""
    if plan_path is None or share is None:
        raise click.UsageError("--plan and --share go together (and --pass with them): --plan PLAN --share I/N")
    known = {"plan_path", "share", "only", "jobs", "log"}
    others = given(context, {str(parameter.name) for parameter in context.command.params} - known)
    if others:
        raise click.UsageError(f"{', '.join(others)}: not with --plan, which has decided it")
