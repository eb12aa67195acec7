"""The interface of storages: a folder of named objects, and the files in it.

Only protocols, and the errors that implementations share.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from wdsplit.errors import CorruptDataError, StorageError

__all__ = ["IsFolderError", "PendingFile", "ReadableFile", "ReadableStorage", "Storage", "refuse_too_large", "replaced"]


class IsFolderError(StorageError):
    """There is a folder instead of a file."""


class PendingFile(Protocol):
    """A file that is being written and does not exist yet for anyone else."""

    def write(self, pieces: Sequence[memoryview | bytes]) -> None:
        """Append the pieces, one after another."""


class ReadableFile(Protocol):
    """An object that is open for reading; it is closed when nothing refers to it any more."""

    @property
    def size(self) -> int:
        """Its size in bytes."""

    @property
    def version(self) -> str:
        """A text that changes when the file is replaced: its ETag, or its size and modification time."""

    @property
    def is_remote(self) -> bool:
        """Whether each read is a request, so that few large ones are better than many small ones."""

    def read(self, offset: int, num_bytes: int) -> bytes:
        """Return the bytes at an offset.

        Raises:
            CorruptDataError: The object is too short.
            StorageError: The system refuses to read.
        """

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fill a buffer with the bytes at an offset; raises as `read` does."""

    def expect(self, offset: int, num_bytes: int) -> None:
        """Start to read ahead bytes that will be needed soon, without waiting for them."""


class ReadableStorage(Protocol):
    """A folder of objects that can be read. Paths are relative to it and have forward slashes.

    Every method raises StorageError if the system refuses, and DatasetNotFoundError if an object does not exist.
    """

    @property
    def url(self) -> str:
        """The name of this folder in messages."""

    @property
    def is_remote(self) -> bool:
        """Whether it is an object store, not a file system."""

    @property
    def has_latency(self) -> bool:
        """Whether each read is a request, so that reading ahead is faster."""

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a small object.

        Raises:
            CorruptDataError: It has more than `max_bytes` bytes.
        """

    def open(self, path: str, size: int | None = None) -> ReadableFile:
        """Open an object for reading at any offset.

        Args:
            path: Its path.
            size: Its size in bytes, if known: it saves a request to a remote store, and another size is refused.
        """

    def size(self, path: str) -> int | None:
        """Return the size of an object in bytes; None if there is no such object, or if it is a folder."""

    def sizes(self, path: str = "") -> dict[str, int]:
        """Return the names of the objects in a folder, without folders, and their sizes in bytes."""

    def list(self, path: str = "") -> list[str]:
        """Return the names in a folder, sorted; none if it does not exist."""

    def describe_contents(self) -> str:
        """Describe the contents in a few words, for a message that expected something else."""


class Storage(ReadableStorage, Protocol):
    """A folder of objects that can be read and written."""

    def publish(self, path: str, durable: bool = False) -> AbstractContextManager[PendingFile]:
        """Open a PendingFile that appears at `path` when the block ends, or not at all if the block raises.

        A durable file has reached the disk by then; another one survives only the end of the process.
        """

    def create(self, path: str, data: bytes) -> bool:
        """Write a small file that must not exist yet; return False if there is another one, which stays.

        Of several writers at the same time, one gets True. Stores without conditional requests cannot promise that.
        """

    def remove(self, *paths: str) -> None:
        """Remove objects, and folders with their contents; missing ones are ignored."""

    def remove_temporary(self, path: str = "") -> None:
        """Remove the temporary files that killed attempts have left in a folder."""

    def lock(self, path: str) -> AbstractContextManager[None]:
        """Lock a path until the block or the process ends; raises StorageError if another process has locked it.

        The lock of a remote store excludes only other processes of this machine.
        """

    def with_short_deadline(self) -> Storage:
        """Return the same storage, with a short deadline if it is remote: for cleaning up after an error."""


def refuse_too_large(size: int, max_bytes: int | None, url: str) -> None:
    """Refuse a file of more than `max_bytes`."""
    if max_bytes is not None and size > max_bytes:
        raise CorruptDataError(
            "a file is too large",
            place=url,
            expected=f"at most {max_bytes} bytes",
            found=f"{size} bytes",
            remedy="the file was changed: copy the dataset again",
            url=url,
        )


def replaced(url: str, expected: str, found: str) -> CorruptDataError:
    """Return the error for a file whose version is no longer the expected one."""
    return CorruptDataError(
        "a file was replaced while it was read",
        place=url,
        expected=expected,
        found=found,
        remedy="write new data to another place, and start again",
        url=url,
    )
