"""Files from any folders as one readable folder; their companions, such as indexes, are in a local folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from wdsplit.errors import InputError
from wdsplit.storage.interface import ReadableFile, ReadableStorage
from wdsplit.storage.local import LocalStorage
from wdsplit.storage.opening import is_remote, open_readable_storage
from wdsplit.urls import is_web, shown_url

__all__ = ["GatheredFiles", "GatheredStorage"]


@dataclass(frozen=True)
class GatheredFiles:
    """Files from any folders, named by their paths below their common folder.

    Attributes:
        urls: Their URLs or absolute paths, in order, without duplicates.
        companions: A local folder with their companions, such as indexes.

    Raises:
        InputError: They are not all local, or not all in stores of one kind.
    """

    urls: tuple[str, ...] = field(repr=False)
    companions: str

    def __post_init__(self) -> None:
        if not self._common:
            raise InputError(
                "the tars are in stores of several kinds",
                expected="only local files, or only URLs of one scheme, such as s3://",
                found=", ".join(sorted({shown_url(url).rpartition("/")[0] for url in self.urls})[:5]),
                remedy="copy them to one store, or mix datasets of each with wdsplit.mix",
            )

    @cached_property
    def root(self) -> str:
        """Their common folder; for several buckets, the common start of their URLs."""
        return "/".join(self._common)

    @cached_property
    def _common(self) -> list[str]:
        """The parts that the folders of all URLs start with."""
        return list(os.path.commonprefix([shown_url(url).split("/")[:-1] for url in self.urls]))  # noqa: RUF071 (of parts)

    @cached_property
    def places(self) -> dict[str, str]:
        """The URL of each file, by its path below the root."""
        return {shown_url(url)[len(self.root) + 1 :]: url for url in self.urls}


class GatheredStorage:
    """Gathered files and their companions as one folder, for reading.

    Args:
        files: The files.
        options: How to reach a remote store.
    """

    def __init__(self, files: GatheredFiles, options: Mapping[str, Any] | None = None) -> None:
        self._files = files
        self._options = options
        self._companions = LocalStorage(files.companions)
        self._folders: dict[str, ReadableStorage] = {}

    @property
    def url(self) -> str:
        """The common folder of the files."""
        return self._files.root

    @property
    def is_remote(self) -> bool:
        """Whether the files are in an object store."""
        return is_remote(self._files.urls[0])

    @property
    def has_latency(self) -> bool:
        """Whether each read of a file is a request."""
        return self._place(self._files.urls[0])[0].has_latency

    def _place(self, url: str) -> tuple[ReadableStorage, str]:
        """Return the folder of a file, which keeps the query of an http(s) URL, and the file's name in it."""
        base, mark, query = url.partition("?") if is_web(url) else (url, "", "")
        folder, _, name = base.rpartition("/")
        name = unquote(name) if is_web(url) else name
        where = f"{folder or '/'}{mark}{query}"
        if where not in self._folders:
            self._folders[where] = open_readable_storage(where, self._options)
        return self._folders[where], name

    def read(self, path: str, max_bytes: int | None = None) -> bytes:
        """Return the bytes of a companion."""
        return self._companions.read(path, max_bytes)

    def open(self, path: str, size: int | None = None) -> ReadableFile:
        """Open a file or a companion for reading."""
        url = self._files.places.get(path)
        if url is None:
            return self._companions.open(path, size)
        storage, name = self._place(url)
        return storage.open(name, size)

    def size(self, path: str) -> int | None:
        """Return the size of a file or a companion in bytes, or None if there is no such file."""
        url = self._files.places.get(path)
        if url is None:
            return self._companions.size(path)
        storage, name = self._place(url)
        return storage.size(name)

    def sizes(self, path: str = "") -> dict[str, int]:
        """Return the names of the companions in a folder, and their sizes in bytes."""
        return self._companions.sizes(path)

    def list(self, path: str = "") -> list[str]:
        """Return the names of the companions in a folder, sorted."""
        return self._companions.list(path)

    def describe_contents(self) -> str:
        """Return the first paths of the files."""
        return ", ".join(list(self._files.places)[:5])
