"""`wdsplit index`: existing tars as a dataset."""

from __future__ import annotations

import time
from typing import TextIO

import click

from wdsplit.cli.conversion import option_of
from wdsplit.cli.options import engine_options, json_option, open_engine
from wdsplit.cli.terminal import echo_json, progress_bar, rates_text, totals, totals_text
from wdsplit.conversion.adopt_tars import IndexOptions, IndexProgress, index_tars
from wdsplit.urls import shown_url

__all__ = ["index_command"]


@click.command(
    "index",
    short_help="Make a dataset of existing WebDataset tars.",
    epilog="""Examples:

\b
  wdsplit index data/train --world-size 8 --workers 4
  wdsplit index data/train --overwrite --lanes 64""",
)
@click.argument("dataset")
@option_of(IndexOptions, "world_size")
@option_of(IndexOptions, "workers")
@option_of(IndexOptions, "lanes")
@option_of(IndexOptions, "window")
@engine_options
@option_of(IndexOptions, "overwrite")
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
    as_json: bool,
) -> None:
    """Make a dataset of the WebDataset tars in the folder DATASET; none of them is rewritten.

    All *.tar below DATASET become shards. Each gets an index beside it, NAME.tar.idx, and the folder a manifest, so
    that the loader reads them as it reads what convert has written. The tars may hold different numbers of samples;
    duplicate keys are refused.
    """
    options = IndexOptions(world_size, workers, lanes, window, overwrite=overwrite)
    started = time.monotonic()
    with progress_bar("indexing", log) as bar:

        def report(progress: IndexProgress) -> None:
            bar.update(progress.tars, progress.num_tars, samples=progress.samples, bytes=progress.num_bytes)

        manifest = index_tars(dataset, options, report, engine=open_engine(engine, address, jobs))
    if as_json:
        fields = [field.name for field in manifest.fields]
        echo_json({**totals(dataset, manifest), "fields": fields, "left_out": manifest.provenance["num_left_out"]})
        return
    elapsed_s = time.monotonic() - started
    rates = rates_text(manifest.num_samples + manifest.num_pads, manifest.num_bytes, elapsed_s)
    click.echo(
        f"{shown_url(dataset)}: {totals_text(manifest)}\n"
        f"fields: {', '.join(field.name for field in manifest.fields)}\n"
        f"lanes {manifest.lanes}, window {manifest.window}\n"
        f"took {elapsed_s:.1f} s ({rates})"
    )
