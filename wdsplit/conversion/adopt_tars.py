"""Adopting: makes a dataset of existing WebDataset tars in place, without rewriting them.

A task scans one tar, writes its places and its sample table beside it, and returns its contents. The driver checks the
keys of all tars and writes the manifest, the header last. Files that are right are kept. Before one is replaced, the
header is removed, so that no header ever belongs to other files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from wdsplit.conversion.plan.options import IndexOptions, chosen
from wdsplit.conversion.run import Run
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, OutputExistsError
from wdsplit.indexing.tars import (
    SAMPLES,
    TarContent,
    check_paths,
    manifest_of,
    read_tar,
    refuse_duplicate_keys,
    warn_of_oddities,
)
from wdsplit.shards.annotations import ANNOTATIONS, is_annotation_folder
from wdsplit.shards.files import write_manifest
from wdsplit.shards.manifest import HEADER_NAME, MAX_HEADER_BYTES, Manifest, parse_header
from wdsplit.shards.places import places_path
from wdsplit.shards.sample_tables import is_samples, samples_path
from wdsplit.storage.given import located_one
from wdsplit.storage.interface import Storage
from wdsplit.storage.opening import open_storage
from wdsplit.tar.places import is_places

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["IndexProgress", "index_tars"]


@dataclass(frozen=True)
class IndexProgress:
    """Progress of `index_tars`: tars read, all tars, and the samples and bytes in those read."""

    tars: int
    num_tars: int
    samples: int
    num_bytes: int


def index_tars(
    url: str | os.PathLike[str],
    options: IndexOptions | None = None,
    progress: Callable[[IndexProgress], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    fs: AbstractFileSystem | None = None,
    **keywords: Any,
) -> Manifest:
    """Make a dataset of the tars in a folder: write places and a sample table beside each tar, and the manifest.

    All `*.tar` files below the folder become shards, in the order of their relative paths, except hidden ones. The tars
    are read once and not changed. Members that belong to no sample are left out, with a warning. Finding duplicate
    keys takes 8 bytes of memory per sample.

        wdsplit.index_tars("tars")
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
        OutputExistsError: The folder is already a dataset, or contains an unfinished conversion or files of other
            programs with such names.
        InputError: A tar has an invalid sample, no sample, or a key that is also in another tar.
        CorruptDataError: A tar is damaged, or the header of the dataset that is to be replaced.
        StorageError: The folder is not writable.
    """
    options = chosen(IndexOptions, options, keywords)
    url, storage_options = located_one(url, storage_options, fs)
    engine, report = engine or LocalEngine(options.jobs), progress or (lambda _: None)
    storage = open_storage(url, storage_options)
    _refuse_output(storage, options.overwrite)
    sizes = _tars(storage)
    paths = list(sizes)
    num_bytes = None if storage.has_latency else sum(sizes.values())
    with Run(storage).locked():
        _refuse_output(storage, options.overwrite)
        for folder in sorted({path.rpartition("/")[0] for path in paths}):
            storage.remove_temporary(folder)
        found: dict[int, TarContent] = {}
        samples = read_bytes = 0
        report(IndexProgress(0, len(paths), 0, 0))
        work = partial(_read_tar, url, storage_options, options.overwrite, paths)
        with closing(engine.map(work, range(len(paths)), num_bytes=num_bytes, describe=paths.__getitem__)) as results:
            for number, each in results:
                found[number] = each
                samples, read_bytes = samples + each.shard.num_samples, read_bytes + each.shard.num_bytes
                report(IndexProgress(len(found), len(paths), samples, read_bytes))
        contents = [found[number] for number in range(len(paths))]
        refuse_duplicate_keys(storage, contents)
        readers = options.world_size * max(1, options.workers)
        layout = {name: getattr(options, name) for name in ("world_size", "workers", "lanes", "window")}
        manifest = manifest_of(contents, readers, options.lanes, options.window, layout, SAMPLES)
        storage.remove(HEADER_NAME)
        write_manifest(storage, manifest)
    warn_of_oddities(storage, contents)
    return manifest


def _refuse_output(storage: Storage, overwrite: bool) -> None:
    if Run(storage).is_unfinished:
        cause, remedy = "the folder contains an unfinished conversion", "finish it with `wdsplit convert --resume`"
    elif storage.size(HEADER_NAME) is not None and not overwrite:
        cause = "the folder is already a dataset"
        remedy = "use --overwrite to replace its indexes and manifest; tars are never changed"
    elif _is_converted(storage):
        cause = "the folder is a dataset that `wdsplit convert` made"
        remedy = "open it with lanes= and window= for others, or convert again; its indexes have more than tars tell"
    else:
        return
    raise OutputExistsError(cause, expected=f"tars, and no {HEADER_NAME}", remedy=remedy, url=storage.url)


def _is_converted(storage: Storage) -> bool:
    """Return whether there is a dataset that was not made of tars by `index_tars`: its header tells, and must be whole.

    Of a header of another format version only the tars are used.
    """
    if storage.size(HEADER_NAME) is None:
        return False
    try:
        return not parse_header(storage.read(HEADER_NAME, MAX_HEADER_BYTES))["provenance"].get("adopted")
    except CorruptDataError as error:
        raise error.at(storage.url) from error
    except InputError:
        return False


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
    """Read a tar, write its places and table, and return its contents. Runs in a worker process; may run twice."""
    storage = open_storage(url, options)
    content, places, table = read_tar(storage, paths[number], has_table=True)
    for beside, data, is_own in (
        (samples_path(paths[number]), table, is_samples),
        (places_path(paths[number]), places, is_places),
    ):
        found = storage.read(beside) if storage.size(beside) is not None else None
        if found == data:
            continue
        if not (overwrite or found is None or is_own(found)):  # files of a conversion depend on its fields
            raise OutputExistsError(
                "a file beside a tar is not one of wdsplit's",
                expected="no such file, or the places or the table of the tar's samples",
                remedy="use --overwrite to replace it, if no other program needs it",
                url=f"{storage.url}/{beside}",
            )
        if found is not None:
            storage.remove(HEADER_NAME)
        with storage.publish(beside) as file:
            file.write([data])
    return number, content
