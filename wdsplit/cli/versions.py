"""`wdsplit log`, `erase` and `gc`: the versions of a dataset; samples and old versions are removed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import wdsplit
from wdsplit.cli.help import command, option
from wdsplit.cli.options import Running, dataset_argument, engine_options
from wdsplit.cli.progress import progress_bar
from wdsplit.cli.stored import erased_lines, stale_names
from wdsplit.cli.terminal import Result, table, totals_text
from wdsplit.texts import counted, human_bytes, listed, safe_text
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from wdsplit.erasing.erase import EraseProgress

__all__ = ["erase_command", "gc_command", "log_command"]

_MAX_INPUTS, _TO_MINUTES = 60, len("2026-11-20T12:00")
_DOING = {"choose": "1/2 finding samples", "write": "2/2 writing shards again"}


@command("log", ["data/train"], dataset_argument, summary="List the versions of DATASET.")
def log_command(dataset: str) -> Result:
    """List the versions of DATASET: samples and shards, what each version added, and when.

    `wdsplit convert --append` and `wdsplit erase` make a version. wdsplit.Dataset(DATASET, version=N) and the option
    --version of other commands open an older one, until `wdsplit gc` removes it.
    """
    from wdsplit.shards.versions import before_erasing

    versions, rows, before = wdsplit.list_versions(dataset), [], 0
    first = versions[0].number
    for each in versions:
        added = "" if each.number == first > 1 else f"{each.num_samples - before:+,}"
        counts = f"{each.num_samples:,}", added, f"{each.num_shards:,}"
        what = safe_text(each.inputs, _MAX_INPUTS)
        when = each.created[:_TO_MINUTES].replace("T", " ")
        rows.append((each.number, *counts, human_bytes(each.num_bytes), when, what))
        before = each.num_samples
    text = table(("version", "samples", "added", "shards", "size", "when (UTC)", "inputs"), rows)
    removed = [f"versions before {first} were removed by `wdsplit gc`"] if first > 1 else []
    text = "\n".join([text, *removed, *erased_lines(dataset, before_erasing(versions))])
    return Result(text, list(map(dataclasses.asdict, versions)))


@command(
    "erase",
    ["data/train --keys people.txt", "data/train --where \"license == 'revoked'\""],
    dataset_argument,
    option(
        "Samples",
        "--keys FILE",
        "Erase the samples with the keys in this file: text with one key per line, .jsonl with `key` in each "
        "line, or .csv, .tsv or .parquet with a column `key` or `__key__`.",
    ),
    option(
        "Samples",
        "--where CONDITION",
        "Erase the samples that meet this condition; with --keys, those of the file that meet it.",
    ),
    option("Samples", "--allow-missing", "Warn about --keys without a sample, instead of failing.", is_flag=True),
    engine_options,
    summary="Erase samples of DATASET, as a new version.",
)
def erase_command(dataset: str, running: Running, **chosen: Any) -> Result:
    """Erase samples of DATASET, as a new version.

    Only the shards that have one of the samples are read and written again, with their tables and side shards. The
    versions before still have the samples: `wdsplit gc` removes these. After an interrupt, run the same command again.

    Conditions have the syntax of `wdsplit view --where`.
    """
    kept = "finished work is kept; continue with the same command"
    with progress_bar("finding samples", kept) as bar:

        def show(progress: EraseProgress) -> None:
            amounts = {"bytes": progress.num_bytes} if progress.name == "write" else {}
            bar.update(progress.done, progress.total, _DOING[progress.name], "shards", **amounts)

        before = wdsplit.list_versions(dataset)[-1]
        made = wdsplit.erase(dataset, **chosen, engine=running.open(), progress=show)
    url = shown_url(dataset)
    lines = [f"{url}: {totals_text(made)}"]
    if made.version > before.number:
        gone = counted(before.num_samples - made.num_samples, "sample")
        lines.append(f"version {made.version}: {gone} fewer than version {before.number}")
    found = wdsplit.inspect(dataset, 0)
    if names := stale_names(found):
        lines.append(f"made for other versions: {', '.join(names)}; update them or make them again, or drop them")
    lines += erased_lines(dataset, found.with_erased)
    lines.append(bar.took)
    value = {"dataset": url, "version": made.version, "samples": made.num_samples, "shards": len(made.shards)}
    return Result("\n".join(lines), {**value, "with_erased": found.with_erased})


@command(
    "gc",
    ["data/train --keep 1", "s3://bucket/train --keep 3"],
    dataset_argument,
    option("Versions", "--keep", "Number of versions to keep, the newest.", low=1, default=1),
    summary="Remove old versions of DATASET, and unfinished files.",
)
def gc_command(dataset: str, keep: int) -> Result:
    """Remove old versions of DATASET: the files that no later version needs, and what stopped writers have left.

    Files that wdsplit does not know stay. Do not run it while a training reads an old version, or another machine
    writes to DATASET. After an interrupt, run the same command again.
    """
    done = wdsplit.gc(dataset, keep=keep)
    url, kept = shown_url(dataset), f"{'versions' if len(done.kept) > 1 else 'version'} {listed(done.kept, 10)}"
    removed = f"removed {counted(len(done.removed), 'version')} and {counted(done.num_files, 'file')}"
    with_erased = wdsplit.inspect(dataset, 0).with_erased
    lines = [f"{url}: {removed}; {kept} kept", *erased_lines(dataset, with_erased)]
    return Result("\n".join(lines), {"dataset": url, **dataclasses.asdict(done), "with_erased": with_erased})
