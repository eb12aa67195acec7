"""`wdsplit cache`: show, verify or clear a cache of shards."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from wdsplit.cli.help import argument, command, option
from wdsplit.cli.options import json_option
from wdsplit.cli.progress import progress_bar
from wdsplit.cli.terminal import FAILED, Result, bad, good
from wdsplit.texts import counted, human_bytes

if TYPE_CHECKING:
    from wdsplit.loading.reading.cache import ShardCache

__all__ = ["cache_command"]


@command(
    "cache",
    ["/local/cache", "/local/cache --verify", "/local/cache --clear"],
    argument("folder", metavar="DIR"),
    option("Output", "--clear", "Remove all shards that no process has open, and unfinished downloads.", is_flag=True),
    option(
        "Output",
        "--verify",
        "Check all shards against the checksums of their datasets, and remove damaged ones. Exits with 1 if any "
        "were damaged.",
        is_flag=True,
    ),
    json_option,
    summary="Show, verify or clear a cache of shards.",
)
def cache_command(folder: str, clear: bool, verify: bool) -> Result:
    """Show, verify or clear the cache of shards in DIR, the cache_dir= of datasets on this machine.

    Safe while jobs are running: they keep the shards that they have open, and download others again. Removes only
    files of the cache.
    """
    from wdsplit.loading.reading.cache import ShardCache

    if clear and verify:
        raise click.UsageError("--clear and --verify cannot be combined")
    cache = ShardCache(folder)
    if verify:
        return _verify(cache, folder)
    if clear:
        removed, kept = cache.clear()
        values: dict[str, Any] = {
            "num_removed": len(removed),
            "removed_bytes": sum(entry.num_bytes for entry in removed),
            "num_kept": len(kept),
            "kept_bytes": sum(entry.num_bytes for entry in kept),
        }
        text = (
            f"removed {len(removed):,} shards, {human_bytes(values['removed_bytes'])}; "
            f"kept {len(kept):,} that are in use, {human_bytes(values['kept_bytes'])}"
        )
        return Result(f"{folder}: {text}", {"cache": folder, **values})
    entries = cache.entries()
    whole = [entry for entry in entries if entry.is_whole]
    num_in_use, num_downloads = (
        sum(entry.is_in_use for entry in entries if entry.is_whole == is_whole) for is_whole in (True, False)
    )
    times = [datetime.fromtimestamp(entry.used_ns // 10**9, timezone.utc) for entry in whole]
    first, last = ((f"{time:%Y-%m-%dT%H:%M:%SZ}") for time in (min(times), max(times))) if times else (None, None)
    values = {
        "shards": len(whole),
        "bytes": sum(entry.num_bytes for entry in entries),
        "in_use": num_in_use,
        "downloads": num_downloads,
        "leftovers": len(entries) - len(whole) - num_downloads,
        "first_used": first,
        "last_used": last,
    }
    text = (
        f"{counted(len(whole), 'shard')}, {human_bytes(values['bytes'])}\nin use {num_in_use:,}, "
        f"downloading {num_downloads:,}, unfinished downloads {values['leftovers']:,}"
    )
    text += f"\nlast used: between {first} and {last}" if times else ""
    return Result(f"{folder}: {text}", {"cache": folder, **values})


def _verify(cache: ShardCache, folder: str) -> Result:
    damaged, num_checked, num_bytes = [], 0, 0
    with progress_bar("verifying") as bar:
        num_shards = sum(entry.is_whole for entry in cache.entries())
        for entry, damage in cache.verify():
            num_checked, num_bytes = num_checked + 1, num_bytes + entry.num_bytes
            bar.update(num_checked, num_shards, unit="shards", bytes=num_bytes)
            if damage:
                damaged.append({"path": entry.path, "cause": damage})
    verdict = good("ok")
    if damaged:
        verdict = bad(f"removed {len(damaged):,} damaged shards: they will be downloaded again")
    return Result(
        f"{folder}: {num_checked:,} shards, {human_bytes(num_bytes)}: {verdict}",
        {"cache": folder, "checked": num_checked, "bytes": num_bytes, "damaged": damaged},
        problems=[f"{bad('damaged:')} {each['path']}: {each['cause']}" for each in damaged],
        code=FAILED if damaged else 0,
    )
