"""The contents of tars that other programs wrote: samples and places of each, and a manifest of all.

Combines the tar scan and the grouping into samples. Writes nothing.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from wdsplit.arrays import UInt64
from wdsplit.errors import InputError, WdsplitError
from wdsplit.fields.arrow_types import field_of
from wdsplit.fields.image_sizes import image_sizes, is_image
from wdsplit.fields.keys import Place, find_duplicate_keys, hash_keys
from wdsplit.fields.sample_columns import own_columns
from wdsplit.order.defaults import default_lanes, default_window, lanes_of_adopted
from wdsplit.shards.manifest import Manifest, Shard, Shards, checksum_of
from wdsplit.shards.sample_tables import dump_samples
from wdsplit.storage.interface import ReadableStorage
from wdsplit.storage.pieces import mapped
from wdsplit.tar.places import scanned_places
from wdsplit.tar.samples import TarSamples, group_samples
from wdsplit.tar.scan import scan_tar

__all__ = [
    "SAMPLES",
    "TarContent",
    "check_paths",
    "manifest_of",
    "read_tar",
    "refuse_duplicate_keys",
    "warn_of_oddities",
]

logger = logging.getLogger(__name__)

SAMPLES = pa.schema(own_columns(has_images=True))
"""The columns of the sample tables of tars. Of tars without images width and height are null."""

_IMAGES_AT_ONCE, _HEAD_BYTES = 256, 2**16
"""Images of which the beginnings are read together, and their bytes: the header of an image has its size."""
_MAX_FIELDS_SHOWN = _MAX_NAMES_SHOWN = 5
_ODD_PATH = re.compile(r"[\\\x00-\x1f\ud800-\udfff]|^[A-Za-z]:|(^|/)(\.\.?)?(/|$)")
"""Matches names that the manifest does not accept as the path of a shard."""


@dataclass(frozen=True)
class TarContent:
    """The contents of a tar.

    Attributes:
        shard: The tar's row in the manifest.
        field_counts: How many of its samples have each field.
        num_left_out: Number of files that belong to no sample.
        left_out: The first few of their names.
        hashes: The hashes of its keys, without those of pads.
    """

    shard: Shard
    field_counts: dict[str, int]
    num_left_out: int
    left_out: tuple[str, ...]
    hashes: UInt64


def check_paths(folder: str, paths: Iterable[str]) -> None:
    """Refuse tars whose paths are invalid in a manifest.

    Raises:
        InputError: A path is invalid.
    """
    for odd in filter(_ODD_PATH.search, paths):
        raise InputError(
            "invalid name of a tar",
            place=f"{folder}/{odd!r}",
            expected="a UTF-8 path without backslashes, control characters or a drive letter",
            remedy="rename it",
        )


def read_tar(
    storage: ReadableStorage, path: str, scratch: str | None = None, has_table: bool = False
) -> tuple[TarContent, bytes, bytes]:
    """Read a whole tar, and return its contents, its places and its sample table.

    Args:
        storage: The storage of the tar.
        path: Its path there.
        scratch: The local folder to copy a remote tar to; None for the system's temporary folder.
        has_table: Make a sample table; else the one that is returned is empty.

    Raises:
        InputError: It has an invalid sample or no sample, or was changed during the scan.
        CorruptDataError: It is damaged.
    """
    file = storage.open(path)
    version_before = file.version
    data = mapped(file, scratch)
    digest = xxhash.xxh3_128(data)  # first, because it reads the file from start to end
    samples = _samples(storage, path, memoryview(data))
    places = scanned_places(memoryview(data), samples, digest.digest())
    if storage.open(path).version != version_before:
        raise InputError(
            "a tar was changed while it was read",
            place=f"{storage.url}/{path}",
            expected="tars that are not being written",
            remedy="wait until it is written, and index again",
            url=f"{storage.url}/{path}",
        )
    num_real = len(samples.keys) - samples.num_pads  # other datasets have pads with the same keys
    shard = Shard(path, len(samples.keys), samples.num_pads, len(data), checksum_of(digest))
    hashes = hash_keys(samples.keys[:num_real])
    left_out = tuple(samples.left_out[:_MAX_NAMES_SHOWN].to_pylist())
    content = TarContent(shard, samples.field_counts, len(samples.left_out), left_out, hashes)
    table = dump_samples(_sample_table(memoryview(data), samples, num_real), shard.checksum) if has_table else b""
    return content, places, table


def _sample_table(data: memoryview, found: TarSamples, num_real: int) -> pa.Table:
    """Return the rows of the sample table: keys, bytes of all payloads, and sizes of the first field of images."""
    starts, sizes = found.scan.starts[found.rows], found.scan.sizes[found.rows]
    num_bytes = np.add.reduceat(sizes, np.flatnonzero(np.diff(found.sample_index, prepend=-1)))
    image = next((number for number, name in enumerate(found.fields) if is_image(name)), -1)
    images = np.flatnonzero(found.field_index == image)
    places, (widths, heights) = found.sample_index[images], np.full((2, len(num_bytes)), -1)
    for some in np.split(np.arange(len(images)), range(_IMAGES_AT_ONCE, len(images), _IMAGES_AT_ONCE)):
        begins = starts[images[some]]
        ends = begins + np.minimum(sizes[images[some]], _HEAD_BYTES)
        heads = [bytes(data[begin:end]) for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        for each, known in zip((widths, heights), image_sizes(pa.array(heads, pa.large_binary())), strict=True):
            each[places[some]] = known.fill_null(-1).to_numpy()
    pixels = [pa.array(each, pa.int32(), mask=each < 0) for each in (widths, heights)]
    columns = [found.keys.cast(pa.string()), pa.array(num_bytes, pa.int64()), *pixels]
    return pa.Table.from_arrays(columns, schema=SAMPLES).slice(0, num_real)


def _samples(storage: ReadableStorage, path: str, data: memoryview) -> TarSamples:
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
            expected="at least one member named KEY.FIELD, such as 000001.jpg",
            found=", ".join(samples.left_out[:_MAX_NAMES_SHOWN].to_pylist()) or "no files",
            remedy="remove it, or move it out of the folder",
            url=place,
        )
    return samples


def refuse_duplicate_keys(storage: ReadableStorage, contents: Sequence[TarContent]) -> None:
    """Refuse a key that is in two tars.

    Raises:
        InputError: A key is in two tars.
    """

    def read_keys(suspects: UInt64) -> Iterator[tuple[pa.LargeStringArray, Place]]:
        for each in contents:
            if np.isin(each.hashes, suspects).any():
                path = each.shard.path
                samples = _samples(storage, path, memoryview(mapped(storage.open(path))))
                yield samples.keys, f"{storage.url}/{path}"

    for duplicate in find_duplicate_keys([each.hashes for each in contents], read_keys):
        remedy = "remove one of them, or convert the tars with `wdsplit convert --number-keys`"
        raise duplicate.error(InputError, remedy, url=duplicate.again)


def manifest_of(
    contents: Sequence[TarContent],
    readers: int = 1,
    lanes: int | None = None,
    window: int | None = None,
    options: Mapping[str, Any] | None = None,
    samples: pa.Schema | None = None,
) -> Manifest:
    """Return the manifest of tars.

    Args:
        contents: The contents of the tars, in the order of the shards.
        readers: Number of readers to lay out lanes for: ranks x workers.
        lanes: Number of lanes (C); None to choose it by the shards.
        window: Samples per window (Q); None to choose it by their size.
        options: The user's options, for the provenance.
        samples: The columns of their sample tables, if there are such tables.
    """
    shards = Shards.of([each.shard for each in contents])
    names = dict.fromkeys(name for each in contents for name in each.field_counts)
    num_samples, num_bytes = (int(shards.column(name).sum()) for name in ("num_samples", "num_bytes"))
    lanes = lanes or lanes_of_adopted(len(contents), default_lanes(num_samples, num_bytes, readers), readers)
    provenance = {
        "adopted": True,
        "num_left_out": sum(each.num_left_out for each in contents),
        "options": dict(options or {}),
        "versions": {"wdsplit": version("wdsplit")},
    }
    return Manifest(
        shards,
        tuple(field_of(name, name, "bytes", pa.binary()) for name in names),
        lanes,
        window or default_window(num_bytes, num_samples, lanes),
        "none",
        provenance,
        samples,
    )


def warn_of_oddities(storage: ReadableStorage, contents: Sequence[TarContent]) -> None:
    """Warn about files that belong to no sample, and about fields that some samples lack."""
    some = [each for each in contents if each.num_left_out]
    if some:
        total, names = sum(each.num_left_out for each in some), ", ".join(some[0].left_out)
        place = f"{storage.url}/{some[0].shard.path}"
        logger.warning("left out %d files in the tars that belong to no sample, such as %s in %s", total, names, place)
    counts = sum((Counter(each.field_counts) for each in contents), Counter[str]())
    total, texts = sum(each.shard.num_samples for each in contents), []
    for name, count in counts.items():
        if count < total:
            lacking = next(each for each in contents if each.field_counts.get(name, 0) < each.shard.num_samples)
            texts.append(f"{name} is in {count:,} of {total:,} (not in all of {lacking.shard.path})")
    if texts:
        shown = "; ".join(texts[:_MAX_FIELDS_SHOWN]) + (", ..." if len(texts) > _MAX_FIELDS_SHOWN else "")
        text = "%s: not all samples have the same fields: %s. A pipeline that needs such a field ends in a KeyError: "
        text += "choose the fields of all samples with fields=, or rename members (a key ends at its first dot)"
        logger.warning(text, storage.url, shown)
