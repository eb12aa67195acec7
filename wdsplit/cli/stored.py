"""Lists of what is stored beside the shards of a dataset, views and annotations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from wdsplit.cli.terminal import STALE, echo_json, table
from wdsplit.errors import WdsplitError
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from wdsplit.storage.interface import ReadableStorage

__all__ = ["list_stored"]


def list_stored(
    dataset: str,
    header: Sequence[str],
    scan: Callable[[ReadableStorage], Mapping[str, Any]],
    made_for: Callable[[Any], str],
    row: Callable[[Any], Sequence[str]],
    values: Callable[[Any], dict[str, Any]],
    as_json: bool,
) -> None:
    """List what a dataset has; what is damaged or cannot be used any more is marked.

    Args:
        dataset: The dataset.
        header: The columns of the list; the first is what one of the listed things is called.
        scan: Finds them by their names, or the error of one that is damaged.
        made_for: Returns the fingerprint of the dataset that one was made for.
        row: Returns the columns of one, but for its name.
        values: Returns what JSON has of one.
        as_json: Print JSON instead.
    """
    from wdsplit.shards.files import read_manifest
    from wdsplit.storage.opening import open_readable_storage

    storage = open_readable_storage(dataset)
    fingerprint, found = read_manifest(storage).fingerprint, scan(storage)
    if as_json:
        echo_json(
            [
                {"name": name, "damaged": each.cause}
                if isinstance(each, WdsplitError)
                else values(each) | {"stale": made_for(each) != fingerprint}
                for name, each in found.items()
            ]
        )
    elif not found:
        click.echo(f"{shown_url(dataset)}: no {header[0]}s")
    else:
        rows = []
        for name, each in found.items():
            if isinstance(each, WdsplitError):
                rows.append((name, *[""] * (len(header) - 2), f"damaged: {each.cause}"))
            else:
                *cells, last = row(each)
                rows.append((name, *cells, last if made_for(each) == fingerprint else last + STALE))
        click.echo(table(header, rows))
