"""`wdsplit log`: the versions of a dataset."""

from __future__ import annotations

import dataclasses

import wdsplit
from wdsplit.cli.help import command
from wdsplit.cli.options import dataset_argument, json_option
from wdsplit.cli.stored import erased_lines
from wdsplit.cli.terminal import Result, table
from wdsplit.texts import human_bytes, safe_text

__all__ = ["log_command"]

_MAX_INPUTS = 60


@command("log", ["data/train"], dataset_argument, json_option, summary="List the versions of DATASET.")
def log_command(dataset: str) -> Result:
    """List the versions of DATASET: samples and shards, what each version added, and when.

    `wdsplit convert --append` and `wdsplit erase` make a version. wdsplit.Dataset(DATASET, version=N) and the option
    --version of other commands open an older one, until `wdsplit gc` removes it.
    """
    from wdsplit.shards.versions import before_erasing

    versions, rows, before = wdsplit.list_versions(dataset), [], 0
    for each in versions:
        counts = f"{each.num_samples:,}", f"{each.num_samples - before:+,}", f"{each.num_shards:,}"
        what = safe_text(each.inputs, _MAX_INPUTS)
        rows.append((each.number, *counts, human_bytes(each.num_bytes), each.created, what, each.folder))
        before = each.num_samples
    text = table(("version", "samples", "added", "shards", "size", "when (UTC)", "inputs", "folder"), rows)
    text = "\n".join([text, *erased_lines(dataset, before_erasing(versions))])
    return Result(text, list(map(dataclasses.asdict, versions)))
