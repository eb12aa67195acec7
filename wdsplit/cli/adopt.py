"""`wdsplit index`: make a dataset of existing tars."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TextIO

import click

import wdsplit
from wdsplit.cli.conversion import option_of
from wdsplit.cli.help import INDEXING, HelpCommand
from wdsplit.cli.options import NAMES, engine_options, json_option, open_engine
from wdsplit.cli.progress import progress_bar
from wdsplit.cli.terminal import audit_line, echo, echo_json, rates_text, say_next, totals, totals_text
from wdsplit.conversion.plan.options import IndexOptions
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from wdsplit.conversion.sample_tables import IndexProgress

__all__ = ["index_command"]


@click.command(
    "index",
    cls=HelpCommand,
    groups=INDEXING,
    short_help="Make a dataset of existing WebDataset tars.",
    epilog="""Examples:

\b
  wdsplit index data/train --world-size 8 --workers 4
  wdsplit index data/train --overwrite --lanes 64
  wdsplit index data/train --sample-tables --keep caption""",
)
@click.argument("dataset")
@option_of(IndexOptions, "world_size")
@option_of(IndexOptions, "workers")
@option_of(IndexOptions, "lanes")
@option_of(IndexOptions, "window")
@engine_options
@option_of(IndexOptions, "overwrite")
@option_of(IndexOptions, "sample_tables")
@option_of(IndexOptions, "keep", **NAMES)
@option_of(IndexOptions, "no_keep", **NAMES)
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
    sample_tables: bool,
    keep: tuple[str, ...],
    no_keep: tuple[str, ...],
    as_json: bool,
) -> None:
    """Make a dataset of the WebDataset tars in the folder DATASET, without rewriting them.

    All *.tar files below DATASET become shards. Writes an index beside each (NAME.tar.idx) and a manifest, so that the
    loader can read them. The tars may have different numbers of samples. Duplicate keys are an error.

    With --sample-tables, also writes a table beside each tar (NAME.tar.parquet) with a row for each sample: its size,
    the width and height of its image, numbers and classes. Views can then select samples by these columns.
    """
    layout = (world_size, workers, lanes, window)
    options = IndexOptions(*layout, overwrite=overwrite, sample_tables=sample_tables, keep=keep, no_keep=no_keep)
    with progress_bar("indexing", log) as bar:

        def report(progress: IndexProgress) -> None:
            bar.update(
                progress.tars, progress.num_tars, unit="tars", samples=progress.samples, bytes=progress.num_bytes
            )

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
    echo(
        f"{shown_url(dataset)}: {totals_text(manifest)}\n"
        f"fields: {', '.join(field.name for field in manifest.fields)}\n"
        f"{tables}lanes {manifest.lanes}, window {manifest.window}\n"
        f"took {elapsed_s:.1f} s ({rates})"
    )
    say_next(audit_line(shown_url(dataset), vars(options)))
