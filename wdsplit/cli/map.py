"""`wdsplit map`: call a Python function with the samples of a dataset, and store what it returns."""

from __future__ import annotations

from typing import Any

import wdsplit
from wdsplit.annotating.options import MapOptions
from wdsplit.cli.annotate import as_json, described, following, shown_progress
from wdsplit.cli.help import argument, command, option
from wdsplit.cli.options import NAMES, Running, dataset_argument, engine_options, json_option, options_of
from wdsplit.cli.terminal import Result
from wdsplit.texts import counted
from wdsplit.urls import shown_url

__all__ = ["map_command"]

_SHOWN = 10


@command(
    "map",
    [
        "data/train embed:embed --name embedding --fields jpg --decode rgb8 --batch-size 64",
        "data/train captions:score --name quality --fields txt --jobs 8",
        "data/train captions:score --name quality --fields txt --update",
        "s3://bucket/train latents:encode --name latents --engine ray --on-error skip",
    ],
    dataset_argument,
    argument("function", metavar="MODULE:FUNCTION"),
    options_of(
        MapOptions,
        "Input",
        "fields join decode batch_size",
        fields=NAMES,
        join=NAMES,
        decode=NAMES,
    ),
    options_of(MapOptions, "Running", "on_error"),
    engine_options,
    option("Output", "--name", metavar="NAME", required=True, help="Name of the annotation."),
    options_of(MapOptions, "Output", "overwrite resume update"),
    json_option,
    summary="Store what a function returns for the samples of DATASET.",
)
def map_command(dataset: str, function: str, name: str, running: Running, **arguments: Any) -> Result:
    """Call a Python function with each sample of DATASET, shard by shard, and store what it returns.

    FUNCTION gets a sample, a dict of its fields, and returns a dict, or None. Numbers, dates and texts become columns,
    which conditions of `wdsplit view` can use. Bytes, arrays, lists, images and texts become fields, which
    `wdsplit.Dataset(DATASET, join=["NAME"])` reads. MODULE is imported from this folder, or is installed. No shard is
    changed. After an interrupt, continue with --resume. Annotations are listed and removed by `wdsplit annotate`.
    """
    url = shown_url(dataset)
    engine = running.open()
    with shown_progress(running.log) as (show, took):
        made = wdsplit.map_samples(dataset, function, name, MapOptions(**arguments), show, engine=engine)
    lines, failed, num_failed = described(url, made), made.provenance["failed"], made.provenance["num_failed"]
    if made.num_missing > num_failed:
        lines.append(f"missing: {counted(made.num_missing - num_failed, 'sample')} for which it returned None, null")
    if num_failed:
        lines.append(f"skipped: {counted(num_failed, 'sample')} that failed (--on-error skip); --json lists them")
        lines += [f"  {one['key']} ({one['shard']}, row {one['row']}): {one['error']}" for one in failed[:_SHOWN]]
    values = {"dataset": url, **as_json(made), "num_failed": num_failed, "failed": failed}
    return Result("\n".join([*lines, took()]), values, following(url, made))
