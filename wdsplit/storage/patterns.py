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
from typing import Any

import braceexpand

from wdsplit.errors import DatasetNotFoundError, InputError
from wdsplit.storage.interface import IsFolderError
from wdsplit.storage.local import local_path
from wdsplit.storage.opening import is_remote, open_object, open_remote_storage
from wdsplit.urls import is_web, joined_url, shown_url

__all__ = ["Files", "finds", "has_magic", "names_tar", "patterns"]

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


class Files:
    """A path, a URL or a pattern of files, and the disk or the store that they are on; there paths are URLs.

    Args:
        argument: The path, the URL or the pattern.
        options: Options for a remote store.
    """

    def __init__(self, argument: str, options: Mapping[str, Any] | None = None) -> None:
        self._is_remote = is_remote(argument)
        self.pattern = argument if self._is_remote else local_path(argument)
        self._options = options

    def is_file(self, path: str) -> bool:
        """Tell whether a path leads to a file."""
        if not self._is_remote:
            return os.path.isfile(path)
        if "/" not in shown_url(path).partition("://")[2] or shown_url(path).endswith("/"):
            return False
        try:
            return open_object(path, self._options).size is not None
        except (DatasetNotFoundError, IsFolderError):
            return False

    def is_folder(self, path: str) -> bool:
        """Tell whether a path leads to a folder."""
        if not self._is_remote:
            return os.path.isdir(path)
        return not self.is_file(path) and bool(open_remote_storage(path, self._options).list())

    def _joined(self, root: str, path: str) -> str:
        """Return the path of what is below a folder."""
        return joined_url(root, path) if self._is_remote else os.path.join(root, path) if path else root

    def _entries(self, root: str, path: str) -> tuple[Mapping[str, int | None], Sequence[str]]:
        """Return the files in a folder, with their sizes in a store, and the folders; links to folders come last."""
        if self._is_remote:
            entries = open_remote_storage(root, self._options).entries(path)
            files = {name: size for name, size in entries.items() if size is not None}
            return files, sorted(entries.keys() - files.keys())
        names: dict[str, int | None] = {}
        folders: list[tuple[bool, str]] = []
        try:
            with os.scandir(self._joined(root, path) or os.curdir) as found:
                for entry in found:
                    is_link = entry.is_symlink()
                    if os.path.isdir(entry.path) if is_link else entry.is_dir():
                        folders.append((is_link, entry.name))
                    else:
                        names[entry.name] = None
        except (FileNotFoundError, NotADirectoryError):
            return {}, []
        except OSError as error:
            raise InputError(
                "a folder cannot be read",
                place=str(error.filename),
                found=error.strerror or type(error).__name__,
                remedy="check its permissions, or name the folders and files to read",
                url=str(error.filename),
            ) from error
        return names, [name for _, name in sorted(folders)]

    def listed(
        self, root: str, path: str = "", seen: set[str] | None = None
    ) -> Iterator[tuple[str, Mapping[str, int | None]]]:
        """Yield the relative paths of a folder and of those below it, with the names in each and the sizes of files.

        Names are sorted. Hidden folders are listed, but not entered. Sizes of files on a disk are None: each would take
        a system call. Links are followed, but each folder is yielded only once: cyclic links would never end.

        Args:
            root: The folder that paths are relative to.
            path: The folder to begin in.
            seen: The folders that are not yielded again.

        Raises:
            InputError: A folder cannot be read.
        """
        folder, seen = self._joined(root, path), set() if seen is None else seen
        real = folder if self._is_remote else os.path.realpath(folder)
        if real in seen:
            logger.warning("%s: skipping a link to a folder that is already included", folder)
            return
        seen.add(real)
        files, folders = self._entries(root, path)
        hidden = dict.fromkeys(name for name in folders if not _is_visible(name))
        yield path, dict(sorted({**hidden, **files}.items()))
        for name in folders:
            if name not in hidden:
                yield from self.listed(root, os.path.join(path, name), seen)

    def below(self, folder: str) -> Iterator[str]:
        """Yield the files in a folder and below it, without hidden ones."""
        for path, names in self.listed(folder):
            yield from (self._joined(folder, os.path.join(path, name)) for name in names if _is_visible(name))

    def matched(self, pattern: str) -> list[tuple[str, bool]]:
        """Return the paths that a glob matches, and whether each is a folder; raises as `listed` does."""
        if is_web(pattern):
            raise InputError(
                "a web server lists no files",
                expected="the URLs of files, with braces as in part-{000..127}.parquet",
                found="a pattern" if has_magic(pattern) else "a folder, or a file that is not there",
                remedy="check the URL, and name the files",
                url=shown_url(pattern),
            )
        root, parts = _fixed_folder(pattern.rstrip("/"))
        found = dict(self._globbed(root, "", parts))
        is_chosen = {True} if pattern.endswith("/") else {True, False}
        return [(self._joined(root, path), is_folder) for path, is_folder in found.items() if is_folder in is_chosen]

    def _globbed(self, root: str, folder: str, parts: Sequence[str]) -> Iterator[tuple[str, bool]]:
        """Yield the relative paths that the parts of a pattern match below a folder, and whether each is a folder."""
        part, rest = parts[0], parts[1:]
        if part == "**":
            for path, _ in self.listed(root, folder):
                yield from self._globbed(root, path, rest or ["*"])
        elif rest and not glob.has_magic(part):
            yield from self._globbed(root, os.path.join(folder, part), rest)
        else:
            files, folders = self._entries(root, folder)
            for name, is_folder in sorted([*((each, False) for each in files), *((each, True) for each in folders)]):
                if fnmatch.fnmatchcase(name, part) and (part.startswith(".") or _is_visible(name)):
                    path = os.path.join(folder, name)
                    if not rest:
                        yield path, is_folder
                    elif is_folder:
                        yield from self._globbed(root, path, rest)


def _is_visible(name: str) -> bool:
    return not name.startswith(".")


def _fixed_folder(pattern: str) -> tuple[str, list[str]]:
    """Return the last folder before a pattern's wildcards, and the parts of the path after it."""
    scheme, separator, rest = pattern.rpartition("://")
    parts = rest.split("/")
    first = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    first = max(1, first) if scheme else first
    folder = "/".join(parts[:first]) or "/" * (parts[:first] == [""])
    return f"{scheme}{separator}{folder}", parts[first:]


def patterns(place: Files) -> list[str]:
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
