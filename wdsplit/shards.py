"""The files of a dataset: shards, their indexes and the manifest, written to a storage and read back.

A shard is published whole: its index first, then the tar, so that a tar under its final name is complete and has an
index. Reading maps the file; a window's headers are parsed at once and its payloads are slices.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import xxhash

from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, WdsplitError
from wdsplit.index import INDEX_ENTRY_BYTES, dump_index, parse_index
from wdsplit.manifest import (
    HEADER_NAME,
    MAX_HEADER_BYTES,
    RUN_FOLDER,
    SHARDS_NAME,
    Manifest,
    Shard,
    checksum_of,
    dump_manifest,
    index_path,
    parse_manifest,
)
from wdsplit.order import Int64
from wdsplit.shardtable import MAX_TABLE_BYTES
from wdsplit.storage import ReadableFile, Storage
from wdsplit.tar import Body, parse_members, trailer_bytes
from wdsplit.tarheaders import BLOCK_BYTES
from wdsplit.window import Window

__all__ = ["OpenShard", "Scratch", "check_tail", "open_shard", "read_manifest", "write_manifest", "write_shard"]

_SMALL_PAYLOAD_BYTES = 4096
"""Up to this size a payload is copied with its window's headers, which lie on the same pages."""
_SMALL_SAMPLE_BYTES = 16_384
"""Up to this mean size, reading a window at once costs less than finding and reading its payloads."""


def write_shard(storage: Storage, path: str, bodies: Iterable[Body], num_pads: int) -> Shard:
    """Write a shard and its index, and publish both.

    Args:
        storage: Where to.
        path: The shard's path.
        bodies: Its samples, pads last, batch by batch.
        num_pads: How many of them are pads.

    Returns:
        The shard, as the manifest has it.
    """
    digest = xxhash.xxh3_128()
    sizes: list[Int64] = []
    with storage.publish(path) as file:
        for body in bodies:
            parts = body.parts()
            for part in parts:
                digest.update(part)
            file.write(parts)
            sizes.append(body.sample_bytes)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(sizes))])
        end = bytes(trailer_bytes(int(offsets[-1])))
        digest.update(end)
        file.write([end])
        with storage.publish(index_path(path)) as index:
            index.write([dump_index(offsets)])
    return Shard(path, len(offsets) - 1, num_pads, int(offsets[-1]) + len(end), checksum_of(digest))


@dataclass(frozen=True)
class OpenShard:
    """A shard that is open for reading.

    Attributes:
        url: What to call it.
        file: Its file.
        offsets: Its index: int64 of shape (num_samples + 1,), pads included.
    """

    url: str
    file: ReadableFile
    offsets: Int64

    @cached_property
    def data(self) -> mmap.mmap | bytes:
        """All its bytes, mapped."""
        return self.file.map()

    def expect(self, first: int, stop: int) -> None:
        """Let the system begin to read the samples first, ..., stop - 1, which will be wanted soon."""
        begin = int(self.offsets[first])
        self.file.expect(begin, int(self.offsets[stop]) - begin)

    def window(
        self, first: int, stop: int, fields: Collection[str] | None = None, scratch: Scratch | None = None
    ) -> Window:
        """Parse the samples first, first + 1, ..., stop - 1.

        Samples that are small are read at once; of large ones only the headers are touched.

        Args:
            first: The first sample.
            stop: The sample after the last.
            fields: The fields that are wanted; None for all.
            scratch: Memory to read in, if there is any at hand.

        Raises:
            CorruptDataError: They are not what the index says.
        """
        offsets = self.offsets[first : stop + 1]
        base, span = int(offsets[0]), int(offsets[-1] - offsets[0])
        data: mmap.mmap | bytes
        most_copied: int | None
        if span <= _SMALL_SAMPLE_BYTES * (stop - first):
            memory = (scratch or Scratch()).of(span)
            self.file.read_into(memoryview(memory)[:span], base)
            data, begin, most_copied = memory, base, None
        else:
            data, begin, most_copied = self.data, 0, _SMALL_PAYLOAD_BYTES
        view = memoryview(data)[base - begin : base - begin + span]
        try:
            members = parse_members(view, offsets, base)
            return Window(self.url, members, self.file.read, data, begin, most_copied, fields)
        except WdsplitError as error:
            error.url = self.url
            raise error.at(self.url) from error


class Scratch:
    """Memory that one window after another is read in: new memory costs more than what is copied from it."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def of(self, num_bytes: int) -> mmap.mmap:
        """Return memory of at least some bytes; what was in it is lost."""
        if self._memory is None or len(self._memory) < num_bytes:
            self._memory = mmap.mmap(-1, max(num_bytes, 1))
        return self._memory


def open_shard(storage: Storage, shard: Shard) -> OpenShard:
    """Open a shard and its index.

    Raises:
        DatasetNotFoundError: Either is not there.
        CorruptDataError: The shard's size or its index is not what the manifest says.
    """
    file = storage.open(shard.path)
    url = f"{storage.url}/{shard.path}"
    if file.size != shard.num_bytes:
        raise CorruptDataError(
            "a shard has another size than the manifest says",
            place=url,
            expected=f"{shard.num_bytes} bytes",
            found=f"{file.size} bytes",
            remedy="the file was truncated or changed: copy it again, or convert again with --overwrite",
            url=url,
        )
    most_index_bytes = 2 * INDEX_ENTRY_BYTES * (shard.num_samples + 1)  # parse_index says what is right
    try:
        offsets = parse_index(
            storage.read(index_path(shard.path), most_index_bytes),
            shard.num_samples,
            shard.num_bytes,
        )
    except CorruptDataError as error:
        error.url = index_path(url)
        raise error.at(error.url) from error
    return OpenShard(url, file, offsets)


def read_manifest(storage: Storage) -> Manifest:
    """Read the manifest of a dataset.

    Raises:
        DatasetNotFoundError: There is none, so there is no dataset.
        CorruptDataError: It is damaged.
        InputError: It is of another version.
    """
    if storage.size(HEADER_NAME) is None:
        raise DatasetNotFoundError(
            "there is no dataset",
            place=storage.url,
            expected=f"a folder with {HEADER_NAME}, as `wdsplit convert` writes it",
            found=", ".join(storage.list()[:5]) or "a file, no such folder, or an empty one",
            remedy=_where_else(storage),
            url=storage.url,
        )
    try:
        header = storage.read(HEADER_NAME, MAX_HEADER_BYTES)
        return parse_manifest(header, storage.read(SHARDS_NAME, MAX_TABLE_BYTES))
    except (CorruptDataError, InputError) as error:
        raise error.at(storage.url) from error


def _where_else(storage: Storage) -> str:
    """Say what may be meant by a folder that is no dataset."""
    names = storage.list()
    inner = [name for name in names if storage.size(f"{name}/{HEADER_NAME}") is not None]
    if inner:
        return f"give one of the datasets in it: {', '.join(inner[:5])}"
    if any(name.endswith(".tar") for name in names) and RUN_FOLDER not in names:
        return "make a dataset of its tars with `wdsplit index`"
    return (
        "check the path, and give the folder, not its files; a conversion that was stopped is continued with --resume"
    )


def write_manifest(storage: Storage, manifest: Manifest) -> None:
    """Write the manifest, the header last: from then on the dataset exists."""
    header, table = dump_manifest(manifest)
    for path, data in ((SHARDS_NAME, table), (HEADER_NAME, header)):
        with storage.publish(path, durable=True) as file:
            file.write([data])


def check_tail(shard: OpenShard) -> CorruptDataError | None:
    """Return what is wrong with the end of a shard, if anything: only zeros may follow the last sample.

    How many is left to the writer: wdsplit and GNU tar fill up to 10,240 bytes, others end with two blocks, or none.
    """
    begin = int(shard.offsets[-1])
    tail = len(shard.data) - begin
    clean = not np.frombuffer(shard.data, np.uint8)[begin:].any()
    if clean and tail % BLOCK_BYTES == 0:
        return None
    return CorruptDataError(
        "a shard has no right end",
        place=f"{shard.url}, byte {begin}",
        expected="zero bytes up to the end of the file, in blocks of 512",
        found=f"{tail} bytes" if clean else f"{tail} bytes, not all zero",
        remedy="the file was changed: copy it again, or convert again with --overwrite",
        url=shard.url,
        offset=begin,
    )
