"""Windows of shards: runs of samples, read and cut into columns. Several are read together.

Small samples are read in one piece with what is between them, and compared with their hashes. Of large samples on a
disk only headers are read, and payloads when they are needed: these headers are compared with the places.
"""

from __future__ import annotations

import mmap
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.errors import CorruptDataError
from wdsplit.loading.reading.block import Block, Objects, Payloads, Pending, as_objects
from wdsplit.loading.reading.open_shard import SMALL_SAMPLE_BYTES, OpenShard, Segments
from wdsplit.loading.reading.ranges import joined, range_starts
from wdsplit.tar.headers import BLOCK_BYTES, NAME_BYTES, SIZE_FIELD, are_sound, parse_number, size_digits
from wdsplit.tar.names import split_member
from wdsplit.tar.places import hash_samples, rows_of

__all__ = ["DAMAGE", "InMemory", "Part", "Scratch", "Window", "WindowPlace", "read_window", "read_windows"]

DAMAGE = "/damage"
"""The only field of a damaged sample: its error. No member's name gives this field."""

_HEAD_BYTES = 2 * BLOCK_BYTES
"""Bytes to read of a large member: its header, and a payload of up to one block."""
_MAX_ARROW_BYTES = 512
"""Payloads up to this mean size are copied as Arrow arrays; above it, an object costs less than a second copy."""
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
    """Where a window is: the samples first, first + 1, ..., stop - 1 of a shard; and its bytes, if they are in memory.

    The bytes are those of `shard.ranges`, one after another. In a view these are the samples `chosen`, rising.
    """

    shard: OpenShard
    first: int
    stop: int
    data: memoryview | None = None
    chosen: Int64 | None = None

    @property
    def samples(self) -> Int64 | slice:
        """The samples that are read."""
        return slice(self.first, self.stop) if self.chosen is None else self.chosen

    @property
    def num_samples(self) -> int:
        """How many these are."""
        return self.stop - self.first if self.chosen is None else len(self.chosen)


class InMemory:
    """Bytes in memory that are read like a file."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return a copy of the bytes at an offset."""
        return bytes(self._data[offset : offset + num_bytes])

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes at an offset."""
        buffer[:] = self._data[offset : offset + len(buffer)]


@dataclass
class Window:
    """Samples that were read together.

    Attributes:
        url: The shard's name in messages; object of shape (n,) if there are several shards.
        keys: object of shape (n,): str; empty for a damaged sample.
        sizes: int64 of shape (n,): bytes of the requested payloads of each sample.
        fields: For each requested field the payloads, as in `Block`.
        whole: As in `Block`.
    """

    url: Objects | str
    keys: Objects
    sizes: Int64
    fields: dict[str, Payloads]
    whole: Collection[str] = ()

    def take(self, row: int, position: int, pad: bool) -> dict[str, Any]:
        """Return a sample as a dict of `__key__`, `__url__`, `__position__`, `__pad__` and fields (bytes)."""
        rows = slice(row, row + 1)
        fields = {name: payloads[rows] for name, payloads in self.fields.items()}
        urls = as_objects([self.url]) if isinstance(self.url, str) else self.url[rows]
        block = Block(self.keys[rows], urls, np.array([position]), np.array([pad]), self.sizes[rows], fields)
        return next(block.samples())


class Part(NamedTuple):
    """A window among several that were read together: its samples begin at `first`."""

    window: Window
    first: int


def read_window(shard: OpenShard, first: int, stop: int) -> Window:
    """Read the samples first, first + 1, ..., stop - 1 of a shard.

    Raises:
        CorruptDataError: They do not match the shard's places.
    """
    return read_windows([WindowPlace(shard, first, stop)])[0].window


def read_windows(
    places: Sequence[WindowPlace], scratch: Scratch | None = None, as_arrow: bool = False, salvages: bool = False
) -> list[Part]:
    """Read windows of any shards of one dataset.

    Args:
        places: Where they are; none of them is empty.
        scratch: Memory to read into; None for new memory.
        as_arrow: Whether small payloads may come as Arrow arrays, if all samples have the same fields.
        salvages: Give a damaged sample as its error, in the field `DAMAGE`, instead of raising it.

    Returns:
        A part for each place, with its samples in the tar's order.

    Raises:
        CorruptDataError: A sample does not match its shard's places, also when it is read again from another copy.
    """
    shard = places[0].shard
    rows = rows_of([(place.shard.places, place.samples) for place in places])
    read = _Reading(places, Segments.of(rows, shard.read_columns), salvages)
    num_bytes, is_single = int((read.segments.ends - read.segments.begins).sum()), len(places) == 1
    is_small = num_bytes <= SMALL_SAMPLE_BYTES * len(rows.begins)
    is_read = shard.verifies or any(place.data is not None or place.shard.file.is_remote for place in places)
    if is_read and not is_small and not is_single:
        # One by one: each may keep its bytes, from which large payloads are taken without another copy.
        return [read_windows([place], scratch, as_arrow, salvages)[0] for place in places]
    if is_read or is_small:
        window = read.from_memory(scratch or Scratch(), is_kept=not is_small, as_arrow=as_arrow)
    else:
        window = read.from_heads()
    sizes = [place.num_samples for place in places]
    window.url = shard.url if is_single else np.repeat(as_objects([place.shard.url for place in places]), sizes)
    return [Part(window, first) for first in accumulate(sizes[:-1], initial=0)]


class _Reading:
    """The reading of some windows.

    Args:
        places: The windows.
        segments: What is read of their samples.
        salvages: As for `read_windows`.
    """

    def __init__(self, places: Sequence[WindowPlace], segments: Segments, salvages: bool) -> None:
        self.segments = segments
        self._places = places
        self._salvages = salvages
        self._names, self._columns = places[0].shard.names, places[0].shard.columns
        self._suffixes = [b"." + name.encode() for name in self._names]
        self._window_of = np.repeat(np.arange(len(places)), [place.num_samples for place in places])
        self._is_whole = (segments.begins == segments.rows.begins) & (segments.ends == segments.rows.ends)
        self._again: dict[int, OpenShard] = {}
        self.damaged: dict[int, CorruptDataError] = {}

    # Bytes in memory

    def from_memory(self, scratch: Scratch, is_kept: bool, as_arrow: bool) -> Window:
        """Read all segments into memory, and return them as columns.

        Args:
            scratch: The memory, unless the bytes of a single window are there already.
            is_kept: Whether these bytes may stay in memory, and large payloads be taken from there later.
            as_arrow: As for `read_windows`.
        """
        data, at = self._filled(scratch)
        segments, rows = self.segments, self.segments.rows
        for row in self._wrong_rows(data, at).tolist():
            self._repair(row, data[at[row] : at[row] + segments.ends[row] - segments.begins[row]])
        is_kept = is_kept and self._places[0].data is not None
        memory, shift = InMemory(data), at - segments.begins
        blocks = np.frombuffer(data, np.uint8).reshape(-1, BLOCK_BYTES)
        keys = self._keys(blocks[at // BLOCK_BYTES, :NAME_BYTES])
        fields: dict[str, Payloads] = {}
        for column in self._columns:
            sizes, starts = rows.sizes[:, column], rows.starts[:, column] + shift
            present = np.flatnonzero(sizes >= 0)
            if as_arrow and not self.damaged and len(present) == len(at) and sizes.mean() <= _MAX_ARROW_BYTES:
                fields[self._names[column]] = _with_gaps(data, starts, sizes).take(pa.array(2 * np.arange(len(at))))
                continue
            values = np.full(len(at), None, object)
            if is_kept:
                large = sizes > _HEAD_BYTES - BLOCK_BYTES
                found = zip(starts[large].tolist(), sizes[large].tolist(), strict=True)
                values[large] = as_objects([Pending(memory, start, size) for start, size in found])
                present = present[~large[present]]
            values[present] = _pieces(data, starts[present], sizes[present])
            fields[self._names[column]] = values
        return self._window(keys, fields, is_pending=is_kept)

    def _filled(self, scratch: Scratch) -> tuple[memoryview, Int64]:
        """Read the segments; return the bytes, and where each segment begins in them: int64 of shape (n,)."""
        begins, ends = self.segments.begins, self.segments.ends
        is_start = range_starts(begins, ends, self._window_of)
        range_begins, range_ends = joined(begins, ends, is_start)
        stops = np.cumsum(range_ends - range_begins)
        range_of = np.cumsum(is_start) - 1
        at = begins - range_begins[range_of] + (stops - range_ends + range_begins)[range_of]
        (single, *others) = self._places
        if single.data is not None and not others:
            return single.data, at
        data, place = scratch.at_least(int(stops[-1])), 0
        windows = self._window_of[is_start].tolist()
        fetched = [0] * len(self._places)
        for number, begin, end in zip(windows, range_begins.tolist(), range_ends.tolist(), strict=True):
            target, source = data[place : place + end - begin], self._places[number]
            place += end - begin
            if source.data is not None:
                target[:] = source.data[fetched[number] : fetched[number] + len(target)]
                fetched[number] += len(target)
                continue
            try:
                source.shard.file.read_into(target, begin)
            except CorruptDataError:
                target[:] = bytes(len(target))  # the file is too short: its samples are read again, one by one
        return data, at

    def _wrong_rows(self, data: memoryview, at: Int64) -> Int64:
        """Return the samples whose bytes do not match their places: int64, rising."""
        segments, rows = self.segments, self.segments.rows
        is_wrong = np.zeros(len(at), np.bool_)
        stops = at + segments.ends - segments.begins
        if self._is_whole.all():
            found = hash_samples(data[begin:end] for begin, end in zip(at.tolist(), stops.tolist(), strict=True))
            return np.flatnonzero(found != rows.hashes)
        for row in np.flatnonzero(self._is_whole).tolist():
            is_wrong[row] = self._problem(row, data[at[row] : stops[row]]) is not None
        blocks = np.frombuffer(data, np.uint8).reshape(-1, BLOCK_BYTES)
        for column in self._columns:
            there = np.flatnonzero((rows.sizes[:, column] >= 0) & ~self._is_whole)
            headers = at[there] + rows.starts[there, column] - BLOCK_BYTES - segments.begins[there]
            is_wrong[there] |= ~self._are_right(blocks[headers // BLOCK_BYTES], there, column)
        return np.flatnonzero(is_wrong)

    def _are_right(self, headers: npt.NDArray[np.uint8], rows: Int64, column: int) -> npt.NDArray[np.bool_]:
        """Tell which headers of one field match the places: all at once, as a numpy call costs as much for few.

        Args:
            headers: uint8 of shape (n, 512).
            rows: int64 of shape (n,): their samples.
            column: The field.
        """
        is_right, sizes, keys = are_sound(headers), self.segments.rows.sizes[rows, column], self.segments.rows.keys
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

    def _problem(self, row: int, segment: memoryview | bytes) -> tuple[str, str] | None:
        """Return what was expected of the bytes of a segment and what was found; None if they match the places."""
        rows = self.segments.rows
        if self._is_whole[row]:
            expected, found = rows.hashes[row], hash_samples([segment])[0]
            return None if expected == found else (f"xxh3_64:{expected:016x}", f"xxh3_64:{found:016x}")
        for column in self._columns:
            if rows.sizes[row, column] >= 0:
                begin = int(rows.starts[row, column] - BLOCK_BYTES - self.segments.begins[row])
                header = np.frombuffer(segment, np.uint8, BLOCK_BYTES, begin)[None]
                if not self._are_right(header, np.array([row]), column)[0]:
                    name = header[0, :NAME_BYTES].tobytes().rstrip(b"\0").decode("utf-8", "backslashreplace")
                    expected = f"a member of {self._names[column]!r} with {int(rows.sizes[row, column]):,} bytes"
                    return expected, f"a header with the name {name!r} and other bytes"
        return None

    def _repair(self, row: int, segment: memoryview) -> None:
        """Fill a segment from another copy, or from the same file read again."""
        number = int(self._window_of[row])
        place = self._places[number]
        begin, end = int(self.segments.begins[row]), int(self.segments.ends[row])
        data: bytes = b""
        error: CorruptDataError | None = None
        try:
            if number not in self._again:
                self._again[number] = place.shard if place.shard.again is None else place.shard.again()
            data = self._again[number].file.read(begin, end - begin)
            problem = self._problem(row, data)
        except CorruptDataError as damage:
            error = damage
        else:
            if problem is None:
                segment[:] = data
                return
            error = self._changed(row, data, *problem)
        self._damage(row, error)

    def _damage(self, row: int, error: CorruptDataError) -> None:
        """Raise an error of a sample, or note it."""
        shard = self._places[self._window_of[row]].shard
        located = error if shard.url in error.place else error.at(shard.url)
        assert isinstance(located, CorruptDataError)
        located.url = shard.url
        located = shard.explained(located)
        if not self._salvages:
            raise located from error
        self.damaged[row] = located

    def _changed(self, row: int, header: bytes, expected: str, found: str) -> CorruptDataError:
        """Return the error that a sample differs; its key is that in a header, which may be damaged too."""
        parts = split_member(header[:NAME_BYTES].partition(b"\0")[0])
        key = "" if parts is None else parts[0].decode("utf-8", "backslashreplace")
        place, begin = self._places[self._window_of[row]], int(self.segments.rows.begins[row])
        return CorruptDataError(
            "a sample was changed",
            place=f"{place.shard.url}, sample {self._sample_of(row)}, key {key!r}, byte {begin}",
            expected=expected,
            found=found,
            remedy="copy the shard again, or convert again with --overwrite; `wdsplit verify` finds all that is "
            "damaged",
            url=place.shard.url,
            key=key,
            offset=begin,
        )

    def _sample_of(self, row: int) -> int:
        """Return the place of a sample in its shard."""
        number = int(self._window_of[row])
        place, inside = self._places[number], row - int(np.argmax(self._window_of == number))
        return place.first + inside if place.chosen is None else int(place.chosen[inside])

    # Headers alone

    def from_heads(self) -> Window:
        """Read the headers of the requested members, and small payloads with them; others stay pending."""
        rows, begins = self.segments.rows, self.segments.begins
        files = [self._places[window].shard.file for window in self._window_of.tolist()]
        names = np.zeros((len(begins), NAME_BYTES), np.uint8)
        columns: dict[int, Objects] = {column: np.full(len(begins), None, object) for column in self._columns}
        errors: dict[int, CorruptDataError] = {}
        is_pending = False
        for column, values in columns.items():
            there = np.flatnonzero(rows.sizes[:, column] >= 0)
            starts, sizes = rows.starts[there, column], rows.sizes[there, column]
            is_read = sizes <= _HEAD_BYTES - BLOCK_BYTES
            lengths = np.where(is_read, BLOCK_BYTES + sizes, BLOCK_BYTES)
            heads = self._heads(there, starts - BLOCK_BYTES, lengths, column, errors)
            pairs = zip(there.tolist(), starts.tolist(), sizes.tolist(), is_read.tolist(), heads, strict=True)
            values[there] = as_objects(
                [
                    head[BLOCK_BYTES:] if here else Pending(files[row], start, size)
                    for row, start, size, here, head in pairs
                ]
            )
            is_pending |= not is_read.all()
            is_first = starts - BLOCK_BYTES == begins[there]
            chosen = [head[:NAME_BYTES] for head, first in zip(heads, is_first.tolist(), strict=True) if first]
            names[there[is_first]] = np.frombuffer(b"".join(chosen), np.uint8).reshape(-1, NAME_BYTES)
        bare = np.flatnonzero(~names.any(axis=1))
        bare = bare[(rows.sizes[bare][:, self._columns] < 0).all(axis=1)]  # they have none of the requested fields
        for row, head in zip(
            bare.tolist(), self._heads(bare, begins[bare], np.full(len(bare), BLOCK_BYTES), None, errors), strict=True
        ):
            names[row] = np.frombuffer(head, np.uint8, NAME_BYTES)
        keys = self._keys(names)
        for row, error in errors.items():
            copy = self._from_another(row, error)
            keys[row] = "" if copy is None else copy.keys[0]
            for column, values in columns.items():
                payloads = None if copy is None else copy.fields.get(self._names[column])
                values[row] = None if payloads is None else payloads[0]
        fields: dict[str, Payloads] = {self._names[column]: values for column, values in columns.items()}
        return self._window(keys, fields, is_pending)

    def _heads(
        self, rows: Int64, offsets: Int64, lengths: Int64, column: int | None, errors: dict[int, CorruptDataError]
    ) -> list[bytes]:
        """Read headers of n samples with what follows; add an error for each that does not match its place.

        Args:
            rows: int64 of shape (n,): the samples.
            offsets: int64 of shape (n,): where their headers are.
            lengths: int64 of shape (n,): the bytes to read of each.
            column: The column of their members; None for any.
            errors: The errors of samples.
        """
        heads: list[bytes] = []
        for row, offset, length in zip(rows.tolist(), offsets.tolist(), lengths.tolist(), strict=True):
            try:
                heads.append(self._places[self._window_of[row]].shard.file.read(offset, length))
            except CorruptDataError as error:
                errors.setdefault(row, error)
                heads.append(bytes(length))
        if not heads:
            return heads
        headers = np.frombuffer(b"".join([head[:BLOCK_BYTES] for head in heads]), np.uint8).reshape(-1, BLOCK_BYTES)
        is_right = are_sound(headers) if column is None else self._are_right(headers, rows, column)
        for place in np.flatnonzero(~is_right).tolist():
            found = f"other bytes at byte {offsets[place]}"
            expected = "the header of the member that the places of the shard list"
            errors.setdefault(int(rows[place]), self._changed(int(rows[place]), heads[place], expected, found))
        return heads

    def _from_another(self, row: int, error: CorruptDataError) -> Window | None:
        """Return a damaged sample from another copy of its shard; else note or raise its error."""
        again = self._places[self._window_of[row]].shard.again
        if again is not None:
            sample = self._sample_of(row)
            try:
                return read_window(replace(again(), again=None), sample, sample + 1)
            except CorruptDataError as damage:
                error = damage
        self._damage(row, error)
        return None

    # Columns

    def _keys(self, names: npt.NDArray[np.uint8]) -> Objects:
        """Return the keys.

        Args:
            names: uint8 of shape (n, 100): the name in the first header of each segment, which begins with the key.
        """
        listed = self.segments.rows.keys
        if listed is not None and all(key is not None for key in listed):
            keys = listed.copy()
        else:
            names[list(self.damaged)] = 0
            suffixes = np.array([len(suffix) for suffix in self._suffixes])
            lengths = np.maximum((names != 0).sum(axis=1) - suffixes[self.segments.heads], 0)
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
        keys[list(self.damaged)] = ""
        found: Objects = keys
        return found

    def _window(self, keys: Objects, fields: dict[str, Payloads], is_pending: bool) -> Window:
        sizes = self.segments.rows.sizes[:, self._columns]
        is_there = sizes >= 0
        whole: Collection[str] = ()
        if not is_pending and not self.damaged:
            whole = [name for name, has in zip(fields, is_there.T, strict=True) if has.all()]
        if self.damaged:
            errors = np.full(len(keys), None, object)
            for row, error in self.damaged.items():
                errors[row] = error
                for values in fields.values():
                    values[row] = None
            fields = {**fields, DAMAGE: errors}
        unused = {self._names[column] for column, has in zip(self._columns, is_there.T, strict=True) if not has.any()}
        used = {name: values for name, values in fields.items() if name not in unused}
        return Window("", keys, np.where(is_there, sizes, 0).sum(axis=1), used, whole)


def _pieces(data: Any, starts: Int64, sizes: Int64) -> Objects:
    """Return copies of n pieces of some bytes, all at once: object of shape (n,), bytes.

    Args:
        data: The bytes: a buffer.
        starts: int64 of shape (n,): where the pieces begin, in rising order.
        sizes: int64 of shape (n,): their bytes; no piece reaches into the next one, or beyond the end.
    """
    if len(starts) <= _FEW_PIECES:
        found = zip(starts.tolist(), (starts + sizes).tolist(), strict=True)
        return as_objects([bytes(data[start:stop]) for start, stop in found])
    flags = np.full(len(starts) // 4 + 1, 0x55, np.uint8)  # of eight values, the first, the third, ... are no nulls
    return np.asarray(_with_gaps(data, starts, sizes, flags).to_numpy(zero_copy_only=False)[::2], object)


def _with_gaps(
    data: Any, starts: Int64, sizes: Int64, flags: npt.NDArray[np.uint8] | None = None
) -> pa.LargeBinaryArray:
    """Return pieces of some bytes, at least one, and the gaps between them, without a copy.

    Args:
        data: As in `_pieces`.
        starts: As in `_pieces`.
        sizes: As in `_pieces`.
        flags: Bits that are 0 for nulls among the 2 n - 1 values; None for no nulls.
    """
    cuts = np.stack([starts, starts + sizes], axis=1).reshape(-1)
    if cuts[0] < 0 or cuts[-1] > len(data) or (cuts[1:] < cuts[:-1]).any():
        raise ValueError(f"{len(starts)} pieces overlap, or lie outside of {len(data)} bytes")
    buffers = [None if flags is None else pa.py_buffer(flags), pa.py_buffer(cuts), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(cuts) - 1, buffers)
