"""The views of an open dataset: the user's choice becomes a view for each epoch, in all copies of the dataset.

A view is chosen by `view`, `where`, `keys` and `exclude`, which are combined; by epoch, in a dict of epochs. Beside
them, the side shards of joined annotations: another version of the dataset has its own.
"""

from __future__ import annotations

import operator
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import xxhash

from wdsplit.errors import InputError, did_you_mean
from wdsplit.loading.options import CHOICES
from wdsplit.loading.reading.source import Access, AnySource, Source
from wdsplit.loading.transport.shared_integers import SharedIntegers
from wdsplit.loading.world import is_group_initialised, is_worker, job_store
from wdsplit.order.selection import Selection
from wdsplit.order.views import EpochViews, View
from wdsplit.shards.annotations import ANNOTATIONS, read_side_shards
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import Manifest, first_samples
from wdsplit.storage.interface import ReadableStorage
from wdsplit.urls import shown_url
from wdsplit.views.view import plain, resolve_view

__all__ = ["Opened", "Shared", "chosen_views", "read_joined"]

_compared: Counter[str] = Counter()
"""How often datasets of a name were compared with those of the other ranks: all ranks have the same count."""

_EXAMPLE = '{0: "easy", 10: None}'


class Opened(NamedTuple):
    """A dataset as it was opened.

    Attributes:
        name: Its name.
        manifest: Its manifest before any `limit`.
        is_free: Whether views may choose lanes.
        is_pinned: Whether a state may not choose an older version.
        join: The annotations whose fields are joined.
    """

    name: str
    manifest: Manifest
    is_free: bool = False
    is_pinned: bool = False
    join: tuple[str, ...] = ()


class Shared:
    """What a dataset shares with all its copies in a process: its source, and its epoch.

    Worker processes have a copy of it. Integers in shared memory tell them the epoch that was set since. Ranks
    that were started with one dataset must not see what others set, so each process has all in its own memory too.

    Attributes:
        source: The source, with its views.
        epoch: The epoch that was set last; a worker starts with that of its process, whatever is set while it starts.
        epochs_set: How often an epoch was set.
    """

    def __init__(self, source: AnySource, opened: Sequence[Opened], choice: Mapping[str, Any]) -> None:
        self.epoch = self.epochs_set = 0
        self._opened = opened
        self._cells = SharedIntegers(2)  # epoch, epochs_set
        self._process = os.getpid()
        self._iterated_by = 0
        self._is_compared = False
        self._open(source, choice)

    def _open(self, source: AnySource, choice: Mapping[str, Any]) -> None:
        self._choice = choice
        self.source = source if all(each is None for each in choice.values()) else self._chosen(source, choice)
        if isinstance(self.source, Source) and self._opened[0].is_free and self.source.views.lanes:
            self.source.options = replace(self.source.options, lanes=self.source.views.lanes)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, and count this call."""
        self.epoch, self.epochs_set = epoch, self.epochs_set + 1
        if self._process != os.getpid():
            self._cells, self._process = SharedIntegers(2), os.getpid()
        self._cells.array[:] = self.epoch, self.epochs_set

    def reopen(self, fingerprint: str) -> Manifest | None:
        """Go to the older version of the dataset that has a fingerprint, with the same views.

        Returns:
            Its manifest; None if there is no such version, or a version was asked for.

        Raises:
            InputError: Fields are joined that this version does not have.
        """
        source, opened = self.source, self._opened[0]
        if not isinstance(source, Source) or opened.is_pinned:
            return None
        limit = source.manifest.num_samples if source.manifest.num_samples < opened.manifest.num_samples else None
        for version in reversed(opened.manifest.history[:-1]):
            if limit is None and version.fingerprint != fingerprint:
                continue
            every = read_manifest(source.storage(), version.number)
            manifest = every if limit is None else first_samples(every, limit)
            if manifest.fingerprint == fingerprint:
                lanes = opened.manifest.lanes if opened.is_free else source.options.lanes
                source = source.with_manifest(manifest, read_joined(opened.name, every, source.access, opened.join))
                self._opened = [opened._replace(manifest=every, is_pinned=True)]
                source.options = replace(source.options, lanes=lanes)
                self._open(source, self._choice)
                return manifest
        return None

    def version_with(self, fingerprint: object) -> int | None:
        """Return the number of another version of the dataset, up to the open one, that has this fingerprint."""
        history = self._opened[0].manifest.history[:-1] if isinstance(self.source, Source) else ()
        return next((version.number for version in history if version.fingerprint == fingerprint), None)

    def refuse_other_version(self) -> None:
        """Refuse to iterate for the first time if another rank did so with another version of the dataset.

        The first rank leaves a note in the job's store, and the others compare, so that none waits for another.

        Raises:
            InputError: The latest version, as this rank has opened it, is not that of another rank.
        """
        if self._is_compared or not is_group_initialised():
            return
        self._is_compared = True
        for opened in self._opened:
            if opened.is_pinned:
                continue
            name = xxhash.xxh3_64_hexdigest(opened.name.encode())
            own = f"version {opened.manifest.version} ({opened.manifest.fingerprint})"
            other = job_store().compare_set(f"wdsplit/version/{name}/{_compared[name]}", "", own).decode()
            _compared[name] += 1
            if other != own:
                raise InputError(
                    "ranks have opened different versions of the dataset",
                    place=opened.name,
                    expected=f"{other}, as another rank has it",
                    found=own,
                    remedy="samples were added while the job started: start it again, or open one version on all ranks "
                    "with version=",
                )

    def follow(self) -> None:
        """In a worker process, take over the epoch that was set since it began its last iteration.

        Its first iteration is the one that it was started for, whatever was set since.
        """
        iterated_by, self._iterated_by = self._iterated_by, os.getpid()
        if is_worker() and iterated_by == os.getpid():
            self.epoch, self.epochs_set = self._cells.array.tolist()

    def _chosen(self, source: Any, choice: Mapping[str, Any]) -> AnySource:
        if isinstance(source, Source):
            (opened,) = self._opened
            chosen: AnySource = source.with_views(_of_source(source, opened.manifest, choice))
            return chosen
        choices = _by_dataset([opened.name for opened in self._opened], choice)
        rows = zip(source.sources, self._opened, choices, strict=True)
        mixture: AnySource = source.with_views([_of_source(one, each.manifest, own) for one, each, own in rows])
        return mixture


def chosen_views(
    storage: ReadableStorage,
    manifest: Manifest,
    choice: Mapping[str, Any],
    limit: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> EpochViews:
    """Return the view of each epoch.

    Args:
        storage: Where the dataset is.
        manifest: Its manifest, of all its samples.
        choice: Some of CHOICES, as for `Dataset`.
        limit: Choose only among the first `limit` samples.
        storage_options: How to reach files of keys.

    Raises:
        InputError: There is no such view, or the choice is invalid.
        WdsplitError: A view or a table of samples cannot be read.
    """
    others = {name: value for name, value in choice.items() if name != "view"}
    by_epoch: dict[int, View | None] = {}
    for epoch, chosen in _by_epoch(choice.get("view")).items():
        together = _together(chosen, others)
        by_epoch[epoch] = _resolved(storage, manifest, limit=limit, storage_options=storage_options, **together)
    return EpochViews(by_epoch)


def _of_source(source: Source, manifest: Manifest, choice: Mapping[str, Any]) -> EpochViews:
    """Return the views of a source, which may be limited to the first samples of its dataset."""
    limit = source.manifest.num_samples if source.manifest.num_samples < manifest.num_samples else None
    return chosen_views(source.storage(), manifest, choice, limit, source.access.storage_options)


def _resolved(storage: ReadableStorage, manifest: Manifest, view: Any = None, **others: Any) -> View | None:
    """Return one view; arguments as for `resolve_view`, but `view` may also be a `View`."""
    if not isinstance(view, View):
        return resolve_view(storage, manifest, view=view, **others)
    if not np.array_equal(view.selection.totals, manifest.shards.num_real):
        raise InputError(
            f"the view {view.name!r} belongs to another dataset",
            place=storage.url,
            expected=f"{manifest.num_samples:,} samples in {len(manifest.shards):,} shards",
            found=f"{int(view.selection.totals.sum()):,} samples in {len(view.selection.totals):,} shards",
        )
    limit, own = others.get("limit"), view
    if limit is not None:
        own = View(view.name, plain(view, storage.url, "limit").first(first_samples(manifest, limit).shards.num_real))
    found = resolve_view(storage, manifest, **others)
    if found is None:
        return own
    if not isinstance(found.selection, Selection):
        raise InputError(
            "a wdsplit.View cannot be repeated, expanded, packed or grouped",
            place=storage.url,
            expected="the name of a stored view, or where, keys and exclude",
            found=repr(view),
        )
    return View(f"{view.name} and {found.name}", plain(own, storage.url) & found.selection)


def _by_epoch(view: Any) -> dict[int, Mapping[str, Any]]:
    """Return the choices by the epochs that they begin with."""
    by_epoch = view if isinstance(view, Mapping) else {0: view}
    if not by_epoch:
        raise _invalid("an empty dict")
    chosen = {}
    for epoch, each in by_epoch.items():
        if isinstance(epoch, bool) or not hasattr(epoch, "__index__") or operator.index(epoch) < 0:
            raise _invalid(f"{epoch!r} as an epoch")
        if isinstance(each, Mapping) and not set(each) <= set(CHOICES):
            raise _invalid(f"{each!r} in epoch {epoch}")
        chosen[operator.index(epoch)] = each if isinstance(each, Mapping) else {"view": each}
    return {0: {}, **chosen}


def _together(chosen: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the choice of an epoch, combined with those for all epochs."""
    both = {name: value for name, value in chosen.items() if value is not None}
    for name, value in others.items():
        if value is None:
            continue
        if name not in both:
            both[name] = value
        elif name == "where":
            both[name] = f"({both[name]}) and ({value})"
        else:
            raise _invalid(f"{name} for all epochs and for one of them")
    return both


def _invalid(found: str) -> InputError:
    return InputError(
        "invalid view",
        expected="the name of a stored view, a wdsplit.View or None; or one of these by epoch, such as "
        f'{_EXAMPLE} or {{0: {{"where": "width >= 256"}}, 10: "easy"}}',
        found=found,
    )


def _by_dataset(names: Sequence[str], choice: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Give the choice of each dataset of a mixture."""
    for name, value in choice.items():
        paths = [str(path) for path in value if isinstance(path, (str, os.PathLike))] if _is_by_path(value) else []
        unknown = [path for path in paths if path not in names]
        if unknown:
            raise InputError(
                f"invalid {name}: there is no such dataset in the mixture",
                expected=f"some of {', '.join(names)}",
                found=", ".join(unknown),
                remedy=did_you_mean(unknown, names),
            )
    for own in names:
        yield {name: _of_dataset(value, own) for name, value in choice.items()}


def _is_by_path(value: Any) -> bool:
    """Tell whether a value is a dict of datasets, and not one of epochs."""
    return isinstance(value, Mapping) and all(isinstance(path, (str, os.PathLike)) for path in value)


def _of_dataset(value: Any, name: str) -> Any:
    return {str(path): own for path, own in value.items()}.get(name) if _is_by_path(value) else value


# Joined fields


def read_joined(url: str, manifest: Manifest, access: Access, names: Sequence[str]) -> list[Manifest]:
    """Return the side shards of annotations, for `Source`.

    Args:
        url: The dataset's folder.
        manifest: Its manifest, of all samples.
        access: How it is reached.
        names: The annotations.

    Raises:
        InputError: There is no such annotation, it was made for other shards or has no fields, or two fields of the
            samples would have one name.
        CorruptDataError: An annotation is damaged.
    """
    sides, owners = list[Manifest](), dict.fromkeys(manifest.field_names, "the dataset")
    storage = access.storage(url) if names else None
    for name in dict.fromkeys(names):
        if storage is None or access.tars is not None:
            raise InputError(
                "tars without a manifest have no fields to join",
                place=shown_url(url),
                expected="the folder of a dataset",
                found=f"join = {name!r}",
                remedy="make a dataset of the tars with `wdsplit index FOLDER`, annotate it, and open it",
            )
        annotation = ANNOTATIONS.find(storage, name, manifest)
        owner = f"annotation {name!r}"
        if not annotation.fields:
            raise InputError(
                f"{owner} has no fields to join",
                place=storage.url,
                expected="an annotation with bytes, texts, lists or tensors",
                found=f"only the columns {', '.join(annotation.schema.names)}",
                remedy="leave it out of join: conditions (where=) can name its columns",
            )
        for field in annotation.fields:
            if field.name in owners:
                raise InputError(
                    f"two fields of the samples are called {field.name!r}",
                    place=storage.url,
                    expected="different names",
                    found=f"in {owners[field.name]}, and in {owner}",
                    remedy=f"join one of them, or annotate again with --map new.{field.name}={field.column}",
                )
            owners[field.name] = owner
        sides.append(read_side_shards(storage, annotation, manifest))
    return sides
