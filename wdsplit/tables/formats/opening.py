"""Opens inputs for reading: local files, and remote objects with few, large range requests.

Reading an object that was replaced after opening is an error.
"""

from __future__ import annotations

import io
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import xxhash

from wdsplit.engines.local import in_order
from wdsplit.errors import InputError
from wdsplit.storage.opening import open_object
from wdsplit.storage.pieces import mapped
from wdsplit.tables.formats.common import sliced
from wdsplit.tables.table import InputFile, Remote
from wdsplit.urls import shown_url

__all__ = [
    "AHEAD_BYTES",
    "MAX_BUFFER_BYTES",
    "Input",
    "RemoteInput",
    "changed",
    "described",
    "open_input",
    "open_unchanged",
    "read_blocks",
]

AHEAD_BYTES = 8 * 1024**2
"""Minimum bytes of a request when a file is read from start to end."""
MAX_BUFFER_BYTES = 32 * 1024**2
"""Maximum bytes to fetch and keep in memory at once, when the ranges to read are known."""
_CONNECTIONS = 4
_HOLE_BYTES = 1024**2
"""Ranges with a gap of at most this many bytes are fetched with one request."""


class LocalInput(io.BufferedReader):
    """A local file, with the attributes and methods of a `RemoteInput`."""

    remote: Remote | None = None

    def __init__(self, path: str) -> None:
        super().__init__(io.FileIO(path))
        found = os.fstat(self.fileno())
        self.path, self.size, self.modified_ns = path, found.st_size, found.st_mtime_ns

    def read_at(self, offset: int, num_bytes: int) -> bytes:
        """Return the bytes at an offset."""
        self.seek(offset)
        return self.read(num_bytes)

    def buffer(self, ranges: Sequence[Any]) -> None:
        """Do nothing: reading from a disk needs no requests."""

    use_buffers = buffer

    def as_arrow(self) -> pa.NativeFile:
        """Return a file for Arrow's readers."""
        return pa.OSFile(self.path)

    def mapped(self) -> mmap.mmap:
        """Map the file into memory; it must not be empty."""
        return mmap.mmap(self.fileno(), 0, access=mmap.ACCESS_READ)


class RemoteInput(io.RawIOBase):
    """A remote object, as a file for Python's and Arrow's readers; a request is for at least `ahead_bytes`.

    Attributes:
        path: Its URL, without secrets.
        size: Its size in bytes.
        modified_ns: A number that identifies its version.
    """

    def __init__(self, remote: Remote, ahead_bytes: int = 0) -> None:
        self.remote: Remote | None = remote
        self._file = open_object(remote.url, remote.options)
        self.path, self.size = shown_url(remote.url), self._file.size
        self.modified_ns = xxhash.xxh3_64_intdigest(self._file.version.encode())
        self._ahead_bytes = ahead_bytes
        self._buffers: list[tuple[int, memoryview]] = []
        self._at = 0

    def close(self) -> None:
        """Drop the buffers."""
        self._buffers = []
        super().close()

    def readable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next read, and return it."""
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self.size}[whence]
        return self._at

    def read(self, num_bytes: int = -1) -> bytes:
        """Return the next bytes; fewer only at the end of the object."""
        left = max(0, self.size - self._at)
        data = self.read_at(self._at, left if num_bytes < 0 else min(num_bytes, left))
        self._at += len(data)
        return data

    def read_at(self, offset: int, num_bytes: int) -> bytes:
        """Return the bytes at an offset."""
        first = self._buffered_at(offset, num_bytes)
        begin, left = offset + len(first), num_bytes - len(first)
        if not left:
            return bytes(first)
        num_asked = min(max(left, self._ahead_bytes), self.size - begin)
        data = self._file.read(begin, num_asked)
        if num_asked > left:
            self._buffers = [(begin, memoryview(data))]
        return bytes(first) + data[:left] if len(first) or num_asked > left else data

    def _buffered_at(self, offset: int, num_bytes: int) -> memoryview:
        """Return the bytes at an offset, as many of them as one buffer has."""
        for begin, data in self._buffers:
            if begin <= offset < begin + len(data):
                return data[offset - begin : offset - begin + num_bytes]
        return memoryview(b"")

    def buffer(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch some ranges (begin, end) into buffers, which replace the earlier ones."""
        if not all(self.has_buffered(begin, min(end, self.size)) for begin, end in ranges):
            self._buffers = []
            self._buffers = self.fetch(ranges)

    def use_buffers(self, buffers: list[tuple[int, memoryview]]) -> None:
        """Replace the buffers by fetched ones."""
        self._buffers = buffers

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, memoryview]]:
        """Return the offsets and the bytes of some ranges (begin, end); fetch large ones over several connections."""
        inside = [(begin, min(end, self.size)) for begin, end in ranges if begin < min(end, self.size)]
        found = [(begin, bytearray(end - begin)) for begin, end in _joined_ranges(inside)]
        pieces = [
            (memoryview(data)[first : first + AHEAD_BYTES], begin + first)
            for begin, data in found
            for first in range(0, len(data), AHEAD_BYTES)
        ]
        for _ in in_order(lambda piece: self._file.read_into(*piece), pieces, _CONNECTIONS):
            pass
        return [(begin, memoryview(data)) for begin, data in found]

    def has_buffered(self, begin: int, end: int) -> bool:
        """Return whether one buffer has all bytes of a range."""
        return len(self._buffered_at(begin, end - begin)) == end - begin

    def as_arrow(self) -> pa.NativeFile:
        """Return a file for Arrow's readers."""
        return pa.PythonFile(self, mode="r")

    def mapped(self) -> mmap.mmap | bytes:
        """Map a temporary copy into memory."""
        return mapped(self._file)


def _joined_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges (begin, end) in ascending order, joined where the gap is small."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if joined and begin <= joined[-1][1] + _HOLE_BYTES:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


Input = LocalInput | RemoteInput


def open_input(path: str, remote: Remote | None = None, ahead_bytes: int = 0) -> Input:
    """Open an input for reading bytes."""
    return LocalInput(path) if remote is None else RemoteInput(remote, ahead_bytes)


def described(
    source: Input,
    format_name: str,
    rows: Sequence[int],
    data_bytes: int,
    footer: str,
    offsets: Sequence[int] = (),
    column_bytes: Sequence[tuple[str, int]] = (),
) -> InputFile:
    """Return the description of an open input; see `InputFile` for the arguments."""
    return InputFile(
        source.path,
        source.size,
        sum(rows),
        tuple(rows),
        data_bytes,
        footer,
        source.modified_ns,
        format_name,
        tuple(offsets),
        column_bytes=tuple(column_bytes),
        remote=source.remote,
    )


def changed(file: InputFile, found: str) -> InputError:
    """Return the error for a file that has changed since it was first opened."""
    return InputError(
        "an input has changed since it was planned",
        expected=f"the file of {file.num_bytes} bytes and {file.num_rows} rows",
        found=found,
        remedy="do not change inputs during a conversion; start again with --overwrite",
        url=file.path,
    )


def open_unchanged(file: InputFile, ahead_bytes: int = 0) -> Input:
    """Open a file again.

    Raises:
        InputError: Its size or modification time has changed; its content is not compared.
    """
    source = open_input(file.path, file.remote, ahead_bytes)
    if (source.size, source.modified_ns) == (file.num_bytes, file.modified_ns):
        return source
    source.close()
    same_size = "the same size, but another modification time"
    raise changed(file, same_size if source.size == file.num_bytes else f"{source.size} bytes")


def read_blocks(
    file: InputFile, groups: Sequence[int], parse: Callable[[bytes, int], pa.Table]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of some row groups of a file whose `offsets` say where each is.

    Args:
        file: The file.
        groups: The row groups.
        parse: Returns the rows of a group, given its bytes and where they begin.

    Raises:
        InputError: The file has changed since it was first opened.
    """
    with open_unchanged(file) as source:
        for group in groups:
            begin, end = file.offsets[group : group + 2]
            table = parse(source.read_at(begin, end - begin), begin)
            if len(table) != file.row_groups[group]:
                raise changed(file, f"{len(table)} rows in the block at byte {begin}")
            for batch in table.combine_chunks().to_batches():
                batch.validate()
                yield from sliced(batch)
