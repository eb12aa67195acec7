"""`wdsplit croissant`: metadata of a dataset for catalogues and other libraries."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

import wdsplit
from wdsplit.cli.help import command, option
from wdsplit.cli.options import dataset_argument
from wdsplit.cli.terminal import Result

__all__ = ["croissant_command"]


@command(
    "croissant",
    ["data/train --license https://spdx.org/licenses/CC-BY-4.0", "s3://bucket/train -o croissant.json"],
    dataset_argument,
    option("Description", "--name", "Name of the dataset.  [default: that of its folder]"),
    option("Description", "--description TEXT", "What the dataset contains.  [default: its counts and fields]"),
    option("Description", "--license URL", "Its license."),
    option("Description", "--creator NAME", "The organization that made it."),
    option("Description", "--published DATE", "Date of its publication, such as 2026-11-26."),
    option("Description", "--url", "Its web page."),
    option("Description", "--source URL", "The data that it was made from."),
    option("Output", "-o, --output", "File to write, instead of printing.", type=click.Path(dir_okay=False)),
    summary="Describe DATASET for catalogues, in the Croissant format.",
)
def croissant_command(dataset: str, output: str | None, **described: Any) -> Result | None:
    """Describe DATASET in the Croissant format (JSON-LD): files, fields, columns, classes, and what the options say.

    Paths are relative to the dataset's folder, so publish the file as croissant.json in that folder. Samples are not
    read.
    """
    metadata = wdsplit.croissant(dataset, **described)
    if output is None:
        Result("", metadata).show(as_json=True)
        return None
    from wdsplit.storage.local import write_whole

    text = json.dumps(metadata, indent=2, ensure_ascii=False)
    write_whole(Path(output), f"{text}\n".encode())
    return Result(output)
