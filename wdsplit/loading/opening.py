"""Datasets opened as `Dataset` opens them: the source with its order and options, before any stage."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any

from wdsplit.errors import InputError
from wdsplit.integers import whole
from wdsplit.loading.options import AllOptions, DatasetOptions, access_of, checked_options, choice_of
from wdsplit.loading.reading.source import AnySource, Source
from wdsplit.loading.views import Opened, Shared, read_joined
from wdsplit.order.epoch import OrderOptions
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import first_samples
from wdsplit.storage.given import located
from wdsplit.storage.local import local_path
from wdsplit.storage.opening import is_remote
from wdsplit.urls import shown_url

__all__ = ["open_source", "opened_source"]


def opened_source(
    path: Any,
    window: int | None,
    limit: int | None,
    chosen: DatasetOptions,
    version: int | None = None,
    name: str = "",
) -> tuple[Source, Opened]:
    """Return the source of a dataset, or of tars without a manifest, and how it was opened; raises as for `Dataset`."""
    access = access_of(chosen)
    texts, options = located(_texts(path), access.storage_options, chosen["fs"])
    access = dataclasses.replace(access, storage_options=options)
    own = texts[0] if isinstance(path, (str, os.PathLike)) else None
    if own is not None and not _names_tars(own):
        url, all_samples = own, read_manifest(access.storage(own), version)
    else:
        if version is not None:
            raise InputError(
                "tars have no versions",
                place=shown_url(texts[0]),
                expected="the folder of a dataset that `wdsplit convert` made",
                found=f"version={version!r}",
                remedy="leave out the version",
            )
        from wdsplit.loading.tars import open_tars  # here, because a dataset with a manifest needs neither
        from wdsplit.storage.patterns import Files

        places = [(text, Files(text, options)) for text in texts if not _names_tars(text)]
        folders = [text for text, place in places if not place.is_file(place.pattern)]
        if folders:
            raise _invalid(", ".join(map(shown_url, folders[:5])))
        url, all_samples, access = open_tars(texts, own, access, chosen["cache_dir"])
    manifest = all_samples if limit is None else first_samples(all_samples, whole(limit))
    order = OrderOptions(
        chosen["seed"],
        chosen["shuffle"],
        chosen["lanes"] or manifest.lanes,
        window or manifest.window,
        chosen["tail"],
    )
    joined = read_joined(url, all_samples, access, chosen["join"])
    return Source(url, manifest, order, chosen["fields"], access, name=name, joined=joined), Opened(
        url, all_samples, chosen["lanes"] is None, version is not None, tuple(chosen["join"])
    )


def open_source(
    path: Any,
    window: int | None = None,
    limit: int | None = None,
    version: int | None = None,
    state: Mapping[str, Any] | None = None,
    **options: Any,
) -> AnySource:
    """Return the source of a `Dataset` with the same arguments, with its views; webdataset is not imported.

    With the state of a loader, the source is of the version of the dataset that the state belongs to, if it is known.

    Raises:
        WdsplitError: As for `Dataset`.
    """
    chosen = checked_options(options, whole(window), AllOptions)  # type: ignore[arg-type]
    source, opened = opened_source(path, whole(window), limit, chosen, version)
    shared = Shared(source, [opened], choice_of(chosen))
    if state is not None and state.get("fingerprint") != source.fingerprint:
        shared.reopen(str(state.get("fingerprint")))
    return shared.source


def _texts(path: Any) -> list[str]:
    """Return paths and URLs as texts."""
    given = [path] if isinstance(path, (str, os.PathLike)) else path
    texts = [str(each) for each in given] if isinstance(given, Sequence) else []
    wrong = [type(each).__name__ for each in given if not isinstance(each, (str, os.PathLike))] if texts else []
    if wrong or not texts:
        empty = "an empty list" if isinstance(given, Sequence) else type(path).__name__
        raise _invalid(", ".join(wrong[:5]) or empty)
    return texts


def _invalid(found: str) -> InputError:
    return InputError(
        "invalid path of a dataset",
        expected="the folder of a dataset; or a tar, a glob, a brace expression, or a list of tars",
        found=found,
        remedy="for several datasets use wdsplit.mix",
    )


def _names_tars(text: str) -> bool:
    """Tell whether a text names tars, and not the folder of a dataset."""
    if not is_remote(text) and os.path.isdir(local_path(text)):
        return False
    from wdsplit.storage.patterns import has_magic, names_tar

    return "{" in text or has_magic(text) or names_tar(text)
