"""The files of a dataset: shards, their indexes and the manifest, written to a storage and read back.

A shard is published whole: its index first, then the tar, so that a tar under its final name is complete and has an
index. Reading maps the file; a window's headers are parsed at once and its payloads are slices.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, WdsplitError
from wdsplit.index import dump_index, parse_index
from wdsplit.manifest import (
    HEADER_NAME,
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
from wdsplit.sample import RESERVED_FIELDS, split_member
from wdsplit.storage import Storage
from wdsplit.tar import Body, Members, parse_members, trailer_bytes
from wdsplit.tarheaders import BLOCK_BYTES

__all__ = ["OpenShard", "Window", "check_tail", "open_shard", "read_manifest", "write_manifest", "write_shard"]


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
        data: Its bytes, mapped.
        offsets: Its index: int64 of shape (num_samples + 1,), pads included.
    """

    url: str
    data: mmap.mmap | bytes
    offsets: Int64

    def members(self, first: int, stop: int) -> Members:
        """Parse the members of the samples first, first + 1, ..., stop - 1.

        Raises:
            CorruptDataError: They are not what the index says.
        """
        offsets = self.offsets[first : stop + 1]
        base = int(offsets[0])
        try:
            return parse_members(memoryview(self.data)[base : int(offsets[-1])], offsets, base)
        except WdsplitError as error:
            error.url = self.url
            raise error.at(self.url) from error

    def window(self, first: int, stop: int) -> Window:
        """Return the samples first, first + 1, ..., stop - 1, ready to be taken one by one."""
        return Window(self, self.members(first, stop))


def open_shard(storage: Storage, shard: Shard) -> OpenShard:
    """Open a shard and its index.

    Raises:
        DatasetNotFoundError: Either is not there.
        CorruptDataError: The shard's size or its index is not what the manifest says.
    """
    data = storage.map(shard.path)
    url = f"{storage.url}/{shard.path}"
    if len(data) != shard.num_bytes:
        raise CorruptDataError(
            "a shard has another size than the manifest says",
            place=url,
            expected=f"{shard.num_bytes} bytes",
            found=f"{len(data)} bytes",
            remedy="the file was truncated or changed: copy it again, or convert again with --overwrite",
            url=url,
        )
    try:
        offsets = parse_index(storage.read(index_path(shard.path)), shard.num_samples, shard.num_bytes)
    except CorruptDataError as error:
        error.url = index_path(url)
        raise error.at(error.url) from error
    return OpenShard(url, data, offsets)


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
        return parse_manifest(storage.read(HEADER_NAME), storage.read(SHARDS_NAME))
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


class Window:
    """Consecutive samples of a shard, parsed; payloads are sliced when a sample is taken.

    Args:
        shard: Where they are.
        members: Their members.
    """

    def __init__(self, shard: OpenShard, members: Members) -> None:
        self._data = shard.data
        self._url = shard.url
        self._members = members
        self._columns = _uniform_columns(members)
        self._ends = np.cumsum(members.counts).tolist() if self._columns is None else []

    def __len__(self) -> int:
        return len(self._members.counts)

    @property
    def keys(self) -> list[str]:
        """The keys of the samples."""
        if self._columns is not None:
            return self._columns[0]
        return [self._ragged(row, 0, False)["__key__"] for row in range(len(self))]

    def field_names(self) -> Iterator[tuple[str, list[str]]]:
        """Give the field names of each sample with its key; once for all if all samples have the same fields."""
        if self._columns is not None:
            keys, fields = self._columns
            yield keys[0], [field for field, _, _ in fields]
            return
        for row in range(len(self)):
            sample = self._ragged(row, 0, False)
            yield sample["__key__"], [name for name in sample if name not in RESERVED_FIELDS]

    def take(self, rows: Sequence[int], positions: Sequence[int], pads: Sequence[bool]) -> Iterator[dict[str, Any]]:
        """Give samples as dicts of `__key__`, `__url__`, `__position__`, `__pad__` and fields (bytes).

        Args:
            rows: Places in the window.
            positions: Their positions in the epoch.
            pads: Whether they are repetitions.
        """
        data, url = self._data, self._url
        if self._columns is None:
            for row, position, pad in zip(rows, positions, pads, strict=True):
                yield self._ragged(row, position, pad)
            return
        keys, fields = self._columns
        for row, position, pad in zip(rows, positions, pads, strict=True):
            sample = {"__key__": keys[row], "__url__": url, "__position__": position, "__pad__": pad}
            for field, starts, stops in fields:
                sample[field] = data[starts[row] : stops[row]]
            yield sample

    def _ragged(self, row: int, position: int, pad: bool) -> dict[str, Any]:
        """Take a sample of a window whose samples have not all the same fields."""
        members, stop = self._members, self._ends[row]
        sample: dict[str, Any] = {}
        for member in range(stop - int(members.counts[row]), stop):
            parts = split_member(bytes(members.names[member]))
            if parts is None:
                continue
            key, field = _text(parts[0]), _text(parts[1]).lower()
            if sample and key != sample["__key__"]:
                raise self._mixed(sample["__key__"], key)
            sample = sample or {"__key__": key, "__url__": self._url, "__position__": position, "__pad__": pad}
            if field in sample:
                raise self._twice(key, field)
            start = int(members.starts[member])
            sample[field] = self._data[start : start + int(members.sizes[member])]
        if not sample:
            raise self._none(row)
        return sample

    def _twice(self, key: str, field: str) -> CorruptDataError:
        return CorruptDataError(
            "a sample has a field twice",
            place=self._url,
            expected=f"one member {key}.{field}",
            found="two of them",
            remedy="the shard was not written by wdsplit, or was changed: convert again with --overwrite",
            url=self._url,
            key=key,
        )

    def _mixed(self, first: str, second: str) -> CorruptDataError:
        return CorruptDataError(
            "members of two samples stand where the index has one",
            place=self._url,
            expected=f"members of {first!r} only",
            found=f"a member of {second!r}",
            remedy="the index does not belong to this shard: copy or convert both again",
            url=self._url,
            key=first,
        )

    def _none(self, row: int) -> CorruptDataError:
        return CorruptDataError(
            "no members stand where the index has a sample",
            place=f"{self._url}, sample {row} of a window",
            expected="members that have a key and a field",
            remedy="the index does not belong to this shard: copy or convert both again",
            url=self._url,
        )


def _text(name: bytes) -> str:
    return bytes(name).decode("utf-8", "surrogateescape")


Columns = tuple[list[str], list[tuple[str, list[int], list[int]]]]


def _uniform_columns(members: Members) -> Columns | None:
    """Return keys and, for each field, where the payloads begin and end; None if the samples' fields differ."""
    counts = members.counts
    if not len(counts) or (counts != counts[0]).any():
        return None
    num_fields = int(counts[0])
    names: list[bytes] = members.names.tolist()
    first = [parts for parts in map(split_member, names[:num_fields]) if parts is not None]
    fields = [_text(field).lower() for _, field in first]
    if not num_fields or len(set(fields)) < num_fields:
        return None
    suffixes = [b"." + field for _, field in first]
    lead = names[0].removesuffix(first[0][0] + suffixes[0])
    keys = [name[len(lead) : -len(suffixes[0])] for name in names[::num_fields]]
    if not _are_plain(keys):
        return None
    for number, suffix in enumerate(suffixes):
        if names[number::num_fields] != [lead + key + suffix for key in keys]:
            return None
    columns = []
    for number, field in enumerate(fields):
        starts = members.starts[number::num_fields]
        columns.append((field, starts.tolist(), (starts + members.sizes[number::num_fields]).tolist()))
    return [_text(key) for key in keys], columns


def _are_plain(keys: list[bytes]) -> bool:
    """Tell whether all keys are such that a name splits right after them: no dots, or only in the names of folders."""
    return b"." not in b"".join(keys) or all(split_member(key + b".x") == (key, b"x") for key in keys)


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
