"""`wdsplit convert`, whole or in shares, `wdsplit commit`, and `wdsplit index` for tars that exist."""

from __future__ import annotations

import os
import re
from functools import partial
from typing import TYPE_CHECKING, Any

import click

import wdsplit
from wdsplit.cli.conversion import (
    appended_text,
    conversion_options,
    dataset_text,
    plan_options,
    run_options,
    show_progress,
)
from wdsplit.cli.help import argument, command, option
from wdsplit.cli.options import Running, dataset_argument, engine_options, options_of, refuse_given
from wdsplit.cli.progress import progress_bar
from wdsplit.cli.stored import stale_names
from wdsplit.cli.terminal import Result, rates_text, totals_text
from wdsplit.conversion.plan.options import PASSES, ConvertOptions, IndexOptions, PassName
from wdsplit.texts import counted, human_bytes
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from wdsplit.conversion.adopt_tars import IndexProgress
    from wdsplit.conversion.convert import Progress

__all__ = ["commit_command", "convert_command", "index_command"]


@command(
    "convert",
    [
        "raw/ data/train --world-size 8 --workers 4",
        "'raw/*.parquet' data/train --map jpg=image --map cls=label",
        "raw/ data/train --world-size 8 --workers 4 --resume",
        "new/ data/train --append",
        "raw/ s3://bucket/train --world-size 8 --workers 4",
        "s3://bucket/raw/ s3://bucket/train --engine ray",
        "--plan /shared/train.plan --share 3/16",
    ],
    argument("inputs", nargs=-1, metavar="INPUT..."),
    argument("output", required=False, metavar="OUTPUT"),
    plan_options,
    engine_options,
    run_options,
    options_of(ConvertOptions, "Output", "resume append allow_erased"),
    option("Running", "--plan PLAN", "Write a share of this plan, from `wdsplit plan -o`.", name="plan_path"),
    option("Running", "--share I/N", "With --plan: which share, 0/N to N-1/N."),
    option(
        "Running",
        "--pass",
        "With --plan: run only this pass. Shuffled rows need several passes, which `wdsplit plan` lists.",
        name="only",
        type=click.Choice(PASSES),
    ),
    has_json=False,
)
def convert_command(
    inputs: tuple[str, ...],
    output: str | None,
    running: Running,
    plan_path: str | None,
    share: str | None,
    only: PassName | None,
    **arguments: Any,
) -> Result:
    """Convert tables into a dataset of balanced WebDataset shards.

    INPUT is a file, a folder of tables or images, a glob or a brace expression; or a Delta or Iceberg table:
    delta+PATH or iceberg+CATALOG/NAMESPACE.TABLE. OUTPUT is a folder or s3://bucket/folder. All shards are equal, and
    their number is a multiple of world size x workers, so that every rank gets the same number of samples. The bytes
    of the shards do not depend on --jobs and --engine. After an interrupt, continue with --resume. With --append, add
    the rows to the dataset in OUTPUT, as a new version.

    With --plan PLAN --share I/N, write one share of a conversion that `wdsplit plan -o PLAN` started. Only --jobs
    and --pass can be added. A share that failed can run again. `wdsplit commit PLAN` finishes the dataset.
    """
    if plan_path is not None or share is not None or only is not None:
        if plan_path is None or share is None:
            raise click.UsageError("--plan, --share and --pass belong together: give --plan PLAN --share I/N")
        refuse_given("--plan, which determines the dataset", but={"plan_path", "share", "only", "jobs"})
        return _convert_share(plan_path, share, only, running)
    if output is None or not inputs:
        missing = "inputs" if output is None else "output"  # a single argument is the input, although click says output
        context = click.get_current_context()
        raise click.MissingParameter(ctx=context, param=next(p for p in context.command.params if p.name == missing))
    return _convert(inputs, output, conversion_options(arguments), running)


def _convert(inputs: tuple[str, ...], output: str, options: ConvertOptions, running: Running) -> Result:
    last: dict[str, Progress] = {}
    shuffled: set[str] = set()
    kept = f"published shards are kept; continue with the same command{'' if options.append else ' and --resume'}"
    convert, convert_splits = wdsplit.convert, wdsplit.convert_splits  # imported before the clock starts
    with progress_bar("planning", kept) as bar:

        def report(progress: Progress) -> None:
            last[progress.split] = progress
            if progress.name != "write":
                shuffled.add(progress.split)
            step = f"{1 + (progress.name == 'write')}/2" if progress.split in shuffled else ""
            show_progress(bar, progress, progress.split, step)

        if options.splits:
            manifests = convert_splits(inputs, output, options, report, engine=running.open())
        else:
            manifests = {"": convert(inputs, output, options, report, engine=running.open())}
    folders = {name: os.path.join(output, name) if name else output for name in manifests}
    lines = []
    for name, manifest in manifests.items():
        lines.append(appended_text(manifest, output) if options.append else dataset_text(manifest, folders[name]))
        if name in last and last[name].skipped:
            lines.append(f"resumed: {counted(last[name].skipped, 'shard')} existed already")
    made: Any = last if options.append else manifests  # of an append, what was added
    num_samples = sum(each.samples if options.append else each.num_samples for each in made.values())
    num_bytes = sum(each.num_bytes for each in made.values())
    is_resumed = any(progress.skipped for progress in last.values())
    rates = "" if is_resumed or not num_samples else f" ({rates_text(num_samples, num_bytes, bar.elapsed_s)})"
    lines.append(f"{bar.took}{rates}")
    notes = []
    for folder in folders.values() if options.overwrite else ():
        if names := stale_names(wdsplit.inspect(folder, 0)):
            made_for = f"made for the shards that were replaced: {', '.join(names)}"
            notes.append(f"note: {folder}: {made_for}; make them again, or drop them")
    return Result("\n".join(lines), problems=notes)


def _convert_share(plan_path: str, share: str, only: PassName | None, running: Running) -> Result:
    """Write a share of a conversion."""
    match = re.fullmatch(r"(\d+)/(\d+)", share)
    if match is None:
        raise click.BadParameter(f"{share!r}: expected I/N, such as 3/16", param_hint="'--share'")
    kept = "published shards are kept; run the same command again to continue"
    with progress_bar(f"share {share}", kept) as bar:
        report = partial(show_progress, bar, name=share)
        done = wdsplit.convert_share(plan_path, int(match[1]), int(match[2]), only, report, engine=running.open())
    there = f" ({done.skipped:,} already existed)" if done.skipped else ""
    shards = f"{counted(done.done, 'shard')}{there}"
    what = {
        "scatter": f"{counted(done.done, 'row')} scattered{there}",
        "merge": f"{counted(done.done, 'region')} of chunks merged{there}",
        "write": f"{shards}, {done.samples:,} samples and pads, {human_bytes(done.num_bytes)}",
    }
    return Result(f"share {share}: {what[done.name]}, {bar.took}")


@command(
    "commit",
    ["/shared/train.plan"],
    argument("plan_path", metavar="PLAN"),
    summary="Finish a conversion in shares.",
    has_json=False,
)
def commit_command(plan_path: str) -> Result:
    """Finish a conversion in shares that `wdsplit plan -o PLAN` started: write the manifest.

    Fails if a shard is missing or incomplete. Does nothing if the conversion is finished already.
    """
    return Result(dataset_text(wdsplit.commit_shares(plan_path), shown_url(plan_path)))


@command(
    "index",
    ["data/train --world-size 8 --workers 4", "data/train --overwrite --lanes 64"],
    dataset_argument,
    options_of(IndexOptions, "Loading", "world_size workers lanes window"),
    engine_options,
    options_of(IndexOptions, "Output", "overwrite"),
    summary="Make a dataset of existing WebDataset tars.",
)
def index_command(dataset: str, running: Running, **arguments: Any) -> Result:
    """Make a dataset of the WebDataset tars in the folder DATASET, without rewriting them.

    All *.tar files below DATASET become shards. Writes where the samples are beside each (NAME.tar.places), a table
    with a row for each sample (NAME.tar.parquet: key, size, width and height of its image), and a manifest, so that the
    loader can read them and views can select samples. The tars may have different numbers of samples. Duplicate keys
    are an error.
    """
    options = IndexOptions(**arguments)
    index_tars = wdsplit.index_tars  # imported before the clock starts
    with progress_bar("indexing") as bar:

        def report(progress: IndexProgress) -> None:
            done, total = progress.tars, progress.num_tars
            bar.update(done, total, unit="tars", samples=progress.samples, bytes=progress.num_bytes)

        manifest = index_tars(dataset, options, report, engine=running.open())
    url = shown_url(dataset)
    fields = [field.name for field in manifest.fields]
    lines = [f"{url}: {totals_text(manifest)}", f"fields: {', '.join(fields)}"]
    lines.append(f"lanes {manifest.lanes}, window {manifest.window}")
    rates = rates_text(manifest.num_samples + manifest.num_pads, manifest.num_bytes, bar.elapsed_s)
    lines.append(f"{bar.took} ({rates})")
    value = {
        "dataset": url,
        "samples": manifest.num_samples,
        "pads": manifest.num_pads,
        "shards": len(manifest.shards),
        "bytes": manifest.num_bytes,
        "lanes": manifest.lanes,
        "window": manifest.window,
        "fields": fields,
        "left_out": manifest.provenance.get("num_left_out", 0),
    }
    return Result("\n".join(lines), value)
