"""`wdsplit cache`: show, verify or clear a cache of shards."""

from __future__ import annotations

import dataclasses
import sys
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import click

from wdsplit.cli.help import argument, command, option
from wdsplit.cli.progress import progress_bar
from wdsplit.cli.terminal import FAILED, bad, echo, echo_json, good, human_bytes, stderr
from wdsplit.texts import counted

if TYPE_CHECKING:
    from wdsplit.loading.reading.cache import ShardCache

__all__ = ["cache_command"]


@command(
    "cache",
    ["/local/cache", "/local/cache --verify", "/local/cache --clear"],
    argument("folder", metavar="DIR"),
    option(
        "Options", "--clear", is_flag=True, help="Remove all shards that no process has open, and unfinished downloads."
    ),
    option(
        "Options",
        "--verify",
        is_flag=True,
        help="Check all shards against the checksums of their datasets, and remove damaged ones. Exits with 1 if any "
        "were damaged.",
    ),
    option("Options", "--json", "as_json", is_flag=True, help="Print the result as JSON."),
    summary="Show, verify or clear a cache of shards.",
)
def cache_command(folder: str, clear: bool, verify: bool, as_json: bool) -> None:
    """Show, verify or clear the cache of shards in DIR, the cache_dir= of datasets on this machine.

    Safe while jobs are running: they keep the shards that they have open, and download others again. Removes only
    files of the cache.
    """
    from wdsplit.loading.reading.cache import ShardCache

    if clear and verify:
        raise click.UsageError("--clear and --verify cannot be combined")
    cache = ShardCache(folder)
    if verify:
        _verify(cache, folder, as_json)
        return
    values: dict[str, Any]
    if clear:
        cleared = cache.folder.clear()
        values = dataclasses.asdict(cleared)
        text = (
            f"removed {cleared.num_removed:,} shards, {human_bytes(cleared.removed_bytes)}; "
            f"kept {cleared.num_kept:,} that are in use, {human_bytes(cleared.kept_bytes)}"
        )
    else:
        usage = cache.folder.usage()
        first, last = _moment(usage.first_used_ns), _moment(usage.last_used_ns)
        values = {
            "shards": usage.num_shards,
            "bytes": usage.num_bytes,
            "in_use": usage.num_in_use,
            "downloads": usage.num_downloads,
            "leftovers": usage.num_leftovers,
            "first_used": first,
            "last_used": last,
        }
        text = (
            f"{counted(usage.num_shards, 'shard')}, {human_bytes(usage.num_bytes)}\nin use {usage.num_in_use:,}, "
            f"downloading {usage.num_downloads:,}, unfinished downloads {usage.num_leftovers:,}"
        )
        text += f"\nlast used: between {first} and {last}" if first is not None else ""
    echo_json({"cache": folder, **values}) if as_json else echo(f"{folder}: {text}")


def _verify(cache: ShardCache, folder: str, as_json: bool) -> None:
    num_checked = num_bytes = 0
    with progress_bar("verifying") as bar:

        def report(checked: int, num_shards: int, checked_bytes: int) -> None:
            nonlocal num_checked, num_bytes
            num_checked, num_bytes = checked, checked_bytes
            bar.update(checked, num_shards, unit="shards", bytes=checked_bytes)

        damages = cache.verify(report)
    if as_json:
        damaged = [dataclasses.asdict(damage) for damage in damages]
        echo_json({"cache": folder, "checked": num_checked, "bytes": num_bytes, "damaged": damaged})
    else:
        for damage in damages:
            stderr(f"{bad('damaged:')} {damage.path}: {damage.cause}")
        verdict = good("ok")
        if damages:
            verdict = bad(f"removed {len(damages):,} damaged shards: they will be downloaded again")
        echo(f"{folder}: {num_checked:,} shards, {human_bytes(num_bytes)}: {verdict}")
    if damages:
        sys.exit(FAILED)


def _moment(time_ns: int | None) -> str | None:
    """Return a time in UTC as text."""
    if time_ns is None:
        return None
    return datetime.fromtimestamp(time_ns // 10**9, timezone.utc).isoformat().replace("+00:00", "Z")
