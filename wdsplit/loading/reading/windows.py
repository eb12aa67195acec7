"""Windows of shards: samples that are read and cut into columns, several windows together.

Small samples are read in one piece with what is between them, and compared with their hashes. Of large samples on a
disk only headers are read, and payloads when they are needed: these headers are compared with the places.
"""

from __future__ import annotations

import functools
import mmap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, zip_longest
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.errors import CorruptDataError
from wdsplit.loading.reading.block import Block, InMemory, Objects, Pending, as_objects
from wdsplit.loading.reading.open_shard import OpenShard
from wdsplit.loading.reading.segments import SMALL_SAMPLE_BYTES, Segments, ranges_of, starts_of_ranges
from wdsplit.tar.headers import BLOCK_BYTES, NAME_BYTES, SIZE_FIELD, are_sound, parse_number, size_digits
from wdsplit.tar.names import split_member
from wdsplit.tar.places import hash_samples, padded, rows_of

__all__ = ["DAMAGE", "Part", "Scratch", "WindowPlace", "damaged", "expect", "read_window", "read_windows"]

DAMAGE = "/damage"
"""The only field of a damaged sample: its error. No member's name gives this field."""

_EXPECTED_GAP_BYTES = 32 * 1024
"""A disk reads gaps up to this size along with the bytes around them."""
_SAMPLES_TOGETHER, _WINDOWS_TOGETHER = 1024, 64
"""Limits for windows that are read together: of samples, because a numpy call costs as much for few as for many; and
of windows, because all their shards are open meanwhile."""
_LARGE_WINDOW_BYTES = 1024**2
"""Fetched windows above this size are read alone, so that their bytes are free again as soon as possible."""
_FEW_PIECES = 1024
"""So many pieces are copied in less than a millisecond without `to_numpy`, which imports pandas if it is installed."""


class Scratch:
    """Memory that one window after another is read into: allocating new memory costs more than copying."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def at_least(self, num_bytes: int) -> memoryview:
        """Return memory of some bytes; what was in it is lost."""
        if self._memory is None or len(self._memory) < num_bytes:
            self._memory = mmap.mmap(-1, max(num_bytes, 1), mmap.MAP_PRIVATE)  # a fork has its own
        return memoryview(self._memory)[:num_bytes]


class WindowPlace(NamedTuple):
    """Where a window is: the places of its samples in a shard, int64 of shape (n,), rising; and its bytes, if fetched.

    The bytes are those of `shard.ranges`, one after another. `joined` has those of joined shards.
    """

    shard: OpenShard
    samples: Int64
    data: memoryview | None = None
    joined: Sequence[memoryview | None] = ()

    @property
    def parts(self) -> list[WindowPlace]:
        """The window in the shard itself, and in each joined one."""
        joined = zip_longest(self.shard.joined, self.joined)
        return [self, *(WindowPlace(shard, self.samples, data) for shard, data in joined)]

    @property
    def is_alone(self) -> bool:
        """Whether it is read alone: of large samples that are read into memory, no copy is made if they are alone."""
        return any(part._is_alone for part in self.parts) if self.shard.joined else self._is_alone

    @property
    def _is_alone(self) -> bool:
        if self.data is None:
            places = self.shard.places
            is_large = places.end > SMALL_SAMPLE_BYTES * places.num_samples
            return is_large and (self.shard.verifies or self.shard.file.is_remote)
        return len(self.data) > min(_LARGE_WINDOW_BYTES, SMALL_SAMPLE_BYTES * len(self.samples))


def damaged(url: str, samples: Int64, error: CorruptDataError) -> Block:
    """Return samples that cannot be read, by their places in a shard: each as the error, in the field `DAMAGE`."""
    # No collector sees into arrays of objects: by a traceback, they would keep this reader forever.
    keys, urls, errors = (as_objects([each] * len(samples)) for each in ("", url, error.with_traceback(None)))
    pads, sizes = np.zeros(len(samples), np.bool_), np.zeros(len(samples), np.int64)
    return Block(keys, urls, samples, pads, sizes, {DAMAGE: errors})


class Part(NamedTuple):
    """The samples of a window: from `first` on in a block of all samples that were read together.

    The samples of a block are in the order of the tars; their positions are their places in their shards.
    """

    block: Block
    first: int


def read_window(shard: OpenShard, samples: Int64) -> Block:
    """Read some samples of a shard, at least one, by their places in it: int64 of shape (n,), rising.

    Raises:
        CorruptDataError: They do not match the shard's places.
    """
    return _read([WindowPlace(shard, samples)], Scratch())


def read_windows(places: Iterable[WindowPlace], scratch: Scratch, salvages: bool = False) -> Iterator[Part]:
    """Give the samples of windows of any shards of one dataset, several windows together.

    Args:
        places: Where they are; none of them is empty.
        scratch: Memory to read into.
        salvages: Give a damaged sample as its error, in the field `DAMAGE`, instead of raising it.

    Raises:
        CorruptDataError: A sample does not match its shard's places, also when it is read again from another copy.
    """
    some, num_samples = list[WindowPlace](), 0

    def read() -> Iterator[Part]:
        block = _read(some, scratch, salvages)
        firsts = accumulate((len(place.samples) for place in some[:-1]), initial=0)
        yield from [Part(block, first) for first in firsts]

    for place in places:
        is_alone = place.is_alone
        if some and (is_alone or num_samples >= _SAMPLES_TOGETHER or len(some) == _WINDOWS_TOGETHER):
            yield from read()
            some, num_samples = [], 0
        some.append(place)
        num_samples += len(place.samples)
        if is_alone:
            yield from read()
            some, num_samples = [], 0
    if some:
        yield from read()


def _read(places: Sequence[WindowPlace], scratch: Scratch, salvages: bool = False) -> Block:
    """Return the samples of windows, with the fields of joined shards."""
    first, *joined = (
        _WindowReader(part, salvages, is_joined=number > 0).block(scratch)
        for number, part in enumerate(zip(*(place.parts for place in places), strict=True))
    )
    return functools.reduce(Block.joined, joined, first)


def expect(places: Iterable[WindowPlace]) -> None:
    """Let the system begin to read windows that are needed soon, if they are on a disk."""
    for parts in zip(*(place.parts for place in places), strict=True):  # in a shard and a joined one, fields differ
        sparse = []
        for place in parts:
            shard, samples, *_ = place
            if shard.file.is_remote:
                continue
            first, stop, count = int(samples[0]), int(samples[-1]) + 1, len(samples)
            begin, end = shard.places.begin_of(first), shard.places.begin_of(stop)
            is_all = stop - first == count and len(shard.read_columns) == len(shard.names)
            if is_all or end - begin <= _EXPECTED_GAP_BYTES * count:
                shard.file.expect(begin, end - begin)
            else:
                sparse.append(place)
        if sparse:
            rows = rows_of([(place.shard.places, place.samples) for place in sparse])
            segments = Segments.of(rows, sparse[0].shard.read_columns)
            windows = np.repeat(np.arange(len(sparse)), [len(place.samples) for place in sparse])
            for window, begin, end in zip(*ranges_of(segments.begins, segments.ends, windows), strict=True):
                sparse[window].shard.file.expect(begin, end - begin)


class _WindowReader:
    """Reads some windows, once.

    Args:
        places: The windows.
        salvages: As for `read_windows`.
        is_second: Whether a sample is read again, that was damaged: then its error is raised at once.
        is_joined: Whether the samples are joined to others, which have their keys already.

    It reads pieces: of samples in memory a segment each, of large samples on a disk the header of each requested
    member, with its payload if that is small. `_at` says where a piece is in memory.
    """

    def __init__(
        self, places: Sequence[WindowPlace], salvages: bool = False, is_second: bool = False, is_joined: bool = False
    ) -> None:
        self._places, self._salvages, self._is_second, self._is_joined = places, salvages, is_second, is_joined
        shard = places[0].shard
        self._names, self._columns = shard.names, shard.columns
        self._suffixes = [b"." + name.encode() for name in self._names]
        self._rows = rows = rows_of([(place.shard.places, place.samples) for place in places])
        self._window_of = np.repeat(np.arange(len(places)), [len(place.samples) for place in places])
        self._segments = segments = Segments.of(rows, shard.read_columns)
        is_small = bool((segments.ends - segments.begins).mean() <= SMALL_SAMPLE_BYTES)
        is_read = (
            is_second or shard.verifies or any(place.data is not None or place.shard.file.is_remote for place in places)
        )
        self._has_heads = not is_read and not is_small
        self._is_kept = not is_small and places[0].data is not None and len(places) == 1
        self._is_whole = (segments.begins == rows.begins) & (segments.ends == rows.ends) & (not self._has_heads)
        self._sizes = rows.sizes[:, self._columns]

    def block(self, scratch: Scratch) -> Block:
        """Read the samples into `scratch`, unless the bytes of a single window are in memory already."""
        self._read(scratch)
        repaired = {row: self._again(row) for row in self._wrong_rows().tolist()}
        keys = np.full(len(self._sizes), "", object) if self._is_joined else self._keys(list(repaired))
        fields: dict[str, Objects] = {}
        whole = []
        for column, sizes, at in zip(self._columns, self._sizes.T, self._payload_at.T, strict=True):
            present, name = np.flatnonzero(sizes >= 0), self._names[column]
            if not len(present):
                continue
            is_everywhere = len(present) == len(sizes) and not repaired
            fields[name] = values = np.full(len(sizes), None, object)
            is_pending = (sizes > BLOCK_BYTES) & (self._has_heads or self._is_kept)
            pending, present = np.flatnonzero(is_pending), present[~is_pending[present]]
            values[pending] = as_objects(self._pending(pending, column, at))
            values[present] = _pieces(self._data, at[present], sizes[present])
            if is_everywhere and not len(pending):
                whole.append(name)
        if any(DAMAGE in copy.fields for copy in repaired.values()):
            fields[DAMAGE] = np.full(len(keys), None, object)
        for row, copy in repaired.items():
            keys[row] = copy.keys[0]
            for name, values in fields.items():
                values[row] = copy.fields[name][0] if name in copy.fields else None
        urls = as_objects([place.shard.origin or place.shard.url for place in self._places])[self._window_of]
        positions = np.concatenate([place.samples for place in self._places])
        num_bytes = np.where(self._sizes >= 0, self._sizes, 0).sum(axis=1)
        return Block(keys, urls, positions, np.zeros(len(keys), np.bool_), num_bytes, fields, whole)

    def _pending(self, rows: Int64, column: int, at: Int64) -> list[Pending]:
        """Return the payloads of a field that are not copied: in kept memory, else in the file of each sample."""
        sizes = self._rows.sizes[rows, column].tolist()
        if self._is_kept:
            memory = InMemory(self._data)
            return [Pending(memory, start, size) for start, size in zip(at[rows].tolist(), sizes, strict=True)]
        files = [self._places[window].shard.file for window in self._window_of[rows].tolist()]
        starts = self._rows.starts[rows, column].tolist()
        return [Pending(file, start, size) for file, start, size in zip(files, starts, sizes, strict=True)]

    # Pieces

    def _read(self, scratch: Scratch) -> None:
        """Read the pieces, and find in memory the first header and the requested payloads of each sample."""
        rows, segments, columns = self._rows, self._segments, self._columns
        if not self._has_heads:
            at = self._filled(scratch, np.arange(len(rows.begins)), segments.begins, segments.ends)
            self._first_at, self._first_fields = at, segments.heads
            self._payload_at = rows.starts[:, columns] + (at - segments.begins)[:, None]
            return
        bare = np.flatnonzero((self._sizes < 0).all(axis=1))  # of these the first header, for the key
        row, place = np.nonzero(self._sizes >= 0)
        starts, sizes = rows.starts[:, columns][row, place], self._sizes[row, place]
        begins = np.concatenate([starts - BLOCK_BYTES, segments.begins[bare]])
        ends = np.concatenate(
            [starts + np.where(sizes <= BLOCK_BYTES, padded(sizes), 0), segments.begins[bare] + BLOCK_BYTES]
        )
        row_of = np.concatenate([row, bare])
        order = np.lexsort((begins, row_of))
        at = np.empty(len(order), np.int64)
        at[order] = self._filled(scratch, row_of[order], begins[order], ends[order])
        firsts = order[np.searchsorted(row_of[order], np.arange(len(rows.begins)))]
        fields = np.concatenate([np.array(columns, np.int64)[place], segments.heads[bare]])
        self._first_at, self._first_fields = at[firsts], fields[firsts]
        self._payload_at = np.zeros(self._sizes.shape, np.int64)
        self._payload_at[row, place] = at[: len(row)] + BLOCK_BYTES

    def _filled(self, scratch: Scratch, rows: Int64, begins: Int64, ends: Int64) -> Int64:
        """Read n pieces; return where each is in memory: int64 of shape (n,).

        Args:
            scratch: As in `block`.
            rows: int64 of shape (n,): the sample of each piece.
            begins: int64 of shape (n,), rising in each window: where it begins in the shard.
            ends: int64 of shape (n,): where it ends.
        """
        windows = self._window_of[rows]
        if self._has_heads:
            is_start = np.append(True, (begins[1:] != ends[:-1]) | (windows[1:] != windows[:-1]))
        else:
            is_start = starts_of_ranges(begins, ends, windows)
        starts = np.flatnonzero(is_start)
        range_begins, range_ends = begins[starts], ends[np.append(starts[1:], len(begins)) - 1]
        stops = np.cumsum(range_ends - range_begins)
        at: Int64 = begins + (stops - range_ends)[np.cumsum(is_start) - 1]
        first = self._places[0]
        if first.data is not None and len(self._places) == 1:
            self._data = first.data
            return at
        self._data, place, fetched = scratch.at_least(int(stops[-1])), 0, [0] * len(self._places)
        ranges = zip(windows[starts].tolist(), range_begins.tolist(), range_ends.tolist(), strict=True)
        for window, begin, end in ranges:
            shard, _, data, _ = self._places[window]
            target = self._data[place : place + end - begin]
            place += len(target)
            if data is not None:
                target[:] = data[fetched[window] : fetched[window] + len(target)]
                fetched[window] += len(target)
                continue
            try:
                shard.file.read_into(target, begin)
            except CorruptDataError:
                if self._is_second:
                    raise
                target[:] = bytes(len(target))  # the file is too short: its samples are read again, one by one
        return at

    # Checks

    def _wrong_rows(self) -> Int64:
        """Return the samples whose bytes do not match their places: int64, rising."""
        is_wrong = np.zeros(len(self._rows.begins), np.bool_)
        whole = np.flatnonzero(self._is_whole)
        if len(whole):
            is_wrong[whole] = self._hashes(whole) != self._rows.hashes[whole]
        if len(whole) < len(is_wrong):
            part = ~self._is_whole
            bare = np.flatnonzero(part & (self._sizes < 0).all(axis=1))
            is_wrong[bare] = ~are_sound(self._headers(self._first_at[bare]))
            for place, column in enumerate(self._columns):
                there = np.flatnonzero(part & (self._sizes[:, place] >= 0))
                headers = self._headers(self._payload_at[there, place] - BLOCK_BYTES)
                is_wrong[there] |= ~self._are_right(headers, there, column)
        return np.flatnonzero(is_wrong)

    def _hashes(self, rows: Int64) -> npt.NDArray[np.uint64]:
        """Return the hashes of some samples that are in memory as a whole."""
        begins, sizes = self._first_at[rows], (self._rows.ends - self._rows.begins)[rows]
        pairs = zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
        return hash_samples(self._data[begin:end] for begin, end in pairs)

    def _headers(self, at: Int64, num_bytes: int = BLOCK_BYTES) -> npt.NDArray[np.uint8]:
        """Return the first bytes of the headers at n places in memory: uint8 of shape (n, num_bytes)."""
        headers: npt.NDArray[np.uint8] = np.frombuffer(self._data, np.uint8).reshape(-1, BLOCK_BYTES)
        return headers[at // BLOCK_BYTES, :num_bytes]

    def _are_right(self, headers: npt.NDArray[np.uint8], rows: Int64, column: int) -> npt.NDArray[np.bool_]:
        """Tell which headers of one field match the places: all at once, as a numpy call costs as much for few.

        Args:
            headers: uint8 of shape (n, 512).
            rows: int64 of shape (n,): their samples.
            column: The field.
        """
        is_right, sizes, keys = are_sound(headers), self._rows.sizes[rows, column], self._rows.keys
        listed = [] if keys is None else [place for place, key in enumerate(keys[rows]) if key is not None]
        plain = np.setdiff1d(np.arange(len(rows)), listed) if listed else slice(None)
        suffix, names = np.frombuffer(self._suffixes[column], np.uint8), headers[plain, :NAME_BYTES]
        ends = np.maximum((names != 0).sum(axis=1) - len(suffix), 0)[:, None] + np.arange(len(suffix))
        is_right[plain] &= (np.take_along_axis(names, ends, axis=1) == suffix).all(axis=1)
        is_right[plain] &= (headers[plain, SIZE_FIELD] == size_digits(sizes[plain])).all(axis=1)
        for place in listed:  # other programs write other names and numbers
            digits = headers[place, SIZE_FIELD.start : SIZE_FIELD.stop + 1].tobytes()
            is_right[place] &= parse_number(digits) in (sizes[place], -1, 0)
        return is_right

    def _again(self, row: int) -> Block:
        """Read a wrong sample once more, from another copy if there is one; return it, or raise or return its error."""
        window = int(self._window_of[row])
        shard, samples, *_ = self._places[window]
        sample = int(samples[row - int(np.searchsorted(self._window_of, window))])
        if self._is_second:
            raise self._changed(row, shard, sample)
        try:
            other = replace(shard if shard.again is None else shard.again(), again=None)
            return _WindowReader([WindowPlace(other, np.array([sample]))], is_second=True).block(Scratch())
        except CorruptDataError as damage:
            error = damage
        located = error if shard.url in error.place else error.at(shard.url)
        assert isinstance(located, CorruptDataError)
        located.url = shard.url
        located = shard.explained(located)
        if not self._salvages:
            raise located from error
        return damaged(shard.url, np.array([sample]), located)

    def _changed(self, row: int, shard: OpenShard, sample: int) -> CorruptDataError:
        """Return the error that a sample differs; its key is that in a header, which may be damaged too."""
        name = self._headers(self._first_at[[row]], NAME_BYTES).tobytes().partition(b"\0")[0]
        parts, begin = split_member(name), int(self._rows.begins[row])
        key = "" if parts is None else parts[0].decode("utf-8", "backslashreplace")
        if self._is_whole[row]:
            expected, found = (
                f"xxh3_64:{each[0]:016x}" for each in (self._rows.hashes[[row]], self._hashes(np.array([row])))
            )
        else:
            sizes = zip(self._columns, self._sizes[row].tolist(), strict=True)
            listed = [f"{self._names[column]!r} with {size:,} bytes" for column, size in sizes if size >= 0]
            expected = f"headers of {', '.join(listed)}" if listed else "a header"
            found = "other bytes, the first header with the name " + repr(name.decode("utf-8", "backslashreplace"))
        return CorruptDataError(
            "a sample was changed",
            place=f"{shard.url}, sample {sample}, key {key!r}, byte {begin}",
            expected=expected,
            found=found,
            remedy="copy the shard again, or convert again with --overwrite; `wdsplit verify` finds all that is "
            "damaged",
            url=shard.url,
            key=key,
            offset=begin,
        )

    def _keys(self, unknown: list[int]) -> Objects:
        """Return the keys, from the names in the first headers; empty for unknown ones."""
        listed = self._rows.keys
        if listed is not None and all(key is not None for key in listed):
            keys: Objects = listed.copy()
        else:
            names = self._headers(self._first_at, NAME_BYTES)
            names[unknown] = 0
            suffixes = np.array([len(suffix) for suffix in self._suffixes])
            lengths = np.maximum((names != 0).sum(axis=1) - suffixes[self._first_fields], 0)
            width = int(lengths.max())
            place = np.arange(width + 1)
            ended = np.zeros((len(names), width + 1), np.uint8)
            ended[:, :width] = names[:, :width]
            ended[np.arange(len(names)), lengths] = 0
            text = ended[place <= lengths[:, None]].tobytes()[:-1].decode("utf-8", "surrogateescape")
            keys = as_objects(text.split("\0"))
            if listed is not None:
                known = np.flatnonzero([key is not None for key in listed])
                keys[known] = listed[known]
        keys[unknown] = ""
        return keys


def _pieces(data: Any, starts: Int64, sizes: Int64) -> Objects:
    """Return copies of n pieces of some bytes, all at once: object of shape (n,), bytes.

    Args:
        data: The bytes: a buffer.
        starts: int64 of shape (n,): where the pieces begin, in rising order.
        sizes: int64 of shape (n,): their bytes; no piece reaches into the next one, or beyond the end.
    """
    cuts = np.stack([starts, starts + sizes], axis=1).reshape(-1)
    if len(starts) and (cuts[0] < 0 or cuts[-1] > len(data) or (cuts[1:] < cuts[:-1]).any()):
        raise ValueError(f"{len(starts)} pieces overlap, or lie outside of {len(data)} bytes")
    if len(starts) <= _FEW_PIECES:
        found = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        return as_objects([bytes(data[start:stop]) for start, stop in found])
    # The pieces and the gaps between them are one Arrow array, of which the gaps are nulls: of eight values, the first,
    # the third, ... are none.
    flags = np.full(len(starts) // 4 + 1, 0x55, np.uint8)
    array = pa.Array.from_buffers(pa.large_binary(), len(cuts) - 1, list(map(pa.py_buffer, (flags, cuts, data))))
    return np.asarray(array.to_numpy(zero_copy_only=False)[::2], object)
