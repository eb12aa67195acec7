"""Adopting: makes a dataset of existing WebDataset tars in place, without rewriting them.

A task scans one tar, writes its places beside it, and returns its contents. The driver checks the keys of all tars and
writes the manifest, the header last. Valid indexes are kept. Before an index is replaced, the header is removed, so
that no header ever belongs to other indexes.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from wdsplit.conversion.plan.options import IndexOptions, chosen
from wdsplit.conversion.run import Run
from wdsplit.conversion.sample_tables import IndexProgress, make_sample_tables, map_tars
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, OutputExistsError
from wdsplit.indexing.tars import (
    TarContent,
    check_paths,
    manifest_of,
    read_tar,
    refuse_duplicate_keys,
    warn_of_oddities,
)
from wdsplit.shards.annotations import ANNOTATIONS, is_annotation_folder
from wdsplit.shards.files import read_manifest, write_manifest
from wdsplit.shards.manifest import HEADER_NAME, Manifest
from wdsplit.shards.places import places_path
from wdsplit.storage.given import located_one
from wdsplit.storage.interface import Storage
from wdsplit.storage.opening import open_storage
from wdsplit.tar.places import is_places

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["IndexProgress", "index_tars"]

logger = logging.getLogger(__name__)


def index_tars(
    url: str | os.PathLike[str],
    options: IndexOptions | None = None,
    progress: Callable[[IndexProgress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    fs: AbstractFileSystem | None = None,
    **keywords: Any,
) -> Manifest:
    """Make a dataset of the tars in a folder: write the places beside each tar, and the manifest.

    With `sample_tables`, also make the sample tables; in an existing dataset, make only these.

    All `*.tar` files below the folder become shards, in the order of their relative paths, except hidden ones. The tars
    are read once and not changed. Members that belong to no sample are left out, with a warning. Finding duplicate
    keys takes 8 bytes of memory per sample.

        wdsplit.index_tars("tars", sample_tables=True)
        dataset = wdsplit.Dataset("tars")

    Args:
        url: The folder: a path, or `s3://bucket/folder`, whose tars are copied to temporary files for reading.
        options: The options.
        progress: Called at the start and after each tar.
        storage_options: Options for a remote store, as for `wdsplit.Dataset`.
        engine: Engine that runs the tasks; None for `options.jobs` processes of this machine.
        fs: fsspec file system of the folder; None to choose it by the path.
        **keywords: Fields of `IndexOptions`. They replace those of `options`.

    Returns:
        The manifest. The type of all fields is bytes, because nothing else is known.

    Raises:
        DatasetNotFoundError: There are no tars.
        OutputExistsError: The folder is already a dataset, or contains an unfinished conversion or other indexes.
        InputError: A tar has an invalid sample, no sample, or a key that is also in another tar.
        CorruptDataError: A tar is damaged.
        StorageError: The folder is not writable.
    """
    options = chosen(IndexOptions, options, keywords)
    url, storage_options = located_one(url, storage_options, fs)
    engine, report = engine or LocalEngine(options.jobs), progress or (lambda _: None)
    storage = open_storage(url, storage_options)
    layout, plain = ("world_size", "workers", "lanes", "window"), IndexOptions()
    is_only_tables = options.sample_tables and all(getattr(options, name) == getattr(plain, name) for name in layout)
    if not is_only_tables or options.overwrite or storage.size(HEADER_NAME) is None:
        manifest = _adopt(storage, storage_options, options, engine, report)
    elif Run(storage).is_unfinished:
        _refuse_output(storage, True)
    else:
        manifest = read_manifest(storage)
    if not options.sample_tables:
        return manifest
    with Run(storage).locked():
        return make_sample_tables(storage, storage_options, manifest, options, engine, report)


def _adopt(
    storage: Storage,
    storage_options: Mapping[str, Any] | None,
    options: IndexOptions,
    engine: Engine,
    report: Callable[[IndexProgress], None],
) -> Manifest:
    """Write the indexes of tars and the manifest."""
    _refuse_output(storage, options.overwrite)
    sizes = _tars(storage)
    paths = list(sizes)
    num_bytes = None if storage.has_latency else sum(sizes.values())
    with Run(storage).locked():
        _refuse_output(storage, options.overwrite)
        before = None
        with suppress(CorruptDataError, InputError, DatasetNotFoundError):
            before = read_manifest(storage)
        for folder in sorted({path.rpartition("/")[0] for path in paths}):
            storage.remove_temporary(folder)
        read = partial(_read_tar, storage.url, storage_options, options.overwrite, paths)
        found = map_tars(
            engine, read, paths, num_bytes, lambda _, each: (each.shard.num_samples, each.shard.num_bytes), report
        )
        refuse_duplicate_keys(storage, found)
        readers = options.world_size * max(1, options.workers)
        chosen = {name: getattr(options, name) for name in ("world_size", "workers", "lanes", "window")}
        manifest = _with_kept(storage, before, manifest_of(found, readers, options.lanes, options.window, chosen))
        storage.remove(HEADER_NAME)
        write_manifest(storage, manifest)
    warn_of_oddities(storage, found)
    return manifest


def _with_kept(storage: Storage, before: Manifest | None, found: Manifest) -> Manifest:
    """Return the manifest; if the shards are the same, with the fields, classes and sample tables of the old one."""
    if before is None:
        return found
    if before.shards.table.equals(found.shards.table):
        return dataclasses.replace(before, lanes=found.lanes, window=found.window)
    lost = [f"the classes of {name}" for name in before.class_names]
    lost += ["the sample tables"] if before.samples is not None else []
    lost += [] if before.provenance.get("adopted") else ["the types of fields", "the provenance"]
    if lost:
        logger.warning("%s: the tars differ from the manifest, so these are lost: %s", storage.url, ", ".join(lost))
    return found


def _refuse_output(storage: Storage, overwrite: bool) -> None:
    if Run(storage).is_unfinished:
        cause, remedy = "the folder contains an unfinished conversion", "finish it with `wdsplit convert --resume`"
    elif storage.size(HEADER_NAME) is not None and not overwrite:
        cause = "the folder is already a dataset"
        remedy = "use --overwrite to replace its indexes and manifest; tars are never changed"
    else:
        return
    raise OutputExistsError(cause, expected=f"tars, and no {HEADER_NAME}", remedy=remedy, url=storage.url)


def _tars(storage: Storage) -> dict[str, int]:
    """Return the paths of all tars below a folder, sorted, and their sizes in bytes."""
    sizes = dict(sorted(_below(storage, "")))
    if not sizes:
        raise DatasetNotFoundError(
            "there are no tars",
            expected="a folder that contains *.tar files",
            found=storage.describe_contents(),
            remedy="check the path, and give the folder, not its files; compressed tars must be decompressed first",
            url=storage.url,
        )
    check_paths(storage.url, list(sizes))
    return sizes


def _below(storage: Storage, folder: str) -> Iterator[tuple[str, int]]:
    files = storage.sizes(folder)
    names = storage.list(folder)
    for name in names:
        path = f"{folder}/{name}" if folder else name
        if name.startswith(".") or (folder == ANNOTATIONS.folder and is_annotation_folder(name, names)):
            continue
        if name not in files:
            yield from _below(storage, path)
        elif name.endswith(".tar"):
            yield path, files[name]


def _read_tar(
    url: str, options: Mapping[str, Any] | None, overwrite: bool, paths: Sequence[str], number: int
) -> tuple[int, TarContent]:
    """Read a tar, write its places, and return its contents. Runs in a worker process; may run twice."""
    storage = open_storage(url, options)
    (content, data), beside = read_tar(storage, paths[number]), places_path(paths[number])
    if storage.size(beside) is not None:
        found = storage.read(beside)
        if found == data:
            return number, content
        if not (overwrite or is_places(found)):  # places of a conversion are shorter, and depend on its fields
            raise OutputExistsError(
                "a file beside a tar is not one of wdsplit's",
                expected="no such file, or the places of the tar's samples",
                remedy="use --overwrite to replace it, if no other program needs it",
                url=f"{storage.url}/{beside}",
            )
        if overwrite:
            storage.remove(HEADER_NAME)
    with storage.publish(beside) as file:
        file.write([data])
    return number, content
