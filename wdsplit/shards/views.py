"""Stored views of a dataset: a file for each view, with the samples that it selects.

`views/NAME.view` is a line of JSON, then the number of selected samples of each shard, then the bitmaps. A local file
is memory-mapped. Anyone may have made it, so its size is compared with the dataset's before memory is allocated.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from wdsplit.errors import (
    CorruptDataError,
    DatasetNotFoundError,
    InputError,
    OutputExistsError,
    WdsplitError,
    did_you_mean,
)
from wdsplit.order.selection import Selection, bitmap_bytes
from wdsplit.shards.manifest import Manifest
from wdsplit.shards.stored import scan
from wdsplit.storage.interface import ReadableStorage, Storage
from wdsplit.storage.local import LocalStorage, is_temporary
from wdsplit.texts import quoted

__all__ = [
    "VIEWS_FOLDER",
    "StoredView",
    "check_view_name",
    "lock_view",
    "parse_view",
    "read_view",
    "refuse_existing",
    "remove_view",
    "scan_views",
    "view_names",
    "view_path",
    "write_view",
]

VIEWS_FOLDER = "views"
_VERSION = 1
_SUFFIX = ".view"
_COUNT = np.dtype("<i8")
_MAX_HEAD_BYTES = 4 * 1024**2
"""Limit for the line of JSON, with a condition of up to 100,000 characters."""
_FIRST_BYTES = 16 * 1024
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_MAX_NAMES = 20
_TYPES = {"dataset": str, "fingerprint": str, "num_samples": int, "num_selected": int, "recipe": dict}


@dataclass(frozen=True)
class StoredView:
    """The header of a stored view.

    Attributes:
        name: Its name.
        dataset: The fingerprint of the dataset that it was made for.
        fingerprint: The fingerprint of its selection.
        num_samples: Number of samples of the dataset, without pads.
        num_selected: Number of samples in the view.
        recipe: How it was made, to show it or make it again: `where`, `view`, `keys`, `exclude`.
    """

    name: str
    dataset: str
    fingerprint: str
    num_samples: int
    num_selected: int
    recipe: Mapping[str, Any] = field(default_factory=dict)

    @property
    def made_of(self) -> str:
        """How it was made, as options of `wdsplit view` in one line."""
        words = []
        for name, inner in (("view", "name"), ("where", ""), ("keys", "from"), ("exclude", "from")):
            value = self.recipe.get(name)
            text = value.get(inner) if isinstance(value, dict) else value
            words += [] if text is None else [f"--{name} {quoted(str(text))}"]
        return " ".join(words)


def check_view_name(name: str) -> str:
    """Return the name of a view if it is valid.

    Raises:
        InputError: The name is invalid.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InputError(
            "invalid view name",
            expected="up to 100 letters, digits, '_', '-' and '.', not beginning with '-' or '.'",
            found=repr(name),
        )
    return name


def view_path(name: str) -> str:
    """Return the path of a view's file in its dataset."""
    return f"{VIEWS_FOLDER}/{check_view_name(name)}{_SUFFIX}"


def view_names(storage: ReadableStorage) -> list[str]:
    """Return the names of the views of a dataset, sorted."""
    stems = [name.removesuffix(_SUFFIX) for name in storage.list(VIEWS_FOLDER) if name.endswith(_SUFFIX)]
    return sorted(filter(_NAME.fullmatch, stems))


# Writing


@contextmanager
def lock_view(storage: Storage, name: str) -> Iterator[None]:
    """Keep other processes from making the same view; raises StorageError if one does."""
    path = f"{VIEWS_FOLDER}/.{check_view_name(name)}.lock"
    with storage.lock(path):
        try:
            _remove_temporary(storage, name)
            yield
        finally:
            if not storage.is_remote:
                storage.remove(path)
                with suppress(OSError):  # there are views, or another process has started
                    os.rmdir(os.path.join(storage.url, VIEWS_FOLDER))


def _remove_temporary(storage: Storage, name: str) -> None:
    """Remove the files that killed processes have left of a view, but none of other views, which may be in use."""
    begin = f".{name}{_SUFFIX}."
    named = [each for each in storage.list(VIEWS_FOLDER) if each.startswith(begin) and is_temporary(each)]
    left = [each for each in named if each.count(".") == begin.count(".") + 1]  # others belong to longer names
    storage.remove(*(f"{VIEWS_FOLDER}/{each}" for each in left))


def refuse_existing(storage: ReadableStorage, name: str) -> None:
    """Refuse the name of a view that exists.

    Raises:
        OutputExistsError: The view exists.
    """
    if storage.size(view_path(name)) is not None:
        raise OutputExistsError(
            f"the dataset has a view {name!r} already",
            place=storage.url,
            remedy="use --overwrite (overwrite=True) to replace it, or choose another name",
            url=f"{storage.url}/{view_path(name)}",
        )


def write_view(
    storage: Storage, manifest: Manifest, name: str, selection: Selection, recipe: Mapping[str, Any]
) -> StoredView:
    """Write a view; an existing view of this name is replaced when the new one is complete.

    Args:
        storage: The dataset's folder.
        manifest: Its manifest.
        name: The view's name.
        selection: The selected samples.
        recipe: How it was made, as JSON values.
    """
    path = view_path(name)
    stored = StoredView(
        name,
        manifest.fingerprint,
        selection.fingerprint,
        int(selection.totals.sum()),
        selection.num_samples,
        recipe,
    )
    head = orjson.dumps({"wdsplit_view": _VERSION} | {each: getattr(stored, each) for each in _TYPES})
    line = head + b" " * (-(len(head) + 1) % _COUNT.itemsize) + b"\n"  # so that the counts are aligned
    with storage.publish(path, durable=True) as file:
        file.write([line, selection.counts.astype(_COUNT).data.cast("B"), np.ascontiguousarray(selection.bitmaps).data])
    return stored


def remove_view(storage: Storage, name: str) -> None:
    """Remove a view.

    Raises:
        InputError: There is no such view.
    """
    if storage.size(view_path(name)) is None:
        raise _unknown(storage, name)
    storage.remove(view_path(name))


# Reading


def scan_views(storage: ReadableStorage) -> dict[str, StoredView | WdsplitError]:
    """Return the headers of a dataset's views by name; the error of a damaged one."""
    return scan(view_names(storage), partial(_read_head, storage))


def read_view(storage: ReadableStorage, manifest: Manifest, name: str) -> tuple[StoredView, Selection]:
    """Return a view and its selection. The bitmaps of a local view are memory-mapped, not read.

    Args:
        storage: The dataset's folder.
        manifest: Its manifest.
        name: The view's name.

    Raises:
        InputError: There is no such view, or it was made for another dataset.
        CorruptDataError: Its file is damaged.
    """
    path, totals = view_path(name), manifest.shards.num_real
    most = _MAX_HEAD_BYTES + _COUNT.itemsize * len(totals) + int((-(-totals // 8)).sum())
    try:
        if isinstance(storage, LocalStorage) and not storage.has_latency:
            data: mmap.mmap | bytes = storage.map(path)
        else:
            data = storage.read(path, most)
    except DatasetNotFoundError:
        raise _unknown(storage, name) from None
    try:
        found = parse_view(name, data, manifest)
    except WdsplitError as error:
        raise error.in_dataset(storage.url, path) from error
    if isinstance(data, mmap.mmap):
        data.madvise(mmap.MADV_DONTNEED)  # the check has read all; an epoch maps its parts again
    return found


def _read_head(storage: ReadableStorage, name: str) -> StoredView:
    """Return the header of a view; reads little more of its file."""
    path = view_path(name)
    try:
        file = storage.open(path)
        data = file.read(0, min(file.size, _FIRST_BYTES))
        if b"\n" not in data:
            data = file.read(0, min(file.size, _MAX_HEAD_BYTES))
        return _head(name, data)[0]
    except DatasetNotFoundError:
        raise _unknown(storage, name) from None
    except WdsplitError as error:
        raise error.in_dataset(storage.url, path) from error


def _head(name: str, data: mmap.mmap | bytes) -> tuple[StoredView, int]:
    """Return the header of a view, and its size in bytes."""
    num_bytes = data.find(b"\n", 0, _MAX_HEAD_BYTES) + 1
    try:
        head = orjson.loads(data[:num_bytes])
    except orjson.JSONDecodeError as error:
        raise _damaged(name, f"no line of JSON ({error})") from error
    version = head.get("wdsplit_view") if isinstance(head, dict) else None
    if type(version) is int and version > _VERSION:
        raise InputError(
            f"view {name!r} has a newer format",
            expected=f"version {_VERSION}",
            found=str(version),
            remedy="read it with the version of wdsplit that wrote it, or make it again",
        )
    if version != _VERSION or any(type(head.get(key)) is not kind for key, kind in _TYPES.items()):
        raise _damaged(name, f"no JSON with wdsplit_view, {', '.join(_TYPES)}")
    return StoredView(name, **{key: head[key] for key in _TYPES}), num_bytes


def parse_view(name: str, data: mmap.mmap | bytes, manifest: Manifest) -> tuple[StoredView, Selection]:
    """Parse and check a view's whole file; the selection's bitmaps stay in `data`. Raises as `read_view` does."""
    stored, num_bytes = _head(name, data)
    if stored.dataset == manifest.fingerprint:
        return stored, _selection(memoryview(data)[num_bytes:], stored, manifest.shards.num_real)
    raise InputError(
        f"view {name!r} was made for another version of the dataset",
        expected=f"the fingerprint {manifest.fingerprint}",
        found=stored.dataset[:1000],
        remedy=f"make it again with `wdsplit view DATASET {name} {stored.made_of[:1000]} --overwrite`, or remove it "
        f"with `wdsplit view DATASET --drop {name}`",
    )


def _selection(data: memoryview, stored: StoredView, totals: npt.NDArray[np.int64]) -> Selection:
    """Return the selection of a view, checked against its header and the dataset's counts."""
    count_bytes = _COUNT.itemsize * len(totals)
    if len(data) < count_bytes:
        raise _damaged(stored.name, "a file that is cut off")
    counts = np.frombuffer(data[:count_bytes], _COUNT)
    if ((counts < 0) | (counts > totals)).any():
        raise _damaged(stored.name, "other counts of samples")
    if len(data) - count_bytes != bitmap_bytes(totals, counts).sum():
        raise _damaged(stored.name, "bitmaps of another size")
    selection = Selection(totals, counts, np.frombuffer(data[count_bytes:], np.uint8))
    if (stored.num_samples, stored.num_selected) != (int(totals.sum()), selection.num_samples):
        raise _damaged(stored.name, "other numbers of samples")
    if stored.fingerprint != selection.fingerprint:
        raise _damaged(stored.name, "bytes that were changed")
    return selection


def _damaged(name: str, found: str) -> CorruptDataError:
    return CorruptDataError(
        "the file of a view is damaged",
        expected="a view of this dataset, as `wdsplit view` writes it",
        found=found,
        remedy=f"make it again with `wdsplit view DATASET {name} ... --overwrite`, or remove it with "
        f"`wdsplit view DATASET --drop {name}`",
    )


def _unknown(storage: ReadableStorage, name: str) -> InputError:
    """Return the error for the name of a view that does not exist."""
    names: list[str] = []
    with suppress(WdsplitError):  # not every store can be listed
        names = view_names(storage)
    shown = ", ".join(names[:_MAX_NAMES]) + (", ..." if len(names) > _MAX_NAMES else "")
    return InputError(
        f"the dataset has no view {name!r}",
        place=storage.url,
        expected=f"one of {shown}" if names else "",
        found="" if names else "no views at all",
        remedy=did_you_mean([name], names) or "make it with `wdsplit view`",
    )
