"""The views and annotations that are stored in a dataset: which are stale, `--list` and `--drop`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import wdsplit
from wdsplit.cli.help import Decorator, option, with_options
from wdsplit.cli.options import refuse_given
from wdsplit.cli.terminal import MAX_NAME, Result, columns_text, table
from wdsplit.texts import listed, quoted, safe_text
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from wdsplit.checks.inspect import Inspection
    from wdsplit.shards.annotations import Annotation
    from wdsplit.shards.views import StoredView

__all__ = ["drop_stored", "erased_lines", "joined_text", "list_stored", "stale", "stale_names", "stored_options"]


def stored_options(kind: str) -> Decorator:
    """Return a decorator that adds the options for stored objects of a kind, view or annotation: lists, drop."""
    section = f"Stored {kind}s"
    return with_options(
        option(section, "--list", f"List the {kind}s of DATASET.", name="lists", is_flag=True),
        option(section, "--drop NAME", f"Remove this {kind}, but no sample."),
    )


def stale(stored: StoredView | Annotation, found: Inspection) -> str:
    """Return the mark of a view or annotation that was made for other shards than the dataset has; else nothing."""
    # The fingerprint of a view is that of its selection.
    made_for = stored.dataset if hasattr(stored, "dataset") else stored.fingerprint
    if made_for == found.manifest.fingerprint:
        return ""
    versions = [each.number for each in found.manifest.history if each.fingerprint == made_for]
    return f"; made for version {versions[0]}" if versions else "; made for an earlier version of the dataset"


def stale_names(dataset: str) -> list[str]:
    """Return the views and annotations of a dataset that were made for other shards than it has."""
    found = wdsplit.inspect(dataset, 0)
    views = [f"view {each.name}" for each in found.views if stale(each, found)]
    return [*views, *(f"annotation {each.name}" for each in found.annotations if stale(each, found))]


def erased_lines(dataset: str, versions: Sequence[int]) -> list[str]:
    """Return a line that says which versions of a dataset still have samples that a later one erased; none if none."""
    if not versions:
        return []
    have = f"version {versions[0]} still has" if len(versions) == 1 else f"versions {listed(versions, 10)} still have"
    where = f"remove them with `wdsplit gc {quoted(shown_url(dataset))} --keep 1`; caches of nodes may have them too"
    return [f"{have} erased samples: {where}"]


def joined_text(annotation: Annotation) -> str:
    """Return names and types of an annotation's columns, then of its fields."""
    fields = ", ".join(f"{field.name} ({safe_text(field.type, MAX_NAME)})" for field in annotation.fields)
    return "; ".join(filter(None, [columns_text(annotation.schema), fields and f"fields {fields}"]))


def list_stored(
    dataset: str,
    kind: str,
    columns: Sequence[str],
    row: Callable[[Any], Sequence[str]],
    values: Callable[[Any], dict[str, Any]],
) -> Result:
    """List the stored objects of one kind, for `--list`; damaged and stale ones are marked.

    Args:
        dataset: The dataset.
        kind: view or annotation.
        columns: The columns of the list, besides the name.
        row: Returns the cells of an object, besides its name.
        values: Returns an object as JSON values.
    """
    refuse_given("--list", but={"dataset", "json", "lists"})
    found = wdsplit.inspect(dataset, 0)
    made = found.views if kind == "view" else found.annotations
    lines: dict[str, tuple[Sequence[str], dict[str, Any]]] = {}
    for each in made:
        *cells, last = row(each)
        mark = stale(each, found)
        lines[each.name] = (*cells, last + mark), {**values(each), "stale": bool(mark)}
    for name, cause in found.damaged.items():
        if name.startswith(kind):
            name = name.removeprefix(f"{kind} ")
            cells = [*[""] * (len(columns) - 1), f"damaged: {cause}"]
            lines[name] = cells, {"name": name, "damaged": cause}
    rows = sorted(lines.items())
    text = table((kind, *columns), [(name, *cells) for name, (cells, _) in rows])
    return Result(text if rows else f"{shown_url(dataset)}: no {kind}s", [value for _, (_, value) in rows])


def drop_stored(dataset: str, kind: str, name: str, remove: Callable[[str, str], object]) -> Result:
    """Remove a stored object of one kind, for `--drop`."""
    refuse_given("--drop", but={"dataset", "json", "drop"})
    remove(dataset, name)
    url = shown_url(dataset)
    return Result(f"{url}: removed {kind} {name!r}", {"dataset": url, "removed": name})
