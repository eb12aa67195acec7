"""`wdsplit index`: make a dataset of existing tars."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import wdsplit
from wdsplit.cli.help import command
from wdsplit.cli.options import Running, dataset_argument, engine_options, json_option, options_of
from wdsplit.cli.progress import progress_bar
from wdsplit.cli.terminal import Result, rates_text, totals_text
from wdsplit.conversion.plan.options import IndexOptions
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from wdsplit.conversion.adopt_tars import IndexProgress

__all__ = ["index_command"]


@command(
    "index",
    [
        "data/train --world-size 8 --workers 4",
        "data/train --overwrite --lanes 64",
    ],
    dataset_argument,
    options_of(IndexOptions, "Loading", "world_size workers lanes window"),
    engine_options,
    options_of(IndexOptions, "Output", "overwrite"),
    json_option,
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
