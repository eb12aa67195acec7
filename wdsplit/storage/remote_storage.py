"""What the storages of all remote stores have in common.

They have no locks that end with a process, so a lock excludes only other processes of this user on this machine.
"""

from __future__ import annotations

import copy
import hashlib
import os
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from wdsplit.errors import DatasetNotFoundError, StorageError
from wdsplit.storage.interface import IsFolderError
from wdsplit.storage.local import LocalStorage
from wdsplit.storage.remote_file import RemoteFile

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["RemoteStorage"]

_MAX_NAMES_SHOWN = 5


class RemoteStorage(ABC):
    """A folder of a remote store.

    Args:
        client: Sends requests.
    """

    is_remote = True
    has_latency = True
    _empty = "no list of files"

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    @abstractmethod
    def url(self) -> str:
        """The folder's URL, without secrets."""

    @abstractmethod
    def open(self, path: str, size: int | None = None) -> RemoteFile:
        """Open a file for reading; sends no request yet."""

    @abstractmethod
    def entries(self, path: str) -> dict[str, int | None]:
        """Return the names in a folder, with the sizes of files in bytes; None for folders."""

    @property
    def _store(self) -> str:
        """Identifies the store among others with the same URLs."""
        return ""

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a file; refuse one of more than `max_bytes`."""
        return self.open(path).read_whole(max_bytes)

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes, or None if there is none."""
        try:
            return self.open(path).size
        except (DatasetNotFoundError, IsFolderError):
            return None

    def list(self, path: str = "") -> list[str]:
        """Return the names of files and folders in a folder, sorted."""
        return sorted(self.entries(path))

    def sizes(self, path: str = "") -> dict[str, int]:
        """Return the names of the files in a folder, and their sizes in bytes."""
        return {name: size for name, size in sorted(self.entries(path).items()) if size is not None}

    def describe_contents(self) -> str:
        """Return the first names in the folder, or say that none are listed."""
        return ", ".join(self.list()[:_MAX_NAMES_SHOWN]) or self._empty

    def with_short_deadline(self) -> Self:
        """Return the same folder with a short deadline for requests."""
        storage = copy.copy(self)
        storage._client = self._client.with_short_deadline()
        return storage

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Lock out other processes of this user on this machine."""
        folder = LocalStorage(_lock_folder())
        name = hashlib.sha256(f"{self._store} {self.url}/{path}".encode()).hexdigest()
        with ExitStack() as stack:
            try:
                stack.enter_context(folder.lock(name))
            except StorageError as error:
                raise error.at(self.url) from error
            stack.callback(folder.remove, name)
            yield


def _lock_folder() -> str:
    """Return the folder of this user's locks."""
    folder = os.path.join(tempfile.gettempdir(), f"wdsplit-{os.getuid()}")
    with suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise StorageError(
            "the folder of locks belongs to another user",
            place=folder,
            expected=f"a folder of user {os.getuid()}",
            found=f"{stat.filemode(found.st_mode)} of user {found.st_uid}",
            remedy="remove it, or set TMPDIR to a folder of your own",
            url=folder,
        )
    return folder
