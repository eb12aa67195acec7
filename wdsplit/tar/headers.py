"""The header blocks of a tar: whole batches packed and parsed with numpy, and the extended headers before them.

Pure (no I/O). A plain member has one block of 512 bytes (POSIX.1-1988 ustar). A long name or a large size is in an
extended header before it (POSIX.1-2001 pax), as Python's tarfile writes it. Headers of other programs are parsed too:
split names, sizes in base 256, the old formats, GNU's long names.
"""

from __future__ import annotations

import re
from typing import Any

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
    "USTAR_NAME_BYTES",
    "are_sound",
    "extended_bytes",
    "extended_headers",
    "idle_extensions",
    "large_binary",
    "may_matter",
    "pack_headers",
    "padding_bytes",
    "parse_headers",
    "parse_number",
    "parse_records",
    "whole_names",
]

BLOCK_BYTES = 512
MAX_MEMBER_BYTES = 8 * 1024**3 - 1
"""The largest number of eleven octal digits: a larger member needs an extended header."""
NAME_BYTES = 100
USTAR_NAME_BYTES = NAME_BYTES - 1
"""The longest name without an extended header: some readers need a closing NUL."""

_SIZE = slice(124, 135)
_CHECKSUM = slice(148, 154)
_CHECKSUM_FIELD = slice(148, 156)
_MAGIC = slice(257, 263)
_PREFIX = slice(345, 500)
_POSIX_MAGIC = np.frombuffer(b"ustar\0", np.uint8)
_SHIFTS_11 = 3 * np.arange(10, -1, -1)
_SHIFTS_6 = 3 * np.arange(5, -1, -1)
_OCTAL_11 = 1 << _SHIFTS_11
_OCTAL_6 = 1 << _SHIFTS_6
_EVEN_BYTES, _PAIRS = np.uint64(0x00FF00FF00FF00FF), np.uint64(0x0000FFFF0000FFFF)

_SUMMED_AT_ONCE = 128
"""Headers whose sums are computed together: few enough that intermediate results stay in the processor's cache."""
_WIDE = 16

# Digits are parsed eight at a time: a header is 64 little-endian words, the first byte of each in its lowest bits.
_BYTE, _TWO_BYTES, _HALF, _LAST_BYTE = (np.uint64(bits) for bits in (8, 16, 32, 56))
_LOW_BYTE, _HIGH_HALF = np.uint64(0xFF), np.uint64(0xFFFFFFFF << 32)
_DIGITS_7, _PREFIX_BYTE = 21, np.uint64(8 * (_PREFIX.start % 8))
_ZEROS = np.uint64(0x3030303030303030)
_NO_DIGITS_4, _NO_DIGITS_7, _NO_DIGITS_6 = (
    np.uint64(bits) for bits in (0xF8F8F8F800000000, 0x00F8F8F8F8F8F8F8, 0x0000F8F8F8F8F8F8)
)
"""Bits that no digit has: of a size's first 4 digits, of its 7 others, and of a checksum's 6, each in their word."""
_DIGITS = np.uint64(0x0707070707070707)
_JOIN_DIGITS, _JOIN_PAIRS, _JOIN_FOURS = (np.uint64(8**digits << 8 * digits | 1) for digits in (1, 2, 4))
_JOIN_HALVES = np.uint64(1 << 32 | 1)
"""Multiplying by one of these joins two adjacent numbers of 1, 2 or 4 digits, at the position of the second."""
_BLANKS = 8 * ord(" ")
_PAX_NAME = b"././@PaxHeader"
_RECORD = re.compile(rb"([1-9][0-9]{0,9}) ([^=\n]+)=")
_OCTAL = re.compile(rb" *([0-7]*)[ \0]*")
_BASE_256 = 0x80


def padding_bytes(sizes: Int64) -> Int64:
    """Return the number of zero bytes after payloads of the given sizes, up to the next block."""
    return -sizes % BLOCK_BYTES


def large_binary(lengths: Int64, data: npt.NDArray[np.uint8]) -> pa.LargeBinaryArray:
    """Return consecutive values of the given lengths in `data`; nothing is copied."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(lengths), buffers)


# Packing


def _template() -> npt.NDArray[np.uint8]:
    """Return the header of a member without name, size and checksum."""
    header = bytearray(BLOCK_BYTES)
    header[100:108] = b"0000644\0"
    header[108:116] = header[116:124] = b"0000000\0"
    header[124:136] = header[136:148] = b"00000000000\0"
    header[148:156] = b" " * 8
    header[156:157] = b"0"
    header[257:265] = b"ustar\x0000"
    header[329:337] = header[337:345] = b"0000000\0"
    return np.frombuffer(bytes(header), np.uint8)


def _pax_template() -> npt.NDArray[np.uint8]:
    """Return the header of an extended header, which names no file and has no permissions."""
    header: npt.NDArray[np.uint8] = _template().copy()
    header[: len(_PAX_NAME)] = np.frombuffer(_PAX_NAME, np.uint8)
    header[100:108] = header[108:116]
    header[156] = ord("x")
    return header


_TEMPLATE = _template()
_PAX_TEMPLATE = _pax_template()


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
    headers[:, _SIZE] = (sizes[:, None] >> _SHIFTS_11 & 7) + ord("0")
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


def extended_bytes(name_lengths: Int64, sizes: Int64) -> Int64:
    """Return the sizes of what `extended_headers` returns, given the lengths of names and the sizes of payloads."""
    digits = _num_digits(sizes)
    records = np.where(name_lengths > USTAR_NAME_BYTES, _record_bytes("path", name_lengths), 0)
    records += np.where(sizes > MAX_MEMBER_BYTES, _record_bytes("size", digits), 0)
    return np.where(records > 0, BLOCK_BYTES + records + padding_bytes(records), 0)


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


def parse_headers(headers: npt.NDArray[np.uint8]) -> tuple[npt.NDArray[np.bytes_], Int64, Int64, Any]:
    """Parse n plain ustar headers.

    Args:
        headers: uint8 of shape (n, 512).

    Returns:
        Names (bytes, as wide as the longest), their lengths and payload sizes (int64), and a boolean array: whether
        the header is that of a plain file, with a valid checksum. It is also False where bytes follow the end of a
        name, or an old header is that of a folder.
    """
    words = _Words(headers)
    names, lengths, plain = _plain_names(headers, words)
    # Bytes 120 to 159: the size begins in the second half of the first word and ends in the second one; the checksum
    # begins in the second half of the fourth word, and the kind follows it.
    high, low, _, begin, rest = (words[number] for number in range(_SIZE.start // 8, _SIZE.start // 8 + 5))
    checksum = begin >> _HALF | rest << _HALF
    sizes = _octal(high & _HIGH_HALF) << _DIGITS_7 | _octal(low << _BYTE)
    plain &= ((high ^ _ZEROS) & _NO_DIGITS_4 | (low ^ _ZEROS) & _NO_DIGITS_7 | (checksum ^ _ZEROS) & _NO_DIGITS_6) == 0
    plain &= _octal(checksum << _TWO_BYTES) == words.sums() - _folded(_paired(checksum)) + _BLANKS
    plain &= low >> _LAST_BYTE <= ord(" ")
    plain &= words[_PREFIX.start // 8] >> _PREFIX_BYTE & _LOW_BYTE == 0
    kind = rest >> _HALF & _LOW_BYTE
    if (kind != ord("0")).any():
        plain &= (kind == ord("0")) | (kind == 0) & ~np.char.endswith(names, b"/")
    return names, lengths, sizes if len(sizes) > 1 else np.repeat(sizes, len(names)), plain


class _Words:
    """The words of n headers, column by column. Most are the same in all headers, so they are handled once.

    Args:
        headers: uint8 of shape (n, 512), n at least 1.

    Attributes:
        any: uint64 of shape (64,): the bits that are set in any header.
        all: uint64 of shape (64,): the bits that are set in all headers.
    """

    def __init__(self, headers: npt.NDArray[np.uint8]) -> None:
        words = headers.view("<u8")
        self.any, self.all = _folded_rows(words, np.bitwise_or), _folded_rows(words, np.bitwise_and)
        differing = np.flatnonzero(self.any != self.all)
        self._columns = np.ascontiguousarray(words[:, differing].T)
        self._places = {number: place for place, number in enumerate(differing.tolist())}

    def __getitem__(self, number: int) -> npt.NDArray[np.uint64]:
        """Return a word of each header: uint64 of shape (n,), or (1,) if it is the same in all of them."""
        place = self._places.get(number)
        return self.all[number : number + 1] if place is None else self._columns[place]

    def sums(self) -> Int64:
        """Return the sum of the bytes of each header: int64 of shape (n,)."""
        same = _paired(self.all[self.any == self.all]).sum()
        return _folded(_paired(self._columns).sum(axis=0) + same)


def _folded_rows(words: npt.NDArray[np.uint64], fold: np.ufunc) -> npt.NDArray[np.uint64]:
    """Fold all rows of words into one, 16 rows at a time: numpy takes as long for short rows as for longer ones."""
    wide = words[: len(words) // _WIDE * _WIDE].reshape(-1, _WIDE * words.shape[1])
    rest = words[len(wide) * _WIDE :]
    folded = fold.reduce(wide, axis=0).reshape(_WIDE, -1)
    return np.asarray(fold(fold.reduce(folded, axis=0), fold.reduce(rest, axis=0)))


def _plain_names(
    headers: npt.NDArray[np.uint8], words: _Words
) -> tuple[npt.NDArray[np.bytes_], Int64, npt.NDArray[np.bool_]]:
    """Return names, their lengths, and whether each is valid: not empty, with only NULs after its end.

    Args:
        headers: uint8 of shape (n, 512).
        words: Their words.
    """
    used = np.flatnonzero(words.any.view(np.uint8)[:NAME_BYTES])
    width = int(used[-1]) + 1 if len(used) else 1
    letters = np.ascontiguousarray(headers[:, :width])
    names = letters.view(f"S{width}").reshape(-1)
    if words.all.view(np.uint8)[:width].all() or letters.all():
        return names, np.full(len(names), width), np.ones(len(names), np.bool_)
    lengths = np.char.str_len(names)
    return names, lengths, (lengths > 0) & ((letters != 0).sum(axis=1) == lengths)


def _octal(words: npt.NDArray[np.uint64]) -> Int64:
    """Return numbers of 8 octal digits, the first in the lowest byte; join them to pairs, then fours, then all."""
    pairs = (words & _DIGITS) * _JOIN_DIGITS >> _BYTE & _EVEN_BYTES
    fours = pairs * _JOIN_PAIRS >> _TWO_BYTES & _PAIRS
    numbers: Int64 = (fours * _JOIN_FOURS >> _HALF).view(np.int64)
    return numbers


def _sums(headers: npt.NDArray[np.uint8]) -> Int64:
    """Return the sums of all bytes of n headers: eight bytes at a time, in lanes of 16 bits that cannot overflow."""
    words = headers.view("<u8")
    lanes = np.empty(len(words), np.uint64)
    for first in range(0, len(words), _SUMMED_AT_ONCE):
        _paired(words[first : first + _SUMMED_AT_ONCE]).sum(axis=1, out=lanes[first : first + _SUMMED_AT_ONCE])
    return _folded(lanes)


def _paired(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the sums of the two bytes in each 16 bits."""
    wide: npt.NDArray[np.uint64] = words & _EVEN_BYTES
    wide += words >> _BYTE & _EVEN_BYTES
    return wide


def _folded(lanes: npt.NDArray[np.uint64]) -> Int64:
    """Return the sum of the four lanes of each word."""
    pairs = (lanes & _PAIRS) + (lanes >> np.uint64(16) & _PAIRS)
    sums: Int64 = (pairs * _JOIN_HALVES >> _HALF).view(np.int64)
    return sums


def _checksums(headers: npt.NDArray[np.uint8]) -> Int64:
    """Return the checksums that n headers should have: the checksum's own bytes count as blanks."""
    field = np.ascontiguousarray(headers[:, _CHECKSUM_FIELD])
    return np.asarray(_sums(headers) - _sums(field) + _BLANKS)


def are_sound(headers: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Return whether the checksum of each of n headers is valid: bool of shape (n,).

    Old programs summed signed bytes; both sums are valid, as in other readers.
    """
    digits = headers[:, _CHECKSUM] - np.uint8(ord("0"))
    stored = digits.astype(np.int64) @ _OCTAL_6
    usual = (digits < 8).all(axis=1) & (headers[:, _CHECKSUM.stop] <= ord(" "))
    for row in np.flatnonzero(~usual).tolist():
        stored[row] = parse_number(headers[row, _CHECKSUM_FIELD].tobytes())
    sums = _checksums(headers)
    sound = stored == sums
    for row in np.flatnonzero(~sound).tolist():
        header = np.delete(headers[row], _CHECKSUM_FIELD)
        sound[row] = stored[row] == sums[row] - 256 * int((header >= 128).sum())
    return np.asarray(sound)


def idle_extensions(headers: npt.NDArray[np.uint8], records: npt.NDArray[np.uint8]) -> bool:
    """Return whether all of n extended headers have one block of records, none of which matters (`may_matter`).

    Tars of webdataset's ShardWriter have such headers, because members have fractional times, which ustar cannot hold.

    Args:
        headers: uint8 of shape (n, 512): the extended headers.
        records: uint8 of shape (n, 512): the block after each.
    """
    digits = headers[:, _SIZE] - np.uint8(ord("0"))
    sizes = digits.astype(np.int64) @ _OCTAL_11
    one_block = (digits < 8).all() and ((sizes > 0) & (sizes <= BLOCK_BYTES)).all()
    if not (one_block and headers[:, _SIZE.stop].max() <= ord(" ") and are_sound(headers).all()):
        return False
    return not may_matter(records.tobytes())


def may_matter(records: bytes) -> bool:
    """Return whether records may change a member's name or bytes, so that they must be parsed."""
    return b"path=" in records or b"size=" in records or b"GNU.sparse" in records


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
