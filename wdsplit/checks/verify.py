"""Verifies a dataset: every byte must match the manifest, and every sample must be complete.

Checks each shard separately (size, checksum, index, tar structure, end marker, fields, pads, sample table), then the
keys of all shards.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from wdsplit.arrays import Int64
from wdsplit.engines.local import Engine, LocalEngine
from wdsplit.errors import CorruptDataError, InputError, WdsplitError
from wdsplit.fields.duplicate_keys import Hashes, Place, find_duplicate_keys
from wdsplit.fields.image_sizes import IMAGE_EXTENSIONS
from wdsplit.fields.keys import hash_keys
from wdsplit.loading.bad_samples import BadSample, line_of
from wdsplit.loading.reading.open_shard import OpenShard, check_tail, open_shard
from wdsplit.loading.reading.read_windows import read_window
from wdsplit.loading.reading.window import Window
from wdsplit.loading.views import chosen_views
from wdsplit.notebook import html_table
from wdsplit.order.packed import is_whole
from wdsplit.order.selection import Selection
from wdsplit.shards.annotations import Annotation, annotation_names, find_annotation, read_annotation
from wdsplit.shards.checksums import checksums_path, dump_checksums, sample_checksums
from wdsplit.shards.emit import CHECKSUMS
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import Manifest, Shard, checksum_of
from wdsplit.shards.sample_tables import KEY, NUM_BYTES, read_names, read_samples, samples_path
from wdsplit.shards.views import read_view, view_names, view_path
from wdsplit.storage.given import located_one
from wdsplit.storage.interface import ReadableStorage, Storage
from wdsplit.storage.opening import open_readable_storage, open_storage
from wdsplit.tar.names import is_pad_key
from wdsplit.texts import counted

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

    from wdsplit.checks.decoded import Images
    from wdsplit.views.view import View

__all__ = ["Report", "verify"]

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
        images: What was found in their images; None if they were not decoded.
    """

    manifest: Manifest
    problems: tuple[WdsplitError, ...]
    num_shards: int
    num_samples: int
    images: Images | None = None

    def __repr__(self) -> str:
        return f"<Report: {self._verdict}>"

    def _repr_html_(self) -> str:
        return html_table(self._verdict, enumerate(self.problems, 1))

    @property
    def image_fields(self) -> list[str]:
        """The names of the fields that hold images."""
        return [field.name for field in self.manifest.fields if field.name.rpartition(".")[2] in IMAGE_EXTENSIONS]

    @property
    def _verdict(self) -> str:
        checked = f"{counted(self.num_shards, 'shard')}, {counted(self.num_samples, 'sample')}"
        found = f"✗ {counted(len(self.problems), 'problem')}" if self.problems else "✓ ok"
        unread = "" if self.images is not None or not self.image_fields else ", images not decoded"
        decoded = "" if self.images is None else f", {counted(self.images.num_images, 'image')} decoded"
        return f"{found}: {checked}{decoded or unread}"


@dataclass(frozen=True)
class _Finding:
    """The problems of a shard, the hashes of its keys without those of pads, and what is in its images."""

    shard: int
    problems: tuple[WdsplitError, ...]
    hashes: Hashes
    images: Images | None = None


def verify(
    url: str,
    jobs: int = 1,
    progress: Callable[[int, int, int], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    engine: Engine | None = None,
    fs: AbstractFileSystem | None = None,
    emit: Sequence[str] = (),
    view: str | View | None = None,
    where: str | None = None,
    decode: bool = False,
    bad_samples_file: str | os.PathLike[str] | None = None,
) -> Report:
    """Check a whole dataset, or the shards of a view. Uses 8 bytes of memory per sample to find duplicate keys.

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
        emit: `checksums` to write the checksums of its samples beside each valid shard, for `Dataset(verify=True)`.
        view: As for `Dataset`, but only one view: check all of each shard with a sample of it.
        where: As for `Dataset`: check all of each shard with a sample that meets this condition.
        decode: Also decode every image, or those of the view, as `decode` and `resized` do; the report lists those that
            fail, and counts what is unusual. Needs `pip install 'wdsplit[images]'`.
        bad_samples_file: With `decode`: a .jsonl file to list the samples that fail in, also if there are none. It
            replaces an existing file. Views exclude such a list.

    Raises:
        InputError: `emit` or `bad_samples_file` is invalid, or the view does not exist.
        WdsplitError: The manifest cannot be read. Problems with shards are returned, not raised.
    """
    if not set(emit) <= {CHECKSUMS}:
        raise InputError("invalid emit", expected=CHECKSUMS, found=", ".join(emit))
    bad_file = None if bad_samples_file is None else os.fspath(bad_samples_file)
    if bad_file is not None and not (decode and bad_file.endswith(".jsonl")):
        raise InputError(
            "invalid bad_samples_file",
            expected="a file NAME.jsonl" if decode else "decode too: without it no samples are listed",
            found=bad_file,
        )
    if decode:
        from wdsplit.checks.decoded import Images, require_decoders  # here, because it loads much

        require_decoders()
    url, storage_options = located_one(url, storage_options, fs)
    output = open_storage(url, storage_options) if emit else None
    storage: ReadableStorage = output or open_readable_storage(url, storage_options)
    manifest = read_manifest(storage)
    selection = chosen_views(storage, manifest, {"view": view, "where": where}, None, storage_options).selection_at(0)
    checked = list(range(len(manifest.shards)) if selection is None else np.flatnonzero(selection.counts).tolist())
    num_shards = len(checked)
    findings: dict[int, _Finding] = {}
    checked_bytes = 0
    if progress is not None:
        progress(0, num_shards, 0)
    annotations, unread = _annotations(storage, manifest)
    check = partial(_check_with_annotations, storage, manifest, output, annotations, decode, selection)
    describe = partial(_describe, manifest)
    num_bytes = None if storage.has_latency else int(manifest.shards.column("num_bytes")[checked].sum())
    results = (engine or LocalEngine(jobs)).map(check, checked, num_bytes=num_bytes, describe=describe)
    with closing(results):
        for finding in results:
            findings[finding.shard] = finding
            checked_bytes += manifest.shards[finding.shard].num_bytes
            if progress is not None:
                progress(len(findings), num_shards, checked_bytes)
    problems = [problem for shard in sorted(findings) for problem in findings[shard].problems]
    problems += [*_duplicate_keys(storage, manifest, findings), *unread]
    try:
        problems += _tars_not_listed(storage, manifest)
        problems += _bad_views(storage, manifest)
    except WdsplitError as error:
        problems.append(error)
    images = None
    if decode:
        parts = [findings[shard].images for shard in sorted(findings)]
        images = Images.joined(part for part in parts if part is not None)
        if bad_file is not None:
            folder, separator, name = bad_file.rpartition("/")
            with open_storage(folder if separator else ".", storage_options).publish(name) as file:
                file.write([b"".join(map(line_of, images.bad))])
    return Report(manifest, tuple(problems), num_shards, int(manifest.shards.num_real[checked].sum()), images)


def _describe(manifest: Manifest, number: int) -> str:
    return manifest.shards[number].path


def _annotations(storage: ReadableStorage, manifest: Manifest) -> tuple[list[Annotation], list[WdsplitError]]:
    """Return the annotations of a dataset, and a problem for each that is damaged or belongs to other shards."""
    found: list[Annotation] = []
    problems: list[WdsplitError] = []
    for name in annotation_names(storage):
        try:
            found.append(find_annotation(storage, name, manifest))
        except WdsplitError as error:
            problems.append(error)
    return found, problems


def _check_with_annotations(
    storage: ReadableStorage,
    manifest: Manifest,
    output: Storage | None,
    annotations: Sequence[Annotation],
    decode: bool,
    selection: Selection | None,
    number: int,
) -> _Finding:
    """Check a shard, and its tables of all annotations; decode its images if requested."""
    finding = _check_shard(storage, manifest, output, number)
    problems = list(finding.problems)
    if decode:
        images, errors = _decoded(storage, manifest, selection, number)
        finding, problems = replace(finding, images=images), [*problems, *errors]
    for annotation in annotations:
        try:
            read_annotation(storage, annotation, manifest.shards[number])
        except WdsplitError as error:
            problems.append(error)
    return replace(finding, problems=tuple(problems))


def _decoded(
    storage: ReadableStorage, manifest: Manifest, selection: Selection | None, number: int
) -> tuple[Images, list[WdsplitError]]:
    """Decode the selected images of a shard; if it cannot be opened, all its samples are bad."""
    from wdsplit.checks.decoded import Images, decode_images

    listed = manifest.shards[number]
    num_real = listed.num_samples - listed.num_pads
    mask = np.ones(num_real, np.bool_) if selection is None else selection.mask(number, 0, num_real)
    names: Sequence[tuple[str | None, str]] = []
    with suppress(CorruptDataError):
        names = [] if manifest.samples is None else read_names(storage, listed, manifest.samples)
    try:
        shard = open_shard(storage, listed)
    except CorruptDataError as error:
        found, url = names or [(None, "")] * num_real, f"{storage.url}/{listed.path}"
        rows = np.flatnonzero(mask).tolist()
        return Images(bad=tuple(BadSample(found[row][0], url, row, None, error, found[row][1]) for row in rows)), []
    except WdsplitError:  # it is a problem already
        return Images(), []
    fields = [field.name for field in manifest.fields if field.name.rpartition(".")[2] in IMAGE_EXTENSIONS]
    try:
        return decode_images(shard, mask, fields, names)
    except WdsplitError as error:
        return Images(), [error]


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
        table = _SampleTable(storage, manifest, listed)
        hashes = []
        num_left = listed.num_samples - listed.num_pads
        for keys, sizes in _checked_keys(manifest, listed, shard):
            hashes.append(hash_keys(keys[: max(0, num_left)]))
            num_left -= len(keys)
            table.compare(keys, sizes)
        problems += table.problems
        if output is not None and not problems:
            _write_checksums(output, listed, shard)
    except WdsplitError as error:
        return _Finding(number, (*problems, error), none)
    return _Finding(number, tuple(problems), np.concatenate([none, *hashes]))


def _write_checksums(output: Storage, listed: Shard, shard: OpenShard) -> None:
    """Write the checksums of the samples of a valid shard."""
    checksums = sample_checksums(shard.read(begin, end) for begin, end in pairwise(shard.offsets.tolist()))
    with output.publish(checksums_path(listed.path)) as file:
        file.write([dump_checksums(checksums, listed)])


def _checksum(shard: OpenShard, listed: Shard) -> str:
    """Return the checksum of a shard; a remote shard with a wrong one is fetched again first."""
    if not shard.file.is_remote:
        return _checksum_in_pieces(shard)
    checksum = checksum_of(xxhash.xxh3_128(shard.data))
    if checksum != listed.checksum:
        shard.fetch_again()
        checksum = checksum_of(xxhash.xxh3_128(shard.data))
    return checksum


def _checksum_in_pieces(shard: OpenShard) -> str:
    """Return the checksum of a local shard; it is read, not mapped, because files may shrink meanwhile."""
    digest = xxhash.xxh3_128()
    buffer = memoryview(bytearray(min(_READ_BYTES, shard.file.size)))
    for offset in range(0, shard.file.size, _READ_BYTES):
        piece = buffer[: shard.file.size - offset]
        shard.file.read_into(piece, offset)
        digest.update(piece)
    return checksum_of(digest)


class _SampleTable:
    """The sample table of a shard, compared with its samples, some at a time.

    Attributes:
        problems: The problems of the table; empty if the dataset has no such tables.
    """

    def __init__(self, storage: ReadableStorage, manifest: Manifest, listed: Shard) -> None:
        self.problems: list[WdsplitError] = []
        self._dataset, self._place = storage.url, f"{storage.url}/{samples_path(listed.path)}"
        self._table, self._first = None, 0
        try:
            if manifest.samples is not None:
                self._table = read_samples(storage, listed, None, manifest.samples)
        except WdsplitError as error:
            self.problems.append(error)

    def compare(self, keys: pa.LargeStringArray, sizes: Int64) -> None:
        """Compare the next rows with the next samples, which may end with pads."""
        if self._table is None or self.problems:
            return
        rows = self._table.slice(self._first, len(keys)).combine_chunks()
        found_keys, found_bytes = rows[KEY].cast(pa.large_string()), rows[NUM_BYTES].to_numpy()
        same_keys = pc.equal(found_keys, keys[: len(rows)]).to_numpy(zero_copy_only=False)
        others = np.flatnonzero(~(same_keys & (found_bytes == sizes[: len(rows)])))
        if len(others):
            row = int(others[0])
            found, expected = (found_keys[row].as_py(), int(found_bytes[row])), (keys[row].as_py(), int(sizes[row]))
            self.problems.append(self._other(self._first + row, *found, *expected))
        self._first += len(keys)

    def _other(self, row: int, found_key: str, found_bytes: int, key: str, num_bytes: int) -> CorruptDataError:
        return CorruptDataError(
            "a sample table does not match its shard",
            place=f"{self._place}, row {row}",
            expected=f"key {key!r}, {num_bytes:,} bytes",
            found=f"key {found_key!r}, {found_bytes:,} bytes",
            remedy=f"remove it, and make it again with `wdsplit index {self._dataset} --sample-tables`",
            url=self._place,
            key=key,
        )


def _checked_keys(manifest: Manifest, listed: Shard, shard: OpenShard) -> Iterator[tuple[pa.LargeStringArray, Int64]]:
    """Yield the keys of a shard and the bytes of the payloads, some at a time, each sample checked."""
    num_samples = len(shard.offsets) - 1
    num_real = num_samples - listed.num_pads
    fields = {field.name for field in manifest.fields}
    for first in range(0, num_samples, _SAMPLES_AT_ONCE):
        window = read_window(shard, first, min(num_samples, first + _SAMPLES_AT_ONCE), fields=())
        _check_fields(window, fields, shard.url)
        keys: list[str] = window.keys.tolist()
        for place, key in enumerate(keys, first):
            if is_pad_key(key) != (place >= num_real):
                raise CorruptDataError(
                    "the pads of a shard do not match the manifest",
                    place=f"{shard.url}, sample {place}",
                    expected=f"{num_real} samples, then pads",
                    found=f"key {key!r}",
                    remedy="convert again with --overwrite",
                    url=shard.url,
                    key=key,
                )
        yield pa.array(keys, pa.large_string()), window.total_sizes()


def _check_fields(window: Window, fields: set[str], url: str) -> None:
    for key, names in window.field_names():
        if not fields.issuperset(names):
            raise CorruptDataError(
                "a sample has a field that is not in the manifest",
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
                for keys, _ in _checked_keys(manifest, listed, shard):
                    yield keys, shard.url
            except WdsplitError as error:
                problems.append(error)

    hashes = [finding.hashes for finding in findings.values()]
    for duplicate in find_duplicate_keys(hashes, read_keys):
        problems.append(duplicate.error(CorruptDataError, "convert again with --overwrite", duplicate.again))
    return problems


def _bad_views(storage: ReadableStorage, manifest: Manifest) -> list[WdsplitError]:
    """Return a problem for each stored view that is damaged, or was made for another version of the dataset."""
    problems: list[WdsplitError] = []
    for name in view_names(storage):
        try:
            selection = read_view(storage, manifest, name)[1]
            if not is_whole(selection):
                raise CorruptDataError(
                    "the bitmaps of a view do not match its counts",
                    place=f"{storage.url}/{view_path(name)}",
                    remedy="make the view again with `wdsplit view --overwrite`",
                )
        except WdsplitError as error:
            problems.append(error)
    return problems


def _tars_not_listed(storage: ReadableStorage, manifest: Manifest) -> list[WdsplitError]:
    """Return a problem for each tar beside the shards that the manifest does not list: a glob would read it."""
    listed = set(manifest.shards.table.column("path").to_pylist())
    return [
        CorruptDataError(
            "a tar beside the shards is not in the manifest",
            place=f"{storage.url}/{name}",
            expected=f"{len(listed)} shards",
            found="an extra tar, which other readers may read",
            remedy="remove it, or move it out of the dataset",
            url=f"{storage.url}/{name}",
        )
        for name in storage.list()
        if name.endswith(".tar") and name not in listed
    ]
