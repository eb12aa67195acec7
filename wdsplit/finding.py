"""Finding the input: the files that paths, folders, globs and brace expressions name.

Nothing is opened here; that a file is a table is told by its name alone.
"""

from __future__ import annotations

import glob
import logging
import os
from collections.abc import Sequence

import braceexpand

from wdsplit.errors import InputError
from wdsplit.formats import FOLDER_SUFFIXES, is_compressed
from wdsplit.manifest import HEADER_NAME, SHARDS_NAME
from wdsplit.storage import local_path

__all__ = ["find_inputs"]

logger = logging.getLogger(__name__)


def find_inputs(arguments: Sequence[str]) -> list[str]:
    """Return the files that paths, folders, globs and brace expressions name, in order.

    A folder stands for all tables of one format below it, sorted; a glob for what it matches, sorted.

    Raises:
        InputError: An argument names nothing, or a file is named twice.
    """
    paths = [path for argument in arguments for pattern in _patterns(argument) for path in _matches(pattern)]
    if not paths:
        raise InputError("no input is given", expected="at least one file, folder, glob or brace expression")
    seen: set[str] = set()
    for path in paths:
        real = os.path.realpath(path)
        if real in seen:
            raise InputError(
                "an input is named twice",
                place=path,
                remedy="name each file once: its rows would be written twice",
                url=path,
            )
        seen.add(real)
    return paths


def _patterns(argument: str) -> list[str]:
    """Return what a brace expression stands for; a file whose own name has braces stands for itself."""
    path = local_path(argument)
    if "{" not in path or os.path.exists(path):
        return [path]
    try:
        return list(braceexpand.braceexpand(path))
    except ValueError as error:
        raise InputError(
            "braces do not close",
            place=path,
            expected="as in part-{000..127}.parquet",
            remedy="check the path",
            url=path,
        ) from error


def _matches(pattern: str) -> list[str]:
    if os.path.isfile(pattern):
        return [pattern]
    if os.path.isdir(pattern):
        found = _tables_below(pattern)
        expected = f"a folder with files that end in one of {', '.join(FOLDER_SUFFIXES)}"
    else:
        matched = sorted(glob.glob(pattern, recursive=True))
        found = [path for match in matched for path in (_tables_below(match) if os.path.isdir(match) else [match])]
        expected = "a file, a folder, or a pattern that matches files"
    if not found:
        raise InputError(
            "there is no such input", place=pattern, expected=expected, remedy="check the path", url=pattern
        )
    return found


def _tables_below(folder: str) -> list[str]:
    """Return the tables in a folder and below it, sorted; they must be of one format."""
    found: dict[str, list[str]] = {}
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "**", "*"), recursive=True)):
        name = FOLDER_SUFFIXES.get(os.path.splitext(path)[1].lower())
        if is_compressed(path) and os.path.isfile(path):
            raise InputError(
                "a folder holds a compressed table",
                place=path,
                expected="tables that are not compressed as a whole: rows are read from the middle of a file",
                remedy="decompress it, move it away, or name the files that are meant by a pattern",
                url=path,
            )
        if name is not None and os.path.isfile(path) and not _is_manifest(path):
            found.setdefault(name, []).append(path)
    _warn_of_partitions(folder, [path for paths in found.values() for path in paths])
    if len(found) > 1:
        raise InputError(
            "a folder holds tables of several formats",
            place=folder,
            expected="one format",
            found=", ".join(f"{len(paths)} of {name}, such as {paths[0]}" for name, paths in sorted(found.items())),
            remedy=f"say which are meant, as in '{os.path.join(folder, '*.' + min(found))}'",
            url=folder,
        )
    return next(iter(found.values()), [])


def _is_manifest(path: str) -> bool:
    """Tell whether a file is the list of the shards of one of our own datasets, which is no table to convert."""
    folder, name = os.path.split(path)
    return name == SHARDS_NAME and os.path.exists(os.path.join(folder, HEADER_NAME))


def _warn_of_partitions(folder: str, paths: Sequence[str]) -> None:
    parts = [part for path in paths for part in os.path.relpath(path, folder).split(os.sep)[:-1]]
    columns = sorted({part.partition("=")[0] for part in parts if "=" in part})
    if columns:
        logger.warning("%s: what folders say is not read as columns: %s", folder, ", ".join(columns))
