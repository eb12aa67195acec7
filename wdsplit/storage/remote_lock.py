"""A lock for an output in a remote store, which has no locks that end with a process.

It excludes only other processes of this user on this machine.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from wdsplit.errors import StorageError
from wdsplit.storage.local import LocalStorage

__all__ = ["remote_lock"]


@contextmanager
def remote_lock(url: str, path: str, store: str = "") -> Iterator[None]:
    """Exclude other processes of this user on this machine while the block runs.

    Args:
        url: The output.
        path: The path to lock in the output.
        store: Identifies the store among others with the same URLs.

    Raises:
        StorageError: Another process has the lock.
    """
    folder = LocalStorage(_lock_folder())
    name = hashlib.sha256(f"{store} {url}/{path}".encode()).hexdigest()
    with ExitStack() as stack:
        try:
            stack.enter_context(folder.lock(name))
        except StorageError as error:
            raise error.at(url) from error
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
