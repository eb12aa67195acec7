"""The task of erasing: writes a shard again without some of its samples, with its tables and side shards.

The bytes of the samples that stay are copied. Pads repeat samples, so they are made anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import xxhash

from wdsplit.arrays import Int64
from wdsplit.engines.local import ahead, raise_if_cancelled
from wdsplit.errors import CorruptDataError
from wdsplit.jobs.run import Job
from wdsplit.loading.reading.open_shard import OpenShard, open_shard
from wdsplit.order.selection import Selection
from wdsplit.shards.annotations import ANNOTATIONS, Annotation, annotation_table_path, read_annotation
from wdsplit.shards.erased import hash_erased
from wdsplit.shards.files import Copied, write_shard
from wdsplit.shards.manifest import ERASE_FOLDER, Manifest, Shard
from wdsplit.shards.sample_tables import KEY, dump_samples, read_samples
from wdsplit.shards.sidecars import write_shard_sidecars
from wdsplit.shards.versions import rewritten_path
from wdsplit.storage.interface import Storage
from wdsplit.tar.members import Body, build_body
from wdsplit.tar.names import PAD_PREFIX
from wdsplit.tar.places import Rows, hash_samples, rows_of

__all__ = ["EraseJob", "Rewritten", "parse_rewritten", "rewrite_shards"]

_COPIED_BYTES = 16 * 1024**2
"""Bytes that are copied at a time, in whole samples."""


@dataclass(frozen=True, kw_only=True)
class EraseJob(Job):
    """The input of every task of erasing.

    Attributes:
        manifest: The version that has the samples.
        selection: The samples to erase.
        annotations: The annotations of that version, with the side shards of those that have fields.
    """

    manifest: Manifest
    selection: Selection
    annotations: tuple[tuple[Annotation, Manifest | None], ...]
    run_folder = ERASE_FOLDER

    @cached_property
    def run(self) -> str:
        """A hash of all that determines what is written; in the names of all files."""
        stored = [(each.folder, each.fingerprint, each.shards_checksum) for each, _ in self.annotations]
        content = [self.manifest.version, self.manifest.fingerprint, self.selection.fingerprint, stored]
        return xxhash.xxh3_64_hexdigest(orjson.dumps(content))

    @cached_property
    def numbers(self) -> Int64:
        """The shards that change, rising: those with a sample to erase; and those of pads alone, which are left out."""
        return np.flatnonzero((self.selection.counts > 0) | (self.selection.totals == 0))

    def path_of(self, path: str) -> str:
        """Return the path at which a shard or side shard is written again."""
        return rewritten_path(path, self.manifest.version + 1, self.run)


class Rewritten(NamedTuple):
    """What became of a shard.

    Attributes:
        shard: What is left of it; None if no sample is.
        sides: The same of its side shard in each annotation; None if the annotation has no fields, too.
        grown: By how many bytes the files of each annotation have grown.
        missing: How many of the erased samples had no row in each annotation.
        erased: The hashes of the keys of the erased samples.
    """

    shard: Shard | None
    sides: list[Shard | None]
    grown: list[int]
    missing: list[int]
    erased: list[str]


def parse_rewritten(note: Any) -> Rewritten:
    """Return what is noted of a shard."""
    shard, sides, grown, missing, erased = note
    made = [None if each is None else Shard(**each) for each in (shard, *sides)]
    return Rewritten(made[0], made[1:], list(map(int, grown)), list(map(int, missing)), list(map(str, erased)))


def rewrite_shards(job: EraseJob, storage: Storage, items: range) -> Iterator[Rewritten]:
    """Write some of the shards that change; yield what to note of each. Runs in a worker; may run twice."""
    for number in job.numbers[items.start : items.stop].tolist():
        manifest, shard = job.manifest, job.manifest.shards[number]
        places = np.flatnonzero(~job.selection.mask(number))
        num_pads = shard.num_samples - len(places) if manifest.pad == "repeat" else 0
        rows, made = read_samples(storage, shard, None, manifest.samples), None
        if len(places):
            opened, table = open_shard(storage, shard, manifest.field_names), rows.take(pa.array(places))
            made = _copy(job, storage, opened, shard.path, places, num_pads, number, table)
            write_shard_sidecars(storage, made, manifest.field_names, manifest.emit)
        keys = rows.column(KEY).take(pa.array(job.selection.places(number))).to_pylist()
        result = Rewritten(made, [], [], [], hash_erased(keys, manifest.fingerprint))
        for annotation, side in job.annotations:
            try:
                _rewrite_annotation(job, storage, number, places, made, annotation, side, result)
            except CorruptDataError as error:
                error.remedy = ANNOTATIONS.remedy(annotation.name)
                raise
        yield result


def _rewrite_annotation(
    job: EraseJob,
    storage: Storage,
    number: int,
    places: Int64,
    made: Shard | None,
    annotation: Annotation,
    side: Manifest | None,
    result: Rewritten,
) -> None:
    """Write the table and the side shard of a shard for an annotation, and add what became of them to a result.

    `places` are the samples that stay, `made` is the shard as it is now, and `side` has the annotation's side shards.
    """
    shard, erased, grown = job.manifest.shards[number], job.selection.places(number), 0
    is_missing, new = np.ones(len(erased), np.bool_), None
    if annotation.schema.names:
        rows = read_annotation(storage, annotation, shard)
        for column in rows.take(pa.array(erased)).columns:
            is_missing &= column.is_null().to_numpy()
        grown -= storage.size(annotation_table_path(annotation.folder, shard.path)) or 0
        if made is not None:
            data = dump_samples(rows.take(pa.array(places)).cast(annotation.schema), made.checksum)
            with storage.publish(annotation_table_path(annotation.folder, made.path)) as file:
                file.write([data])
            grown += len(data)
    if side is not None:
        listed = side.shards[number]
        opened = open_shard(storage, listed, side.field_names)
        is_missing &= rows_of([(opened.places, erased)]).sizes[:, -1] >= 0  # the field MISSING comes last
        grown -= listed.num_bytes
        if made is not None:
            new = _copy(job, storage, opened, listed.path, places, made.num_pads, number)
            grown += new.num_bytes
    result.sides.append(new)
    result.grown.append(grown)
    result.missing.append(int(is_missing.sum()))


def _copy(
    job: EraseJob,
    storage: Storage,
    opened: OpenShard,
    path: str,
    places: Int64,
    num_pads: int,
    number: int,
    table: pa.Table | None = None,
) -> Shard:
    """Write some samples of a shard as another one, then pads that repeat them from the first on; return it."""
    rows = rows_of([(opened.places, places)])

    def bodies() -> Iterator[Body | Copied]:
        yield from ahead(_copied(opened, rows))
        left = num_pads
        while left:
            for some, data in _copied(opened, rows.slice(0, left)):
                first, count = num_pads - left, len(some.begins)
                keys = [f"{PAD_PREFIX}{job.run}-{number:06d}-{first + each:06d}" for each in range(count)]
                fields = {name: _payloads(some, data, field) for field, name in enumerate(opened.names)}
                yield build_body(pa.array(keys, pa.large_string()), fields)
                left -= count
        job.refuse_taken_over(storage)  # just before the shard is published

    samples = None if table is None else lambda: table
    return write_shard(storage, job.path_of(path), bodies(), opened.names, num_pads, samples)


def _payloads(some: Rows, data: bytes, field: int) -> pa.LargeBinaryArray:
    """Return the payloads of a field in the bytes of neighbouring samples; null where a sample lacks it."""
    starts, sizes = (some.starts[:, field] - some.begins[0]).tolist(), some.sizes[:, field].tolist()
    pairs = zip(starts, sizes, strict=True)
    return pa.array([None if size < 0 else data[start : start + size] for start, size in pairs], pa.large_binary())


def _copied(opened: OpenShard, rows: Rows) -> Iterator[Copied]:
    """Read samples of a shard, neighbours together.

    Raises:
        CorruptDataError: One is damaged.
    """
    gaps = np.flatnonzero(rows.ends[:-1] != rows.begins[1:]) + 1
    for first, stop in pairwise([0, *gaps.tolist(), len(rows.begins)]):
        while first < stop:
            raise_if_cancelled()
            begin = int(rows.begins[first])
            fits = int(np.searchsorted(rows.ends[first:stop], begin + _COPIED_BYTES, "right"))
            some = rows.slice(first, first + max(1, fits))
            first += len(some.begins)
            data = opened.file.read(begin, int(some.ends[-1]) - begin)
            view, ends = memoryview(data), (some.ends - begin).tolist()
            found = hash_samples(view[start:end] for start, end in pairwise([0, *ends]))
            wrong = np.flatnonzero(found != some.hashes)
            if len(wrong):
                raise CorruptDataError(
                    "a sample that stays is damaged",
                    place=f"{opened.url}, byte {some.begins[wrong[0]]}",
                    expected=f"the hash {some.hashes[wrong[0]]:016x}, as in the shard's places",
                    found=f"{found[wrong[0]]:016x}",
                    remedy="copy the shard again; `wdsplit verify` finds all damaged samples",
                    url=opened.url,
                )
            yield Copied(some, data)
