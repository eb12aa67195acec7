"""The files of a dataset: shards, their places and the manifest, written to a storage and read back.

A shard is published whole: its places and its sample table first, then the tar, so that a tar under its final name is
complete and has both. Shards are read by `loading.reading.open_shard`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

import pyarrow as pa
import xxhash

from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, StorageError
from wdsplit.integers import at_least
from wdsplit.shards.manifest import (
    HEADER_NAME,
    MAX_HEADER_BYTES,
    RUN_FOLDER,
    SHARDS_NAME,
    Manifest,
    Shard,
    checksum_of,
    dump_manifest,
    parse_header,
    parse_manifest,
    table_path_in,
)
from wdsplit.shards.places import places_path
from wdsplit.shards.sample_tables import dump_samples, samples_path
from wdsplit.shards.table import MAX_TABLE_BYTES
from wdsplit.shards.versions import Version, before_erasing, version_path
from wdsplit.storage.interface import ReadableStorage, Storage
from wdsplit.storage.locks import end_before_forks
from wdsplit.tar.members import Body, trailer_bytes
from wdsplit.tar.places import PlacesBuilder, Rows

__all__ = [
    "Copied",
    "existing_versions",
    "finish_version",
    "read_manifest",
    "read_pending",
    "versions_with_erased",
    "write_manifest",
    "write_shard",
    "write_version",
]

_TARS_REMEDY = (
    "make a dataset of the tars with `wdsplit index FOLDER`, and give that folder; "
    "or open them with wdsplit.Dataset, which needs no dataset"
)
_USUAL_SHARD_SAMPLES, _USUAL_SAMPLES = 2**20, 2**32
"""If a manifest claims more samples than this, the size of a shard is checked."""


class Copied(NamedTuple):
    """Samples that are copied from another shard: their places in it, and their bytes, which the places match."""

    rows: Rows
    data: bytes


def write_shard(
    storage: Storage,
    path: str,
    bodies: Iterable[Body | Copied],
    fields: Sequence[str],
    num_pads: int,
    samples: Callable[[], pa.Table] | None = None,
) -> Shard:
    """Write a shard, its places and its sample table, and publish them: the shard last.

    Args:
        storage: The dataset.
        path: The shard's path.
        bodies: Its samples, pads last, batch by batch.
        fields: All fields of the dataset, in the order of a sample's members.
        num_pads: Number of pads among them.
        samples: Returns the sample table once `bodies` has ended; None to write none.

    Returns:
        The shard for the manifest.
    """
    digest, built = xxhash.xxh3_128(), PlacesBuilder(fields)
    with storage.publish(path) as file:
        for body in bodies:
            pieces: Sequence[memoryview | bytes]
            if isinstance(body, Copied):
                pieces = [body.data]
                built.copy(body.rows, body.data)
            else:
                pieces, hashes = body.parts()
                built.append(body, hashes)
            for piece in pieces:
                digest.update(piece)
            file.write(pieces)
        trailer = bytes(trailer_bytes(built.end))
        digest.update(trailer)
        file.write([trailer])
        num_bytes = built.end + len(trailer)
        with storage.publish(places_path(path)) as places:
            places.write([built.dump(num_bytes, digest.digest())])
        if samples is not None:
            with storage.publish(samples_path(path)) as table:
                table.write([dump_samples(samples(), checksum_of(digest))])
    return Shard(path, built.num_samples, num_pads, num_bytes, checksum_of(digest))


def read_manifest(storage: ReadableStorage, version: int | None = None) -> Manifest:
    """Read the manifest of a dataset.

    Args:
        storage: The dataset.
        version: The number of a version; None for the latest.

    Raises:
        DatasetNotFoundError: There is no manifest, so there is no dataset.
        CorruptDataError: It is damaged.
        InputError: It has another format version, or there is no such version of the dataset.
    """
    try:
        manifest = parse_manifest(*_read_files(storage, None if version is None else at_least(1, "version", version)))
        _check_claims(storage, manifest)
        pa.default_memory_pool().release_unused()  # parsing takes several times the memory of its result
        return manifest
    except (CorruptDataError, InputError) as error:
        raise error.at(storage.url) from error


def _check_claims(storage: ReadableStorage, manifest: Manifest) -> None:
    """Check an unusually large count against the size of a file, before an order of that length is computed."""
    counts = manifest.shards.column("num_samples")
    if manifest.num_samples <= _USUAL_SAMPLES and not (counts > _USUAL_SHARD_SAMPLES).any():
        return
    largest = manifest.shards[int(counts.argmax())]
    size = storage.size(largest.path)
    if size != largest.num_bytes:
        raise CorruptDataError(
            "a shard has another size than the manifest says",
            place=largest.path,
            expected=f"{largest.num_bytes:,} bytes, which hold {largest.num_samples:,} samples",
            found="no such file" if size is None else f"{size:,} bytes",
            remedy="copy the dataset again; if it comes from others, it may have been tampered with",
        )


def _read_files(storage: ReadableStorage, version: int | None) -> tuple[bytes, bytes]:
    """Return header and table of a dataset; of the latest version, read both at the same time if it is remote."""
    if version is not None or not storage.is_remote:
        header = _read_header(storage) if version is None else _read_version(storage, version)
        return header, storage.read(table_path_in(header), MAX_TABLE_BYTES)
    with ThreadPoolExecutor(1, initializer=end_before_forks) as pool:
        table = pool.submit(storage.read, SHARDS_NAME, MAX_TABLE_BYTES)
        header = _read_header(storage)
        path = table_path_in(header)
        return header, table.result() if path == SHARDS_NAME else storage.read(path, MAX_TABLE_BYTES)


def _read_version(storage: ReadableStorage, version: int) -> bytes:
    """Return the header of a version."""
    with suppress(DatasetNotFoundError):
        return storage.read(version_path(version), MAX_HEADER_BYTES)
    header = _read_header(storage)
    latest = parse_header(header)["version"]
    if version == latest:
        return header
    raise InputError(
        f"the dataset has no version {version}" + (" any more: `wdsplit gc` removed it" if version < latest else ""),
        expected=f"one of those from 1 to {latest} that were kept" if latest != 1 else "1: nothing was appended to it",
        found=str(version),
        remedy="`wdsplit log DATASET` lists the versions",
    )


def _read_header(storage: ReadableStorage) -> bytes:
    try:
        return storage.read(HEADER_NAME, MAX_HEADER_BYTES)
    except (DatasetNotFoundError, StorageError) as error:
        if storage.size("") is not None:
            raise _no_folder(storage.url) from None
        if isinstance(error, StorageError):
            raise
        raise DatasetNotFoundError(
            "there is no dataset",
            place=storage.url,
            expected=f"a folder with {HEADER_NAME}, as `wdsplit convert` writes it",
            found=storage.describe_contents(),
            remedy=_where_else(storage),
            url=storage.url,
        ) from None


def _no_folder(url: str) -> DatasetNotFoundError:
    """Return the error for a file instead of a dataset's folder."""
    name = url.rpartition("/")[2]
    if name.lower().endswith(".tar"):
        remedy = _TARS_REMEDY
    elif name in (HEADER_NAME, SHARDS_NAME):
        remedy = "give the folder that contains it"
    else:
        remedy = f"make a dataset of it with `wdsplit convert {name} OUTPUT`, and give that folder"
    return DatasetNotFoundError(
        "a file is not a dataset", place=url, expected="the folder of a dataset", found="a file", remedy=remedy, url=url
    )


def _where_else(storage: ReadableStorage) -> str:
    """Return a remedy for a folder that is not a dataset."""
    names = storage.list()
    inner = [name for name in names if storage.size(f"{name}/{HEADER_NAME}") is not None]
    if inner:
        return f"give one of the datasets in it: {', '.join(inner[:5])}"
    if storage.url.endswith((".tar", ".tar}")):
        return _TARS_REMEDY
    if any(name.endswith(".tar") for name in names) and RUN_FOLDER not in names:
        return "make a dataset of its tars with `wdsplit index`, or open them with wdsplit.Dataset('FOLDER/*.tar')"
    if RUN_FOLDER in names:
        return "continue the stopped conversion with --resume"
    if names:
        return "check the path; if it has tables or images, make a dataset of them with `wdsplit convert FOLDER OUTPUT`"
    return "check the path"


def write_manifest(storage: Storage, manifest: Manifest) -> None:
    """Write the manifest, the header last: from then on the dataset exists."""
    header, table = dump_manifest(manifest)
    for path, data in ((SHARDS_NAME, table), (HEADER_NAME, header)):
        with storage.publish(path, durable=True) as file:
            file.write([data])


# Versions


def write_version(storage: Storage, manifest: Manifest) -> bool:
    """Write a new version of a dataset, and make it the latest; return False if there is another one of its number.

    The version exists once its header does, which only one of several writers can create.
    """
    header, table = dump_manifest(manifest)
    if manifest.version == 2:
        storage.create(version_path(1), storage.read(HEADER_NAME, MAX_HEADER_BYTES))
    with storage.publish(table_path_in(header), durable=True) as file:
        file.write([table])
    if not storage.create(version_path(manifest.version), header):
        return False
    finish_version(storage, manifest)
    return True


def existing_versions(storage: ReadableStorage, manifest: Manifest) -> tuple[Version, ...]:
    """Return the versions of a dataset up to one that can be opened; none if it has no others."""
    earlier = [each for each in manifest.history[:-1] if storage.size(version_path(each.number)) is not None]
    return (*earlier, *manifest.history[-1:])


def versions_with_erased(storage: ReadableStorage, manifest: Manifest) -> tuple[int, ...]:
    """Return the versions of a dataset up to one that have samples which a later version of these erased."""
    return before_erasing(existing_versions(storage, manifest)) if before_erasing(manifest.history) else ()


def read_pending(storage: ReadableStorage, manifest: Manifest) -> Manifest:
    """Return the newest version, given the one in `wdsplit.json`: its writer may have ended before it replaced that."""
    while storage.size(version_path(manifest.version + 1)) is not None:
        manifest = read_manifest(storage, manifest.version + 1)
    return manifest


def finish_version(storage: Storage, manifest: Manifest) -> Manifest:
    """Make the newest version the latest, and return it; `manifest` is that of an existing one."""
    newest = read_pending(storage, manifest)
    if newest.version > 1:
        header = storage.read(version_path(newest.version), MAX_HEADER_BYTES)
        if header != storage.read(HEADER_NAME, MAX_HEADER_BYTES):
            with storage.publish(HEADER_NAME, durable=True) as file:
                file.write([header])
    return newest
