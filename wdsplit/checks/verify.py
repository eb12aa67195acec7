"""Verifies a dataset: every byte must match the manifest, and every sample must be complete.

Checks each shard separately (size, checksum, places, tar structure, end marker, fields, pads, sample table), then the
keys of all shards.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

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
from wdsplit.tar.samples import TarSamples, check_fields, sample_members
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
    all_shards = list(range(len(manifest.shards)))
    checked = all_shards if selection is None else np.flatnonzero(selection.chosen.counts).tolist()
    findings: list[_Finding] = []
    checked_bytes = 0
    if progress is not None:
        progress(0, len(checked), 0)
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
            findings.append(finding)
            checked_bytes += manifest.shards[finding.shard].num_bytes
            if progress is not None:
                progress(len(findings), len(checked), checked_bytes)
    findings.sort(key=lambda finding: finding.shard)
    problems = [problem for finding in findings for problem in finding.problems]
    problems += [*_duplicate_keys(storage, manifest, findings), *unread]
    with _noted(problems):
        problems += _tars_not_listed(storage, manifest, latest)
        problems += _bad_views(storage, manifest, versions)
    num_samples, with_erased = int(manifest.shards.num_real[checked].sum()), versions_with_erased(storage, latest)
    return Report(manifest, tuple(problems), len(checked), num_samples, with_erased)


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
    """Check a shard; return its problems, and the hashes of its keys without pads, none if a sample cannot be read."""
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


class _Part(NamedTuple):
    """The bytes of the samples first, ..., stop - 1 of a shard; of none if they come after all samples."""

    first: int
    stop: int
    data: memoryview


class _Scanned(NamedTuple):
    """The samples of a part, as their headers describe them."""

    keys: pa.LargeStringArray
    starts: Int64  # of shape (samples, fields): where the payloads begin in the shard; -1 where a sample lacks one
    sizes: Int64  # of the same shape: their bytes, or -1


def _read_shard(
    storage: ReadableStorage, manifest: Manifest, listed: Shard, shard: OpenShard
) -> tuple[str, list[WdsplitError], UInt64]:
    """Read all of a shard once; return its checksum, and problems and hashes as `check_shard` does."""
    digest, end = xxhash.xxh3_128(), memoryview(b"")
    problems: list[WdsplitError] = []
    misplaced: WdsplitError | None = None
    parts_of_keys, parts_of_bytes = [pa.array([], pa.large_string())], [np.zeros(0, np.int64)]
    for part in _parts(shard):
        digest.update(part.data)
        if part.first == part.stop:
            end = part.data
        elif not problems:
            with _noted(problems, shard.url):
                scanned = _scanned(listed, shard, part)
                misplaced = misplaced or _misplaced(shard, part, scanned)
                parts_of_keys.append(scanned.keys)
                parts_of_bytes.append(np.maximum(scanned.sizes, 0).sum(axis=1))
    keys, num_bytes = pa.concat_arrays(parts_of_keys), np.concatenate(parts_of_bytes)
    hashes = hash_keys(keys[: 0 if problems else listed.num_samples - listed.num_pads])
    checksum, tail = checksum_of(digest), check_tail(shard, end)
    if misplaced is not None and checksum == listed.checksum:
        problems.append(misplaced)  # else the tar is wrong, not its places
    problems += [] if tail is None else [tail]
    with _noted(problems):
        _compare_table(storage, manifest, listed, keys, num_bytes)
    return checksum, problems, hashes


def _parts(shard: OpenShard) -> Iterator[_Part]:
    """Yield the bytes of a shard with their samples; at last the bytes after all samples."""
    offsets, first = shard.places.offsets(), 0
    while first < len(offsets) - 1:
        stop = int(np.searchsorted(offsets, offsets[first] + _READ_BYTES, side="right")) - 1
        stop = min(max(stop, first + 1), first + _SAMPLES_AT_ONCE)
        begin, end = int(offsets[first]), int(offsets[stop])
        rest = shard.file.size - end
        with_rest = stop == len(offsets) - 1 and rest <= _READ_BYTES  # one request, not two
        data = memoryview(shard.file.read(begin, end - begin + (rest if with_rest else 0)))
        yield _Part(first, stop, data[: end - begin])
        first = stop
        if with_rest:
            yield _Part(first, first, data[end - begin :])
            return
    for begin in range(int(offsets[-1]), shard.file.size, _READ_BYTES):
        yield _Part(first, first, memoryview(shard.file.read(begin, min(_READ_BYTES, shard.file.size - begin))))


def _scanned(listed: Shard, shard: OpenShard, part: _Part) -> _Scanned:
    """Scan the samples of a part.

    Raises:
        WdsplitError: They cannot be read, or have other fields or pads than the manifest says.
    """
    scan = scan_window(part.data, shard.places.begin_of(part.first))
    members = sample_members(scan)
    check_fields(members)
    _check_names(shard, members)
    _check_pads(listed, shard, part, members.keys)
    starts, sizes = (np.full((len(members.keys), len(shard.names)), -1, np.int64) for _ in range(2))
    column = np.array([shard.names.index(name) for name in members.fields], np.int64)[members.field_index]
    starts[members.sample_index, column] = scan.starts[members.rows]
    sizes[members.sample_index, column] = scan.sizes[members.rows]
    return _Scanned(members.keys, starts, sizes)


def _check_names(shard: OpenShard, members: TarSamples) -> None:
    """Refuse fields that the manifest does not have."""
    unknown = sorted(set(members.fields) - set(shard.names))
    if unknown:
        with_it = members.field_index == members.fields.index(unknown[0])
        key = members.keys[int(members.sample_index[with_it][0])].as_py()
        raise CorruptDataError(
            "a sample has a field that is not in the manifest",
            place=f"{shard.url}, key {key!r}",
            expected=", ".join(sorted(shard.names)),
            found=", ".join(unknown),
            remedy="convert again with --overwrite",
            key=key,
        )


def _check_pads(listed: Shard, shard: OpenShard, part: _Part, keys: pa.LargeStringArray) -> None:
    """Refuse pads elsewhere than after all samples, if the places have the right number of samples."""
    num_real = listed.num_samples - listed.num_pads
    is_pad = pc.starts_with(keys, PAD_PREFIX).to_numpy(zero_copy_only=False)
    others = np.flatnonzero(is_pad != (part.first + np.arange(len(keys)) >= num_real))
    if len(others) and len(keys) == part.stop - part.first:
        key = keys[int(others[0])].as_py()
        raise CorruptDataError(
            "the pads of a shard do not match the manifest",
            place=f"{shard.url}, sample {part.first + others[0]}",
            expected=f"{num_real} samples, then pads",
            found=f"key {key!r}",
            remedy="convert again with --overwrite",
            key=key,
        )


def _misplaced(shard: OpenShard, part: _Part, scanned: _Scanned) -> CorruptDataError | None:
    """Return what is wrong with the places of the samples of a part; None if nothing is."""
    places, keys = rows_of([(shard.places, slice(part.first, part.stop))]), scanned.keys
    if len(keys) == len(places.begins):
        base = shard.places.begin_of(part.first)
        cuts = zip((places.begins - base).tolist(), (places.ends - base).tolist(), strict=True)
        same_starts = (np.where(places.sizes < 0, -1, places.starts) == scanned.starts).all(axis=1)
        right = same_starts & (places.sizes == scanned.sizes).all(axis=1)
        right &= hash_samples(part.data[begin:end] for begin, end in cuts) == places.hashes
        if places.keys is not None:
            right &= places.keys == keys.to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(~right)
        if not len(wrong):
            return None
        found = f"others from sample {part.first + wrong[0]} on, key {keys[int(wrong[0])].as_py()!r}"
    else:
        found = f"{len(places.begins):,}"
    return CorruptDataError(
        "the places of a shard do not match its samples",
        place=f"{places_path(shard.url)}, from sample {part.first} on",
        expected=f"the places of {len(keys):,} samples",
        found=found,
        remedy="copy the places again, or convert again with --overwrite",
        url=places_path(shard.url),
    )


def _compare_table(
    storage: ReadableStorage, manifest: Manifest, listed: Shard, keys: pa.LargeStringArray, num_bytes: Int64
) -> None:
    """Compare the sample table of a shard, if there is one, with keys and payload bytes of its samples, then pads.

    Raises:
        CorruptDataError: They differ, or the table is damaged.
    """
    if manifest.samples is None:
        return
    rows = read_samples(storage, listed, None, manifest.samples).slice(0, len(keys)).combine_chunks()
    found_keys, found_bytes = rows[KEY].cast(pa.large_string()), rows[NUM_BYTES].to_numpy()
    same_keys = pc.equal(found_keys, keys[: len(rows)]).to_numpy(zero_copy_only=False)
    others = np.flatnonzero(~(same_keys & (found_bytes == num_bytes[: len(rows)])))
    if len(others):
        row, place = int(others[0]), f"{storage.url}/{samples_path(listed.path)}"
        raise CorruptDataError(
            "a sample table does not match its shard",
            place=f"{place}, row {row}",
            expected=f"key {keys[row].as_py()!r}, {num_bytes[row]:,} bytes",
            found=f"key {found_keys[row].as_py()!r}, {found_bytes[row]:,} bytes",
            remedy=f"copy the dataset again; `wdsplit index {storage.url} --overwrite` makes those of tars again",
            url=place,
            key=keys[row].as_py(),
        )


def _duplicate_keys(storage: ReadableStorage, manifest: Manifest, findings: list[_Finding]) -> list[WdsplitError]:
    """Return a problem for each duplicate key, and for each shard that cannot be read a second time."""
    problems: list[WdsplitError] = []

    def read_keys(suspects: UInt64) -> Iterator[tuple[pa.LargeStringArray, Place]]:
        for finding in findings:
            if not np.isin(finding.hashes, suspects).any():
                continue
            listed = manifest.shards[finding.shard]
            url = f"{storage.url}/{listed.path}"
            with _noted(problems, url):
                shard = open_shard(storage, listed, manifest.field_names)
                for part in _parts(shard):
                    if part.first < part.stop:
                        yield _scanned(listed, shard, part).keys, shard.url

    hashes = [finding.hashes for finding in findings]
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
