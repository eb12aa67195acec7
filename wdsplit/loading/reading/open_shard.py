"""Shards that are open for reading: their windows, read and parsed.

Small samples are read at once with all that is between them. Of large ones the headers are read, and payloads when they
are asked for. Numpy's calls cost the same for few samples as for many, so several windows may be parsed together.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, WdsplitError
from wdsplit.loading.reading.block import Objects, as_objects
from wdsplit.loading.reading.window import Window, pieces
from wdsplit.order.epoch import Int64
from wdsplit.shards.checksums import checksums_bytes, checksums_path, parse_checksums, sample_checksums
from wdsplit.shards.manifest import Shard, index_path
from wdsplit.storage.interface import ReadableFile, ReadableStorage
from wdsplit.tar.headers import BLOCK_BYTES, NAME_BYTES
from wdsplit.tar.index import INDEX_ENTRY_BYTES, parse_index
from wdsplit.tar.members import Members, parse_members, parse_plain_members
from wdsplit.tar.names import split_member

__all__ = [
    "OpenShard",
    "Part",
    "Scratch",
    "WindowPlace",
    "check_end",
    "check_tail",
    "open_shard",
    "read_windows",
    "with_checksums",
]

_SMALL_SAMPLE_BYTES = 16_384
"""Up to this mean size, reading windows at once costs less than finding and reading their payloads."""
_HEAD_BYTES = 2 * BLOCK_BYTES
"""What is read of each member to find its payload: if it has one block, it needs no reading of its own."""


@dataclass(frozen=True)
class OpenShard:
    """A shard that is open for reading.

    Attributes:
        url: What to call it.
        file: Its file.
        offsets: Its index: int64 of shape (num_samples + 1,), pads included.
        again: Opens another copy when this one is damaged; None if there is no other.
        checksums: Of its samples: uint64 of shape (num_samples,), which all that is read is compared with; None if it
            is not compared.
    """

    url: str
    file: ReadableFile
    offsets: Int64
    again: Callable[[], OpenShard] | None = None
    checksums: npt.NDArray[np.uint64] | None = None

    @cached_property
    def data(self) -> memoryview:
        """All its bytes, read and kept."""
        data = memoryview(np.empty(self.file.size, np.uint8).data)
        self.file.read_into(data, 0)
        return data

    def read(self, begin: int, end: int) -> memoryview | bytes:
        """Return the bytes begin, ..., end - 1; if all were read, from what was kept."""
        return self.data[begin:end] if "data" in vars(self) else self.file.read(begin, end - begin)

    def fetch_again(self) -> None:
        """Forget the bytes that were kept."""
        vars(self).pop("data", None)

    def end(self, stop: int) -> int:
        """Return the byte up to which samples that end before `stop` are read.

        With the last samples of a remote shard comes the block behind them, which tells whether its index is right.
        """
        end = int(self.offsets[stop])
        is_last = stop == len(self.offsets) - 1
        return min(end + BLOCK_BYTES, self.file.size) if is_last and self.file.is_remote else end

    def expect(self, first: int, stop: int) -> None:
        """Let the system begin to read the samples first, ..., stop - 1, which will be needed soon."""
        begin = int(self.offsets[first])
        self.file.expect(begin, int(self.offsets[stop]) - begin)

    def window(self, first: int, stop: int, fields: Collection[str] | None = None) -> Window:
        """Parse the samples first, first + 1, ..., stop - 1.

        Args:
            first: The first sample.
            stop: The sample after the last.
            fields: The fields to read; None for all.
        """
        place = WindowPlace(self, first, stop)
        if "data" in vars(self):
            place = place._replace(data=self.data[place.begin : place.begin + place.num_bytes])
        return read_windows([place], fields)[0].window


class Scratch:
    """Memory that one window after another is read in: new memory costs more than what is copied from it."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def at_least(self, num_bytes: int) -> mmap.mmap:
        """Return memory of at least some bytes; what was in it is lost."""
        if self._memory is None or len(self._memory) < num_bytes:
            self._memory = mmap.mmap(-1, max(num_bytes, 1), mmap.MAP_PRIVATE)  # a fork has its own
        return self._memory


class WindowPlace(NamedTuple):
    """Where a window is: the samples first, first + 1, ..., stop - 1 of a shard; and its bytes, if they are at hand.

    The bytes may reach to `shard.end(stop)`.
    """

    shard: OpenShard
    first: int
    stop: int
    data: memoryview | None = None

    @property
    def begin(self) -> int:
        """Its first byte."""
        return int(self.shard.offsets[self.first])

    @property
    def num_bytes(self) -> int:
        """Its bytes."""
        return int(self.shard.offsets[self.stop]) - self.begin

    def check_end(self) -> None:
        """Refuse the last window of a remote shard if samples go on behind it: a local one was checked when opened."""
        begin, end = self.begin + self.num_bytes, self.shard.end(self.stop)
        if begin < end:
            block = self.shard.file.read(begin, end - begin) if self.data is None else self.data[self.num_bytes :]
            _check_end(block, begin)

    def check(self, data: memoryview) -> None:
        """Compare its bytes with the checksums of its samples, if there are any."""
        if self.shard.checksums is None:
            return
        begins = (self.shard.offsets[self.first : self.stop + 1] - self.begin).tolist()
        expected = self.shard.checksums[self.first : self.stop]
        found = sample_checksums(data[begin:end] for begin, end in pairwise(begins))
        wrong = np.flatnonzero(expected != found)
        if len(wrong):
            row = int(wrong[0])
            parts = split_member(bytes(data[begins[row] : begins[row] + NAME_BYTES]).partition(b"\0")[0])
            key = "" if parts is None else parts[0].decode("utf-8", "backslashreplace")
            raise CorruptDataError(
                "a sample was changed",
                place=f"sample {self.first + row}, key {key!r}",
                expected=f"xxh3_64:{expected[row]:016x}",
                found=f"xxh3_64:{found[row]:016x}",
                remedy="copy the shard again, or convert again with --overwrite; `wdsplit verify` finds all that is "
                "damaged",
                key=key,
            )


class Part(NamedTuple):
    """A window: consecutive samples, from `first` on, of those that were parsed together."""

    window: Window
    first: int


def read_windows(
    places: Sequence[WindowPlace], fields: Collection[str] | None = None, scratch: Scratch | None = None
) -> list[Part]:
    """Read windows of any shards and parse them together.

    Args:
        places: Where they are; none of them is empty.
        fields: The fields to read; None for all.
        scratch: Memory to read in, if there is any at hand.

    Returns:
        A part for each place: of one window for all, if their samples are alike.

    Raises:
        CorruptDataError: One is not what its index says.
    """
    try:
        window = _Row(places).read(fields, scratch or Scratch())
    except WdsplitError as error:
        if len(places) == 1:
            return [Part(_read_again(places[0], error, fields), 0)]
        window = None  # the error is that of one of them: each by itself will tell
    if window is None or not (window.is_uniform or len(places) == 1):
        return [read_windows([place], fields, scratch)[0] for place in places]
    sizes = [place.stop - place.first for place in places]
    if len(places) > 1:
        window.url = np.repeat(as_objects([place.shard.url for place in places]), sizes)
    return [Part(window, first) for first in accumulate(sizes[:-1], initial=0)]


def _read_again(place: WindowPlace, error: WdsplitError, fields: Collection[str] | None) -> Window:
    """Return a window that was damaged on its way; raise the error if there is no other copy of it, or none better."""
    if isinstance(error, CorruptDataError) and (place.shard.file.is_remote or place.shard.again is not None):
        with suppress(CorruptDataError):
            shard = place.shard if place.shard.again is None else place.shard.again()
            again = WindowPlace(shard, place.first, place.stop)
            data = memoryview(shard.file.read(again.begin, shard.end(place.stop) - again.begin))  # one request
            window = _Row([again._replace(data=data)]).read(fields, Scratch())
            if window is not None:
                return window
        error = error.at(f"bytes {place.begin} to {place.begin + place.num_bytes - 1}")
    error.url = place.shard.url
    raise (error if place.shard.url in error.place else error.at(place.shard.url)) from error


class _Row:
    """Windows put one after another, as if they were one; the first has the offsets that it has in its shard."""

    def __init__(self, places: Sequence[WindowPlace]) -> None:
        self._places = places
        self._begins = np.cumsum([places[0].begin, *(place.num_bytes for place in places)])
        self._shifts = np.array([place.begin for place in places]) - self._begins[:-1]
        own = [place.shard.offsets[place.first : place.stop] for place in places]
        shifted = [offsets - shift for offsets, shift in zip(own, self._shifts, strict=True)]
        self.offsets = np.append(np.concatenate(shifted), self._begins[-1])

    def read(self, fields: Collection[str] | None, scratch: Scratch) -> Window | None:
        """Return the samples as one window; None if the windows must be read one by one."""
        for place in self._places:
            place.check_end()
        num_bytes = int(self.offsets[-1] - self.offsets[0])
        is_small = num_bytes <= _SMALL_SAMPLE_BYTES * (len(self.offsets) - 1)
        is_remote = any(place.data is None and place.shard.file.is_remote for place in self._places)
        is_whole = is_remote or any(place.shard.checksums is not None for place in self._places)
        if is_whole and not is_small and len(self._places) > 1:
            return None
        if len(self._places) == 1 and self._places[0].data is not None:
            self._places[0].check(self._places[0].data)
            return self._parsed(self._places[0].data, fields, is_kept=not is_small)
        if is_whole or is_small:
            view = memoryview(scratch.at_least(num_bytes))[:num_bytes]
            for place, begin in zip(self._places, (self._begins - self._begins[0]).tolist(), strict=False):
                piece = view[begin : begin + place.num_bytes]
                if place.data is None:
                    place.shard.file.read_into(piece, place.begin)
                else:
                    piece[:] = place.data[: place.num_bytes]
                place.check(piece)
            return self._parsed(view, fields)
        heads = _Heads(self)
        members = parse_plain_members(heads.blocks_at, self.offsets)
        if members is not None:
            return Window(self._url, members, lambda requested: heads.payloads(members, requested), fields)
        if len(self._places) > 1:
            return None
        first, last = self._begins.tolist()
        return self._parsed(memoryview(self._places[0].shard.read(first, last)), fields)

    @property
    def _url(self) -> str:
        return self._places[0].shard.url

    def _parsed(self, data: memoryview, fields: Collection[str] | None, is_kept: bool = False) -> Window:
        """Return the window whose bytes these are."""
        base = int(self._begins[0])
        members = parse_members(data, self.offsets, base)
        starts = members.starts - base

        def payloads(requested: npt.NDArray[np.bool_]) -> tuple[Objects, bool]:
            if not is_kept:
                return pieces(data, starts, members.sizes, requested), True
            is_read = members.sizes <= _HEAD_BYTES - BLOCK_BYTES
            values = pieces(data, starts, np.where(is_read, members.sizes, 0), requested & is_read)
            rows = np.flatnonzero(requested & ~is_read)
            found = zip(starts[rows].tolist(), members.sizes[rows].tolist(), strict=True)
            copied = partial(_copied, data)
            values[rows] = as_objects([(copied, start, size) for start, size in found])
            return values, not len(rows)

        return Window(self._url, members, payloads, fields)

    def located(self, offsets: Int64) -> Iterator[tuple[ReadableFile | _Held, int]]:
        """Give the file of each of n offsets, and the offset in it."""
        numbers = np.searchsorted(self._begins, offsets, side="right") - 1
        inside = (offsets + self._shifts[numbers]).tolist()
        files = [place.shard.file if place.data is None else _Held(place.data, place.begin) for place in self._places]
        for number, offset in zip(numbers.tolist(), inside, strict=True):
            yield files[number], offset


class _Held:
    """Bytes of a file that are in memory, read as the file would be."""

    def __init__(self, data: memoryview, begin: int) -> None:
        self._data = data
        self._begin = begin
        self.size = begin + len(data)

    def read(self, offset: int, num_bytes: int) -> bytes:
        return bytes(self._data[offset - self._begin : offset - self._begin + num_bytes])


def _copied(data: memoryview, offset: int, size: int) -> bytes:
    return bytes(data[offset : offset + size])


class _Heads:
    """The headers of large samples, each read with the first bytes of its payload."""

    def __init__(self, row: _Row) -> None:
        self._row = row
        self._offsets: list[Int64] = []
        self._data: list[bytes] = []

    def blocks_at(self, offsets: Int64) -> npt.NDArray[np.uint8]:
        """Return the blocks at n offsets: uint8 of shape (n, 512)."""
        read = [file.read(offset, min(_HEAD_BYTES, file.size - offset)) for file, offset in self._row.located(offsets)]
        data = b"".join(head.ljust(_HEAD_BYTES, b"\0") for head in read)
        self._offsets.append(offsets)
        self._data.append(data)
        return np.frombuffer(data, np.uint8).reshape(-1, _HEAD_BYTES)[:, :BLOCK_BYTES]

    def payloads(self, members: Members, requested: npt.NDArray[np.bool_]) -> tuple[Objects, bool]:
        """Return the payloads of members, and whether all are at hand: those that were read with their headers."""
        offsets = np.concatenate(self._offsets)
        order = np.argsort(offsets)
        data = np.frombuffer(b"".join(self._data), np.uint8).reshape(-1, _HEAD_BYTES)[order]
        heads = np.searchsorted(offsets[order], members.starts - BLOCK_BYTES)
        is_read = members.sizes <= _HEAD_BYTES - BLOCK_BYTES
        sizes = np.where(is_read, members.sizes, 0)
        values = pieces(data.reshape(-1), heads * _HEAD_BYTES + BLOCK_BYTES, sizes, requested & is_read)
        rows = np.flatnonzero(requested & ~is_read)
        found = zip(self._row.located(members.starts[rows]), members.sizes[rows].tolist(), strict=True)
        values[rows] = as_objects([(file.read, offset, size) for (file, offset), size in found])
        return values, not len(rows)


def open_shard(storage: ReadableStorage, shard: Shard) -> OpenShard:
    """Open a shard and its index.

    Raises:
        DatasetNotFoundError: Either is not there.
        CorruptDataError: The shard's size or its index is not what the manifest says, or samples go on behind the last.
    """
    file = storage.open(shard.path, shard.num_bytes)
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
    max_index_bytes = INDEX_ENTRY_BYTES * (shard.num_samples + 1) + BLOCK_BYTES  # parse_index says what is right
    try:
        index = storage.read(index_path(shard.path), max_index_bytes)
        opened = OpenShard(url, file, parse_index(index, shard.num_samples, shard.num_bytes))
        if not file.is_remote:
            check_end(opened)
        return opened
    except CorruptDataError as error:
        error.url = index_path(url)
        raise error.at(error.url) from error


def with_checksums(opened: OpenShard, storage: ReadableStorage, shard: Shard) -> OpenShard:
    """Return a shard of which all that is read is compared with the checksums of its samples.

    Raises:
        InputError: The dataset has no checksums of samples.
        CorruptDataError: They are damaged.
    """
    path = checksums_path(shard.path)
    place = f"{storage.url}/{path}"
    try:
        checksums = parse_checksums(storage.read(path, checksums_bytes(shard)), shard)
    except DatasetNotFoundError as error:
        raise InputError(
            "the dataset has no checksums of samples, which verify=True compares",
            place=place,
            remedy=f"make them with `wdsplit verify {storage.url} --emit checksums`, or leave out verify=True",
            url=place,
        ) from error
    except CorruptDataError as error:
        raise error.at(place) from error
    return replace(opened, checksums=checksums)


def check_end(shard: OpenShard) -> None:
    """Refuse a shard whose samples go on behind the last of its index: that would cut off a field without a word.

    Raises:
        CorruptDataError: They do.
    """
    begin = int(shard.offsets[-1])
    _check_end(shard.file.read(begin, min(BLOCK_BYTES, shard.file.size - begin)), begin)


def _check_end(block: memoryview | bytes, offset: int) -> None:
    if any(block):
        raise CorruptDataError(
            "a shard goes on behind the last sample of its index",
            expected=f"zero bytes from byte {offset} on",
            found="other bytes",
            remedy="the index does not belong to this shard, or was changed: copy or convert both again",
            offset=offset,
        )


def check_tail(shard: OpenShard) -> CorruptDataError | None:
    """Return what is wrong with the end of a shard, if anything: only zeros may follow the last sample.

    How many is left to the writer: wdsplit and GNU tar fill up to 10,240 bytes, others end with two blocks, or none.
    """
    begin = int(shard.offsets[-1])
    tail = shard.file.size - begin
    clean = not np.frombuffer(shard.read(begin, shard.file.size), np.uint8).any()
    if clean and tail % BLOCK_BYTES == 0:
        return None
    return CorruptDataError(
        "the end of a shard is damaged",
        place=f"{shard.url}, byte {begin}",
        expected="zero bytes up to the end of the file, in blocks of 512",
        found=f"{tail} bytes" if clean else f"{tail} bytes, not all zero",
        remedy="the file was changed: copy it again, or convert again with --overwrite",
        url=shard.url,
        offset=begin,
    )
