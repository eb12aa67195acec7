"""The views and annotations that are stored in a dataset: which are stale, and `--drop`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from wdsplit.cli.help import Decorator, option
from wdsplit.cli.options import refuse_given
from wdsplit.cli.terminal import MAX_NAME, Result, columns_text
from wdsplit.texts import listed, quoted, safe_text
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from wdsplit.checks.inspect import Inspection
    from wdsplit.shards.annotations import Annotation
    from wdsplit.shards.views import StoredView

__all__ = ["drop_option", "drop_stored", "erased_lines", "joined_text", "stale", "stale_names"]


def drop_option(kind: str) -> Decorator:
    """Return a decorator that adds `--drop` for stored objects of a kind, view or annotation."""
    text = f"Remove this {kind}, but no sample. `wdsplit inspect` lists the {kind}s."
    return option(f"Stored {kind}s", "--drop NAME", text)


def stale(stored: StoredView | Annotation, found: Inspection) -> str:
    """Return the mark of a view or annotation that was made for other shards than the dataset has; else nothing."""
    # The fingerprint of a view is that of its selection.
    made_for = stored.dataset if hasattr(stored, "dataset") else stored.fingerprint
    if made_for == found.manifest.fingerprint:
        return ""
    versions = [each.number for each in found.manifest.history if each.fingerprint == made_for]
    return f"; made for version {versions[0]}" if versions else "; made for an earlier version of the dataset"


def stale_names(found: Inspection) -> list[str]:
    """Return the views and annotations of a dataset that were made for other shards than it has."""
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


def drop_stored(dataset: str, kind: str, name: str, remove: Callable[[str, str], object]) -> Result:
    """Remove a stored object of one kind, for `--drop`."""
    refuse_given("--drop", but={"dataset", "json", "drop"})
    remove(dataset, name)
    url = shown_url(dataset)
    return Result(f"{url}: removed {kind} {name!r}", {"dataset": url, "removed": name})
