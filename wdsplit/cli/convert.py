"""`wdsplit convert`."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

import wdsplit
from wdsplit.cli.conversion import (
    conversion_options,
    dataset_text,
    options_of,
    plan_options,
    run_options,
    show_progress,
)
from wdsplit.cli.help import argument, command, option
from wdsplit.cli.options import Running, engine_options, given
from wdsplit.cli.progress import progress_bar
from wdsplit.cli.shares import run_share
from wdsplit.cli.terminal import (
    BATCH_SIZE,
    audit_line,
    echo,
    rates_text,
    say_next,
    stale,
    stderr,
    training_line,
    wrapped,
)
from wdsplit.conversion.plan.options import PASSES, ConvertOptions, PassName
from wdsplit.errors import WdsplitError
from wdsplit.texts import counted
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from wdsplit.conversion.convert import Progress

__all__ = ["convert_command"]


@command(
    "convert",
    [
        "raw/ data/train --world-size 8 --workers 4",
        "'raw/*.parquet' data/train --map jpg=image --map cls=label",
        "raw/ data/train --world-size 8 --workers 4 --resume",
        "raw/ s3://bucket/train --world-size 8 --workers 4",
        "s3://bucket/raw/ s3://bucket/train --engine ray",
        "--plan /shared/train.plan --share 3/16",
    ],
    argument("inputs", nargs=-1, metavar="INPUT..."),
    argument("output", required=False, metavar="OUTPUT"),
    plan_options,
    engine_options,
    run_options,
    options_of(ConvertOptions, "Output", "resume"),
    option(
        "Running", "--plan", "plan_path", metavar="PLAN", help="Write a share of this plan, from `wdsplit plan -o`."
    ),
    option("Running", "--share", metavar="I/N", help="With --plan: which share, 0/N to N-1/N."),
    option(
        "Running",
        "--pass",
        "only",
        type=click.Choice(PASSES),
        help="With --plan: run only this pass. Shuffled or grouped rows need several passes, which `wdsplit plan` "
        "lists.",
    ),
)
def convert_command(
    inputs: tuple[str, ...],
    output: str | None,
    running: Running,
    plan_path: str | None,
    share: str | None,
    only: PassName | None,
    **arguments: Any,
) -> None:
    """Convert tables into a dataset of balanced WebDataset shards.

    INPUT is a file, a folder of tables or images, a glob or a brace expression. OUTPUT is a folder or
    s3://bucket/folder. All shards are equal, and their number is a multiple of world size x workers, so that every
    rank gets the same number of samples. The bytes of the shards do not depend on --jobs and --engine. After an
    interrupt, continue with --resume.

    With --plan PLAN --share I/N, write one share of a conversion that `wdsplit plan -o PLAN` started. Only --jobs,
    --log and --pass can be added. A share that failed can run again. `wdsplit commit PLAN` finishes the dataset.
    """
    if plan_path is not None or share is not None or only is not None:
        if plan_path is None or share is None:
            raise click.UsageError("--plan, --share and --pass belong together: give --plan PLAN --share I/N")
        others = given(but={"plan_path", "share", "only", "jobs", "log"})
        if others:
            raise click.UsageError(f"{', '.join(others)}: not allowed with --plan, which determines the dataset")
        run_share(plan_path, share, only, running)
        return
    if output is None or not inputs:
        missing = "inputs" if output is None else "output"  # a single argument is the input, although click says output
        context = click.get_current_context()
        raise click.MissingParameter(ctx=context, param=next(p for p in context.command.params if p.name == missing))
    _convert(inputs, output, conversion_options(arguments), running)


def _convert(inputs: tuple[str, ...], output: str, options: ConvertOptions, running: Running) -> None:
    """Convert, and print what was written; after an interrupt, how to continue."""
    last: dict[str, Progress] = {}
    shuffled: set[str] = set()
    try:
        with progress_bar("planning", running.log) as bar:

            def report(progress: Progress) -> None:
                last[progress.split] = progress
                if progress.name != "write":
                    shuffled.add(progress.split)
                step = f"{1 + (progress.name == 'write')}/2" if progress.split in shuffled else ""
                show_progress(bar, progress, progress.split, step)

            convert, convert_splits, started = wdsplit.convert, wdsplit.convert_splits, time.monotonic()
            if options.splits:
                manifests = convert_splits(inputs, output, options, report, engine=running.open())
            else:
                manifests = {"": convert(inputs, output, options, report, engine=running.open())}
    except KeyboardInterrupt:
        if last:  # otherwise nothing has been written yet
            _say_how_to_resume(output, last)
        raise
    elapsed_s = time.monotonic() - started
    for name, manifest in manifests.items():
        echo(wrapped(dataset_text(manifest, _folder(output, name))))
        if last[name].skipped:
            echo(f"resumed: {last[name].skipped:,} shards existed already")
    num_samples = sum(manifest.num_samples for manifest in manifests.values())
    num_bytes = sum(manifest.num_bytes for manifest in manifests.values())
    is_resumed = any(progress.skipped for progress in last.values())
    rates = "" if is_resumed else f" ({rates_text(num_samples, num_bytes, elapsed_s)})"
    echo(f"took {elapsed_s:.1f} s{rates}")
    for name in manifests if options.overwrite else ():
        _say_stale(_folder(output, name))
    _say_next(_folder(shown_url(output), next(iter(manifests))), options)


def _say_next(dataset: str, options: ConvertOptions) -> None:
    """Print the commands that check and read a dataset."""
    from wdsplit.storage.opening import is_remote

    uploaded = [f"wdsplit verify {shlex.quote(dataset)}"] if is_remote(dataset) else []
    say_next(*uploaded, audit_line(dataset, vars(options)), training_line(dataset, BATCH_SIZE, options.workers))


def _say_stale(dataset: str) -> None:
    """Print which views and annotations were made for the shards that were replaced."""
    found = wdsplit.inspect(dataset, 0)
    old = {
        "view": [each.name for each in found.views if stale(each, found)],
        "annotation": [each.name for each in found.annotations if stale(each, found)],
    }
    texts = [f"{kind}{'s' if len(names) > 1 else ''} {', '.join(names)}" for kind, names in old.items() if names]
    if texts:
        verb, again = ("belong", "them") if sum(map(len, old.values())) > 1 else ("belongs", "it")
        stderr(f"note: {' and '.join(texts)} {verb} to the replaced shards; make {again} again, or drop {again}")


def _folder(output: str, split: str) -> str:
    return os.path.join(output, split) if split else output


def _say_how_to_resume(output: str, last: Mapping[str, Progress]) -> None:
    """If an interrupted conversion can be resumed, print how.

    Args:
        output: The output of the conversion.
        last: The last progress of each split.
    """
    from wdsplit.conversion.run import Run
    from wdsplit.storage.opening import open_storage

    try:
        runs = [Run(open_storage(_folder(output, name)).with_short_deadline()) for name in last]
        if not any(run.is_unfinished for run in runs):
            return
    except WdsplitError:  # the store does not answer, so the run may exist
        pass
    shards = sum(progress.done for progress in last.values() if progress.name == "write")
    kept = f"at least {counted(shards, 'shard')} published" if shards else "published shards are kept"
    stderr(f"{kept}; continue with the same command and --resume")
