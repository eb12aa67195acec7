"""Finding the input: the files that paths, folders, globs and brace expressions name.

Nothing is opened here; a file counts as a table by its name alone.
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
from wdsplit.shards.manifest import HEADER_NAME, SHARDS_NAME
from wdsplit.storage.fsspec_storage import IsFolderError
from wdsplit.storage.interface import ReadableStorage
from wdsplit.storage.local import local_path
from wdsplit.storage.opening import is_remote, open_object, open_readable_storage
from wdsplit.tables.formats.registry import FOLDER_SUFFIXES, is_compressed
from wdsplit.urls import joined_url, shown_url

__all__ = ["find_inputs"]

logger = logging.getLogger(__name__)

_SPLIT = re.compile(r"(train|test|validation|valid|val|dev|eval)(?![A-Za-z0-9])", re.IGNORECASE)
"""How files and folders begin that hold a split, as Hugging Face's do."""
_MAX_PATHS = 1_000_000
"""Paths that a brace expression may name."""
_INTEGERS = re.compile(r"\{(-?[0-9]+)\.\.(-?[0-9]+)(?:\.\.(-?[0-9]+))?\}")


def find_inputs(arguments: Sequence[str], storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Return the files that paths, folders, globs and brace expressions name, in order.

    A folder gives all tables of one format below it, sorted; a glob what it matches, sorted.

    Args:
        arguments: Paths or URLs.
        storage_options: How to reach remote stores.

    Raises:
        InputError: An argument names nothing, or a file is named twice.
    """
    places = [_place(argument, storage_options) for argument in arguments]
    paths = [path for place in places for pattern in _patterns(place) for path in _matches(place, pattern)]
    if not paths:
        raise InputError("no input is given", expected="at least one file, folder, glob or brace expression")
    seen: set[str] = set()
    for path in paths:
        real = path if is_remote(path) else os.path.realpath(path)
        if real in seen:
            raise InputError(
                "an input is named twice",
                place=shown_url(path),
                remedy="name each file once: its rows would be written twice",
                url=shown_url(path),
            )
        seen.add(real)
    return paths


class _Disk:
    """The local disk."""

    def __init__(self, argument: str) -> None:
        self.pattern = local_path(argument)

    def is_file(self, path: str) -> bool:
        return os.path.isfile(path)

    def is_folder(self, path: str) -> bool:
        return os.path.isdir(path)

    def matched(self, pattern: str) -> list[tuple[str, bool]]:
        """Return what a glob matches, and whether each is a folder."""
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

    def below(self, folder: str) -> list[str]:
        """Return the files in a folder and below it; hidden ones are left out."""
        found = (os.path.join(place, name) for place, names in _walked(folder) for name in names)
        return [path for path in found if os.path.isfile(path)]


def _walked(root: str) -> Iterator[tuple[str, list[str]]]:
    """Give a folder and those below it, and the names of their files; hidden ones are left out.

    Links are followed, but each folder is given once: links that lead back into themselves would never end.
    """
    seen: set[str] = set()
    for folder, folders, files in os.walk(root or os.curdir, followlinks=True):
        real = os.path.realpath(folder)
        if real in seen:
            logger.warning("%s: a link to a folder that is read already is left out", folder)
            folders.clear()
            continue
        seen.add(real)
        visible = {name for name in folders if not name.startswith(".")}
        links = {name for name in visible if os.path.islink(os.path.join(folder, name))}
        folders[:] = [*sorted(visible - links), *sorted(links)]
        yield os.path.relpath(folder) if not root else folder, [name for name in files if not name.startswith(".")]


class _Store:
    """A remote store: paths are URLs."""

    def __init__(self, argument: str, options: Mapping[str, Any] | None) -> None:
        self.pattern = argument
        self._options = options

    def is_file(self, path: str) -> bool:
        if "/" not in shown_url(path).partition("://")[2] or shown_url(path).endswith("/"):
            return False
        try:
            return open_object(path, self._options).size is not None
        except (DatasetNotFoundError, IsFolderError):
            return False

    def is_folder(self, path: str) -> bool:
        return not self.is_file(path) and bool(open_readable_storage(path, self._options).list())

    def matched(self, pattern: str) -> list[tuple[str, bool]]:
        """Return what a glob matches, as `glob.glob` does, and whether each is a folder."""
        fixed, parts = _fixed_folder(pattern)
        storage = open_readable_storage(fixed, self._options)
        return [(joined_url(fixed, path), is_folder) for path, is_folder in _globbed(storage, "", parts)]

    def below(self, folder: str) -> list[str]:
        """Return the files in a folder and below it; hidden ones are left out."""
        storage = open_readable_storage(folder, self._options)
        return [joined_url(folder, path) for path in _files_below(storage, "")]


def _place(argument: str, storage_options: Mapping[str, Any] | None) -> _Disk | _Store:
    return _Store(argument, storage_options) if is_remote(argument) else _Disk(argument)


def _fixed_folder(pattern: str) -> tuple[str, list[str]]:
    """Return the URL of the folder below which a pattern varies, and the parts of its path from there on."""
    scheme, _, rest = pattern.partition("://")
    is_web = scheme.lower() in ("http", "https")
    rest, mark, query = rest.partition("?") if is_web else (rest, "", "")
    parts = rest.split("/")
    first = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    first = max(1, first)
    return f"{scheme}://{'/'.join(parts[:first])}{mark}{query}", parts[first:]


def _globbed(storage: ReadableStorage, folder: str, parts: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Give the paths that match the parts of a pattern below a folder, and whether each is a folder."""
    part, rest = parts[0], parts[1:]
    if part == "**" and rest:
        yield from _globbed(storage, folder, rest)
        for name in _names(storage, folder)[1]:
            if not name.startswith("."):
                yield from _globbed(storage, f"{folder}{name}/", parts)
    elif rest and not glob.has_magic(part):
        yield from _globbed(storage, f"{folder}{part}/", rest)
    else:
        files, folders = _names(storage, folder)
        for is_folder, names in enumerate((files, folders)):
            names = [name for name in fnmatch.filter(names, part) if part.startswith(".") or not name.startswith(".")]
            for name in names:
                if not rest:
                    yield f"{folder}{name}", bool(is_folder)
                elif is_folder:
                    yield from _globbed(storage, f"{folder}{name}/", rest)


def _files_below(storage: ReadableStorage, folder: str) -> Iterator[str]:
    files, folders = _names(storage, folder)
    yield from (f"{folder}{name}" for name in files if not name.startswith("."))
    for name in folders:
        if not name.startswith("."):
            yield from _files_below(storage, f"{folder}{name}/")


def _names(storage: ReadableStorage, folder: str) -> tuple[list[str], list[str]]:
    """Return the names of the files and of the folders in a folder."""
    files = storage.sizes(folder.rstrip("/"))
    return sorted(files), [name for name in storage.list(folder.rstrip("/")) if name not in files]


def _patterns(place: _Disk | _Store) -> list[str]:
    """Return the paths of a brace expression; a file whose own name has braces is itself."""
    path = place.pattern
    if "{" not in path or place.is_file(path) or place.is_folder(path):
        return [path]
    try:
        ranges = ((int(first), int(last), abs(int(step or 1)) or 1) for first, last, step in _INTEGERS.findall(path))
        if sum(abs(last - first) // step for first, last, step in ranges) < _MAX_PATHS:  # it makes lists of them
            paths = list(islice(braceexpand.braceexpand(path), _MAX_PATHS + 1))
            if len(paths) <= _MAX_PATHS:
                return paths
    except ValueError as error:
        raise InputError(
            "braces do not close",
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


def _matches(place: _Disk | _Store, pattern: str) -> list[str]:
    if place.is_file(pattern):
        return [pattern]
    if place.is_folder(pattern):
        found = _tables_below(place, pattern)
        expected = f"a folder with files that end in one of {', '.join(FOLDER_SUFFIXES)}"
    else:
        matched = sorted(place.matched(pattern))
        found = [
            path for match, is_folder in matched for path in (_tables_below(place, match) if is_folder else [match])
        ]
        expected = "a file, a folder, or a pattern that matches files"
    if not found:
        raise InputError(
            "there is no such input",
            place=shown_url(pattern),
            expected=expected,
            remedy="check the path",
            url=shown_url(pattern),
        )
    return found


def _tables_below(place: _Disk | _Store, folder: str) -> list[str]:
    """Return the tables in a folder and below it, sorted; they must be of one format."""
    found: dict[str, list[str]] = {}
    paths = place.below(folder)
    headers = {shown_url(path) for path in paths if os.path.basename(shown_url(path)) == HEADER_NAME}
    manifests = {os.path.join(os.path.dirname(header), SHARDS_NAME) for header in headers}
    for path in sorted(paths):
        name = FOLDER_SUFFIXES.get(os.path.splitext(shown_url(path))[1].lower())
        if is_compressed(shown_url(path)):
            raise InputError(
                "a folder holds a compressed table",
                place=shown_url(path),
                expected="tables that are not compressed as a whole: rows are read from the middle of a file",
                remedy="decompress it, move it away, or name the files that are meant by a pattern",
                url=shown_url(path),
            )
        if name is not None and shown_url(path) not in manifests:  # the list of shards of a dataset of ours is no table
            found.setdefault(name, []).append(path)
    tables = [os.path.relpath(shown_url(path), shown_url(folder)) for paths in found.values() for path in paths]
    _warn_of_partitions(shown_url(folder), tables)
    _warn_of_splits(shown_url(folder), tables)
    if len(found) > 1:
        kinds = sorted(found.items())
        raise InputError(
            "a folder holds tables of several formats",
            place=shown_url(folder),
            expected="one format",
            found=", ".join(f"{len(paths)} of {name}, such as {shown_url(paths[0])}" for name, paths in kinds),
            remedy=f"say which are meant, as in '{os.path.join(shown_url(folder), '*.' + min(found))}'",
            url=shown_url(folder),
        )
    return next(iter(found.values()), [])


def _warn_of_partitions(folder: str, paths: Sequence[str]) -> None:
    parts = [part for path in paths for part in path.split(os.sep)[:-1]]
    columns = sorted({part.partition("=")[0] for part in parts if "=" in part})
    if columns:
        logger.warning("%s: what folders say is not read as columns: %s", folder, ", ".join(columns))


def _warn_of_splits(folder: str, paths: Sequence[str]) -> None:
    """Warn of what looks like data to train on beside data to test with: all of it becomes one dataset."""
    splits = {match[1].lower() for path in paths for part in path.split(os.sep) if (match := _SPLIT.match(part))}
    if len(splits) > 1:
        logger.warning(
            "%s: tables of several splits become one dataset: %s; name those that are meant, as in '%s'",
            folder,
            ", ".join(sorted(splits)),
            os.path.join(folder, "train*"),
        )
