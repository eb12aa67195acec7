"""Lists the views or annotations that are stored in a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wdsplit.cli.terminal import STALE, echo, echo_json, table
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
    """List the stored objects of one kind; damaged and stale ones are marked.

    Args:
        dataset: The dataset.
        header: The columns of the list; the first is the name of the kind.
        scan: Returns the objects by their names; for a damaged one, its error.
        made_for: Returns the fingerprint of the dataset that an object was made for.
        row: Returns the cells of an object, without its name.
        values: Returns an object as JSON values.
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
        echo(f"{shown_url(dataset)}: no {header[0]}s")
    else:
        rows = []
        for name, each in found.items():
            if isinstance(each, WdsplitError):
                rows.append((name, *[""] * (len(header) - 2), f"damaged: {each.cause}"))
            else:
                *cells, last = row(each)
                rows.append((name, *cells, last if made_for(each) == fingerprint else last + STALE))
        echo(table(header, rows))
