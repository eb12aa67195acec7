"""The header blocks of a tar: whole batches packed with numpy, and the extended headers before them.

Pure (no I/O). A plain member has one block of 512 bytes (POSIX.1-1988 ustar). A long name or a large size is in an
extended header before it (POSIX.1-2001 pax), as Python's tarfile writes it. Headers of other programs are parsed too:
split names, sizes in base 256, the old formats, GNU's long names.
"""

from __future__ import annotations

import re

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsplit import compute as pc
from wdsplit.arrays import Int64

__all__ = [
    "BLANK",
    "BLOCK_BYTES",
    "MAX_MEMBER_BYTES",
    "NAME_BYTES",
    "SIZE_FIELD",
    "USTAR_NAME_BYTES",
    "are_sound",
    "extended_headers",
    "large_binary",
    "pack_headers",
    "padding_bytes",
    "parse_number",
    "parse_records",
    "size_digits",
    "whole_names",
]

BLOCK_BYTES = 512
MAX_MEMBER_BYTES = 8 * 1024**3 - 1
"""The largest number of eleven octal digits: a larger member needs an extended header."""
NAME_BYTES = 100
USTAR_NAME_BYTES = NAME_BYTES - 1
"""The longest name without an extended header: some readers need a closing NUL."""

SIZE_FIELD = slice(124, 135)
"""The bytes of a header with the digits of the size."""
_CHECKSUM = slice(148, 154)
_CHECKSUM_FIELD = slice(148, 156)
_MAGIC = slice(257, 263)
_PREFIX = slice(345, 500)
_POSIX_MAGIC = np.frombuffer(b"ustar\0", np.uint8)
_SHIFTS_11 = 3 * np.arange(10, -1, -1)
_SHIFTS_6 = 3 * np.arange(5, -1, -1)
_OCTAL_6 = 1 << _SHIFTS_6
_BLANKS = 8 * ord(" ")
_RECORD = re.compile(rb"([1-9][0-9]{0,9}) ([^=\n]+)=")
_OCTAL = re.compile(rb" *([0-7]*)[ \0]*")
_BASE_256 = 0x80


def padding_bytes(sizes: Int64) -> Int64:
    """Return the number of zero bytes after payloads of the given sizes, up to the next block."""
    return -sizes % BLOCK_BYTES


def large_binary(lengths: Int64, data: npt.NDArray[np.generic]) -> pa.LargeBinaryArray:
    """Return consecutive values of the given lengths in `data`; nothing is copied."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), buffers)


# Packing


def _template(name: bytes, mode: bytes, kind: bytes) -> npt.NDArray[np.uint8]:
    """Return a header without name, size and checksum, whose bytes count as blanks."""
    header = bytearray(BLOCK_BYTES)
    header[: len(name)] = name
    header[100:108] = mode
    header[108:116] = header[116:124] = b"0000000\0"
    header[124:136] = header[136:148] = b"00000000000\0"
    header[148:156] = b" " * 8
    header[156:157] = kind
    header[257:265] = b"ustar\x0000"
    header[329:337] = header[337:345] = b"0000000\0"
    return np.frombuffer(bytes(header), np.uint8)


_TEMPLATE = _template(b"", b"0000644\0", b"0")
_PAX_TEMPLATE = _template(b"././@PaxHeader", b"0000000\0", b"x")
"""The header of an extended header, which names no file and has no permissions."""


def pack_headers(names: npt.NDArray[np.uint8], sizes: Int64) -> npt.NDArray[np.uint8]:
    """Return the ustar headers of n members.

    Args:
        names: uint8 of shape (n, 100), padded with NULs.
        sizes: int64 of shape (n,), payload bytes.

    Returns:
        uint8 of shape (n, 512).
    """
    headers = np.tile(_TEMPLATE, (len(sizes), 1))
    headers[:, :NAME_BYTES] = names
    return _finished(headers, sizes)


def _finished(headers: npt.NDArray[np.uint8], sizes: Int64) -> npt.NDArray[np.uint8]:
    """Fill in sizes and checksums."""
    headers[:, SIZE_FIELD] = size_digits(sizes)
    headers[:, _CHECKSUM] = (_sums(headers)[:, None] >> _SHIFTS_6 & 7) + ord("0")
    headers[:, 154] = 0
    return headers


def extended_headers(names: pa.LargeBinaryArray, sizes: Int64) -> pa.LargeBinaryArray:
    """Return the bytes before the ustar headers of n members: none, or an extended header and its records.

    There is a record `path` for a name over 99 bytes, and a record `size` for a payload of 8 GiB or more.

    Args:
        names: n names.
        sizes: int64 of shape (n,), payload bytes.
    """
    paths = _records("path", names, np.asarray(pc.binary_length(names), np.int64) > USTAR_NAME_BYTES)
    lengths = _records(
        "size", pa.array(sizes).cast(pa.large_string()).cast(pa.large_binary()), sizes > MAX_MEMBER_BYTES
    )
    records = pc.binary_join_element_wise(paths, lengths, BLANK)
    num_bytes = np.asarray(pc.binary_length(records), np.int64)
    some = num_bytes > 0
    headers = _finished(np.tile(_PAX_TEMPLATE, (int(some.sum()), 1)), num_bytes[some])
    padding = padding_bytes(num_bytes)
    return pc.binary_join_element_wise(
        large_binary(np.where(some, BLOCK_BYTES, 0), headers.reshape(-1)),
        records,
        large_binary(padding, np.zeros(int(padding.sum()), np.uint8)),
        BLANK,
    )


BLANK = large_binary(np.zeros(1, np.int64), np.empty(0, np.uint8))[0]
"""An empty scalar for joins. `pa.scalar` would import pandas, if it is installed."""


def _records(keyword: str, values: pa.LargeBinaryArray, is_present: npt.NDArray[np.bool_]) -> pa.LargeBinaryArray:
    """Return a record `LENGTH KEYWORD=VALUE` and a newline for each value that is present, else nothing."""
    total = _record_bytes(keyword, np.asarray(pc.binary_length(values), np.int64))
    digits = pa.array(total).cast(pa.large_string()).cast(pa.large_binary())
    opening, end = pa.scalar(f" {keyword}=".encode(), pa.large_binary()), pa.scalar(b"\n", pa.large_binary())
    return pc.if_else(pa.array(is_present), pc.binary_join_element_wise(digits, opening, values, end, BLANK), BLANK)


def _record_bytes(keyword: str, value_bytes: Int64) -> Int64:
    """Return the length of a record, which counts its own digits too."""
    rest = value_bytes + len(f" {keyword}=\n")
    total = rest + _num_digits(rest)
    return rest + _num_digits(total)


def _num_digits(values: Int64) -> Int64:
    return np.searchsorted(10 ** np.arange(1, 19), values, side="right").astype(np.int64) + 1


# Parsing


def size_digits(sizes: Int64) -> npt.NDArray[np.uint8]:
    """Return the digits that plain headers have for n sizes: uint8 of shape (n, 11)."""
    return ((sizes[:, None] >> _SHIFTS_11 & 7) + ord("0")).astype(np.uint8)


def _sums(headers: npt.NDArray[np.uint8]) -> Int64:
    """Return the sums of the bytes of n rows: int64 of shape (n,)."""
    return np.asarray(headers.sum(axis=1, dtype=np.uint32), np.int64)  # twice as fast as to add up 64 bits


def are_sound(headers: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Return whether the checksum of each of n headers is valid: bool of shape (n,).

    Old programs summed signed bytes; both sums are valid, as in other readers.
    """
    digits = headers[:, _CHECKSUM] - np.uint8(ord("0"))
    stored = digits.astype(np.int64) @ _OCTAL_6
    usual = (digits < 8).all(axis=1) & (headers[:, _CHECKSUM.stop] <= ord(" "))
    for row in np.flatnonzero(~usual).tolist():
        stored[row] = parse_number(headers[row, _CHECKSUM_FIELD].tobytes())
    # The checksum's own bytes count as blanks.
    sums = _sums(headers) - _sums(headers[:, _CHECKSUM_FIELD]) + _BLANKS
    sound = stored == sums
    for row in np.flatnonzero(~sound).tolist():
        header = np.delete(headers[row], _CHECKSUM_FIELD)
        sound[row] = stored[row] == sums[row] - 256 * int((header >= 128).sum())
    return np.asarray(sound)


def whole_names(headers: npt.NDArray[np.uint8]) -> list[bytes]:
    """Return the names of n headers, joined where ustar has split them; empty where there is none."""
    raw = np.ascontiguousarray(headers[:, :NAME_BYTES]).view(f"S{NAME_BYTES}").reshape(-1)
    names: list[bytes] = [name.partition(b"\0")[0] for name in raw.tolist()]
    rows = np.flatnonzero((headers[:, _PREFIX.start] != 0) & (headers[:, 0] != 0))
    rows = rows[(headers[rows, _MAGIC] == _POSIX_MAGIC).all(axis=1)]
    if len(rows):
        prefixes = np.ascontiguousarray(headers[rows, _PREFIX]).view(f"S{_PREFIX.stop - _PREFIX.start}")
        for row, prefix in zip(rows.tolist(), prefixes.reshape(-1).tolist(), strict=True):
            names[row] = prefix.partition(b"\0")[0] + b"/" + names[row]
    return names


def parse_number(field: bytes) -> int:
    """Return the number in a field of a header: octal digits, or base 256; -1 if neither."""
    if field[0] == _BASE_256:
        return int.from_bytes(field[1:], "big")
    octal = _OCTAL.fullmatch(field)
    return int(octal[1] or b"0", 8) if octal else -1


def parse_records(data: bytes) -> dict[bytes, bytes] | None:
    """Return the records of an extended header by their keywords; None if they are damaged."""
    records: dict[bytes, bytes] = {}
    place = 0
    while place < len(data) and data[place]:
        match = _RECORD.match(data, place)
        stop = place + int(match[1]) if match else 0
        if match is None or not match.end() < stop <= len(data) or data[stop - 1 : stop] != b"\n":
            return None
        records[match[2]] = data[match.end() : stop - 1]
        place = stop
    return records
