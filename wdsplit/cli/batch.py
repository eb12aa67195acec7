"""`wdsplit batch`: which samples the ranks saw in a training step."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import wdsplit
from wdsplit.cli.help import command, option
from wdsplit.cli.options import dataset_argument, given, join_option, shuffle_options, view_options
from wdsplit.cli.terminal import Result, stderr, table, width
from wdsplit.errors import OutputExistsError
from wdsplit.texts import counted, listed, safe_text
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from wdsplit.checks.batch import Batch

__all__ = ["batch_command"]

_DEFAULT_LAST = 10
_MIN_KEY, _LONG = 12, 10_000


def _steps(text: str) -> range:
    """Parse a step, such as 1200, or the first and last of a range, such as 1195:1200; the type of an option."""
    first, separator, last = text.partition(":")
    if not (first.isdecimal() and (not separator or last.isdecimal())) or (separator and int(last) < int(first)):
        raise click.BadParameter(f"{text!r}: expected a number such as 1200, or a range such as 1195:1200")
    return range(int(first), int(last or first) + 1)


@command(
    "batch",
    [
        "data/train --step 1200 --world-size 8 --batch-size 32",
        "data/train --state checkpoint.json --last 10 -o seen/",
        "data/train --state last.pt --step 95:99",
    ],
    dataset_argument,
    option(
        "Samples",
        "--step N|FIRST:LAST",
        "Step, or first and last step, counted from 0 in each epoch.",
        name="steps",
        type=_steps,
    ),
    option("Samples", "--epoch", "Epoch.  [default: from --state, else 0]", low=0),
    option("Training", "--world-size", "Number of ranks.  [default: from --state, else 1]", low=1),
    option("Training", "--batch-size", "Samples per batch on each rank.  [default: from --state]", low=1),
    option("Training", "--rank", "List only this rank's samples.  [default: all ranks]", low=0),
    option(
        "Samples",
        "--state FILE",
        "Take seed, shuffle, tail, lanes, window and view from a loader's state, in a JSON file or a torch "
        "checkpoint. Steps are counted as by a loader that resumed from it.",
    ),
    option("Samples", "--last", "List the last N steps before --state.  [default: 10, without --step]", low=1),
    shuffle_options,
    option("Training", "--lanes", "Number of lanes, if the training overrode it.  [default: the dataset's]", low=1),
    option("Training", "--window", "Samples per window, if the training overrode it.  [default: the dataset's]", low=1),
    option("Samples", "--limit", "The limit= of the Dataset in training, if it had one.", low=1),
    join_option("Output"),
    view_options,
    option("Output", "-o, --output FOLDER", "Save the payloads as FOLDER/stepNNNNNN/KEY.FIELD."),
    option("Output", "--overwrite", "With -o: replace existing files.", is_flag=True),
    summary="List the samples that a training step has seen.",
)
def batch_command(
    dataset: str,
    steps: range | None,
    last: int | None,
    state: str | None,
    rank: int | None,
    output: str | None,
    overwrite: bool,
    **arguments: Any,
) -> Result:
    """List the samples that a training step has seen: keys, shards, positions, ranks, pads and classes.

    Steps have the numbers of Loader.step: from 0 in each epoch, including skipped steps (Loader.skip). If the run was
    resumed with another global batch size, pass the state that it resumed from, or a later one, as --state.

    Reads only headers and classes of the samples, unless -o is given.
    """
    if steps is not None and last is not None:
        raise click.UsageError("--step and --last cannot be combined")
    if steps is None and state is None:
        raise click.UsageError("expected --step, or --state for the steps before it")
    asked = {name: value for name, value in arguments.items() if given([name])}  # the others are those of the state
    asked |= {"steps": steps} if steps is not None else {"last": last or _DEFAULT_LAST}
    found = wdsplit.batches(dataset, state=state, **asked)
    if steps is None:
        _say_gaps(found, asked["last"])
    if rank is not None:
        found = [each.of_rank(rank) for each in found]
    files = _saved(found, output, overwrite) if output is not None else []
    heads = [_head(each, shown_url(dataset)) for each in found]
    texts = [f"{head}\n{_rows(each)}" for head, each in zip(heads, found, strict=True)]
    text = "\n".join([*heads, *files]) if files else "\n\n".join(texts)
    return Result(text, [_as_json(each, dataset) for each in found])


def _say_gaps(found: list[Batch], last: int) -> None:
    """Say if steps before the state are from the previous epoch, or if there are fewer than requested."""
    later = sum(each.epoch == found[-1].epoch for each in found) if found else 0
    if later < len(found):
        which = counted(len(found) - later, "step")
        stderr(
            f"{which} of epoch {found[0].epoch}, then {later} of epoch {found[-1].epoch}, in which the state was saved"
        )
    if len(found) < last:
        stderr(f"only {counted(len(found), 'whole step')} before the state")


def _saved(found: list[Batch], output: str, overwrite: bool) -> list[str]:
    """Save the payloads of each step in a folder of its own, and return the folders."""
    several = len({each.epoch for each in found}) > 1
    folders = [Path(output) / f"{f'epoch{each.epoch}-' if several else ''}step{each.step:06d}" for each in found]
    for folder in folders:
        if folder.exists() and not overwrite:
            remedy = "use another folder, or pass --overwrite"
            raise OutputExistsError("folder already exists", place=str(folder), remedy=remedy)
    for each, folder in zip(found, folders, strict=True):
        each.save(folder, overwrite)
    return list(map(str, folders))


def _as_json(found: Batch, dataset: str) -> dict[str, Any]:
    columns = {
        "key": found.keys.tolist(),
        "shard": found.shards.tolist(),
        "rank": found.ranks.tolist(),
        "position": found.positions.tolist(),
        "pad": found.pads.tolist(),
        "part": found.parts.tolist(),
        "class": [None] * len(found) if found.labels is None else found.labels.tolist(),
    }
    rows = zip(*columns.values(), strict=True)
    return {
        "dataset": shown_url(dataset),
        "epoch": found.epoch,
        "step": found.step,
        "steps": found.num_steps,
        "skipped": found.is_skipped,
        "samples": [dict(zip(columns, row, strict=True)) for row in rows],
    }


def _head(found: Batch, dataset: str) -> str:
    """Return a summary of a step, in a few lines."""
    lines = [f"{dataset}, epoch {found.epoch}, step {found.step:,} of {found.num_steps:,}: {found.summary}"]
    if found.is_skipped:
        lines.append("skipped: the loader skipped this step (Loader.skip)")
    classes = Counter(found.labels.tolist() if found.labels is not None else ()).most_common()
    if classes and len(classes) < len(found):
        lines.append("classes: " + listed(classes, show=lambda each: f"{safe_text(str(each[0]), 30)} {each[1]}"))
    return "\n".join(lines)


def _rows(found: Batch) -> str:
    """Return a line for each sample; in a terminal keys are shortened to fit."""
    columns: dict[str, list[Any]] = {"rank": found.ranks.tolist()} if found.ranks.any() else {}
    columns |= {"position": found.positions.tolist(), "shard": [safe_text(path, 60) for path in found.shards]}
    if found.pads.any():
        columns["pad"] = ["pad" if each else "" for each in found.pads]
    if found.parts.any():
        columns["part"] = found.parts.tolist()
    columns["class"] = [] if found.labels is None else [safe_text(str(each), 30) for each in found.labels]
    columns = {name: values for name, values in columns.items() if values}
    taken = sum(2 + max(len(name), *(len(str(value)) for value in values)) for name, values in columns.items())
    limit = max(_MIN_KEY, width() - taken) if sys.stdout.isatty() else _LONG
    columns["key"] = [safe_text(key, limit) for key in found.keys]
    return table(tuple(columns), list(zip(*columns.values(), strict=True))) if len(found) else "no samples"
