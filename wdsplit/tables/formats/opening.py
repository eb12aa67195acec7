"""Opens inputs for reading: local files, and remote objects with few, large range requests.

Reading an object that was replaced after opening is an error.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from types import TracebackType
from typing import IO

import pyarrow as pa
import xxhash

from wdsplit.engines.local import in_order, raise_if_cancelled
from wdsplit.storage.opening import open_object
from wdsplit.tables.table import Remote

__all__ = ["AHEAD_BYTES", "MAX_BUFFER_BYTES", "RemoteInput", "copied", "joined_ranges", "open_input"]

AHEAD_BYTES = 8 * 1024**2
"""Minimum bytes of a request when a file is read from start to end."""
MAX_BUFFER_BYTES = 32 * 1024**2
"""Maximum bytes to fetch and keep in memory at once, when the ranges to read are known."""
_CONNECTIONS = 4
_HOLE_BYTES = 1024**2
"""Ranges with a gap of at most this many bytes are fetched with one request."""


class RemoteInput:
    """A remote object, as a file for Python's and Arrow's readers.

    Args:
        remote: The object.
        ahead_bytes: Minimum bytes of a request.

    Attributes:
        size: Its size in bytes.
        modified_ns: A number that identifies its version.
    """

    closed = False

    def __init__(self, remote: Remote, ahead_bytes: int = 0) -> None:
        self._file = open_object(remote.url, remote.options)
        self.size = self._file.size
        self.modified_ns = xxhash.xxh3_64_intdigest(self._file.version.encode())
        self._ahead_bytes = ahead_bytes
        self._buffers: list[tuple[int, memoryview]] = []
        self._at = 0

    def __enter__(self) -> RemoteInput:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Drop the buffers."""
        self._buffers = []

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
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
        found = [(begin, bytearray(end - begin)) for begin, end in joined_ranges(inside)]
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


def joined_ranges(ranges: Sequence[tuple[int, int]], hole_bytes: int = _HOLE_BYTES) -> list[tuple[int, int]]:
    """Return ranges (begin, end) in ascending order, joined where the gap is at most `hole_bytes`."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if joined and begin <= joined[-1][1] + hole_bytes:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined


def open_input(path: str, remote: Remote | None = None, ahead_bytes: int = 0) -> IO[bytes] | RemoteInput:
    """Open an input for reading bytes."""
    return open(path, "rb") if remote is None else RemoteInput(remote, ahead_bytes)


def copied(remote: Remote) -> IO[bytes]:
    """Return a copy of an object in a temporary local file, for reading in any order."""
    copy = tempfile.TemporaryFile()  # noqa: SIM115 (the caller closes it)
    with RemoteInput(remote) as source:
        while data := source.read(AHEAD_BYTES):
            raise_if_cancelled()
            copy.write(data)
    copy.flush()
    return copy
