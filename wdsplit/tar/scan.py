"""Tars that other programs wrote: a walk over the headers, which finds the files and their names.

Pure (no I/O). Only the walk goes member by member, because each header has the distance to the next. Checksums and
names are then parsed for all headers at once. The formats are ustar, pax, gnu, oldgnu and v7. Folders are skipped.
Members without bytes of their own (links, devices) and sparse files are refused. `samples` groups the files.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from wdsplit.arrays import Int64
from wdsplit.errors import CorruptDataError, InputError, WdsplitError
from wdsplit.tar.headers import BLOCK_BYTES, are_sound, parse_number, parse_records, whole_names

__all__ = ["Scan", "damaged", "scan_tar", "scan_window"]

_FILES = frozenset(b"0\x007")
_FOLDER, _GLOBAL, _LONG_NAME, _LONG_LINK = ord("5"), ord("g"), ord("L"), ord("K")
_EXTENDED = frozenset(b"xXgLK")
_REFUSED = {
    ord("1"): "a hard link",
    ord("2"): "a symbolic link",
    ord("3"): "a character device",
    ord("4"): "a block device",
    ord("6"): "a named pipe",
    ord("S"): "a sparse file",
    ord("D"): "a folder's listing",
    ord("M"): "the rest of a file from another volume",
    ord("V"): "a volume's label",
}
_FIRST_SIZE_KIND = struct.Struct("B 123x 12s 20x B").unpack_from
_MAX_EXTENDED_BYTES = 1024**2
_MAX_NAME_BYTES = 4096
"""No file system has longer paths. An array of a window's names is as wide as the longest of them."""
_MAX_DIGITS = 18
_HEADERS_AT_ONCE = 8192
_WORDS_AT_ONCE = 1024**2
_COMPRESSED = {
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"\x28\xb5\x2f\xfd": ("zstd", "unzstd"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ\0": ("xz", "unxz"),
    b"\x04\x22\x4d\x18": ("lz4", "unlz4"),
}


@dataclass(frozen=True)
class Scan:
    """The m files of a tar, or of a part of it, in their order.

    Attributes:
        names: Their names.
        tops: int64 of shape (m,): the offset of each file's first header, including extended ones.
        starts: int64 of shape (m,): the offset of each payload.
        sizes: int64 of shape (m,): bytes of each payload.
        end: The offset at which the last member ends.
    """

    names: list[bytes]
    tops: Int64
    starts: Int64
    sizes: Int64
    end: int


def scan_tar(data: memoryview) -> Scan:
    """Scan a whole tar, which may end with any number of zero blocks, or with its last member.

    Raises:
        CorruptDataError: The tar is damaged or truncated; the error has the offset.
        InputError: The tar is compressed, joined from several tars, or has members other than files and folders.
    """
    _refuse_compressed(data)
    walk = _walk(data)
    scan = _finish(data, walk, 0)
    if walk.cut is not None or len(data) % BLOCK_BYTES:
        raise CorruptDataError(
            "a tar is truncated",
            place=f"byte {len(data)}",
            expected="whole blocks of 512 bytes, and all bytes of each member",
            found="the end of the file"
            + ("" if walk.cut is None else f", in the member whose header is at byte {walk.cut}"),
            remedy="copy it again",
            offset=len(data),
        )
    _check_end(data, scan.end)
    return scan


def scan_window(data: memoryview, base: int) -> Scan:
    """Scan a part of a tar, from the offset `base`, that begins with a header and ends with a member.

    Returns:
        The files; offsets are those in the tar.

    Raises:
        CorruptDataError: The part is damaged, or does not end with a member.
        InputError: It has members that are neither files nor folders.
    """
    walk = _walk(data)
    scan = _finish(data, walk, base)
    if walk.cut is not None or scan.end != base + len(data):
        raise damaged(scan.end if walk.cut is None else base + walk.cut)
    return scan


def damaged(offset: int) -> CorruptDataError:
    """Return the error for an invalid header."""
    return CorruptDataError(
        "a tar header is damaged",
        place=f"byte {offset}",
        expected="a header with a valid checksum, and a payload that ends inside its sample",
        found="other bytes",
        remedy="`wdsplit verify` reports what is damaged; copy or convert the shard again",
        offset=offset,
    )


# The walk


@dataclass
class _Walk:
    """The result of a walk. A problem that ended it early is reported only if all headers before it are valid."""

    headers: list[int] = field(default_factory=list)
    """The offset of each header, including extended ones."""
    sizes: list[int] = field(default_factory=list)
    """Bytes of the payload after each header; the last one may be missing."""
    names: dict[int, bytes] = field(default_factory=dict)
    """Names from extended headers, by the offset of the header that they apply to."""
    end: int = 0
    cut: int | None = None
    """The header of a member that does not end inside the data."""
    problem: WdsplitError | None = None


@dataclass
class _Overrides:
    """Name and size from the extended headers before a member; the first of each counts."""

    name: bytes | None = None
    size: int | None = None


def _walk(data: memoryview) -> _Walk:
    """Walk to the first zero block, the end of the data, or a problem."""
    walk = _Walk()
    headers, sizes, known = walk.headers, walk.sizes, dict[bytes, int]()
    position, length = 0, len(data)
    overrides: _Overrides | None = None
    while position + BLOCK_BYTES <= length:
        first, digits, kind = _FIRST_SIZE_KIND(data, position)
        if not first and not any(data[position : position + BLOCK_BYTES]):
            break
        headers.append(position)
        size = known.get(digits)
        if size is None:
            size = known[digits] = parse_number(digits)
        if kind == _FOLDER:
            size = 0
        elif overrides is not None and kind in _FILES:
            if overrides.name is not None:
                walk.names[position] = overrides.name
            size = size if overrides.size is None else overrides.size
        stop = position + BLOCK_BYTES + size + -size % BLOCK_BYTES
        if size < 0 or stop > length:
            walk.cut = position
            return walk
        sizes.append(size)
        if kind not in _EXTENDED:
            if kind not in _FILES and kind != _FOLDER:
                walk.problem = _unsupported(kind, data, position, overrides)
                return walk
            overrides = None
            walk.end = stop
        else:
            overrides = overrides or _Overrides()
            walk.problem = _parse_extended(kind, data[position + BLOCK_BYTES : stop], size, overrides, position)
            if walk.problem is not None:
                return walk
        position = stop
    if walk.end != position or length - position in range(1, BLOCK_BYTES):
        walk.cut = position
    return walk


def _parse_extended(
    kind: int, blocks: memoryview, num_bytes: int, overrides: _Overrides, position: int
) -> WdsplitError | None:
    """Parse an extended header of `num_bytes` bytes; return its problem, if there is one.

    The rest of its last block must be zeros: other readers take it as part of the name, or as more records.
    """
    if num_bytes > _MAX_EXTENDED_BYTES or any(blocks[num_bytes:]):
        return damaged(position)
    body, size = bytes(blocks[:num_bytes]), None
    name: bytes | None
    if kind == _LONG_NAME:
        name = body.partition(b"\0")[0]
    elif kind == _LONG_LINK or not any(part in body for part in (b"path=", b"size=", b"GNU.sparse")):
        return None
    else:
        records = parse_records(body)
        if records is None:
            return damaged(position)
        if any(keyword.startswith(b"GNU.sparse") for keyword in records):
            return _refused("a sparse file", records.get(b"GNU.sparse.name", records.get(b"path", b"")), position)
        if kind == _GLOBAL and (b"path" in records or b"size" in records):
            return _refused("a global header with a name or a size for all members", b"", position)
        digits = records.get(b"size", b"0")
        if not digits or digits.strip(b"0123456789") or len(digits) > _MAX_DIGITS:
            return damaged(position)
        name = records[b"path"].rstrip(b"/") if b"path" in records else None
        size = int(digits) if b"size" in records else None
    if name is not None and (not name or b"\0" in name or len(name) > _MAX_NAME_BYTES):
        return damaged(position)
    overrides.name = name if overrides.name is None else overrides.name
    overrides.size = size if overrides.size is None else overrides.size
    return None


def _unsupported(kind: int, data: memoryview, position: int, overrides: _Overrides | None) -> InputError:
    """Return the error for a member that is neither a file nor a folder."""
    header = np.frombuffer(data, np.uint8, BLOCK_BYTES, position)[None, :]
    name = whole_names(header)[0] if overrides is None or overrides.name is None else overrides.name
    return _refused(_REFUSED.get(kind, f"a member of the unknown type {chr(kind)!r}"), name, position)


def _refused(what: str, name: bytes, position: int) -> InputError:
    text = name.decode("utf-8", "backslashreplace")
    return InputError(
        f"a tar contains {what}",
        place=f"member {text!r} at byte {position}" if text else f"byte {position}",
        expected="plain files and folders",
        remedy="write the tar again without it; `tar --dereference --hard-dereference` writes files for links",
        offset=position,
    )


# What follows the walk


def _finish(data: memoryview, walk: _Walk, base: int) -> Scan:
    """Check all headers at once; raise an error for the first invalid one, or for the problem that ended the walk."""
    kinds, header_names = _kinds_and_names(data, walk.headers, base)
    if walk.problem is not None:
        raise walk.problem
    count = len(walk.sizes)
    headers, sizes = np.array(walk.headers[:count], np.int64), np.array(walk.sizes, np.int64)
    members = np.flatnonzero(~np.isin(kinds[:count], list(_EXTENDED)))
    # A member begins with the first header after the member before it: its extended headers come first.
    begins = headers[np.concatenate([np.zeros(1, np.int64), members + 1])[: len(members)]]
    files = np.isin(kinds[members], list(_FILES))
    tops, headers, sizes = begins[files], headers[members[files]], sizes[members[files]]
    names = [walk.names.get(place, name) for place, name in zip(headers.tolist(), header_names, strict=False)]
    # The oldest format has no type for folders: their names end with a slash.
    old = np.flatnonzero(kinds[members[files]] == 0).tolist()
    folders = [row for row in old if header_names[row].endswith(b"/") or names[row].endswith(b"/")]
    # Readers differ on a folder that has bytes, or whose two names do not both end with a slash.
    bad = [row for row in folders if sizes[row] or header_names[row][-1:] != names[row][-1:]]
    if b"" in names:
        bad.append(names.index(b""))
    if bad:
        raise damaged(base + int(headers[min(bad)]))
    if folders:
        names = np.delete(np.array(names, object), folders).tolist()
        headers, tops, sizes = (np.delete(values, folders) for values in (headers, tops, sizes))
    return Scan(names, tops + base, headers + (base + BLOCK_BYTES), sizes, walk.end + base)


def _kinds_and_names(data: memoryview, headers: list[int], base: int) -> tuple[npt.NDArray[np.uint8], list[bytes]]:
    """Return the type of every header, and the names in the headers of files; refuse invalid checksums."""
    blocks = _blocks(data)
    kinds, names = np.zeros(len(headers), np.uint8), list[bytes]()
    for first in range(0, len(headers), _HEADERS_AT_ONCE):
        places = np.array(headers[first : first + _HEADERS_AT_ONCE])
        part = blocks[places // BLOCK_BYTES]
        sound = are_sound(part)
        if not sound.all():
            raise damaged(base + int(places[int(sound.argmin())]))
        kinds[first : first + len(part)] = part[:, 156]
        files = np.isin(part[:, 156], list(_FILES))
        names += whole_names(part if files.all() else part[files])
    return kinds, names


def _blocks(data: memoryview) -> npt.NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)[: len(data) // BLOCK_BYTES * BLOCK_BYTES].reshape(-1, BLOCK_BYTES)


def _refuse_compressed(data: memoryview) -> None:
    first = bytes(data[:BLOCK_BYTES])
    if len(first) == BLOCK_BYTES and are_sound(np.frombuffer(first, np.uint8)[None, :]).all():
        return
    for magic, (name, program) in _COMPRESSED.items():
        if first.startswith(magic):
            raise InputError(
                "a tar is compressed",
                expected="a plain tar, of which any part can be read by itself",
                found=f"the first bytes of {name}",
                remedy=f"decompress it first, with {program} or another program",
            )


def _first_nonzero(words: npt.NDArray[np.uint64]) -> int | None:
    for first in range(0, len(words), _WORDS_AT_ONCE):
        is_set = words[first : first + _WORDS_AT_ONCE] != 0
        if is_set.any():
            return first + int(is_set.argmax())
    return None


def _check_end(data: memoryview, end: int) -> None:
    """Refuse a tar in which anything but zeros follows the last member."""
    word = _first_nonzero(np.frombuffer(data, np.uint64)[end // 8 :])
    if word is None:
        return
    offset = (end + 8 * word) // BLOCK_BYTES * BLOCK_BYTES
    if are_sound(_blocks(data[offset : offset + BLOCK_BYTES])).all():
        raise InputError(
            "a tar is followed by another one in the same file",
            place=f"byte {offset}",
            expected="one tar: readers stop at its end, and would ignore the rest",
            found="a header after the zero blocks that end a tar, as `cat a.tar b.tar` makes it",
            remedy="join tars with `tar --concatenate`, or keep them as two files",
            offset=offset,
        )
    raise CorruptDataError(
        "bytes follow the end of a tar",
        place=f"byte {offset}",
        expected="only zeros after the last member",
        found="other bytes",
        remedy="copy the tar again; if the program that wrote it adds these bytes, cut them off",
        offset=offset,
    )
