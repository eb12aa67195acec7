"""Windows of shards, read and parsed.

Small samples are read in one piece with all that is between them. Of large ones only headers are read, and payloads
when they are needed. A numpy call costs as much for few samples as for many, so several windows may be parsed together.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.errors import CorruptDataError, WdsplitError
from wdsplit.loading.reading.block import Objects, Pending, as_objects
from wdsplit.loading.reading.open_shard import OpenShard, check_zeros
from wdsplit.loading.reading.ranges import Range, joined, range_starts
from wdsplit.loading.reading.window import AnyWindow, Window, pieces, with_gaps
from wdsplit.shards.checksums import sample_checksums
from wdsplit.storage.interface import ReadableFile
from wdsplit.tar.headers import BLOCK_BYTES, NAME_BYTES
from wdsplit.tar.members import Members, parse_members, parse_plain_members
from wdsplit.tar.names import split_member

__all__ = [
    "InMemory",
    "Part",
    "Recover",
    "Scratch",
    "WindowPlace",
    "parse_window",
    "read_again",
    "read_window",
    "read_windows",
]

Recover = Callable[["WindowPlace", WdsplitError, Collection[str] | None], AnyWindow]
"""Takes a window that could not be read, and its error; returns the window in another way, or raises."""

_SMALL_SAMPLE_BYTES = 16_384
"""Up to this mean size, reading windows at once costs less than finding and reading their payloads."""
_HEAD_BYTES = 2 * BLOCK_BYTES
"""Bytes to read of each member to find its payload; this includes a payload of one block."""


class Scratch:
    """Memory that one window after another is read into: allocating new memory costs more than copying."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def at_least(self, num_bytes: int) -> mmap.mmap:
        """Return memory of at least some bytes; what was in it is lost."""
        if self._memory is None or len(self._memory) < num_bytes:
            self._memory = mmap.mmap(-1, max(num_bytes, 1), mmap.MAP_PRIVATE)  # a fork has its own
        return self._memory


class WindowPlace(NamedTuple):
    """Where a window is: the samples first, first + 1, ..., stop - 1 of a shard; and its bytes, if they are in memory.

    The bytes are those of `shard.ranges`, one after another. In a view these are the samples `chosen`, rising: the
    first and the last of the window, and some between.
    """

    shard: OpenShard
    first: int
    stop: int
    data: memoryview | None = None
    chosen: Int64 | None = None

    @property
    def begin(self) -> int:
        """Its first byte."""
        return int(self.shard.offsets[self.first])

    @property
    def end(self) -> int:
        """The byte after its last."""
        return int(self.shard.offsets[self.stop])

    @property
    def num_samples(self) -> int:
        """Its samples."""
        return self.stop - self.first if self.chosen is None else len(self.chosen)

    @property
    def samples(self) -> Int64:
        """The samples that are read."""
        return np.arange(self.first, self.stop) if self.chosen is None else self.chosen

    def check_end(self, num_bytes: int) -> None:
        """Refuse the last window of a remote shard if the shard continues after it; local ones are checked on opening.

        Args:
            num_bytes: Bytes of its ranges.
        """
        begin, end = self.end, self.shard.end(self.stop)
        if begin < end:
            block = self.shard.file.read(begin, end - begin) if self.data is None else self.data[num_bytes:]
            check_zeros(block, begin)

    def check(self, data: memoryview, checksums: npt.NDArray[np.uint64], begins: Int64, ends: Int64) -> None:
        """Compare the bytes of its samples with their checksums.

        Args:
            data: Its bytes.
            checksums: Those of the shard.
            begins: int64 of shape (samples,): where its samples begin in the data.
            ends: int64 of shape (samples,): where they end.
        """
        expected = checksums[self.samples]
        found = sample_checksums(data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True))
        wrong = np.flatnonzero(expected != found)
        if len(wrong):
            row = int(wrong[0])
            begin = int(begins[row])
            parts = split_member(bytes(data[begin : begin + NAME_BYTES]).partition(b"\0")[0])
            key = "" if parts is None else parts[0].decode("utf-8", "backslashreplace")
            raise CorruptDataError(
                "a sample was changed",
                place=f"sample {self.samples[row]}, key {key!r}",
                expected=f"xxh3_64:{expected[row]:016x}",
                found=f"xxh3_64:{found[row]:016x}",
                remedy="copy the shard again, or convert again with --overwrite; `wdsplit verify` finds all that is "
                "damaged",
                key=key,
            )


class Part(NamedTuple):
    """A window: consecutive samples, from `first` on, of those that were parsed together."""

    window: AnyWindow
    first: int


def parse_window(place: WindowPlace, fields: Collection[str] | None = None, with_gaps: bool = False) -> Window:
    """Read one window and parse it.

    Args:
        place: Where it is.
        fields: The fields to read; None for all.
        with_gaps: Whether its bytes include those between the samples that are read.

    Raises:
        CorruptDataError: It does not match its index.
    """
    window = _JoinedWindows([place], with_gaps).read(fields, Scratch())
    assert window is not None, "only several windows may have to be read one by one"
    return window


def read_window(shard: OpenShard, first: int, stop: int, fields: Collection[str] | None = None) -> Window:
    """Read the samples first, first + 1, ..., stop - 1 of a shard and parse them.

    Args:
        shard: The shard; if all its bytes were read, nothing is read again.
        first: The first sample.
        stop: The sample after the last.
        fields: The fields to read; None for all.
    """
    place = WindowPlace(shard, first, stop)
    if "data" in vars(shard):
        place = place._replace(data=shard.data[place.begin : place.end])
    try:
        return parse_window(place, fields)
    except WdsplitError as error:
        return read_again(place, error, fields)


def read_windows(
    places: Sequence[WindowPlace],
    fields: Collection[str] | None = None,
    scratch: Scratch | None = None,
    recover: Recover | None = None,
    as_arrow: bool = False,
) -> list[Part]:
    """Read windows of any shards and parse them together.

    Args:
        places: Where they are; none of them is empty.
        fields: The fields to read; None for all.
        scratch: Memory to read into; None for new memory.
        recover: Called for a window that cannot be read; None for `read_again`.
        as_arrow: Whether small payloads may come as Arrow arrays, if all samples have the same fields.

    Returns:
        A part for each place, with its samples in the tar's order. All parts share one window if their samples have the
        same fields.

    Raises:
        CorruptDataError: A window does not match its index.
    """
    try:
        window = _JoinedWindows(places).read(fields, scratch or Scratch(), as_arrow)
    except WdsplitError as error:
        if len(places) == 1:
            return [Part((recover or read_again)(places[0], error, fields), 0)]
        window = None  # one of them failed: read them one by one
    if window is None or not (window.is_uniform or len(places) == 1):
        return [read_windows([place], fields, scratch, recover, as_arrow)[0] for place in places]
    sizes = [place.num_samples for place in places]
    if len(places) > 1:
        window.url = np.repeat(as_objects([place.shard.url for place in places]), sizes)
    return [Part(window, first) for first in accumulate(sizes[:-1], initial=0)]


def read_again(place: WindowPlace, error: WdsplitError, fields: Collection[str] | None) -> Window:
    """Read a damaged window from another copy; raise the error if there is none, or it is damaged too."""
    is_copy = place.shard.file.is_remote or place.shard.again is not None
    if isinstance(error, CorruptDataError) and (is_copy or place.chosen is not None):
        try:
            shard = place.shard if place.shard.again is None else place.shard.again()
            data = memoryview(shard.file.read(place.begin, shard.end(place.stop) - place.begin))  # one request
            return parse_window(place._replace(shard=shard, data=data), fields, with_gaps=True)
        except CorruptDataError as again:
            error = error if place.chosen is None else again  # its offsets are those in the shard
        error = error.at(f"bytes {place.begin} to {place.end - 1}")
    error = place.shard.explained(error)
    error.url = place.shard.url
    raise (error if place.shard.url in error.place else error.at(place.shard.url)) from error


class _JoinedWindows:
    """Windows put one after another, as if they were one; offsets in the first one are those in its shard.

    Args:
        places: The windows.
        with_gaps: Include the bytes between the samples that are read; else only those of `OpenShard.ranges`.

    Attributes:
        offsets: int64 of shape (samples + 1,): where samples begin, then the end of the last. With gaps between
            samples of shape (samples,).
        ends: With gaps int64 of shape (samples,): where samples end. Else None.
    """

    def __init__(self, places: Sequence[WindowPlace], with_gaps: bool = False) -> None:
        self._places = places
        is_view = any(place.chosen is not None for place in places)
        if is_view:
            samples = [place.samples for place in places]
            begins = np.concatenate([place.shard.offsets[some] for place, some in zip(places, samples, strict=True)])
            ends = np.concatenate([place.shard.offsets[some + 1] for place, some in zip(places, samples, strict=True)])
            sizes = [len(some) for some in samples]
        else:
            begins, ends = np.array([(place.begin, place.end) for place in places]).T
            sizes = [1] * len(places)
        windows = np.repeat(np.arange(len(places)), sizes)
        firsts = np.cumsum([0, *sizes[:-1]])
        is_start = np.isin(np.arange(len(begins)), firsts) if with_gaps else range_starts(begins, ends, windows)
        range_begins, range_ends = joined(begins, ends, is_start)
        range_of = np.cumsum(is_start) - 1
        self._ranges: list[Range] = list(zip(range_begins.tolist(), range_ends.tolist(), strict=True))
        self._first_ranges = [*range_of[firsts].tolist(), len(self._ranges)]
        self._begins = np.cumsum(np.append(places[0].begin, range_ends - range_begins))
        self._shifts = range_begins - self._begins[:-1]
        self._bounds: list[int] = self._begins[self._first_ranges].tolist()
        self.ends: Int64 | None = None
        if is_view:
            shifts = self._shifts[range_of]
            self.offsets, self.ends = begins - shifts, ends - shifts
        else:
            own = [place.shard.offsets[place.first : place.stop] for place in places]
            shifted = [offsets - shift for offsets, shift in zip(own, self._shifts, strict=True)]
            self.offsets = np.append(np.concatenate(shifted), self._begins[-1])

    def _ranges_of(self, number: int) -> list[Range]:
        """Return the ranges of a window."""
        return self._ranges[self._first_ranges[number] : self._first_ranges[number + 1]]

    def read(self, fields: Collection[str] | None, scratch: Scratch, as_arrow: bool = False) -> Window | None:
        """Return the samples as one window; None if the windows must be read one by one."""
        for place, (begin, end) in zip(self._places, pairwise(self._bounds), strict=True):
            place.check_end(end - begin)
        num_samples = sum(place.num_samples for place in self._places)
        num_bytes = self._bounds[-1] - self._bounds[0] if self.ends is None else int((self.ends - self.offsets).sum())
        is_small = num_bytes <= _SMALL_SAMPLE_BYTES * num_samples
        is_remote = any(place.data is None and place.shard.file.is_remote for place in self._places)
        is_whole = is_remote or any(place.shard.checksums is not None for place in self._places)
        if is_whole and not is_small and len(self._places) > 1:
            return None
        if len(self._places) == 1 and self._places[0].data is not None:
            self._check(0, self._places[0].data)
            return self._parsed(self._places[0].data, fields, is_kept=not is_small)
        if is_whole or is_small:
            return self._parsed(self._filled(scratch), fields, as_arrow=as_arrow)
        heads = _Heads(self)
        members = parse_plain_members(heads.blocks_at, self.offsets, self.ends)
        if members is not None:
            return Window(self._url, members, lambda requested: heads.payloads(members, requested), fields)
        return self._parsed(self._filled(scratch), fields) if len(self._places) == 1 else None

    def _filled(self, scratch: Scratch) -> memoryview:
        """Return all bytes, compared with their checksums."""
        num_bytes, base = self._bounds[-1] - self._bounds[0], self._bounds[0]
        view = memoryview(scratch.at_least(num_bytes))[:num_bytes]
        for number, place in enumerate(self._places):
            begin, end = self._bounds[number] - base, self._bounds[number + 1] - base
            if place.data is not None:
                view[begin:end] = place.data[: end - begin]
            else:
                for first, stop in self._ranges_of(number):
                    place.shard.file.read_into(view[begin : begin + stop - first], first)
                    begin += stop - first
            self._check(number, view[self._bounds[number] - base : end])
        return view

    def _check(self, number: int, data: memoryview) -> None:
        """Compare the bytes of a window with the checksums of its samples, if there are any."""
        place = self._places[number]
        if place.shard.checksums is None:
            return
        first = sum(before.num_samples for before in self._places[:number])
        rows = slice(first, first + place.num_samples)
        ends = self.offsets[1:] if self.ends is None else self.ends
        base = self._bounds[number]
        place.check(data, place.shard.checksums, self.offsets[rows] - base, ends[rows] - base)

    @property
    def _url(self) -> str:
        return self._places[0].shard.url

    def _parsed(
        self, data: memoryview, fields: Collection[str] | None, is_kept: bool = False, as_arrow: bool = False
    ) -> Window:
        """Return the samples as one window, from their bytes."""
        base = int(self._begins[0])
        members = parse_members(data, self.offsets, base, self.ends)
        starts, memory = members.starts - base, InMemory(data)

        def payloads(requested: npt.NDArray[np.bool_]) -> tuple[Objects, bool]:
            if not is_kept:
                return pieces(data, starts, members.sizes, requested), True
            is_read = members.sizes <= _HEAD_BYTES - BLOCK_BYTES
            values = pieces(data, starts, np.where(is_read, members.sizes, 0), requested & is_read)
            rows = np.flatnonzero(requested & ~is_read)
            found = zip(starts[rows].tolist(), members.sizes[rows].tolist(), strict=True)
            values[rows] = as_objects([Pending(memory, start, size) for start, size in found])
            return values, not len(rows)

        if not as_arrow or not len(starts):
            return Window(self._url, members, payloads, fields)
        values = with_gaps(data, starts, members.sizes)
        return Window(self._url, members, payloads, fields, lambda numbers: values.take(pa.array(2 * numbers)))

    def located(self, offsets: Int64) -> Iterator[tuple[ReadableFile | InMemory, int]]:
        """Give the file of each of n offsets, and the offset in it."""
        files: list[ReadableFile | InMemory] = []
        shifts = self._shifts.copy()
        for place, bound, ranges in zip(self._places, self._bounds, pairwise(self._first_ranges), strict=False):
            if place.data is not None:
                shifts[slice(*ranges)] = -bound
            files += [place.shard.file if place.data is None else InMemory(place.data)] * (ranges[1] - ranges[0])
        numbers = np.searchsorted(self._begins, offsets, side="right") - 1
        inside = (offsets + shifts[numbers]).tolist()
        for number, offset in zip(numbers.tolist(), inside, strict=True):
            yield files[number], offset


class InMemory:
    """Bytes in memory that are read like a file."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self.size = len(data)

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return a copy of the bytes at an offset."""
        return bytes(self._data[offset : offset + num_bytes])

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes at an offset."""
        buffer[:] = self._data[offset : offset + len(buffer)]


class _Heads:
    """The headers of large samples, each read with the first bytes of its payload."""

    def __init__(self, windows: _JoinedWindows) -> None:
        self._windows = windows
        self._offsets: list[Int64] = []
        self._data: list[bytes] = []

    def blocks_at(self, offsets: Int64) -> npt.NDArray[np.uint8]:
        """Return the blocks at n offsets: uint8 of shape (n, 512)."""
        read = [
            file.read(offset, min(_HEAD_BYTES, file.size - offset)) for file, offset in self._windows.located(offsets)
        ]
        data = b"".join(head.ljust(_HEAD_BYTES, b"\0") for head in read)
        self._offsets.append(offsets)
        self._data.append(data)
        return np.frombuffer(data, np.uint8).reshape(-1, _HEAD_BYTES)[:, :BLOCK_BYTES]

    def payloads(self, members: Members, requested: npt.NDArray[np.bool_]) -> tuple[Objects, bool]:
        """Return the payloads of members, and whether all of them were read with their headers."""
        offsets = np.concatenate(self._offsets)
        order = np.argsort(offsets)
        data = np.frombuffer(b"".join(self._data), np.uint8).reshape(-1, _HEAD_BYTES)[order]
        heads = np.searchsorted(offsets[order], members.starts - BLOCK_BYTES)
        is_read = members.sizes <= _HEAD_BYTES - BLOCK_BYTES
        sizes = np.where(is_read, members.sizes, 0)
        values = pieces(data.reshape(-1), heads * _HEAD_BYTES + BLOCK_BYTES, sizes, requested & is_read)
        rows = np.flatnonzero(requested & ~is_read)
        found = zip(self._windows.located(members.starts[rows]), members.sizes[rows].tolist(), strict=True)
        values[rows] = as_objects([Pending(file, offset, size) for (file, offset), size in found])
        return values, not len(rows)
