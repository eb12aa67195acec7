"""Verifies a dataset: every byte must match the manifest, and every sample must be complete.

Checks each shard separately (size, checksum, places, tar structure, end marker, fields, pads, sample table), then the
keys of all shards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from wdsplit.arrays import Int64, UInt64
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import CorruptDataError, WdsplitError
from wdsplit.fields.keys import Place, find_duplicate_keys, hash_keys
from wdsplit.loading.reading.open_shard import OpenShard, check_tail, open_shard
from wdsplit.loading.views import chosen_views
from wdsplit.notebook import html_table
from wdsplit.shards.annotations import ANNOTATIONS, Annotation, read_annotation, read_side_shards
from wdsplit.shards.files import existing_versions, read_manifest, versions_with_erased
from wdsplit.shards.manifest import Manifest, Shard, checksum_of
from wdsplit.shards.places import places_path
from wdsplit.shards.sample_tables import KEY, NUM_BYTES, read_samples, samples_path
from wdsplit.shards.versions import REWRITTEN
from wdsplit.shards.views import VIEWS, read_view
from wdsplit.storage.given import located_one
from wdsplit.storage.interface import ReadableStorage
from wdsplit.storage.opening import open_readable_storage
from wdsplit.tar.names import PAD_PREFIX
from wdsplit.tar.places import hash_samples, rows_of
from wdsplit.tar.samples import check_fields, sample_members
from wdsplit.tar.scan import scan_window
from wdsplit.texts import counted
from wdsplit.urls import is_web

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from wdsplit.order.views import View

__all__ = ["Report", "verify"]

logger = logging.getLogger(__name__)

_SAMPLES_AT_ONCE = 4096
_READ_BYTES = 8 * 1024**2


@dataclass(frozen=True)
class Report:
    """The result of a verification.

    Attributes:
        manifest: The dataset's manifest.
        problems: The problems, in the order of the shards; empty if there are none.
        num_shards: Number of checked shards: all, or those with samples of a view.
        num_samples: Number of their samples, without pads.
        with_erased: The versions of the dataset that still have samples which a later one erased.
    """

    manifest: Manifest
    problems: tuple[WdsplitError, ...]
    num_shards: int
    num_samples: int
    with_erased: tuple[int, ...] = ()

    def __repr__(self) -> str:
        return f"<Report: {self._verdict}>"

    def _repr_html_(self) -> str:
        return html_table(self._verdict, enumerate(self.problems, 1))

    @property
    def _verdict(self) -> str:
        checked = f"{counted(self.num_shards, 'shard')}, {counted(self.num_samples, 'sample')}"
        found = f"✗ {counted(len(self.problems), 'problem')}" if self.problems else "✓ ok"
        return f"{found}: {checked}"


@dataclass(frozen=True)
class _Finding:
    """The problems of a shard, and the hashes of its keys without those of pads."""

    shard: int
    problems: tuple[WdsplitError, ...]
    hashes: UInt64


def verify(
    url: str,
    jobs: int = 1,
    progress: Callable[[int, int, int], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    fs: AbstractFileSystem | None = None,
    view: str | View | None = None,
    where: str | None = None,
    version: int | None = None,
) -> Report:
    """Check a whole dataset, or the shards of a view. Uses 8 bytes of memory per sample to find duplicate keys.

    Of an http(s) URL views and annotations are left out, with a warning: a web server lists no files.

        report = wdsplit.verify("data/train", jobs=2)
        print(report.problems)  # ()

    Args:
        url: The dataset's folder.
        jobs: Number of processes.
        progress: Called at the start and after each shard, with the number of checked shards, of all shards, and of
            checked bytes.
        storage_options: Options for a remote store, as for `Dataset`.
        engine: Engine that runs the tasks; None for `jobs` processes of this machine.
        fs: fsspec file system of the folder; None to choose it by the path.
        view: As for `Dataset`, but only one view: check all of each shard with a sample of it.
        where: As for `Dataset`: check all of each shard with a sample that meets this condition.
        version: As for `Dataset`; the latest has all shards.

    Raises:
        InputError: The view does not exist.
        WdsplitError: The manifest cannot be read. Problems with shards are returned, not raised.
    """
    url, storage_options = located_one(url, storage_options, fs)
    storage = open_readable_storage(url, storage_options)
    manifest = read_manifest(storage, version)
    selection = chosen_views(storage, manifest, {"view": view, "where": where}, None, storage_options).selection_at(0)
    checked = list(
        range(len(manifest.shards)) if selection is None else np.flatnonzero(selection.chosen.counts).tolist()
    )
    num_shards = len(checked)
    findings: dict[int, _Finding] = {}
    checked_bytes = 0
    if progress is not None:
        progress(0, num_shards, 0)
    if is_web(storage.url):
        unseen = "its annotations and views are not checked, nor whether there are other tars"
        logger.warning("%s: a web server lists no files: %s", storage.url, unseen)
    latest = manifest if version is None else read_manifest(storage)
    versions = {each.fingerprint for each in latest.history} - {manifest.fingerprint}
    annotations, unread = _annotations(storage, manifest, versions)
    check = partial(_check, storage, manifest, annotations)
    num_bytes = None if storage.has_latency else int(manifest.shards.column("num_bytes")[checked].sum())
    results = (engine or LocalEngine(jobs)).map(
        check, checked, num_bytes=num_bytes, describe=lambda number: manifest.shards[number].path
    )
    with closing(results):
        for finding in results:
            findings[finding.shard] = finding
            checked_bytes += manifest.shards[finding.shard].num_bytes
            if progress is not None:
                progress(len(findings), num_shards, checked_bytes)
    problems = [problem for shard in sorted(findings) for problem in findings[shard].problems]
    problems += [*_duplicate_keys(storage, manifest, findings), *unread]
    with _noted(problems):
        problems += _tars_not_listed(storage, manifest, latest)
        problems += _bad_views(storage, manifest, versions)
    num_samples, with_erased = int(manifest.shards.num_real[checked].sum()), versions_with_erased(storage, latest)
    return Report(manifest, tuple(problems), num_shards, num_samples, with_erased)


@contextmanager
def _noted(problems: list[WdsplitError], url: str = "") -> Iterator[None]:
    """Add an error to the problems instead of raising it, with the URL of its file if it may lack that."""
    try:
        yield
    except WdsplitError as error:
        error.url = error.url or url
        problems.append(error if url in error.place else error.at(url))


_Annotated = list[tuple[Annotation, Manifest | None]]
"""Annotations, with the side shards of those that have fields."""


def _annotations(
    storage: ReadableStorage, manifest: Manifest, versions: Collection[str]
) -> tuple[_Annotated, list[WdsplitError]]:
    """Return the annotations of a dataset, and a problem for each that is damaged or belongs to other shards.

    Those of other versions, given by their fingerprints, are left out.
    """
    found: _Annotated = []
    problems: list[WdsplitError] = []
    for name in ANNOTATIONS.of_version(storage, manifest, versions):
        with _noted(problems):
            each = ANNOTATIONS.find(storage, name, manifest)
            found.append((each, read_side_shards(storage, each, manifest) if each.fields else None))
    return found, problems


def _check(storage: ReadableStorage, manifest: Manifest, annotations: _Annotated, number: int) -> _Finding:
    """Check a shard, with its tables and side shards of all annotations."""
    problems, hashes = _check_shard(storage, manifest, manifest.shards[number])
    for annotation, side in annotations:
        if annotation.schema.names:
            with _noted(problems):
                read_annotation(storage, annotation, manifest.shards[number])
        if side is not None:
            found, side_hashes = _check_shard(storage, side, side.shards[number])
            if not found and len(hashes) and not np.array_equal(side_hashes, hashes):
                url = f"{storage.url}/{side.shards[number].path}"
                found = [CorruptDataError("a side shard has other keys than its shard", place=url, url=url)]
            for problem in found:
                problem.remedy = ANNOTATIONS.remedy(annotation.name)
            problems += found
    return _Finding(number, tuple(problems), hashes)


def _check_shard(storage: ReadableStorage, manifest: Manifest, listed: Shard) -> tuple[list[WdsplitError], UInt64]:
    """Check a shard; return its problems, and the hashes of its keys, none if a sample cannot be read."""
    problems: list[WdsplitError] = []
    hashes: UInt64 = np.zeros(0, np.uint64)
    with _noted(problems):
        shard = open_shard(storage, listed, manifest.field_names)
        checksum, found, hashes = _read_shard(storage, manifest, listed, shard)
        if checksum != listed.checksum and shard.file.is_remote:  # it may have been damaged on its way
            checksum, found, hashes = _read_shard(storage, manifest, listed, shard)
        if checksum != listed.checksum:
            changed = CorruptDataError(
                "a shard was changed",
                place=shard.url,
                expected=listed.checksum,
                found=checksum,
                remedy="copy it again, or convert again with --overwrite",
                url=shard.url,
            )
            problems.append(changed)
        problems += found
    return problems, hashes


def _read_shard(
    storage: ReadableStorage, manifest: Manifest, listed: Shard, shard: OpenShard
) -> tuple[str, list[WdsplitError], UInt64]:
    """Read all of a shard once, some samples at a time; they are scanned as a tar of another program would be.

    Returns:
        Its checksum, its problems, and the hashes of its keys; none if a sample cannot be read.
    """
    digest, num_real = xxhash.xxh3_128(), listed.num_samples - listed.num_pads
    problems: list[WdsplitError] = []
    misplaced: WdsplitError | None = None
    scanned: list[tuple[pa.LargeStringArray, Int64]] = []
    hashes: list[UInt64] = [np.zeros(0, np.uint64)]
    end = memoryview(b"")
    for first, stop, data in _parts(shard):
        digest.update(data)
        if first == stop:
            end = data
        if problems or first == stop:
            continue
        with _noted(problems, shard.url):
            keys, sizes, wrong = _scanned(listed, shard, first, stop, data)
            misplaced = misplaced or wrong
            scanned.append((keys, sizes))
            hashes.append(hash_keys(keys[: max(0, num_real - first)]))
    if problems:
        del hashes[1:]
    checksum, tail = checksum_of(digest), check_tail(shard, end)
    if misplaced is not None and checksum == listed.checksum:
        problems.append(misplaced)  # else the tar is wrong, not its places
    problems += [] if tail is None else [tail]
    with _noted(problems):
        _compare_table(storage, manifest, listed, scanned)
    return checksum, problems, np.concatenate(hashes)


def _parts(shard: OpenShard) -> Iterator[tuple[int, int, memoryview]]:
    """Yield the bytes of a shard and their samples first, ..., stop - 1; at last the bytes after all samples."""
    offsets, first = shard.places.offsets(), 0
    while first < len(offsets) - 1:
        stop = int(np.searchsorted(offsets, offsets[first] + _READ_BYTES, side="right")) - 1
        stop = min(max(stop, first + 1), first + _SAMPLES_AT_ONCE)
        begin, end = int(offsets[first]), int(offsets[stop])
        rest = shard.file.size - end
        with_rest = stop == len(offsets) - 1 and rest <= _READ_BYTES  # one request, not two
        data = memoryview(shard.file.read(begin, end - begin + (rest if with_rest else 0)))
        yield first, stop, data[: end - begin]
        first = stop
        if with_rest:
            yield first, first, data[end - begin :]
            return
    for begin in range(int(offsets[-1]), shard.file.size, _READ_BYTES):
        yield first, first, memoryview(shard.file.read(begin, min(_READ_BYTES, shard.file.size - begin)))


def _scanned(
    listed: Shard, shard: OpenShard, first: int, stop: int, data: memoryview
) -> tuple[pa.LargeStringArray, Int64, CorruptDataError | None]:
    """Return keys and payload bytes of the samples first, ..., stop - 1, and what is wrong with their places."""
    base, num_real = shard.places.begin_of(first), listed.num_samples - listed.num_pads
    scan = scan_window(data, base)
    members = sample_members(scan)
    check_fields(members)
    keys = members.keys
    unknown = sorted(set(members.fields) - set(shard.names))
    if unknown:
        row = int(members.sample_index[members.field_index == members.fields.index(unknown[0])][0])
        raise CorruptDataError(
            "a sample has a field that is not in the manifest",
            place=f"{shard.url}, key {keys[row].as_py()!r}",
            expected=", ".join(sorted(shard.names)),
            found=", ".join(unknown),
            remedy="convert again with --overwrite",
            key=keys[row].as_py(),
        )
    is_pad = pc.starts_with(keys, PAD_PREFIX).to_numpy(zero_copy_only=False)
    others = np.flatnonzero(is_pad != (first + np.arange(len(keys)) >= num_real))
    if len(others) and len(keys) == stop - first:  # else the places are wrong
        key = keys[int(others[0])].as_py()
        raise CorruptDataError(
            "the pads of a shard do not match the manifest",
            place=f"{shard.url}, sample {first + others[0]}",
            expected=f"{num_real} samples, then pads",
            found=f"key {key!r}",
            remedy="convert again with --overwrite",
            key=key,
        )
    sizes, starts = (np.full((len(keys), len(shard.names)), -1, np.int64) for _ in range(2))
    columns = np.array([shard.names.index(name) for name in members.fields], np.int64)[members.field_index]
    sizes[members.sample_index, columns] = scan.sizes[members.rows]
    starts[members.sample_index, columns] = scan.starts[members.rows]
    return (
        keys,
        np.where(sizes < 0, 0, sizes).sum(axis=1),
        _misplaced(shard, slice(first, stop), data, keys, starts, sizes),
    )


def _misplaced(
    shard: OpenShard, samples: slice, data: memoryview, keys: pa.LargeStringArray, starts: Int64, sizes: Int64
) -> CorruptDataError | None:
    """Return what is wrong with the places of some samples, given where their payloads are; None if nothing is."""
    rows, base = rows_of([(shard.places, samples)]), shard.places.begin_of(samples.start)
    if len(keys) == len(rows.begins):
        cuts = zip((rows.begins - base).tolist(), (rows.ends - base).tolist(), strict=True)
        same_starts = (np.where(rows.sizes < 0, -1, rows.starts) == starts).all(axis=1)
        right = same_starts & (rows.sizes == sizes).all(axis=1)
        right &= hash_samples(data[begin:end] for begin, end in cuts) == rows.hashes
        if rows.keys is not None:
            right &= rows.keys == keys.to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(~right)
        if not len(wrong):
            return None
        found = f"others from sample {samples.start + wrong[0]} on, key {keys[int(wrong[0])].as_py()!r}"
    else:
        found = f"{len(rows.begins):,}"
    return CorruptDataError(
        "the places of a shard do not match its samples",
        place=f"{places_path(shard.url)}, from sample {samples.start} on",
        expected=f"the places of {len(keys):,} samples",
        found=found,
        remedy="copy the places again, or convert again with --overwrite",
        url=places_path(shard.url),
    )


def _compare_table(
    storage: ReadableStorage, manifest: Manifest, listed: Shard, scanned: Sequence[tuple[pa.LargeStringArray, Int64]]
) -> None:
    """Compare the sample table of a shard, if there is one, with keys and payload bytes of its samples, then pads.

    Raises:
        CorruptDataError: They differ, or the table is damaged.
    """
    if manifest.samples is None:
        return
    table, first = read_samples(storage, listed, None, manifest.samples), 0
    for keys, sizes in scanned:
        rows = table.slice(first, len(keys)).combine_chunks()
        found_keys, found_bytes = rows[KEY].cast(pa.large_string()), rows[NUM_BYTES].to_numpy()
        same_keys = pc.equal(found_keys, keys[: len(rows)]).to_numpy(zero_copy_only=False)
        others = np.flatnonzero(~(same_keys & (found_bytes == sizes[: len(rows)])))
        if len(others):
            row, place = int(others[0]), f"{storage.url}/{samples_path(listed.path)}"
            raise CorruptDataError(
                "a sample table does not match its shard",
                place=f"{place}, row {first + row}",
                expected=f"key {keys[row].as_py()!r}, {sizes[row]:,} bytes",
                found=f"key {found_keys[row].as_py()!r}, {found_bytes[row]:,} bytes",
                remedy=f"copy the dataset again; `wdsplit index {storage.url} --overwrite` makes those of tars again",
                url=place,
                key=keys[row].as_py(),
            )
        first += len(keys)


def _duplicate_keys(storage: ReadableStorage, manifest: Manifest, findings: dict[int, _Finding]) -> list[WdsplitError]:
    """Return a problem for each duplicate key, and for each shard that cannot be read a second time."""
    problems: list[WdsplitError] = []

    def read_keys(suspects: UInt64) -> Iterator[tuple[pa.LargeStringArray, Place]]:
        for number, finding in sorted(findings.items()):
            if not np.isin(finding.hashes, suspects).any():
                continue
            listed = manifest.shards[number]
            with _noted(problems, f"{storage.url}/{listed.path}"):
                shard = open_shard(storage, listed, manifest.field_names)
                for first, stop, data in _parts(shard):
                    if first < stop:
                        yield _scanned(listed, shard, first, stop, data)[0], shard.url

    hashes = [finding.hashes for finding in findings.values()]
    for duplicate in find_duplicate_keys(hashes, read_keys):
        problems.append(duplicate.error(CorruptDataError, "convert again with --overwrite", duplicate.again))
    return problems


def _bad_views(storage: ReadableStorage, manifest: Manifest, versions: Collection[str]) -> list[WdsplitError]:
    """Return a problem for each stored view that is damaged, or was made for other shards; not for other versions."""
    problems: list[WdsplitError] = []
    for name in VIEWS.of_version(storage, manifest, versions):
        with _noted(problems):
            if not read_view(storage, manifest, name, whole=True)[1].chosen.is_intact:
                raise CorruptDataError(
                    "the bitmaps of a view do not match its counts",
                    place=f"{storage.url}/{VIEWS.path(name, manifest.fingerprint)}",
                    remedy="make the view again with `wdsplit view --overwrite`",
                )
    return problems


def _tars_not_listed(storage: ReadableStorage, manifest: Manifest, latest: Manifest) -> list[WdsplitError]:
    """Return a problem for each tar beside the shards that no manifest lists: a glob would read it.

    Those that erasing has written so far are left out: `wdsplit gc` removes them if it does not go on.
    """
    listed = set(manifest.shards.table.column("path").to_pylist())
    others = {name for name in storage.list() if name.endswith(".tar") and not REWRITTEN.search(name)} - listed
    for version in existing_versions(storage, latest) if others else ():
        others.difference_update(read_manifest(storage, version.number).shards.table.column("path").to_pylist())
    return [
        CorruptDataError(
            "a tar beside the shards is not in the manifest",
            place=f"{storage.url}/{name}",
            expected=f"{len(listed)} shards",
            found="an extra tar, which other readers may read",
            remedy="remove it, or move it out of the dataset",
            url=f"{storage.url}/{name}",
        )
        for name in sorted(others)
    ]
