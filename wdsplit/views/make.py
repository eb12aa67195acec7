"""Making, listing and removing the stored views of a dataset."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import InputError, OutputExistsError
from wdsplit.notebook import html_table
from wdsplit.order.views import View
from wdsplit.shards.files import read_manifest
from wdsplit.shards.views import UNIT_OPTIONS, VIEWS, StoredView, described_units, lock_view, read_view, write_view
from wdsplit.storage.given import located_one
from wdsplit.storage.opening import open_readable_storage, open_storage
from wdsplit.views.choosing import Choice, Chosen, choose, read_choice, refuse_missing
from wdsplit.views.columns import SampleColumns
from wdsplit.views.view import plain

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["MadeView", "drop_view", "list_views", "make_view"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class MadeView:
    """The result of `make_view`.

    Attributes:
        stored: The stored view: its name, fingerprint, and numbers of samples.
        num_shards: Number of shards of the dataset.
        num_empty_shards: Number of shards without a sample in the view.
        units: What packs or groups it has, and how well they are filled, in lines; empty if it has none.
    """

    stored: StoredView
    num_shards: int
    num_empty_shards: int
    units: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<MadeView {self.stored.summary}>"

    def _repr_html_(self) -> str:
        facts = [
            ("samples", f"{self.stored.num_selected:,} of {self.stored.num_samples:,}"),
            ("shards with none", f"{self.num_empty_shards:,} of {self.num_shards:,}"),
            *([(f"{self.stored.noun}s", "\n".join(self.units))] if self.units else []),
        ]
        return html_table(f"View {self.stored.name}", facts)


def make_view(
    url: str | os.PathLike[str],
    name: str,
    *,
    where: str | None = None,
    keys: Any = None,
    exclude: Any = None,
    repeat: str | None = None,
    expand: str | None = None,
    pack: str | None = None,
    capacity: int | None = None,
    group: str | None = None,
    size: int | None = None,
    budget: int | None = None,
    long: str | None = None,
    allow_pads: bool = False,
    view: str | None = None,
    allow_missing: bool = False,
    overwrite: bool = False,
    update: bool = False,
    jobs: int = 1,
    progress: Callable[[int, int, int], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    fs: AbstractFileSystem | None = None,
) -> MadeView:
    """Select samples of a dataset, and store the selection as a view: `Dataset(url, view=name)` reads only these.

    Conditions and lists can be combined: a sample must meet all of them. The shards are neither read nor changed.

        wdsplit.make_view("data/train", "wide", where="width >= 256")
        dataset = wdsplit.Dataset("data/train", view="wide")

    Args:
        url: The dataset's folder.
        name: Name of the view: up to 100 letters, digits, `_`, `-` and `.`.
        where: A condition on the columns of samples, such as `"score > 0.5 and width >= 256"`. Classes can be compared
            by name.
        keys: Keep only these keys: a list, an array, or the path of a file: text with one key per line, `.jsonl` with
            `key` in each line, or `.csv`, `.tsv` or `.parquet` with a column `key` or `__key__`.
        exclude: Leave out these keys, given in the same ways. Keys without a sample only cause a warning.
        repeat: A column of integers: how often each sample comes in an epoch, 0 to leave it out. The copies lie far
            apart; `__repeat__` numbers them from 0.
        expand: A column of integers: how many parts each sample has, such as clips of a video. A sample comes that
            often, one part after another before the shuffle; `__part__` numbers them from 0, for a stage that makes
            the part. The sample is read once.
        pack: A column of integers: how long each sample is, such as its number of tokens. Samples are packed together,
            so that a position of the epoch is a pack of several samples: see `wdsplit.Loader`.
        capacity: How long the samples of a pack are together at most.
        group: A column whose values are those of groups, such as the aspect ratios of images: a position of the epoch
            is then `size` samples of one value, which change from epoch to epoch, and a whole batch: see
            `wdsplit.Loader`. Or, with `budget`, a column of lengths: samples of similar length.
        size: How many samples a group has; with `budget` at most.
        budget: How long the samples of a group are together at most, each counted as long as the longest.
        long: What to do with samples longer than a pack, or than the budget: `error` (the default), `drop` or, of
            packs, `truncate`.
        allow_pads: Allow groups of which more than a twentieth are samples repeated to fill them.
        view: Select only from the samples of this view.
        allow_missing: Warn about `keys` without a sample, instead of raising an error.
        overwrite: Replace the view of this name.
        update: Make the view of this name again, by its own conditions, for the latest version of the dataset. It stays
            as it was for the version that it was made for.
        jobs: Number of processes.
        progress: Called at the start and after some shards, with the number of finished shards, of all shards, and of
            samples checked.
        storage_options: Options for a remote store, as for `Dataset`.
        engine: Engine that runs the tasks; None for `jobs` processes of this machine.
        fs: fsspec file system of the folder; None to choose it by the path.

    Raises:
        OutputExistsError: A view of this name exists.
        InputError: There are no criteria, the condition or a list is invalid, or some of `keys` have no sample.
        StorageError: The folder is not writable.
    """
    VIEWS.checked(name)
    asked = {"where": where, "keys": keys, "exclude": exclude, "repeat": repeat, "expand": expand}
    asked |= {"pack": pack, "capacity": capacity, "long": long, "group": group, "size": size, "budget": budget}
    located, storage_options = located_one(url, storage_options, fs)
    storage = open_storage(located, storage_options)
    if update:
        given = [option for option, value in {**asked, "view": view}.items() if value is not None]
        asked, view = _recipe_of(VIEWS.newest(storage, name, read_manifest(storage)), given, storage.url)
    elif view is None and all(each is None for each in asked.values()):
        raise InputError(
            "no condition for the view",
            expected="where, keys, exclude, repeat, expand, pack, group or view",
            remedy="give a condition (--where), or a list of keys (--keys, --exclude)",
        )
    asked["allow_pads"] = allow_pads or asked.get("allow_pads")  # as the view that is updated was made
    manifest = read_manifest(storage)
    with lock_view(storage, name):
        if not (overwrite or update) and VIEWS.paths(storage, name):
            raise OutputExistsError(
                f"the dataset has a view {name!r} already",
                place=storage.url,
                remedy="use --overwrite (overwrite=True) to replace it, or choose another name",
                url=storage.url,
            )
        columns = SampleColumns(storage, manifest)
        choice = read_choice(columns, asked, storage_options)
        base = None if view is None else read_view(storage, manifest, view, whole=True)
        selection = None if base is None else plain(View(base[0].name, base[1]), storage.url)
        engine = engine or LocalEngine(jobs)
        chosen = choose(columns, manifest.shards.num_real, choice, selection, engine, progress)
        refuse_missing(columns, choice, chosen, allow_missing)
        recipe = _recipe(choice, chosen, None if base is None else base[0])
        stored = write_view(storage, manifest, name, chosen.selection, recipe)
    if stored.form and manifest.conversion_options.get("shuffle") is False:
        logger.warning(
            "%s: the rows were not shuffled when they were converted, so the samples of a pack or group are neighbours "
            "of the table",
            storage.url,
        )
    if not stored.num_selected:
        logger.warning("%s: view %r has no samples", storage.url, name)
    return MadeView(
        stored,
        len(manifest.shards),
        int(np.count_nonzero(chosen.selection.counts == 0)),
        tuple(described_units(chosen.selection, chosen.figures)),
    )


def _recipe_of(stored: StoredView, given: list[str], url: str) -> tuple[dict[str, Any], str | None]:
    """Return the options that make a stored view again, and the view that it selects from.

    Raises:
        InputError: Options were given, too, or the view was made of lists of keys, which are not stored.
    """
    recipe = stored.recipe
    lists = [name for name in ("keys", "exclude") if name in recipe]
    if given or lists:
        raise InputError(
            f"view {stored.name!r} cannot be updated" + (f" with {', '.join(given)}" if given else ""),
            place=url,
            expected="a view made by conditions, and no other options",
            found="lists of keys, which the view does not store" if lists else "options that would change it",
            remedy=f"make it again with `wdsplit view DATASET {stored.name} {stored.made_of} --overwrite`",
        )
    asked = {name: recipe.get(name) for name in ("where", "keys", "exclude", "repeat", "expand", *UNIT_OPTIONS)}
    return asked, recipe["view"]["name"] if "view" in recipe else None


def _recipe(choice: Choice, chosen: Chosen, base: StoredView | None) -> dict[str, Any]:
    """Return the recipe that the view stores: the criteria that made it."""
    recipe: dict[str, Any] = {}
    if choice.where is not None:
        recipe["where"] = choice.where
    if base is not None:
        recipe["view"] = {"name": base.name, "fingerprint": base.fingerprint}
    recipe |= {name: getattr(choice, name) for name in ("repeat", "expand", *UNIT_OPTIONS) if getattr(choice, name)}
    if choice.long == "error":
        del recipe["long"]
    recipe |= chosen.figures
    for name, keys in choice.lists.items():
        missing = int(np.count_nonzero(~chosen.found[name]))
        counts = {"keys": len(keys.keys), "duplicates": keys.num_duplicates, "missing": missing}
        recipe[name] = {"from": keys.origin, **counts}
    return recipe


def list_views(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> dict[str, StoredView]:
    """Return the stored views of a dataset by name, with their samples, recipes and fingerprints.

    The result includes views made for an earlier version of the dataset, with another fingerprint. Damaged ones are
    left out, with a warning.

        for name, view in wdsplit.list_views("data/train").items():
            print(name, view.num_selected)

    Args:
        url: The dataset's folder.
        storage_options: Options for a remote store, as for `Dataset`.
        fs: fsspec file system of the folder; None to choose it by the path.

    Raises:
        DatasetNotFoundError: There is no dataset.
    """
    storage = open_readable_storage(*located_one(url, storage_options, fs))
    return VIEWS.listed(storage, read_manifest(storage))


def drop_view(
    url: str | os.PathLike[str],
    name: str,
    storage_options: Mapping[str, Any] | None = None,
    fs: AbstractFileSystem | None = None,
) -> None:
    """Remove a stored view of a dataset, but no samples.

        wdsplit.drop_view("data/train", "easy")

    Args:
        url: The dataset's folder.
        name: The view's name.
        storage_options: Options for a remote store, as for `Dataset`.
        fs: fsspec file system of the folder; None to choose it by the path.

    Raises:
        InputError: There is no such view.
    """
    storage = open_storage(*located_one(url, storage_options, fs))
    read_manifest(storage)
    paths = VIEWS.paths(storage, VIEWS.checked(name))
    if not paths:
        raise VIEWS.unknown(storage, name)
    storage.remove(*paths)
