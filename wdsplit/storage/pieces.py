"""Files read from their beginning to their end: in pieces, a few of them ahead, by several connections."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Generator

from wdsplit.engines.local import in_order, raise_if_cancelled
from wdsplit.storage.interface import ReadableFile
from wdsplit.storage.local_file import LocalFile

__all__ = ["in_pieces", "mapped"]

_PIECE_BYTES = 4 * 1024**2
_CONNECTIONS = 4


def in_pieces(file: ReadableFile) -> Generator[bytes, None, None]:
    """Give the bytes of a file, piece by piece; raises as `read` of the file does."""
    size = file.size

    def read(first: int) -> bytes:
        return file.read(first, min(_PIECE_BYTES, size - first))

    yield from in_order(read, range(0, size, _PIECE_BYTES), _CONNECTIONS)


def mapped(file: ReadableFile) -> mmap.mmap | bytes:
    """Map a file into memory, read-only; of a remote one a copy in a temporary file. An empty one comes as b''."""
    if isinstance(file, LocalFile):
        return file.map()
    with tempfile.TemporaryFile() as copy:
        for piece in in_pieces(file):
            raise_if_cancelled()
            copy.write(piece)
        copy.flush()
        return mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ) if file.size else b""
