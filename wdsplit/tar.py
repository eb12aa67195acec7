"""The tar codec: whole batches of ustar headers at once, forth and back.

Pure (no I/O). A tar is a row of 512-byte blocks, so a buffer is seen as an array of shape (blocks, 512) and the headers
of a batch are written and read as the rows of one matrix. Every byte is a function of names, sizes and payload: mtime,
uid and gid are 0, the mode is 0644, and there are no owner names (format: POSIX.1-1988 ustar).
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wdsplit.errors import CorruptDataError, InputError
from wdsplit.sample import MAX_NAME_BYTES

__all__ = [
    "BLOCK_BYTES",
    "MAX_MEMBER_BYTES",
    "RECORD_BYTES",
    "Body",
    "Members",
    "build_body",
    "pack_headers",
    "padding_bytes",
    "parse_headers",
    "parse_members",
    "trailer_bytes",
]

BLOCK_BYTES = 512
RECORD_BYTES = 10_240
MAX_MEMBER_BYTES = 8 * 1024**3 - 1
"""What eleven octal digits can say."""

_LARGE_SAMPLE_BYTES = 16_384
"""From this mean size on, copying costs more than handing each part to the system by itself."""
_NAME_BYTES = 100
_SIZE = slice(124, 135)
_CHECKSUM = slice(148, 154)
_OCTAL_11 = (8 ** np.arange(10, -1, -1)).astype(np.int64)
_OCTAL_6 = (8 ** np.arange(5, -1, -1)).astype(np.int64)


def _template() -> npt.NDArray[np.uint8]:
    """Return the header of a member with no name and no size, its checksum field blank."""
    header = bytearray(BLOCK_BYTES)
    header[100:108] = b"0000644\0"
    header[108:116] = header[116:124] = b"0000000\0"
    header[124:136] = header[136:148] = b"00000000000\0"
    header[148:156] = b" " * 8
    header[156:157] = b"0"
    header[257:265] = b"ustar\x0000"
    header[329:337] = header[337:345] = b"0000000\0"
    return np.frombuffer(bytes(header), np.uint8)


_TEMPLATE = _template()


def padding_bytes(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the zero bytes that follow payloads of the given sizes, up to the next block."""
    return -sizes % BLOCK_BYTES


def trailer_bytes(body_bytes: int) -> int:
    """Return the zero bytes that end an archive: two blocks at least, then up to a full record of 10,240."""
    return 2 * BLOCK_BYTES + -(body_bytes + 2 * BLOCK_BYTES) % RECORD_BYTES


def pack_headers(names: npt.NDArray[np.uint8], sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return the ustar headers of n members.

    Args:
        names: uint8 of shape (n, 100), filled up with NULs.
        sizes: int64 of shape (n,), payload bytes.

    Returns:
        uint8 of shape (n, 512).
    """
    headers = np.tile(_TEMPLATE, (len(sizes), 1))
    headers[:, :_NAME_BYTES] = names
    headers[:, _SIZE] = sizes[:, None] // _OCTAL_11 % 8 + ord("0")
    sums = headers.sum(axis=1, dtype=np.int64)
    headers[:, _CHECKSUM] = sums[:, None] // _OCTAL_6 % 8 + ord("0")
    headers[:, 154] = 0
    return headers


@dataclass(frozen=True)
class Body:
    """The members of a batch of samples, laid out but not joined.

    Attributes:
        pieces: For each field: headers, payload and padding, each a large_binary array with a row a sample; a
            missing member is empty in all three.
        sample_bytes: int64 of shape (n,): the bytes of each sample, headers and padding included.
    """

    pieces: list[pa.LargeBinaryArray]
    sample_bytes: npt.NDArray[np.int64]

    def parts(self) -> list[memoryview]:
        """Return the bytes of all samples, in order: large payloads as they lie in memory, small ones joined first."""
        if self.sample_bytes.sum() < _LARGE_SAMPLE_BYTES * len(self.sample_bytes):
            return [self.join()]
        columns = [_values(piece) for piece in self.pieces]
        return [part for sample in zip(*columns, strict=True) for part in sample if part]

    def join(self) -> memoryview:
        """Return the bytes of all samples, in order, as one buffer."""
        empty = pa.scalar(b"", pa.large_binary())
        joined = pc.binary_join_element_wise(*self.pieces, empty)
        if isinstance(joined, pa.ChunkedArray):
            joined = joined.combine_chunks()
        return memoryview(joined.buffers()[2] or b"")[: int(self.sample_bytes.sum())]


def _values(array: pa.LargeBinaryArray) -> list[memoryview]:
    """Return the values of an array that has no nulls; nothing is copied."""
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1].tolist()
    view = memoryview(data or b"")
    return [view[start:stop] for start, stop in itertools.pairwise(ends)]


def build_body(keys: pa.Array, fields: dict[str, pa.LargeBinaryArray]) -> Body:
    """Lay out the members of n samples, in the order of `fields`.

    Args:
        keys: n keys (string or binary), already escaped.
        fields: For each field name the payload of n samples; null where a sample lacks the field.

    Raises:
        InputError: A member's name is over 99 bytes, or its payload 8 GiB or more.
    """
    keys = keys.cast(pa.large_binary())
    sample_bytes = np.zeros(len(keys), np.int64)
    pieces: list[pa.LargeBinaryArray] = []
    for field, payload in fields.items():
        present = payload.is_valid().to_numpy(zero_copy_only=False)
        sizes = np.asarray(pc.fill_null(pc.binary_length(payload), 0), np.int64)
        names = _name_matrix(keys, field)
        _check_sizes(sizes, keys, field)
        header_bytes = np.where(present, BLOCK_BYTES, 0)
        padding = padding_bytes(sizes)
        headers = pack_headers(names[present], sizes[present])
        pieces += [
            _large_binary(header_bytes, headers.reshape(-1)),
            pc.fill_null(payload, b"") if payload.null_count else payload,
            _large_binary(padding, np.zeros(int(padding.sum()), np.uint8)),
        ]
        sample_bytes += header_bytes + sizes + padding
    return Body(pieces, sample_bytes)


def _name_matrix(keys: pa.Array, field: str) -> npt.NDArray[np.uint8]:
    """Return the member names `key.field` as uint8 of shape (n, 100), filled up with NULs."""
    suffix = f".{field}".encode()
    lengths = np.asarray(pc.binary_length(keys), np.int64) + len(suffix)
    if len(lengths) and lengths.max() > MAX_NAME_BYTES:
        row = int(lengths.argmax())
        key = keys[row].as_py().decode()
        raise InputError(
            "a member's name is too long",
            expected=f"at most {MAX_NAME_BYTES} bytes for key, dot and field",
            found=f"{int(lengths[row])} bytes: {key}.{field}",
            remedy="choose a shorter key column, or leave out --key to number the rows",
            key=key,
        )
    fill = _NAME_BYTES - lengths
    zeros = _large_binary(fill, np.zeros(int(fill.sum()), np.uint8))
    tail = pa.scalar(suffix, pa.large_binary())
    empty = pa.scalar(b"", pa.large_binary())
    joined = pc.binary_join_element_wise(keys, tail, zeros, empty)
    flat = np.frombuffer(joined.buffers()[2] or b"", np.uint8)[: len(keys) * _NAME_BYTES]
    return flat.reshape(-1, _NAME_BYTES)


def _check_sizes(sizes: npt.NDArray[np.int64], keys: pa.Array, field: str) -> None:
    if len(sizes) and sizes.max() > MAX_MEMBER_BYTES:
        row = int(sizes.argmax())
        raise InputError(
            "a member is too large",
            expected=f"at most {MAX_MEMBER_BYTES} bytes",
            found=f"{int(sizes[row])} bytes in field {field!r}",
            remedy="split the value over several rows, or leave the column out",
            key=keys[row].as_py().decode(),
        )


def _large_binary(lengths: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]) -> pa.LargeBinaryArray:
    """Return the values of the given lengths that stand one after another in `data`; nothing is copied."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), buffers)


@dataclass(frozen=True)
class Members:
    """The members of n samples, in the order in which they stand.

    Attributes:
        names: bytes of shape (m,), dtype S100.
        starts: int64 of shape (m,): where each payload begins, in the coordinates of the offsets given.
        sizes: int64 of shape (m,): payload bytes.
        counts: int64 of shape (n,): members of each sample.
    """

    names: npt.NDArray[np.bytes_]
    starts: npt.NDArray[np.int64]
    sizes: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]


def parse_headers(headers: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.bytes_], npt.NDArray[np.int64], Any]:
    """Parse n ustar headers.

    Args:
        headers: uint8 of shape (n, 512).

    Returns:
        Names (S100), payload sizes (int64), and a boolean array that is False where the header is not that of a
        plain file with a right checksum.
    """
    names = np.ascontiguousarray(headers[:, :_NAME_BYTES]).view(f"S{_NAME_BYTES}").reshape(-1)
    size_digits = headers[:, _SIZE] - np.uint8(ord("0"))
    sum_digits = headers[:, _CHECKSUM] - np.uint8(ord("0"))
    sizes = size_digits.astype(np.int64) @ _OCTAL_11
    stored = sum_digits.astype(np.int64) @ _OCTAL_6
    field = headers[:, 148:156].sum(axis=1, dtype=np.int64)
    actual = headers.sum(axis=1, dtype=np.int64) - field + 8 * ord(" ")
    kind = headers[:, 156]
    plain = (kind == ord("0")) | (kind == 0)
    no_prefix = headers[:, 345] == 0
    octal = (size_digits < 8).all(axis=1) & (sum_digits < 8).all(axis=1)
    return names, sizes, octal & plain & no_prefix & (stored == actual) & (headers[:, 0] != 0)


def parse_members(data: memoryview, offsets: npt.NDArray[np.int64], base: int = 0) -> Members:
    """Parse the members of n samples that stand one after another.

    Args:
        data: The bytes of the tar from `base` on; must reach to the last offset.
        offsets: int64 of shape (n + 1,): the tar offset of each sample's first header, then the end of the last.
        base: The tar offset at which `data` begins; a multiple of 512.

    Raises:
        CorruptDataError: A header is damaged, or a sample's members do not end where the next sample begins.
    """
    span = int(offsets[-1]) - base
    if span > len(data):
        raise CorruptDataError(
            "a shard is shorter than its index says",
            expected=f"{int(offsets[-1])} bytes",
            found=f"{base + len(data)} bytes",
            remedy="the file was truncated: copy or convert it again",
            offset=base + len(data),
        )
    blocks = np.frombuffer(data, np.uint8, span).reshape(-1, BLOCK_BYTES)
    ends = offsets[1:]
    rows = np.arange(len(ends))
    position = offsets[:-1].copy()
    columns: list[tuple[Any, ...]] = []
    while len(rows):
        if (position >= ends[rows]).any():
            raise _damaged(int(position[int((position >= ends[rows]).argmax())]))
        names, sizes, valid = parse_headers(blocks[(position - base) // BLOCK_BYTES])
        after = position + BLOCK_BYTES + sizes + padding_bytes(sizes)
        valid &= after <= ends[rows]
        if not valid.all():
            raise _damaged(int(position[int(valid.argmin())]))
        columns.append((rows, position + BLOCK_BYTES, names, sizes))
        more = after < ends[rows]
        rows, position = (rows, after) if more.all() else (rows[more], after[more])
    return _in_order(columns, len(ends))


def _damaged(offset: int) -> CorruptDataError:
    return CorruptDataError(
        "a tar header is damaged",
        place=f"byte {offset}",
        expected="the header of a plain file, with a right checksum, whose payload ends inside its sample",
        found="other bytes",
        remedy="`wdsplit verify` tells what is damaged; copy or convert the shard again",
        offset=offset,
    )


def _in_order(columns: list[tuple[Any, ...]], num_samples: int) -> Members:
    """Put members that were parsed first, second, third of each sample into the order in which they stand."""
    counts = np.zeros(num_samples, np.int64)
    for rows, *_ in columns:
        counts[rows] += 1
    if not columns:
        none = np.zeros(0, np.int64)
        return Members(np.zeros(0, f"S{_NAME_BYTES}"), none, none, counts)
    starts = np.concatenate([column[1] for column in columns])
    order = np.argsort(starts, kind="stable")
    names = np.concatenate([column[2] for column in columns])[order]
    sizes = np.concatenate([column[3] for column in columns])[order]
    return Members(names, starts[order], sizes, counts)
