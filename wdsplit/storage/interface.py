"""The interface of storages: a folder of named objects, and the files in it.

Only protocols, and the check and the error that implementations share.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from wdsplit.errors import CorruptDataError, StorageError

__all__ = ["IsFolderError", "PendingFile", "ReadableFile", "ReadableStorage", "Storage", "refuse_too_large"]


class IsFolderError(StorageError):
    """There is a folder instead of a file."""


class PendingFile(Protocol):
    """A file that is being written and does not exist yet for anyone else."""

    def write(self, pieces: Sequence[memoryview | bytes]) -> None:
        """Append the pieces, one after another."""


class ReadableFile(Protocol):
    """An object that is open for reading; it is closed when nobody refers to it any more."""

    @property
    def size(self) -> int:
        """Its bytes."""

    @property
    def version(self) -> str:
        """A mark that changes when the file is replaced: its ETag, or its size and time of writing."""

    @property
    def is_remote(self) -> bool:
        """Whether each read is a request, so that few large ones are better than many small ones."""

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return bytes from an offset on.

        Raises:
            CorruptDataError: The object ends before.
            StorageError: The system refused.
        """

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes from an offset on; raises as `read` does."""

    def expect(self, offset: int, num_bytes: int) -> None:
        """Let the system begin to read what will be needed soon; nothing waits for it."""


class ReadableStorage(Protocol):
    """A folder of objects that can be read. Paths are relative to it and have forward slashes.

    Every method raises StorageError where the system refuses, and DatasetNotFoundError for an object that is not there.
    """

    @property
    def url(self) -> str:
        """The name of this folder in messages."""

    @property
    def is_remote(self) -> bool:
        """Whether it is a store of objects, not a file system."""

    @property
    def has_latency(self) -> bool:
        """Whether each read is a request, so that it is worth while to read ahead."""

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a small object.

        Raises:
            CorruptDataError: It has more bytes than it may have.
        """

    def open(self, path: str, size: int | None = None) -> ReadableFile:
        """Open an object for reading at any offset.

        Args:
            path: Its path.
            size: Its bytes, if they are known: a remote object need not be asked, and is refused if it has others.
        """

    def size(self, path: str) -> int | None:
        """Return the size of an object in bytes, or None if there is no such object (but a folder, say)."""

    def sizes(self, path: str = "") -> dict[str, int]:
        """Return the names of the objects in a folder, without folders, and their sizes in bytes."""

    def list(self, path: str = "") -> list[str]:
        """Return the names in a folder, sorted; none if it is not there."""

    def describe_contents(self) -> str:
        """Say in a few words what is found at this place, for a message that something else was expected."""


class Storage(ReadableStorage, Protocol):
    """A folder of objects that can be read and written."""

    def publish(self, path: str, durable: bool = False) -> AbstractContextManager[PendingFile]:
        """Give a PendingFile that appears under `path` whole when the block ends, or not at all if it raises.

        A durable file has reached the disk by then; another one only survives the end of the process.
        """

    def remove(self, *paths: str) -> None:
        """Remove objects, and folders with all that is in them; nothing happens to what is not there."""

    def remove_temporary(self, path: str = "") -> None:
        """Remove what attempts that were killed have left in a folder."""

    def lock(self, path: str) -> AbstractContextManager[None]:
        """Hold a lock that goes with the process, however that ends; StorageError if another process holds it.

        That of a remote store keeps out other processes of this machine alone.
        """

    def with_short_deadline(self) -> Storage:
        """Return the same storage, which gives up soon if it is remote: for clearing up after an error."""


def refuse_too_large(size: int, max_bytes: int | None, url: str) -> None:
    """Refuse a file that has more bytes than it may have."""
    if max_bytes is not None and size > max_bytes:
        raise CorruptDataError(
            "a file is too large",
            place=url,
            expected=f"at most {max_bytes} bytes",
            found=f"{size} bytes",
            remedy="the file was changed: copy the dataset again",
            url=url,
        )
