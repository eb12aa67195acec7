"""Verifying a dataset: that every byte of it is what the manifest says, and that every sample is whole.

Composition of the manifest, the open shards and an engine. Each shard is checked by itself: size, checksum, index, tar
structure, end marker, fields and pads; then the keys of all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import xxhash

from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import CorruptDataError, InputError, WdsplitError
from wdsplit.fields.duplicate_keys import Hashes, Place, find_duplicate_keys
from wdsplit.fields.keys import hash_keys
from wdsplit.loading.reading.open_shard import OpenShard, check_tail, open_shard
from wdsplit.loading.reading.window import Window
from wdsplit.shards.checksums import checksums_path, dump_checksums, sample_checksums
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import Manifest, Shard, checksum_of
from wdsplit.storage.given import located_one
from wdsplit.storage.interface import ReadableStorage, Storage
from wdsplit.storage.opening import open_readable_storage, open_storage
from wdsplit.tar.names import is_pad_key

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["EMITTED", "Report", "verify"]

EMITTED = ("checksums",)
"""What `verify --emit` takes."""

_SAMPLES_AT_ONCE = 4096
_READ_BYTES = 8 * 1024**2


@dataclass(frozen=True)
class Report:
    """What a verification found.

    Attributes:
        manifest: The dataset's manifest.
        problems: What is wrong, in the order of the shards; empty if all is well.
    """

    manifest: Manifest
    problems: tuple[WdsplitError, ...]


@dataclass(frozen=True)
class _Finding:
    """What is wrong with a shard, and the hashes of its keys."""

    shard: int
    problems: tuple[WdsplitError, ...]
    hashes: Hashes


def verify(
    url: str,
    jobs: int = 1,
    progress: Callable[[int, int], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    fs: AbstractFileSystem | None = None,
    emit: Sequence[str] = (),
) -> Report:
    """Check a whole dataset; holds eight bytes a sample, to find duplicate keys.

    Args:
        url: The dataset's folder.
        jobs: Processes.
        progress: Called with the number of shards that were checked and the number of all.
        storage_options: How to reach a remote store, as of `Dataset`.
        engine: What carries the tasks out; None for `jobs` processes of this machine.
        fs: The file system that the folder is on, an object of fsspec; None for what the path says itself.
        emit: `checksums` to write, beside each shard that is right, the checksums of its samples, which
            `Dataset(verify=True)` compares.

    Raises:
        InputError: `emit` is invalid.
        WdsplitError: The manifest cannot be read; what is wrong with shards is reported, not raised.
    """
    if not set(emit) <= set(EMITTED):
        raise InputError("invalid emit", expected=f"some of {', '.join(EMITTED)}", found=", ".join(emit))
    url, storage_options = located_one(url, storage_options, fs)
    output = open_storage(url, storage_options) if emit else None
    storage: ReadableStorage = output or open_readable_storage(url, storage_options)
    manifest = read_manifest(storage)
    num_shards = len(manifest.shards)
    findings: dict[int, _Finding] = {}
    check, describe = partial(_check_shard, storage, manifest, output), partial(_describe, manifest)
    with closing((engine or LocalEngine(jobs)).map(check, range(num_shards), describe=describe)) as results:
        for finding in results:
            findings[finding.shard] = finding
            if progress is not None:
                progress(len(findings), num_shards)
    problems = [problem for shard in sorted(findings) for problem in findings[shard].problems]
    problems += _duplicate_keys(storage, manifest, findings)
    try:
        problems += _tars_not_listed(storage, manifest)
    except WdsplitError as error:
        problems.append(error)
    return Report(manifest, tuple(problems))


def _describe(manifest: Manifest, number: int) -> str:
    return manifest.shards[number].path


def _check_shard(storage: ReadableStorage, manifest: Manifest, output: Storage | None, number: int) -> _Finding:
    none = np.zeros(0, np.uint64)
    listed = manifest.shards[number]
    try:
        shard = open_shard(storage, listed)
        checksum = _checksum(shard, listed)
    except WdsplitError as error:
        return _Finding(number, (error,), none)
    problems: list[WdsplitError] = []
    if checksum != listed.checksum:
        problems.append(
            CorruptDataError(
                "a shard was changed",
                place=shard.url,
                expected=listed.checksum,
                found=checksum,
                remedy="copy it again, or convert again with --overwrite",
                url=shard.url,
            )
        )
    try:
        tail = check_tail(shard)
        if tail is not None:
            problems.append(tail)
        hashes = [hash_keys(keys) for keys in _checked_keys(manifest, listed, shard)]
        if output is not None and not problems:
            _write_checksums(output, listed, shard)
    except WdsplitError as error:
        return _Finding(number, (*problems, error), none)
    return _Finding(number, tuple(problems), np.concatenate([none, *hashes]))


def _write_checksums(output: Storage, listed: Shard, shard: OpenShard) -> None:
    """Write the checksums of the samples of a shard that is right."""
    checksums = sample_checksums(shard.read(begin, end) for begin, end in pairwise(shard.offsets.tolist()))
    with output.publish(checksums_path(listed.path)) as file:
        file.write([dump_checksums(checksums, listed)])


def _checksum(shard: OpenShard, listed: Shard) -> str:
    """Return the checksum of a shard; if it is not the right one, of what comes when it is fetched again."""
    if not shard.file.is_remote:
        return _checksum_in_pieces(shard)
    checksum = checksum_of(xxhash.xxh3_128(shard.data))
    if checksum != listed.checksum:
        shard.fetch_again()
        checksum = checksum_of(xxhash.xxh3_128(shard.data))
    return checksum


def _checksum_in_pieces(shard: OpenShard) -> str:
    """Return the checksum of a shard that is not kept; it is read, not mapped, because files may shrink meanwhile."""
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(min(_READ_BYTES, shard.file.size)))
    for offset in range(0, shard.file.size, _READ_BYTES):
        piece = buffer[: shard.file.size - offset]
        shard.file.read_into(piece, offset)
        digest.update(piece)
    return checksum_of(digest)


def _checked_keys(manifest: Manifest, listed: Shard, shard: OpenShard) -> Iterator[pa.LargeStringArray]:
    """Give the keys of a shard, some at a time, each sample checked."""
    num_samples = len(shard.offsets) - 1
    num_real = num_samples - listed.num_pads
    fields = {field.name for field in manifest.fields}
    for first in range(0, num_samples, _SAMPLES_AT_ONCE):
        window = shard.window(first, min(num_samples, first + _SAMPLES_AT_ONCE), fields=())
        _check_fields(window, fields, shard.url)
        keys: list[str] = window.keys.tolist()
        for place, key in enumerate(keys, first):
            if is_pad_key(key) != (place >= num_real):
                raise CorruptDataError(
                    "the pads of a shard are not those of the manifest",
                    place=f"{shard.url}, sample {place}",
                    expected=f"{num_real} samples, then pads",
                    found=f"key {key!r}",
                    remedy="convert again with --overwrite",
                    url=shard.url,
                    key=key,
                )
        yield pa.array(keys, pa.large_string())


def _check_fields(window: Window, fields: set[str], url: str) -> None:
    for key, names in window.field_names():
        if not fields.issuperset(names):
            raise CorruptDataError(
                "a sample has a field that the manifest does not know",
                place=f"{url}, key {key!r}",
                expected=", ".join(sorted(fields)),
                found=", ".join(sorted(set(names) - fields)),
                remedy="convert again with --overwrite",
                url=url,
                key=key,
            )


def _duplicate_keys(storage: ReadableStorage, manifest: Manifest, findings: dict[int, _Finding]) -> list[WdsplitError]:
    """Return a problem for each duplicate key, and for each shard that cannot be read a second time."""
    problems: list[WdsplitError] = []

    def read_keys(suspects: Hashes) -> Iterator[tuple[pa.LargeStringArray, Place]]:
        for number, finding in sorted(findings.items()):
            if not np.isin(finding.hashes, suspects).any():
                continue
            listed = manifest.shards[number]
            try:
                shard = open_shard(storage, listed)
                for keys in _checked_keys(manifest, listed, shard):
                    yield keys, shard.url
            except WdsplitError as error:
                problems.append(error)

    hashes = [finding.hashes for finding in findings.values()]
    for duplicate in find_duplicate_keys(hashes, read_keys):
        problems.append(duplicate.error(CorruptDataError, "convert again with --overwrite", duplicate.again))
    return problems


def _tars_not_listed(storage: ReadableStorage, manifest: Manifest) -> list[WdsplitError]:
    """Return a problem for each tar beside the shards that the manifest does not list: a glob would read it."""
    listed = set(manifest.shards.table.column("path").to_pylist())
    return [
        CorruptDataError(
            "a tar beside the shards is not in the manifest",
            place=f"{storage.url}/{name}",
            expected=f"{len(listed)} shards",
            found="a tar more, which other readers may read",
            remedy="remove it, or move it out of the dataset",
            url=f"{storage.url}/{name}",
        )
        for name in storage.list()
        if name.endswith(".tar") and name not in listed
    ]
