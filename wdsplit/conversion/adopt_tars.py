"""Adopting: existing WebDataset tars become a dataset where they lie, and none of them is rewritten.

Composition of `indexing` and an engine. A task reads one tar whole, writes its index beside it and says what
it found; the driver looks at the keys of all and writes the manifest, the header last. An index that is right is left
as it is. Before one is replaced, the header goes, so that no header belongs to other indexes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from wdsplit.conversion.plan.options import ConvertOptions, PlanOptions, invalid_values, raise_if_any, same_as
from wdsplit.conversion.run import Run
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import DatasetNotFoundError, OutputExistsError
from wdsplit.indexing.tars import (
    TarContent,
    check_paths,
    manifest_of,
    read_tar,
    refuse_duplicate_keys,
    warn_of_oddities,
)
from wdsplit.shards.files import write_manifest
from wdsplit.shards.manifest import HEADER_NAME, Manifest, index_path
from wdsplit.storage.given import located_one
from wdsplit.storage.interface import Storage
from wdsplit.storage.opening import open_storage

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["IndexOptions", "IndexProgress", "index_tars"]


@dataclass(frozen=True)
class IndexOptions:
    """How to adopt tars.

    Attributes:
        world_size: Ranks of the largest job, if 192 lanes do not suit it: lanes become a multiple of `world_size` x
            `workers`.
        workers: Worker processes of each rank; 0 counts as 1.
        lanes: Sequences of shards that the loader reads side by side. Default: 192, or 96, 48 or 16 for less data; if
            need be, rounded up to a multiple of `world_size` x `workers`.
        window: Samples that the loader reads and shuffles together. Default: as many as let 192 lanes hold 256 MiB, up
            to 1,024 samples and 8 MiB.
        jobs: Processes.
        overwrite: Replace the indexes and the manifest that are there; never a tar.
    """

    world_size: int = same_as(PlanOptions, "world_size")
    workers: int = same_as(PlanOptions, "workers")
    lanes: int | None = same_as(PlanOptions, "lanes")
    window: int | None = same_as(PlanOptions, "window")
    jobs: int = same_as(ConvertOptions, "jobs")
    overwrite: bool = False

    def __post_init__(self) -> None:
        raise_if_any(invalid_values(self))


@dataclass(frozen=True)
class IndexProgress:
    """How far an adoption has got: tars that were read, of how many, and the samples and bytes in them."""

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
) -> Manifest:
    """Make a dataset of the tars of a folder: write an index beside each of them, and the manifest.

    All `*.tar` below the folder become shards, in the order of their relative paths; hidden ones are left out. The tars
    are read once and not changed. Members that name no sample are left out, with a warning. Eight bytes a sample are
    kept, to find duplicate keys.

    Args:
        url: The folder: a path, or `s3://bucket/folder`, whose tars are copied to temporary files to be read.
        options: The options.
        progress: Called after each tar.
        storage_options: How to reach a remote store, as for `wdsplit.Dataset`.
        engine: What carries the tasks out; None for `options.jobs` processes of this machine.
        fs: The file system that the folder is on, an object of fsspec; None for what the path says itself.

    Returns:
        The manifest. A field's type is bytes, as nothing else is known of it.

    Raises:
        DatasetNotFoundError: There are no tars.
        OutputExistsError: The folder is a dataset already, or holds an unfinished conversion or other indexes.
        InputError: A tar holds an invalid sample, no sample at all, or a key that is in another one too.
        CorruptDataError: A tar is damaged.
        StorageError: The folder cannot be written to.
    """
    options = options or IndexOptions()
    url, storage_options = located_one(url, storage_options, fs)
    storage = open_storage(url, storage_options)
    _refuse_output(storage, options.overwrite)
    paths = _tars(storage)
    with Run(storage).locked():
        _refuse_output(storage, options.overwrite)
        for folder in sorted({path.rpartition("/")[0] for path in paths}):
            storage.remove_temporary(folder)
        read = partial(_read_tar, storage.url, storage_options, options.overwrite)
        found = _read_all(read, paths, engine or LocalEngine(options.jobs), progress)
        refuse_duplicate_keys(storage, found)
        readers = options.world_size * max(1, options.workers)
        chosen = {name: value for name, value in asdict(options).items() if name not in ("jobs", "overwrite")}
        manifest = manifest_of(found, readers, options.lanes, options.window, chosen)
        storage.remove(HEADER_NAME)
        write_manifest(storage, manifest)
    warn_of_oddities(storage, found)
    return manifest


def _refuse_output(storage: Storage, overwrite: bool) -> None:
    if Run(storage).is_unfinished:
        cause, remedy = "the folder holds an unfinished conversion", "finish it with `wdsplit convert --resume`"
    elif storage.size(HEADER_NAME) is not None and not overwrite:
        cause = "the folder is a dataset already"
        remedy = "use --overwrite to replace its indexes and its manifest; the tars stay as they are"
    else:
        return
    raise OutputExistsError(
        cause, place=storage.url, expected=f"tars, and no {HEADER_NAME}", remedy=remedy, url=storage.url
    )


def _tars(storage: Storage) -> list[str]:
    """Return the paths of all tars below a folder, sorted."""
    paths = sorted(_below(storage, ""))
    if not paths:
        raise DatasetNotFoundError(
            "there are no tars",
            place=storage.url,
            expected="a folder with files named *.tar in it, or below it",
            found=storage.describe_contents(),
            remedy="check the path, and give the folder, not its files; compressed tars must be decompressed first",
            url=storage.url,
        )
    check_paths(storage.url, paths)
    return paths


def _below(storage: Storage, folder: str) -> Iterator[str]:
    files = storage.sizes(folder)
    for name in storage.list(folder):
        path = f"{folder}/{name}" if folder else name
        if name.startswith("."):
            continue
        if name not in files:
            yield from _below(storage, path)
        elif name.endswith(".tar"):
            yield path


def _read_tar(
    url: str, options: Mapping[str, Any] | None, overwrite: bool, task: tuple[int, str]
) -> tuple[int, TarContent]:
    """Read a tar, write its index, and say what is in it. Runs in a worker process; may run twice."""
    number, path = task
    storage = open_storage(url, options)
    content, index = read_tar(storage, path)
    _write_index(storage, path, index, overwrite)
    return number, content


def _write_index(storage: Storage, path: str, index: bytes, overwrite: bool) -> None:
    beside = index_path(path)
    if storage.size(beside) is not None:
        if storage.read(beside) == index:
            return
        if not overwrite:
            raise OutputExistsError(
                "a tar has an index already, and it is not the one that the tar should have",
                place=f"{storage.url}/{beside}",
                expected="no index, or one that tells where each sample begins",
                remedy="use --overwrite to replace it, if no other program needs it",
                url=f"{storage.url}/{beside}",
            )
        storage.remove(HEADER_NAME)
    with storage.publish(beside) as file:
        file.write([index])


def _read_all(
    read: Callable[[tuple[int, str]], tuple[int, TarContent]],
    paths: Sequence[str],
    engine: Engine,
    progress: Callable[[IndexProgress], None] | None,
) -> list[TarContent]:
    """Read all tars; return what is in each, in the order of their paths."""
    found: dict[int, TarContent] = {}
    samples = num_bytes = 0
    with closing(engine.map(read, list(enumerate(paths)), describe=itemgetter(1))) as results:
        for number, each in results:
            found[number] = each
            samples += each.shard.num_samples
            num_bytes += each.shard.num_bytes
            if progress is not None:
                progress(IndexProgress(len(found), len(paths), samples, num_bytes))
    return [found[number] for number in range(len(paths))]
