"""Tars without a manifest, opened as a dataset.

They are indexed once into a folder of the user's cache, named by a hash of their paths, sizes and versions: a changed
tar gets another folder. Nothing is written beside them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import xxhash

from wdsplit.engines.local import in_order
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, StorageError
from wdsplit.indexing.tars import (
    TarContent,
    check_paths,
    manifest_of,
    read_tar,
    refuse_duplicate_keys,
    warn_of_oddities,
)
from wdsplit.loading.reading.source import Access
from wdsplit.shards.files import read_manifest, write_manifest
from wdsplit.shards.manifest import HEADER_NAME, Manifest
from wdsplit.shards.places import places_path
from wdsplit.storage.gathered import GatheredFiles, GatheredStorage
from wdsplit.storage.local import LocalStorage, local_path
from wdsplit.storage.locks import open_locked, unlock
from wdsplit.storage.opening import is_remote
from wdsplit.storage.patterns import Files, has_magic, patterns
from wdsplit.urls import shown_url

__all__ = ["open_tars"]

logger = logging.getLogger(__name__)

_FORMAT = 2
"""To be increased when the same tars would give another manifest: earlier indexes are then not used."""
_FOLDER = "indexes"
_STATS_AT_ONCE = 64
_TARS_AT_ONCE = 4
_LOG_EVERY_S = 10.0


def open_tars(
    texts: Sequence[str], name: str | None, access: Access, cache_dir: str | os.PathLike[str] | None
) -> tuple[str, Manifest, Access]:
    """Open tars without a manifest.

    Returns:
        Their name in messages, their manifest, and how they are reached.

    Raises:
        WdsplitError: As for `Dataset`.
    """
    options = access.storage_options
    urls = [url for text in texts for url in _matched(text, options)]
    seen: set[str] = set()
    for url in map(shown_url, urls):
        if url in seen:
            raise InputError("duplicate tar", place=url, remedy="name each tar once", url=url)
        seen.add(url)
    files = GatheredFiles(tuple(urls), "")
    check_paths(files.root, list(files.places))

    def identity(path: str) -> tuple[str, int, str]:
        file = storage.open(path)
        return path, file.size, file.version

    storage = GatheredStorage(files, options)
    found = list(in_order(identity, list(files.places), _STATS_AT_ONCE))
    name_of_index = xxhash.xxh3_128_hexdigest(orjson.dumps([_FORMAT, files.root, found]))
    folder = _index_folder(cache_dir) / name_of_index
    files = dataclasses.replace(files, companions=str(folder))
    storage = GatheredStorage(files, options)
    manifest = _read(storage)
    if manifest is None:
        with _locked(folder):  # one process of the machine makes it, and others wait
            manifest = _read(storage) or _index(storage, files)
    name = f"{files.root} ({len(urls)} tars)" if name is None else name
    return name, manifest, dataclasses.replace(access, tars=files)


def _matched(text: str, options: Mapping[str, Any] | None) -> Iterator[str]:
    place = Files(text, options)
    for pattern in patterns(place):
        if not has_magic(pattern) or place.is_file(pattern):
            found = [pattern]
        else:
            matched = sorted(path for path, is_folder in place.matched(pattern) if not is_folder)
            found = [path for path in matched if shown_url(path).lower().endswith(".tar")]
        if not found:
            raise DatasetNotFoundError(
                "there are no tars",
                place=shown_url(pattern),
                expected="a pattern that matches files named *.tar",
                found="no match",
                remedy="check the path; compressed tars must be decompressed first",
                url=shown_url(pattern),
            )
        yield from (path if is_remote(path) else os.path.abspath(path) for path in found)


def _index_folder(cache_dir: str | os.PathLike[str] | None) -> Path:
    if cache_dir is not None:
        return Path(local_path(os.fspath(cache_dir))) / _FOLDER
    chosen = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(chosen) if os.path.isabs(chosen) else Path("~/.cache").expanduser()) / "wdsplit" / _FOLDER
    except RuntimeError as error:
        raise _unwritable("~/.cache", "a user without a home folder") from error


def _unwritable(place: str, found: str) -> StorageError:
    return StorageError(
        "the indexes of tars cannot be written",
        place=place,
        expected="a folder that can be written to: tars without a manifest are indexed once",
        found=found,
        remedy="choose one with cache_dir=, or with the environment's XDG_CACHE_HOME",
        url=place,
    )


def _read(storage: GatheredStorage) -> Manifest | None:
    """Return the existing manifest; None if there is none, or if it is damaged."""
    with contextlib.suppress(CorruptDataError):
        if storage.size(HEADER_NAME) is not None:
            return read_manifest(storage)
    return None


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a folder for the block, once no other process locks it."""
    try:
        fd = open_locked(folder / "lock", wait=True)
    except OSError as error:
        raise _unwritable(str(folder.parent), error.strerror or str(error)) from error
    try:
        yield
    finally:
        unlock(fd)


def _index(storage: GatheredStorage, files: GatheredFiles) -> Manifest:
    """Read all tars; write the places of each, then the manifest."""
    folder, paths = LocalStorage(files.companions), list(files.places)
    logger.info("%s: reading %d tars to index them, once, into %s", files.root, len(paths), files.companions)

    def index(path: str) -> TarContent:
        content, data, _ = read_tar(storage, path, files.companions)
        with folder.publish(places_path(path)) as file:
            file.write([data])
        return content

    contents: list[TarContent] = []
    logged_s = time.monotonic()
    for content in in_order(index, paths, _TARS_AT_ONCE):
        contents.append(content)
        if time.monotonic() > logged_s + _LOG_EVERY_S:
            logged_s = time.monotonic()
            text = "%s: %d of %d tars are indexed; this is done once (`wdsplit index` does it beside the tars, for all)"
            logger.warning(text, files.root, len(contents), len(paths))
    refuse_duplicate_keys(storage, contents)
    manifest = manifest_of(contents)
    write_manifest(folder, manifest)
    warn_of_oddities(storage, contents)
    return manifest
