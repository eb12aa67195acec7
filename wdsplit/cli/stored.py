"""Lists the views or annotations that are stored in a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import wdsplit
from wdsplit.cli.terminal import echo, echo_json, stale, table
from wdsplit.urls import shown_url

__all__ = ["list_stored"]


def list_stored(
    dataset: str,
    kind: str,
    columns: Sequence[str],
    row: Callable[[Any], Sequence[str]],
    values: Callable[[Any], dict[str, Any]],
    as_json: bool,
) -> None:
    """List the stored objects of one kind; damaged and stale ones are marked.

    Args:
        dataset: The dataset.
        kind: view or annotation.
        columns: The columns of the list, besides the name.
        row: Returns the cells of an object, besides its name.
        values: Returns an object as JSON values.
        as_json: Print JSON instead.
    """
    found = wdsplit.inspect(dataset, 0)
    made = {each.name: each for each in (found.views if kind == "view" else found.annotations)}
    damaged = {name.removeprefix(f"{kind} "): cause for name, cause in found.damaged.items() if name.startswith(kind)}
    names = sorted([*made, *damaged])
    if as_json:
        echo_json(
            [
                {"name": name, "damaged": damaged[name]}
                if name in damaged
                else values(made[name]) | {"stale": bool(stale(made[name], found))}
                for name in names
            ]
        )
    elif not names:
        echo(f"{shown_url(dataset)}: no {kind}s")
    else:
        rows = []
        for name in names:
            if name in damaged:
                rows.append((name, *[""] * (len(columns) - 1), f"damaged: {damaged[name]}"))
            else:
                *cells, last = row(made[name])
                rows.append((name, *cells, last + stale(made[name], found)))
        echo(table((kind, *columns), rows))
