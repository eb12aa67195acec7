"""`wdsplit cache`: what is in a cache of shards, and how to be rid of it."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timezone

import click

from wdsplit.cli.options import json_option
from wdsplit.cli.terminal import echo_json, human_bytes
from wdsplit.loading.reading.cache import ShardCache
from wdsplit.loading.reading.cache_folder import CacheFolder

__all__ = ["cache_command"]


@click.command(
    "cache",
    short_help="Show what a cache of shards holds, and clear it.",
    epilog="""Examples:

\b
  wdsplit cache /local/cache
  wdsplit cache /local/cache --clear""",
)
@click.argument("folder", metavar="DIR")
@click.option("--clear", is_flag=True, help="Remove all shards that no process has open, and what was left unfinished.")
@json_option
def cache_command(folder: str, clear: bool, as_json: bool) -> None:
    """Show what is in the cache DIR, which is the cache_dir of some datasets on this machine; or clear it.

    Jobs may go on meanwhile. Only files of the cache are ever removed, and never what is in use.
    """
    cache = ShardCache(folder).folder
    if clear:
        _clear(cache, folder, as_json)
    else:
        _show(cache, folder, as_json)


def _show(cache: CacheFolder, folder: str, as_json: bool) -> None:
    usage = cache.usage()
    first, last = _moment(usage.first_used_ns), _moment(usage.last_used_ns)
    if as_json:
        echo_json(
            {
                "cache": folder,
                "shards": usage.num_shards,
                "bytes": usage.num_bytes,
                "in_use": usage.num_in_use,
                "downloads": usage.num_downloads,
                "leftovers": usage.num_leftovers,
                "first_used": first,
                "last_used": last,
            }
        )
        return
    click.echo(
        f"{folder}: {usage.num_shards:,} shards, {human_bytes(usage.num_bytes)}\n"
        f"in use {usage.num_in_use:,}, being downloaded {usage.num_downloads:,}, "
        f"left unfinished {usage.num_leftovers:,}"
    )
    if first is not None:
        click.echo(f"used last: between {first} and {last}")


def _clear(cache: CacheFolder, folder: str, as_json: bool) -> None:
    cleared = cache.clear()
    if as_json:
        echo_json({"cache": folder, **dataclasses.asdict(cleared)})
        return
    click.echo(
        f"{folder}: removed {cleared.num_removed:,} shards, {human_bytes(cleared.removed_bytes)}; "
        f"kept {cleared.num_kept:,} that are in use, {human_bytes(cleared.kept_bytes)}"
    )


def _moment(time_ns: int | None) -> str | None:
    """Return a time as text, in UTC."""
    if time_ns is None:
        return None
    return datetime.fromtimestamp(time_ns // 10**9, timezone.utc).isoformat().replace("+00:00", "Z")
