"""Reads whole files in pieces, a few of them ahead, through several connections."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Generator
from pathlib import Path

from wdsplit.engines.local import in_order, raise_if_cancelled
from wdsplit.storage.interface import ReadableFile
from wdsplit.storage.local_file import LocalFile, translate_errors
from wdsplit.storage.reopened_file import ReopenedFile

__all__ = ["in_pieces", "mapped"]

_PIECE_BYTES = 4 * 1024**2
_CONNECTIONS = 4


def in_pieces(file: ReadableFile) -> Generator[bytes, None, None]:
    """Yield the bytes of a file, piece by piece; raises as the file's `read` does."""
    size = file.size

    def read(first: int) -> bytes:
        return file.read(first, min(_PIECE_BYTES, size - first))

    yield from in_order(read, range(0, size, _PIECE_BYTES), _CONNECTIONS)


def mapped(file: ReadableFile, folder: str | None = None) -> mmap.mmap | bytes:
    """Map a file into memory, read-only; return b'' for an empty one.

    Args:
        file: The file.
        folder: The folder for an unnamed copy of a remote file; None for the system's temporary folder.

    Raises:
        StorageError: The copy cannot be written, for example because the disk is full.
    """
    if isinstance(file, LocalFile | ReopenedFile):
        return file.map()
    place = Path(folder or tempfile.gettempdir())
    with translate_errors(place, writing=True), tempfile.TemporaryFile(dir=place) as copy:
        for piece in in_pieces(file):
            raise_if_cancelled()
            copy.write(piece)
        copy.flush()
        return mmap.mmap(copy.fileno(), 0, access=mmap.ACCESS_READ) if file.size else b""
