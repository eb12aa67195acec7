"""File system objects of fsspec that a caller passes as `fs=`, and the URLs of their paths.

A path on such a file system becomes a URL with its scheme, so other modules only see URLs.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from wdsplit.errors import InputError, MissingDependencyError
from wdsplit.storage.retry import RETRY_NAMES
from wdsplit.urls import shown_url

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

__all__ = ["FS_OPTION", "GivenFileSystem", "PathLike", "divided_options", "located", "located_one", "opening_options"]

PathLike = str | os.PathLike[str]
"""A path or a URL."""
FS_OPTION = "fs"
"""The key of the file system object in storage options."""

_OF_ONE_PROCESS = "memory"


class GivenFileSystem:
    """A file system object that each process copies: connections and event loops cannot be shared.

    Args:
        fs: The object that the caller made.
    """

    def __init__(self, fs: AbstractFileSystem) -> None:
        self._fs = fs
        self._pid = os.getpid()
        self._inherited: list[AbstractFileSystem] = []

    @property
    def schemes(self) -> tuple[str, ...]:
        """The schemes of its URLs, the usual one first."""
        return _schemes(self._fs)

    @property
    def is_archive(self) -> bool:
        """Whether it is an archive, such as a zip file, which can only be read."""
        from fsspec.archive import AbstractArchiveFileSystem

        return isinstance(self._fs, AbstractArchiveFileSystem)

    def get(self) -> AbstractFileSystem:
        """Return this process's copy."""
        pid = os.getpid()
        if self._pid != pid:
            self._inherited.append(self._fs)  # kept, because closing its connections would close the parent's
            if self.schemes[0] != _OF_ONE_PROCESS:
                self._fs = pickle.loads(self._dumped())
            self._pid = pid
        return self._fs

    def __deepcopy__(self, memo: object) -> GivenFileSystem:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the file system, for another process.

        Raises:
            InputError: The file system cannot be pickled.
        """
        return _restored, (self._dumped(),)

    def _dumped(self) -> bytes:
        if self.schemes[0] == _OF_ONE_PROCESS:
            raise InputError(
                "memory:// cannot be reached from another process",
                expected="work in this process, or in forked workers that only read",
                remedy="use jobs=1 (convert, verify, index_tars), or num_workers=0 or workers='thread' (Loader)",
            )
        try:
            return pickle.dumps(self._fs)
        except Exception as error:
            raise InputError(
                "a worker process cannot get a copy of the file system",
                place=f"fs={type(self._fs).__name__}",
                expected="an object that can be pickled",
                found=f"{type(error).__name__}: {error}",
                remedy="make it with plain arguments (texts, numbers, dicts), or work without worker processes",
            ) from error


def _restored(data: bytes) -> GivenFileSystem:
    return GivenFileSystem(pickle.loads(data))


def _schemes(fs: AbstractFileSystem) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def located_one(
    path: PathLike, storage_options: Mapping[str, Any] | None, fs: AbstractFileSystem | None
) -> tuple[str, Mapping[str, Any] | None]:
    """Return the URL and storage options of one path, as `located` does."""
    (url,), options = located([path], storage_options, fs)
    return url, options


def located(
    paths: Sequence[PathLike],
    storage_options: Mapping[str, Any] | None,
    fs: AbstractFileSystem | None,
) -> tuple[list[str], Mapping[str, Any] | None]:
    """Return the URLs of paths on a file system, and the storage options to open them with.

    Args:
        paths: Paths on the file system, or URLs with its scheme.
        storage_options: The caller's options; with `fs`, only those of `RetryOptions`.
        fs: The file system; None to choose it by each path.

    Raises:
        InputError: A path is on another store, or `fs` is not a usable file system.
    """
    texts = [os.fspath(path) for path in paths]
    if fs is None and any(text.startswith(f"{_OF_ONE_PROCESS}://") for text in texts):
        from fsspec.implementations.memory import MemoryFileSystem

        return texts, {**(storage_options or {}), FS_OPTION: GivenFileSystem(MemoryFileSystem())}
    if fs is None:
        return texts, storage_options
    _check(fs, storage_options)
    texts = [_stripped(text, fs) for text in texts]
    while _is(fs, "fsspec.implementations.dirfs", "DirFileSystem"):
        texts, fs = [fs._join(text) for text in texts], fs.fs
    if _is(fs, "fsspec.implementations.local", "LocalFileSystem"):
        return [fs._strip_protocol(text) for text in texts], None
    urls = [text if "://" in text else f"{_schemes(fs)[0]}://{text}" for text in texts]
    return urls, {**(storage_options or {}), FS_OPTION: GivenFileSystem(fs)}


def opening_options(options: Mapping[str, Any] | None, fs: AbstractFileSystem | None) -> Mapping[str, Any] | None:
    """Return the storage options to open URLs with that `located` has given before, perhaps on another machine."""
    return located([], options, fs)[1]


def divided_options(
    storage_options: Mapping[str, Any] | None, input_fs: AbstractFileSystem | None, fs: AbstractFileSystem | None
) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    """Return the storage options of inputs and output: if one has a file system, the store's go only to the other."""
    if (fs is None) == (input_fs is None) or not isinstance(storage_options, Mapping):
        return storage_options, storage_options
    retries = {name: value for name, value in storage_options.items() if name in RETRY_NAMES}
    return (storage_options, retries) if input_fs is None else (retries, storage_options)


def _is(fs: object, module: str, name: str) -> bool:
    return (type(fs).__module__, type(fs).__name__) == (module, name)


def _stripped(text: str, fs: AbstractFileSystem) -> str:
    scheme, separator, _ = text.partition("://")
    if separator and scheme not in _schemes(fs):
        raise InputError(
            "a path is not on the file system that fs= names",
            place=shown_url(text),
            expected=f"a path, or a URL that begins with {' or '.join(f'{each}://' for each in _schemes(fs))}",
            found=f"{scheme}://",
            remedy="pass the file system of that store, or leave fs= out",
        )
    return str(fs._strip_protocol(text))


def _check(fs: Any, storage_options: Mapping[str, Any] | None) -> None:
    """Refuse objects that are not file systems of fsspec, and options that belong to its constructor."""
    try:
        import fsspec
    except ImportError as error:
        raise MissingDependencyError("fs= needs fsspec", remedy="pip install 'wdsplit[s3fs]', or fsspec") from error
    if not isinstance(fs, fsspec.AbstractFileSystem):
        wrap = type(fs).__module__.startswith("pyarrow")
        raise InputError(
            "invalid fs",
            expected="a file system object of fsspec, such as s3fs.S3FileSystem()",
            found=f"{type(fs).__module__}.{type(fs).__name__}",
            remedy="fsspec.implementations.arrow.ArrowFSWrapper(fs) makes one of it" if wrap else "",
        )
    if getattr(fs, "asynchronous", False):
        raise InputError("invalid fs", expected="a file system made with asynchronous=False", found="asynchronous=True")
    if not isinstance(storage_options, Mapping | None):
        raise InputError("invalid storage_options", expected="a dict", found=type(storage_options).__name__)
    others = sorted(map(str, set(storage_options or {}) - RETRY_NAMES))
    if others:
        raise InputError(
            "storage options that fs= already decides",
            expected=f"with fs=, only {', '.join(sorted(RETRY_NAMES))}",
            found=", ".join(others),
            remedy=f"pass them to {type(fs).__name__}(...), or leave fs= out",
        )
