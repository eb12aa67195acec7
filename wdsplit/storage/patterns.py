"""Finds files by globs and brace expressions, on disks and in remote stores.

Combines the storages; reads no file.
"""

from __future__ import annotations

import fnmatch
import glob
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import braceexpand

from wdsplit.errors import DatasetNotFoundError, InputError
from wdsplit.storage.interface import IsFolderError
from wdsplit.storage.local import local_path
from wdsplit.storage.opening import is_remote, open_object, open_remote_storage
from wdsplit.storage.remote import RemoteStorage
from wdsplit.urls import is_web, joined_url, shown_url

__all__ = ["Disk", "Store", "finds", "has_magic", "names_tar", "patterns", "place_of"]

logger = logging.getLogger(__name__)

_MAX_PATHS = 1_000_000
"""Maximum number of paths of a brace expression."""
_TAR = re.compile(r"\.(tar|tgz|tar\.\w+)$", re.IGNORECASE)
_INTEGERS = re.compile(r"\{(-?[0-9]+)\.\.(-?[0-9]+)(?:\.\.(-?[0-9]+))?\}")


def has_magic(path: str) -> bool:
    """Tell whether a path or a URL is a glob; the `?` before the query of an http(s) URL does not make it one."""
    return glob.has_magic(path.partition("?")[0] if is_web(path) else path)


def names_tar(url: str) -> bool:
    """Tell whether a path or a URL has the extension of a tar, compressed or not; otherwise it may be a folder."""
    return _TAR.search(shown_url(url)) is not None


def finds(pattern: Sequence[str], path: Sequence[str]) -> bool:
    """Tell whether a glob matches a file or one of its folders; glob and path are given as their parts."""
    if not pattern or not path:
        return not pattern
    if pattern[0] == "**":
        return any(finds(pattern[1:], path[first:]) for first in range(len(path)))
    is_hidden = path[0].startswith(".") and not pattern[0].startswith(".")
    return not is_hidden and fnmatch.fnmatchcase(path[0], pattern[0]) and finds(pattern[1:], path[1:])


class Disk:
    """The local disk."""

    def __init__(self, argument: str) -> None:
        self.pattern = local_path(argument)

    def is_file(self, path: str) -> bool:
        """Tell whether a path leads to a file."""
        return os.path.isfile(path)

    def is_folder(self, path: str) -> bool:
        """Tell whether a path leads to a folder."""
        return os.path.isdir(path)

    def matched(self, pattern: str) -> list[tuple[str, bool]]:
        """Return the paths that a glob matches, and whether each is a folder."""
        return [(path, os.path.isdir(path)) for path in dict.fromkeys(self._globbed(pattern))]

    def _globbed(self, pattern: str) -> Iterator[str]:
        parts = pattern.split(os.sep)
        if "**" not in parts:
            yield from glob.glob(pattern)
            return
        place = parts.index("**")
        rest = parts[place + 1 :] or ["*"]
        for root in glob.glob(os.sep.join([*parts[:place], ""])) if place else [""]:
            for folder, _ in _walked(root):
                escaped = "" if folder == os.curdir else glob.escape(folder)
                yield from self._globbed(os.path.join(escaped, *rest))

    def refuse_unreadable(self, pattern: str) -> None:
        """Refuse a path or a glob that leads through a folder which this process may not read.

        Raises:
            InputError: A folder cannot be read.
        """
        path = ""
        for part in Path(pattern).parts:
            try:
                if glob.has_magic(part):
                    os.listdir(path or os.curdir)
                    return
                os.stat(os.path.join(path, part))
            except (FileNotFoundError, NotADirectoryError):
                return
            except OSError as error:
                error.filename = path or os.curdir
                _refuse(error)
            path = os.path.join(path, part)

    def below(self, folder: str) -> Iterator[str]:
        """Yield the files in a folder and below it, without hidden ones."""
        found = (os.path.join(place, name) for place, names in _walked(folder) for name in names if _is_visible(name))
        return (path for path in found if os.path.isfile(path))

    def listed(self, folder: str) -> Iterator[tuple[str, Mapping[str, int | None]]]:
        """Yield the relative paths of a folder and of those below it, with the names in each and their sizes.

        Names are sorted. Hidden folders are listed, but not entered. Sizes are None: each would take a system call.
        """
        for place, names in _walked(folder):
            path = os.path.relpath(place, folder)
            yield "" if path == os.curdir else path, dict.fromkeys(sorted(names))


def _is_visible(name: str) -> bool:
    return not name.startswith(".")


def _walked(root: str) -> Iterator[tuple[str, list[str]]]:
    """Yield a folder and those below it, with the names of their files and hidden folders, which are not entered.

    Follows links, but yields each folder only once: cyclic links would never end.

    Raises:
        InputError: A folder cannot be read.
    """
    seen: set[str] = set()
    for folder, folders, files in os.walk(root or os.curdir, onerror=_refuse, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            logger.warning("%s: skipping a link to a folder that is already included", folder)
            folders.clear()
            continue
        seen.add(real)
        hidden = [name for name in folders if not _is_visible(name)]
        visible = {name for name in folders if _is_visible(name)}
        links = {name for name in visible if os.path.islink(os.path.join(folder, name))}
        folders[:] = [*sorted(visible - links), *sorted(links)]
        yield os.path.relpath(folder) if not root else folder, files + hidden


def _refuse(error: OSError) -> None:
    raise InputError(
        "a folder cannot be read",
        place=str(error.filename),
        found=error.strerror or type(error).__name__,
        remedy="check its permissions, or name the folders and files to read",
        url=str(error.filename),
    ) from error


class Store:
    """A remote store: paths are URLs."""

    def __init__(self, argument: str, options: Mapping[str, Any] | None) -> None:
        self.pattern = argument
        self._options = options

    def is_file(self, path: str) -> bool:
        """Tell whether a path leads to a file."""
        if "/" not in shown_url(path).partition("://")[2] or shown_url(path).endswith("/"):
            return False
        try:
            return open_object(path, self._options).size is not None
        except (DatasetNotFoundError, IsFolderError):
            return False

    def is_folder(self, path: str) -> bool:
        """Tell whether a path leads to a folder."""
        return not self.is_file(path) and bool(open_remote_storage(path, self._options).list())

    def matched(self, pattern: str) -> list[tuple[str, bool]]:
        """Return the paths that a glob matches, as `glob.glob` does, and whether each is a folder."""
        fixed, parts = _fixed_folder(pattern)
        storage = open_remote_storage(fixed, self._options)
        return [(joined_url(fixed, path), is_folder) for path, is_folder in _globbed(storage, "", parts)]

    def below(self, folder: str) -> Iterator[str]:
        """Yield the files in a folder and below it, without hidden ones."""
        for place, names in self.listed(folder):
            paths = (os.path.join(place, name) for name, size in names.items() if size is not None)
            yield from (joined_url(folder, path) for path in paths if _is_visible(os.path.basename(path)))

    def listed(self, folder: str) -> Iterator[tuple[str, Mapping[str, int | None]]]:
        """Yield a folder and those below it, as `Disk.listed` does, but with the sizes of files."""
        return _listed(open_remote_storage(folder, self._options), "")


def place_of(argument: str, storage_options: Mapping[str, Any] | None) -> Disk | Store:
    """Return the disk or store of the files that a path, a URL or a pattern names."""
    return Store(argument, storage_options) if is_remote(argument) else Disk(argument)


def _fixed_folder(pattern: str) -> tuple[str, list[str]]:
    """Return the URL of the last folder before a pattern's wildcards, and the parts of the path after it."""
    scheme, _, rest = pattern.partition("://")
    rest, mark, query = rest.partition("?") if is_web(pattern) else (rest, "", "")
    parts = rest.split("/")
    first = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    first = max(1, first)
    return f"{scheme}://{'/'.join(parts[:first])}{mark}{query}", parts[first:]


def _globbed(storage: RemoteStorage, folder: str, parts: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield the paths that match the parts of a pattern below a folder, and whether each is a folder."""
    part, rest = parts[0], parts[1:]
    if part == "**" and rest:
        yield from _globbed(storage, folder, rest)
        for name, size in sorted(storage.entries(folder.rstrip("/")).items()):
            if size is None and _is_visible(name):
                yield from _globbed(storage, f"{folder}{name}/", parts)
    elif rest and not glob.has_magic(part):
        yield from _globbed(storage, f"{folder}{part}/", rest)
    else:
        for name, size in sorted(storage.entries(folder.rstrip("/")).items()):
            if fnmatch.fnmatch(name, part) and (part.startswith(".") or _is_visible(name)):
                if not rest:
                    yield f"{folder}{name}", size is None
                elif size is None:
                    yield from _globbed(storage, f"{folder}{name}/", rest)


def _listed(storage: RemoteStorage, folder: str) -> Iterator[tuple[str, dict[str, int | None]]]:
    entries = dict(sorted(storage.entries(folder).items()))
    folders = dict.fromkeys(name for name, size in entries.items() if size is None and _is_visible(name))
    yield folder, {name: size for name, size in entries.items() if name not in folders}
    for name in folders:
        yield from _listed(storage, f"{folder}/{name}" if folder else name)


def patterns(place: Disk | Store) -> list[str]:
    """Return the paths of a brace expression; an existing path with braces is not expanded."""
    path = place.pattern
    if "{" not in path or place.is_file(path) or place.is_folder(path):
        return [path]
    try:
        ranges = ((int(first), int(last), abs(int(step or 1)) or 1) for first, last, step in _INTEGERS.findall(path))
        if sum(abs(last - first) // step for first, last, step in ranges) < _MAX_PATHS:  # braceexpand makes lists
            paths = list(islice(braceexpand.braceexpand(path), _MAX_PATHS + 1))
            if len(paths) <= _MAX_PATHS:
                return paths
    except ValueError as error:
        raise InputError(
            "unbalanced braces",
            place=shown_url(path),
            expected="as in part-{000..127}.parquet",
            remedy="check the path",
            url=shown_url(path),
        ) from error
    raise InputError(
        "a brace expression names too many files",
        place=shown_url(path),
        expected=f"at most {_MAX_PATHS:,}",
        remedy="check its numbers, or name the folder, or use a glob such as *.parquet",
        url=shown_url(path),
    )
