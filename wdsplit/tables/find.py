"""Finds the input files of paths, folders, globs and brace expressions.

Opens no files: the name alone decides whether a file is a table, an image or audio.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from wdsplit.errors import InputError
from wdsplit.shards.annotations import ANNOTATIONS
from wdsplit.shards.manifest import HEADER_NAME, SHARDS_NAME
from wdsplit.shards.sample_tables import samples_path
from wdsplit.storage.opening import is_remote
from wdsplit.storage.patterns import Files, patterns
from wdsplit.tables.formats.registry import FOLDER_SUFFIXES, is_compressed, is_media
from wdsplit.urls import shown_url

__all__ = ["SPLIT", "find_inputs"]

logger = logging.getLogger(__name__)

SPLIT = re.compile(r"(train|test|validation|valid|val|dev|eval)(?![A-Za-z0-9])", re.IGNORECASE)
"""Matches the start of the names of files and folders with a split, as in Hugging Face datasets."""

_OF_A_LOG = re.compile(r"/_delta_log/|/metadata/v?\d+[^/]*\.metadata\.json$")
"""Matches the log of a Delta table, and the metadata of an Iceberg table."""
_BESIDE_TARS = samples_path(".tar")


def find_inputs(arguments: Sequence[str], storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Return the files that paths, folders, globs and brace expressions match, in order.

    A folder yields all tables below it, sorted, which must have one format; or itself if images, audio or videos are
    below it. A glob yields its matches, sorted.

    Raises:
        InputError: An argument matches nothing, or a file is given twice.
    """
    places = [Files(argument, storage_options) for argument in arguments]
    paths = [path for place in places for pattern in patterns(place) for path in _matches(place, pattern)]
    if not paths:
        raise InputError("no input given", expected="at least one file, folder, glob or brace expression")
    seen: set[str] = set()
    for path in paths:
        real = path if is_remote(path) else os.path.realpath(path)
        if real in seen:
            raise InputError(
                "duplicate input",
                remedy="name each file once: its rows would be written twice",
                url=shown_url(path),
            )
        seen.add(real)
    return paths


def _matches(place: Files, pattern: str) -> list[str]:
    if place.is_file(pattern):
        return [pattern]
    if place.is_folder(pattern):
        found = _inputs_below(place, pattern)
        expected = f"a folder with images or audio, or files that end in one of {', '.join(FOLDER_SUFFIXES)}"
    else:
        matched = sorted(place.matched(pattern))
        found = [
            path for match, is_folder in matched for path in (_inputs_below(place, match) if is_folder else [match])
        ]
        expected = "a file, a folder, or a pattern that matches files"
    if not found:
        raise InputError("input not found", expected=expected, remedy="check the path", url=shown_url(pattern))
    return found


def _inputs_below(place: Files, folder: str) -> list[str]:
    """Return the tables in and below a folder, or the folder itself if it has media files."""
    paths = []
    for path in place.below(folder):
        if is_media(path):
            return [folder]
        paths.append(path)
    return _tables_below(folder, paths)


def _tables_below(folder: str, paths: Sequence[str]) -> list[str]:
    """Return the tables among the files below a folder, sorted; they must have one format."""
    place = shown_url(folder)
    shown = {path: shown_url(path) for path in sorted(paths)}
    datasets = {os.path.dirname(each) for each in shown.values() if os.path.basename(each) == HEADER_NAME}
    manifests = {os.path.join(dataset, SHARDS_NAME) for dataset in datasets}
    annotated = tuple(os.path.join(dataset, ANNOTATIONS.folder, "") for dataset in datasets)
    found: dict[str, list[str]] = {}
    for path, each in shown.items():
        if _OF_A_LOG.search(each):
            raise InputError(
                "a folder is that of a Delta or Iceberg table, whose files also have rows that were deleted",
                expected=f"delta+{place}, or iceberg+CATALOG/NAMESPACE.TABLE",
                remedy="name the table so; to read its deleted rows too, name its parquet files",
                url=each,
            )
        if is_compressed(each):
            raise InputError(
                "a folder contains a compressed table",
                expected="tables that are not compressed as a whole, because rows are read from the middle of a file",
                remedy="decompress it, move it away, or select the files with a pattern",
                url=each,
            )
        name = FOLDER_SUFFIXES.get(os.path.splitext(each)[1].lower())
        # In a wdsplit dataset, shards.parquet, the tables beside tars and annotations are not input tables.
        is_part = each in manifests or each.endswith(_BESIDE_TARS) or each.startswith(annotated)
        if name is not None and not is_part:
            found.setdefault(name, []).append(path)
    _warn_of_splits(place, [os.path.relpath(shown[path], place) for tables in found.values() for path in tables])
    if len(found) > 1:
        kinds = sorted(found.items())
        raise InputError(
            "a folder contains tables of several formats",
            expected="one format",
            found=", ".join(f"{len(tables)} of {name}, such as {shown[tables[0]]}" for name, tables in kinds),
            remedy=f"select one format, as in '{os.path.join(place, '*.' + min(found))}'",
            url=place,
        )
    return next(iter(found.values()), [])


def _warn_of_splits(folder: str, paths: Sequence[str]) -> None:
    """Warn if training and test data seem to be mixed: all of them become one dataset."""
    splits = {match[1].lower() for path in paths for part in path.split(os.sep) if (match := SPLIT.match(part))}
    if len(splits) > 1:
        logger.warning(
            "%s: tables of several splits become one dataset: %s; select one split, as in '%s'",
            folder,
            ", ".join(sorted(splits)),
            os.path.join(folder, "train*"),
        )
