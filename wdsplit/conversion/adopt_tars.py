"""Adopting: existing WebDataset tars become a dataset where they lie, and none of them is rewritten.

Composition of the scan, the samples and an engine. A task reads one tar whole, writes its index beside it and says what
it found; the driver looks at the keys of all and writes the manifest, the header last. An index that is right is left
as it is. Before one is replaced, the header goes, so that no header belongs to other indexes.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from wdsplit.conversion.duplicate_keys import Hashes, Place, find_duplicate_keys
from wdsplit.conversion.plan.options import ConvertOptions, PlanOptions, invalid_values, raise_if_any, same_as
from wdsplit.conversion.plan.plan import default_window, least_lanes, whole_lanes
from wdsplit.conversion.run import Run
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import DatasetNotFoundError, InputError, OutputExistsError, WdsplitError
from wdsplit.fields.arrow_types import field_of
from wdsplit.fields.keys import hash_keys
from wdsplit.shards.files import write_manifest
from wdsplit.shards.manifest import HEADER_NAME, Manifest, Shard, Shards, checksum_of, index_path
from wdsplit.storage.given import located_one
from wdsplit.storage.interface import Storage
from wdsplit.storage.local import LocalStorage, local_path
from wdsplit.storage.opening import open_storage
from wdsplit.tables.formats.common import stat_of
from wdsplit.tables.formats.opening import copied
from wdsplit.tables.table import Remote
from wdsplit.tar.index import dump_index
from wdsplit.tar.samples import TarSamples, group_samples
from wdsplit.tar.scan import scan_tar

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["IndexOptions", "IndexProgress", "index_tars"]

logger = logging.getLogger(__name__)

_ODD_PATH = re.compile(r"[\\\x00-\x1f\ud800-\udfff]|^[A-Za-z]:")
"""What the manifest takes for no path of a shard."""


@dataclass(frozen=True)
class IndexOptions:
    """How to adopt tars.

    Attributes:
        world_size: Number of ranks to lay out lanes for.
        workers: Worker processes of each rank; 0 counts as 1.
        lanes: Lanes of the loader's order. Default: a multiple of `world_size` x `workers`, at least 16.
        window: Samples that the loader reads and shuffles together. Default: as many as make about 8 MiB.
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


@dataclass(frozen=True)
class _Found:
    """What a task found in a tar."""

    number: int
    shard: Shard
    fields: tuple[str, ...]
    num_left_out: int
    left_out: tuple[str, ...]
    hashes: Hashes


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
        _refuse_duplicate_keys(storage, storage_options, found)
        manifest = _manifest(found, options)
        storage.remove(HEADER_NAME)
        write_manifest(storage, manifest)
    _warn_of_left_out(storage, found)
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
    for odd in filter(_ODD_PATH.search, paths):
        raise InputError(
            "invalid name of a tar",
            place=f"{storage.url}/{odd!r}",
            expected="a path in UTF-8, without backslashes, control characters and a drive's letter",
            remedy="rename it",
        )
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


def _read_tar(url: str, options: Mapping[str, Any] | None, overwrite: bool, task: tuple[int, str]) -> _Found:
    """Read a tar, write its index, and say what is in it. Runs in a worker process; may run twice."""
    number, path = task
    storage = open_storage(url, options)
    version_before = _version_of(storage, path, options)
    data = _mapped(storage, path, options)
    checksum = checksum_of(xxhash.xxh3_128(data))  # first, as it reads the file from front to back
    samples = _samples(storage, path, memoryview(data))
    if _version_of(storage, path, options) != version_before:
        raise InputError(
            "a tar was changed while it was read",
            place=f"{storage.url}/{path}",
            expected="tars that are not being written",
            remedy="wait until it is written, and index again",
            url=f"{storage.url}/{path}",
        )
    _write_index(storage, path, dump_index(samples.offsets), overwrite)
    shard = Shard(path, len(samples.keys), samples.num_pads, len(data), checksum)
    return _Found(number, shard, samples.fields, samples.num_left_out, samples.left_out, hash_keys(samples.keys))


def _samples(storage: Storage, path: str, data: memoryview) -> TarSamples:
    place = f"{storage.url}/{path}"
    try:
        samples = group_samples(scan_tar(data))
    except WdsplitError as error:
        error.url = place
        raise error.at(place) from error
    if not len(samples.keys):
        raise InputError(
            "a tar has no samples",
            place=place,
            expected="at least one member that is named KEY.FIELD, such as 000001.jpg",
            found=", ".join(samples.left_out) or "no files",
            remedy="remove it, or move it out of the folder",
            url=place,
        )
    return samples


def _mapped(storage: Storage, path: str, options: Mapping[str, Any] | None) -> mmap.mmap | bytes:
    """Map a tar into memory; of a remote one a copy."""
    if isinstance(storage, LocalStorage):
        return storage.map(path)
    with copied(Remote(f"{storage.url}/{path}", options)) as copy:
        return mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(copy.fileno()).st_size else b""


def _version_of(storage: Storage, path: str, options: Mapping[str, Any] | None) -> tuple[int, int, int] | None:
    """Return what differs when a file was written or replaced; None if it is not there."""
    if storage.is_remote:
        return 0, *stat_of(path, Remote(f"{storage.url}/{path}", options))
    try:
        found = Path(local_path(storage.url), path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


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
    read: Callable[[tuple[int, str]], _Found],
    paths: Sequence[str],
    engine: Engine,
    progress: Callable[[IndexProgress], None] | None,
) -> list[_Found]:
    """Read all tars; return what was found in each, in the order of their paths."""
    found: dict[int, _Found] = {}
    samples = num_bytes = 0
    with closing(engine.map(read, list(enumerate(paths)), describe=itemgetter(1))) as results:
        for each in results:
            found[each.number] = each
            samples += each.shard.num_samples
            num_bytes += each.shard.num_bytes
            if progress is not None:
                progress(IndexProgress(len(found), len(paths), samples, num_bytes))
    return [found[number] for number in range(len(paths))]


def _refuse_duplicate_keys(storage: Storage, options: Mapping[str, Any] | None, found: Sequence[_Found]) -> None:
    """Refuse a key that is in two tars."""

    def read_keys(suspects: Hashes) -> Iterator[tuple[pa.LargeStringArray, Place]]:
        for each in found:
            if np.isin(each.hashes, suspects).any():
                path = each.shard.path
                samples = _samples(storage, path, memoryview(_mapped(storage, path, options)))
                yield samples.keys, f"{storage.url}/{path}"

    for duplicate in find_duplicate_keys([each.hashes for each in found], read_keys):
        remedy = "remove one of them, or convert the tars with `wdsplit convert --number-keys`"
        raise duplicate.error(InputError, remedy, url=duplicate.again)


def _manifest(found: Sequence[_Found], options: IndexOptions) -> Manifest:
    shards = Shards.of([each.shard for each in found])
    names = dict.fromkeys(name for each in found for name in each.fields)
    num_samples, num_bytes = (int(shards.column(name).sum()) for name in ("num_samples", "num_bytes"))
    readers = options.world_size * max(1, options.workers)
    provenance = {
        "adopted": True,
        "num_left_out": sum(each.num_left_out for each in found),
        "options": {name: value for name, value in asdict(options).items() if name not in ("jobs", "overwrite")},
        "versions": {"wdsplit": version("wdsplit")},
    }
    return Manifest(
        shards,
        tuple(field_of(name, name, "bytes", pa.binary()) for name in names),
        options.lanes or whole_lanes(len(found), readers) or least_lanes(readers),
        options.window or default_window(num_bytes, num_samples),
        "none",
        provenance,
    )


def _warn_of_left_out(storage: Storage, found: Sequence[_Found]) -> None:
    some = [each for each in found if each.num_left_out]
    if some:
        total, names = sum(each.num_left_out for each in some), ", ".join(some[0].left_out)
        place = f"{storage.url}/{some[0].shard.path}"
        logger.warning("%d files in the tars name no sample and are left out, such as %s in %s", total, names, place)
