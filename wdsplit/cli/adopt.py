"""`wdsplit index`: existing tars as a dataset."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

import click

import wdsplit
from wdsplit.cli.conversion import option_of
from wdsplit.cli.help import HelpCommand
from wdsplit.cli.options import engine_options, json_option, open_engine
from wdsplit.cli.progress import progress_bar
from wdsplit.cli.terminal import audit_line, echo_json, rates_text, say_next, totals, totals_text
from wdsplit.conversion.plan.options import IndexOptions
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from wdsplit.conversion.sample_tables import IndexProgress

__all__ = ["index_command"]


@click.command(
    "index",
    cls=HelpCommand,
    short_help="Make a dataset of existing WebDataset tars.",
    epilog="""Examples:

\b
  wdsplit index data/train --world-size 8 --workers 4
  wdsplit index data/train --overwrite --lanes 64
  wdsplit index data/train --samples --keep caption""",
)
@click.argument("dataset")
@option_of(IndexOptions, "world_size")
@option_of(IndexOptions, "workers")
@option_of(IndexOptions, "lanes")
@option_of(IndexOptions, "window")
@engine_options
@option_of(IndexOptions, "overwrite")
@option_of(IndexOptions, "samples")
@option_of(IndexOptions, "keep", multiple=True, metavar="COLUMN")
@option_of(IndexOptions, "no_keep", multiple=True, metavar="COLUMN")
@json_option
def index_command(
    dataset: str,
    world_size: int,
    workers: int,
    lanes: int | None,
    window: int | None,
    jobs: int | None,
    engine: str,
    address: str | None,
    log: TextIO | None,
    overwrite: bool,
    samples: bool,
    keep: tuple[str, ...],
    no_keep: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make a dataset of the WebDataset tars in the folder DATASET; none of them is rewritten.

    All *.tar below DATASET become shards. Each gets an index beside it, NAME.tar.idx, and the folder a manifest, so
    that the loader reads them as it reads what convert has written. The tars may hold different numbers of samples;
    duplicate keys are refused.

    With --samples the sample tables are made from what is in the tars, NAME.tar.parquet: a row for each sample, with
    its size, the width and height of its image, and numbers and classes, so that views can choose samples by them.
    """
    layout = (world_size, workers, lanes, window)
    options = IndexOptions(*layout, overwrite=overwrite, samples=samples, keep=keep, no_keep=no_keep)
    with progress_bar("indexing", log) as bar:

        def report(progress: IndexProgress) -> None:
            bar.update(progress.tars, progress.num_tars, samples=progress.samples, bytes=progress.num_bytes)

        index_tars, started = wdsplit.index_tars, time.monotonic()
        manifest = index_tars(dataset, options, report, engine=open_engine(engine, address, jobs))
    if as_json:
        fields = [field.name for field in manifest.fields]
        columns = manifest.samples.names if manifest.samples is not None else None
        left_out = manifest.provenance.get("num_left_out", 0)
        echo_json({**totals(dataset, manifest), "fields": fields, "left_out": left_out, "sample_columns": columns})
        return
    elapsed_s = time.monotonic() - started
    rates = rates_text(manifest.num_samples + manifest.num_pads, manifest.num_bytes, elapsed_s)
    tables = f"sample tables: {', '.join(manifest.samples.names)}\n" if manifest.samples is not None else ""
    click.echo(
        f"{shown_url(dataset)}: {totals_text(manifest)}\n"
        f"fields: {', '.join(field.name for field in manifest.fields)}\n"
        f"{tables}lanes {manifest.lanes}, window {manifest.window}\n"
        f"took {elapsed_s:.1f} s ({rates})"
    )
    say_next(audit_line(shown_url(dataset), vars(options)))
