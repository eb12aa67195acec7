"""Writes files through fsspec: first to the local disk, then to the store, where they appear complete or not at all.

File objects of fsspec are not used: most of them commit an incomplete file when the block raises.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from wdsplit.errors import StorageError
from wdsplit.storage.fsspec_connection import Connection
from wdsplit.storage.local import temporary_name
from wdsplit.storage.local_file import translate_errors

__all__ = ["GatheredFile", "gathered"]

_ONE_COMMIT = frozenset({"abfs", "abfss", "az", "gcs", "gs", "oss", "s3", "s3a"})
"""Object stores, where an uploaded file appears only when it is complete; a rename would copy it."""


class GatheredFile:
    """A file on the local disk that will be uploaded.

    Args:
        file: A named file, open for writing.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._num_bytes = 0

    def write(self, pieces: Sequence[memoryview | bytes]) -> None:
        """Append the pieces, one after another."""
        with translate_errors(Path(self._file.name), writing=True):
            for piece in pieces:
                self._num_bytes += self._file.write(piece)

    def send(self, connection: Connection, place: str, url: str) -> None:
        """Upload the file.

        Args:
            connection: Sends requests.
            place: The URL of the file.
            url: Its URL in messages.

        Raises:
            StorageError: The store refuses, or does not answer in time.
        """
        with translate_errors(Path(self._file.name), writing=True):
            self._file.flush()
        path = connection.path_of(place)
        is_store = connection.protocol in _ONE_COMMIT
        connection.attempt(functools.partial(self._send_once, path, url, is_store), url)

    def _send_once(self, path: str, url: str, is_store: bool, fs: Any) -> None:
        if is_store and fs.async_impl:  # others copy through file objects, which commit incomplete files
            fs.put_file(self._file.name, path)
        else:
            _put_and_rename(fs, self._file.name, path)
        fs.invalidate_cache()
        size = fs.info(path)["size"]
        if size != self._num_bytes:
            raise StorageError(
                "a file in the store does not have the size that was sent",
                place=url,
                expected=f"{self._num_bytes} bytes",
                found=f"{size} bytes",
                remedy="continue with --resume, and run one conversion at a time per output",
                url=url,
            )


def _put_and_rename(fs: Any, local: str, path: str) -> None:
    """Write to a temporary name beside the path; rename it on success, else remove it."""
    folder, separator, name = path.rpartition("/")
    temporary = f"{folder}{separator}{temporary_name(name)}"
    if folder:
        fs.makedirs(folder, exist_ok=True)
    try:
        fs.put_file(local, temporary)
        fs.mv(temporary, path)
    except BaseException:
        with suppress(Exception):
            fs.rm_file(temporary)
        raise


@contextmanager
def gathered() -> Iterator[GatheredFile]:
    """Yield an empty file in the folder for temporary files (TMPDIR); it is removed when the block ends."""
    with translate_errors(Path(tempfile.gettempdir()), writing=True):
        file = tempfile.NamedTemporaryFile(prefix="wdsplit-")  # noqa: SIM115 (closed below)
    with file:
        yield GatheredFile(file)
