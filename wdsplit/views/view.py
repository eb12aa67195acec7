"""The samples that a loader is restricted to: by a stored view, a condition, lists of keys, or several of these."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wdsplit.errors import InputError
from wdsplit.order.bundles import fewer_lanes
from wdsplit.order.selection import Selection
from wdsplit.order.views import View
from wdsplit.shards.manifest import Manifest, first_samples
from wdsplit.storage.interface import ReadableStorage
from wdsplit.texts import quoted
from wdsplit.urls import shown_url

__all__ = ["plain", "resolve_view"]

_MAX_SHARDS, _MAX_SAMPLES, _MAX_PACKED = 10_000, 50_000_000, 2_000_000
"""The largest dataset whose samples are selected, and packed or grouped, on opening: by each process that opens it."""


def resolve_view(
    storage: ReadableStorage,
    manifest: Manifest,
    *,
    view: str | None = None,
    limit: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **asked: Any,
) -> View | None:
    """Return the samples that meet all criteria; None if there are no criteria.

    Args:
        storage: The storage of the dataset.
        manifest: Its manifest, of all samples.
        view: The name of a stored view.
        limit: Select only from the first `limit` samples, so that the selection is of `first_samples(manifest, limit)`.
            Then `keys` without a sample among these only cause a warning too: later samples may have them.
        storage_options: Options for remote files of keys.
        **asked: The other arguments of `make_view` that choose samples, by their names.

    Raises:
        InputError: The view or a column does not exist, the condition is invalid, some of `keys` have no sample, or
            the dataset is too large for anything but stored views.
        CorruptDataError: The view or a table of columns is damaged.
    """
    is_new = any(each is not None for each in asked.values())
    if view is None and not is_new:
        return None
    from wdsplit.shards.views import read_view  # imported here, because most datasets are opened without a view

    limited = manifest if limit is None else first_samples(manifest, limit)
    totals = limited.shards.num_real
    base = None
    if view is not None:
        stored, units = read_view(storage, manifest, view, whole=is_new or limit is not None)
        base = View(view, units, stored.lanes, stored.recipe)
        if limited is not manifest:
            base = View(view, plain(base, storage.url, "limit").first(totals))
    if not is_new:
        return base
    from wdsplit.views.choosing import choose, read_choice, refuse_missing  # a stored view alone needs no conditions
    from wdsplit.views.columns import SampleColumns

    _refuse_too_large(storage, limited, {**asked, "view": view})
    columns = SampleColumns(storage, manifest)
    choice = read_choice(columns, asked, storage_options)
    chosen = choose(columns, totals, choice, None if base is None else plain(base, storage.url))
    refuse_missing(columns, choice, chosen, limit=None if limited is manifest else limit)
    name = choice.name if base is None else f"{base.name} and {choice.name}"
    lanes = fewer_lanes(chosen.selection, manifest.lanes, manifest.sample_bytes)
    return View(name, chosen.selection, lanes, chosen.figures)


def plain(view: View, url: str, what: str = "where, keys, exclude, repeat, expand, pack and group") -> Selection:
    """Return the samples of a view to choose from.

    Raises:
        InputError: They come several times, or in packs or groups.
    """
    if isinstance(view.selection, Selection):
        return view.selection
    raise InputError(
        f"view {view.name!r} repeats, packs or groups samples, so that nothing can be chosen from it",
        place=url,
        expected=f"for {what}, a view in which each sample comes once, alone",
        remedy="choose from all samples, or from the view that it was made of, and repeat, pack or group these",
    )


def _refuse_too_large(storage: ReadableStorage, manifest: Manifest, asked: Mapping[str, Any]) -> None:
    """Refuse to select samples on opening if the dataset is too large for that."""
    num_shards, num_samples = len(manifest.shards), manifest.num_samples
    is_formed = asked.get("pack") is not None or asked.get("group") is not None
    most = min(_MAX_SAMPLES, _MAX_PACKED) if is_formed else _MAX_SAMPLES
    if num_shards <= _MAX_SHARDS and num_samples <= most:
        return
    options = ", ".join(f"--{name.replace('_', '-')}" for name, value in asked.items() if value is not None)
    raise InputError(
        "the dataset is too large to select samples each time it is opened",
        place=storage.url,
        expected=f"up to {_MAX_SHARDS:,} shards and {most:,} samples, or a stored view",
        found=f"{num_shards:,} shards, {num_samples:,} samples",
        remedy=f"store the view once with `wdsplit view {quoted(shown_url(storage.url))} NAME` and the same {options}, "
        "and open the dataset with view='NAME'",
    )
