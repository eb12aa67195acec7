"""The tar codec: packs and parses the members of whole batches of samples.

Pure (no I/O). A tar is a sequence of 512-byte blocks, so a buffer is an array of shape (blocks, 512). The headers of a
batch are rows of one matrix. Names, sizes and payloads determine every byte: mtime, uid and gid are 0, the mode is
0644, and there are no owner names. `scan` reads tars of other programs.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsplit import compute as pc
from wdsplit.arrays import Int64
from wdsplit.errors import CorruptDataError, InputError
from wdsplit.tar.headers import (
    BLANK,
    BLOCK_BYTES,
    MAX_MEMBER_BYTES,
    NAME_BYTES,
    USTAR_NAME_BYTES,
    extended_bytes,
    extended_headers,
    idle_extensions,
    large_binary,
    pack_headers,
    padding_bytes,
    parse_headers,
)
from wdsplit.tar.names import MAX_COMPONENT_BYTES, MAX_NAME_BYTES
from wdsplit.tar.scan import damaged, scan_window

__all__ = [
    "RECORD_BYTES",
    "Body",
    "Members",
    "build_body",
    "header_bytes",
    "parse_members",
    "parse_plain_members",
    "trailer_bytes",
]

RECORD_BYTES = 10_240

_LARGE_SAMPLE_BYTES = 16_384
"""From this mean size on, joining payloads costs more than writing each separately."""
_HUGE_SAMPLE_BYTES = 1024**2
"""A sample of this size is not copied, however small its neighbours are."""


BlocksAt = Callable[[Int64], npt.NDArray[np.uint8]]
"""Returns the blocks at n offsets of a tar: uint8 of shape (n, 512)."""


def trailer_bytes(body_bytes: int) -> int:
    """Return the number of zero bytes that end an archive: at least two blocks, up to a full record of 10,240."""
    return 2 * BLOCK_BYTES + -(body_bytes + 2 * BLOCK_BYTES) % RECORD_BYTES


@dataclass(frozen=True)
class Body:
    """The members of a batch of samples, laid out but not joined.

    Attributes:
        pieces: For each field: headers, payload and padding, each a large_binary array with a row for each sample; a
            missing member is empty in all three.
        sample_bytes: int64 of shape (n,): the size of each sample in bytes, including headers and padding.
    """

    pieces: list[pa.LargeBinaryArray]
    sample_bytes: npt.NDArray[np.int64]

    def parts(self) -> list[memoryview]:
        """Return the bytes of all samples, in order: large payloads without a copy, small ones joined."""
        huge = np.flatnonzero(self.sample_bytes >= _HUGE_SAMPLE_BYTES)
        cuts = sorted({0, len(self.sample_bytes), *huge.tolist(), *(huge + 1).tolist()})
        runs = (self.slice(first, stop) for first, stop in itertools.pairwise(cuts))
        return [part for run in runs for part in run._parts_of_run()]

    def slice(self, first: int, stop: int) -> Body:
        """Return the members of some of the samples; nothing is copied."""
        return Body([piece[first:stop] for piece in self.pieces], self.sample_bytes[first:stop])

    def _parts_of_run(self) -> list[memoryview]:
        if self.sample_bytes.sum() < _LARGE_SAMPLE_BYTES * len(self.sample_bytes):
            return [self.join()]
        columns = [_values(piece) for piece in self.pieces]
        return [part for sample in zip(*columns, strict=True) for part in sample if part]

    def join(self) -> memoryview:
        """Return the bytes of all samples, in order, as one buffer."""
        joined = pc.binary_join_element_wise(*self.pieces, BLANK)
        if isinstance(joined, pa.ChunkedArray):
            joined = joined.combine_chunks()
        return memoryview(joined.buffers()[2] or b"")[: int(self.sample_bytes.sum())]


def _values(array: pa.LargeBinaryArray) -> list[memoryview]:
    """Return the values of an array without nulls; nothing is copied."""
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1].tolist()
    view = memoryview(data or b"")
    return [view[start:stop] for start, stop in itertools.pairwise(ends)]


def build_body(keys: pa.Array, fields: dict[str, pa.LargeBinaryArray]) -> Body:
    """Lay out the members of n samples, in the order of `fields`.

    Members have plain ustar headers. A name over 99 bytes, or a payload of 8 GiB or more, also needs an extended header
    before it.

    Args:
        keys: n keys (string or binary), already escaped.
        fields: For each field name the payload of n samples; null where a sample lacks the field.

    Raises:
        InputError: A member's name is too long.
    """
    keys = keys.cast(pa.large_binary())
    sample_bytes = np.zeros(len(keys), np.int64)
    pieces: list[pa.LargeBinaryArray] = []
    for field, payload in fields.items():
        present = payload.is_valid().to_numpy(zero_copy_only=False)
        sizes = np.asarray(pc.fill_null(pc.binary_length(payload), 0), np.int64)
        padding = padding_bytes(sizes)
        headers = _headers(keys, field, sizes, present)
        pieces += [headers, _without_nulls(payload), large_binary(padding, np.zeros(int(padding.sum()), np.uint8))]
        sample_bytes += np.asarray(pc.binary_length(headers), np.int64) + sizes + padding
    return Body(pieces, sample_bytes)


def header_bytes(keys: pa.Array, field: str, sizes: Int64) -> Int64:
    """Return the size of the headers of each of n members in bytes, including extended headers.

    Args:
        keys: n keys (string or binary).
        field: The field.
        sizes: int64 of shape (n,), payload bytes.
    """
    return BLOCK_BYTES + extended_bytes(_name_lengths(keys, field), sizes)


def _name_lengths(keys: pa.Array, field: str) -> Int64:
    return np.asarray(pc.binary_length(keys), np.int64) + len(f".{field}".encode())


def _headers(keys: pa.Array, field: str, sizes: Int64, present: npt.NDArray[np.bool_]) -> pa.LargeBinaryArray:
    """Return the headers of n members `key.field`; empty where there is no member."""
    lengths = _name_lengths(keys, field)
    if not present.all():
        headers = _headers(keys.filter(pa.array(present)), field, sizes[present], present[present])
        spread = np.zeros(len(keys), np.int64)
        spread[present] = np.asarray(pc.binary_length(headers), np.int64)
        return large_binary(spread, np.frombuffer(headers.buffers()[2] or b"", np.uint8))
    plain = np.full(len(keys), BLOCK_BYTES)
    long = lengths > USTAR_NAME_BYTES
    if not long.any() and (sizes <= MAX_MEMBER_BYTES).all():
        return large_binary(plain, pack_headers(_name_matrix(keys, lengths, field), sizes).reshape(-1))
    names = pc.binary_join_element_wise(keys, pa.scalar(f".{field}".encode(), pa.large_binary()), BLANK)
    _check_names(names, keys)
    matrix = np.zeros((len(keys), NAME_BYTES), np.uint8)
    matrix[~long] = _name_matrix(keys.filter(pa.array(~long)), lengths[~long], field)
    matrix[long] = _cut(names.filter(pa.array(long)))
    headers = pack_headers(matrix, np.where(sizes > MAX_MEMBER_BYTES, 0, sizes))
    return pc.binary_join_element_wise(extended_headers(names, sizes), large_binary(plain, headers.reshape(-1)), BLANK)


def _name_matrix(keys: pa.Array, lengths: Int64, field: str) -> npt.NDArray[np.uint8]:
    """Return the member names `key.field` as uint8 of shape (n, 100), padded with NULs."""
    fill = NAME_BYTES - lengths
    zeros = large_binary(fill, np.zeros(int(fill.sum()), np.uint8))
    tail = pa.scalar(f".{field}".encode(), pa.large_binary())
    joined = pc.binary_join_element_wise(keys, tail, zeros, BLANK)
    flat = np.frombuffer(joined.buffers()[2] or b"", np.uint8)[: len(keys) * NAME_BYTES]
    return flat.reshape(-1, NAME_BYTES)


def _cut(names: pa.LargeBinaryArray) -> npt.NDArray[np.uint8]:
    """Return the first 100 bytes of long names, for old readers: uint8 of shape (n, 100)."""
    _, offsets, data = names.buffers()
    begins = np.frombuffer(offsets, np.int64)[names.offset : names.offset + len(names)]
    return np.asarray(np.frombuffer(data or b"", np.uint8)[begins[:, None] + np.arange(NAME_BYTES)])


def _check_names(names: pa.LargeBinaryArray, keys: pa.Array) -> None:
    too_long = pc.greater(pc.binary_length(names), MAX_NAME_BYTES)
    too_long = pc.or_(too_long, pc.match_substring_regex(names, f"[^/]{{{MAX_COMPONENT_BYTES + 1}}}"))
    if pc.any(too_long, min_count=0).as_py():
        row = pc.index(too_long, True).as_py()
        name = names[row].as_py().decode()
        raise InputError(
            "a member's name is too long",
            expected=f"at most {MAX_NAME_BYTES} bytes for key, dot and field, {MAX_COMPONENT_BYTES} between slashes",
            found=f"{len(name)} bytes: {name}",
            remedy="choose a shorter key column, or leave out --key to number the rows",
            key=keys[row].as_py().decode(),
        )


def _without_nulls(payload: pa.LargeBinaryArray) -> pa.LargeBinaryArray:
    """Return the payloads with empty ones for nulls; copy them only if there are bytes under a null."""
    if not payload.null_count:
        return payload
    _, offsets, data = payload.buffers()
    plain = pa.LargeBinaryArray.from_buffers(payload.type, len(payload), [None, offsets, data], offset=payload.offset)
    hidden = pc.and_(payload.is_null(), pc.greater(pc.binary_length(plain), 0))
    return pc.fill_null(payload, b"") if pc.any(hidden).as_py() else plain


@dataclass(frozen=True)
class Members:
    """The files among the members of n samples, in their order in the tar.

    Attributes:
        names: bytes of shape (m,), as wide as the longest.
        lengths: int64 of shape (m,): bytes of each name.
        starts: int64 of shape (m,): where each payload begins in the tar.
        sizes: int64 of shape (m,): payload bytes.
        counts: int64 of shape (n,): members of each sample.
    """

    names: npt.NDArray[np.bytes_]
    lengths: Int64
    starts: Int64
    sizes: Int64
    counts: Int64


def parse_members(data: memoryview, offsets: Int64, base: int = 0, ends: Int64 | None = None) -> Members:
    """Parse the members of n consecutive samples.

    Args:
        data: The bytes of the tar from `base` on, at least up to the last offset.
        offsets: int64 of shape (n + 1,): the tar offset of each sample's first header, then the end of the last.
        base: The tar offset at which `data` begins; a multiple of 512.
        ends: int64 of shape (n,): the end of each sample, if other bytes follow some of them.

    Raises:
        CorruptDataError: A header is damaged, or a sample's members do not end where the next sample begins.
        InputError: A member is neither a file nor a folder.
    """
    end = int(offsets[-1] if ends is None else ends[-1])
    span = end - base
    if span > len(data):
        raise CorruptDataError(
            "a shard is shorter than its index says",
            expected=f"{end} bytes",
            found=f"{base + len(data)} bytes",
            remedy="the file was truncated: copy or convert it again",
            offset=base + len(data),
        )
    blocks = np.frombuffer(data[:span], np.uint8).reshape(-1, BLOCK_BYTES)

    def blocks_at(places: Int64) -> npt.NDArray[np.uint8]:
        return np.asarray(blocks[(places - base) // BLOCK_BYTES])

    members = parse_plain_members(blocks_at, offsets, ends)
    if members is not None:
        return members
    if ends is None:
        return _scanned_members(data[:span], offsets, base)
    cuts = np.flatnonzero(offsets[1:] != ends[:-1]) + 1
    split = zip(np.split(offsets, cuts), np.split(ends, cuts), strict=True)
    runs = [np.append(run_begins, run_ends[-1]) for run_begins, run_ends in split]
    return _joined([_scanned_members(data[: int(run[-1]) - base], run, base) for run in runs])


def parse_plain_members(blocks_at: BlocksAt, offsets: Int64, ends: Int64 | None = None) -> Members | None:
    """Parse members with names and sizes in plain headers, all samples at once; None if any member has others.

    Args:
        blocks_at: Returns the blocks at n offsets, none past the last offset: uint8 of shape (n, 512).
        offsets: As for `parse_members`.
        ends: As for `parse_members`.
    """
    begins, ends = (offsets[:-1], offsets[1:]) if ends is None else (offsets, ends)
    rows = np.arange(len(ends))
    position = begins.copy()
    columns: list[tuple[Any, ...]] = []
    while len(rows):
        if (position >= ends[rows]).any():
            return None
        headers = blocks_at(position)
        if (headers[:, 156] == ord("x")).all():
            after = position + 2 * BLOCK_BYTES
            if (after > ends[rows]).any() or not idle_extensions(headers, blocks_at(position + BLOCK_BYTES)):
                return None
            position = after
            continue
        names, lengths, sizes, valid = parse_headers(headers)
        after = position + BLOCK_BYTES + sizes + padding_bytes(sizes)
        if not (valid & (after <= ends[rows])).all():
            return None
        columns.append((rows, position + BLOCK_BYTES, names, lengths, sizes))
        more = after < ends[rows]
        rows, position = (rows, after) if more.all() else (rows[more], after[more])
    return _in_order(columns, len(ends))


def _scanned_members(data: memoryview, offsets: Int64, base: int) -> Members:
    """Parse members with any headers, one after another."""
    first = int(offsets[0])
    window = scan_window(data[first - base :], first)
    found = np.searchsorted(window.begins, offsets[:-1])
    inside = np.minimum(found, len(window.begins) - 1)
    apart = (window.begins[inside] if len(window.begins) else np.full(len(found), -1)) != offsets[:-1]
    if apart.any():
        raise damaged(int(offsets[:-1][apart][0]))
    counts = np.diff(np.searchsorted(window.tops, offsets))
    names = np.array(window.names, np.bytes_)
    return Members(names, np.char.str_len(names), window.starts, window.sizes, counts)


def _joined(parts: list[Members]) -> Members:
    """Join members that were parsed in several parts."""
    columns = [[getattr(part, each.name) for part in parts] for each in dataclasses.fields(Members)]
    return Members(*(np.concatenate(column) for column in columns))


def _in_order(columns: list[tuple[Any, ...]], num_samples: int) -> Members:
    """Join columns of the first, second, third, ... members of all samples, in the order of the tar."""
    counts = np.zeros(num_samples, np.int64)
    for rows, *_ in columns:
        counts[rows] += 1
    if not columns:
        none = np.zeros(0, np.int64)
        return Members(np.zeros(0, "S1"), none, none, none, counts)
    parts = list(zip(*columns, strict=True))[1:]
    if (counts == len(columns)).all():
        starts, *others = (np.stack(values, axis=1).reshape(-1) for values in parts)
    else:
        starts, *others = (np.concatenate(values) for values in parts)
        order = np.argsort(starts, kind="stable")
        starts, *others = (values[order] for values in (starts, *others))
    names, lengths, sizes = others
    return Members(names, lengths, starts, sizes, counts)
