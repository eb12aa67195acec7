"""Lists folders of media files, with their sizes and other files. Opens no files.

Skipped files are counted by reason, with an example of each.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from wdsplit.arrays import Int64
from wdsplit.engines.local import in_order
from wdsplit.engines.watching import watched
from wdsplit.errors import InputError
from wdsplit.fields.infer import MEDIA_SUFFIXES
from wdsplit.storage.opening import is_remote, open_readable_storage
from wdsplit.storage.patterns import place_of
from wdsplit.tables.formats.registry import is_table
from wdsplit.tables.media_metadata import is_metadata
from wdsplit.tables.table import FILE_NAME
from wdsplit.texts import counted
from wdsplit.urls import shown_url

__all__ = ["Found", "find_below", "find_given"]

_FILES_AT_ONCE = 1024
_THREADS = 8
_HIDDEN, _OTHER, _EMPTY, _BROKEN = "hidden", "of other kinds", "empty", "not files, or broken links"


_Files = list[tuple[str, int | None]]
"""Names of files in a folder, and their sizes if these are known."""


@dataclass
class Found:
    """The files below a root folder.

    Attributes:
        root: The folder: a path or a URL.
        depth: How deep below it the folders of classes are; 0 for no classes.
        rows: Folders with media files, each with a table of the files' names, sizes and modification times.
        fields: How many files would go to each field of each kind of media.
        first: The first file of each kind of media.
        classes: The names of the folders at this depth, and how many media files are below each; None if it has
            only other files.
        tables: The tables.
        metadata: Metadata files about the media files beside them.
        empty: The media files that are empty.
        skipped: Reason to the number of files that were left out, and the first of them.
    """

    root: str
    depth: int = 1
    rows: list[tuple[str, pa.Table]] = field(default_factory=list)
    fields: Counter[tuple[str, str]] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    classes: dict[str, int | None] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    metadata: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    skipped: dict[str, tuple[int, str]] = field(default_factory=dict)

    def skip(self, reason: str, path: str) -> None:
        """Count a file that is left out."""
        count, first = self.skipped.get(reason, (0, path))
        self.skipped[reason] = (count + 1, first)

    def count_of(self, kind: str) -> str:
        """Return a text with the number of files of a kind, and the first of them."""
        count = sum(count for (each, _), count in self.fields.items() if each == kind)
        return f"{counted(count, f'{kind} file')}, such as {self.first[kind]}"

    def pattern_of(self, path: str) -> str:
        """Return a pattern for all files with the same suffix as a path."""
        return f"'{shown_url(self.root)}/**/*{os.path.splitext(path)[1]}'"

    def pieces(self, folder: str, names: Mapping[str, int | None]) -> Iterator[tuple[str, _Files]]:
        """Sort the names in a folder by kind, and yield the folder with its media files, in pieces."""
        media: _Files = []
        for name, size in names.items():
            path = f"{folder}/{name}" if folder else name
            if name.startswith("."):
                self.skip(_HIDDEN, path)
            elif os.path.splitext(name)[1].lower() in MEDIA_SUFFIXES:
                media.append((name, size))
            elif is_metadata(name):
                self.metadata.append(path)
            elif is_table(name):
                self.tables.append(path)
            else:
                self.skip(_OTHER, path)
        one = self.class_of(folder)
        before = self.classes.get(one, 0)
        # A folder with only other files is no class, but an empty one is.
        if one and (media or before):
            self.classes[one] = (before or 0) + len(media)
        elif one:
            self.classes[one] = None if names or before is None else 0
        for first in range(0, len(media), _FILES_AT_ONCE):
            yield folder, media[first : first + _FILES_AT_ONCE]

    def class_of(self, folder: str) -> str:
        """Return the class of the files in a folder, given its path below the root; empty if it is none."""
        parts = folder.split("/") if folder else []
        return parts[self.depth - 1] if 0 < self.depth <= len(parts) else ""

    def add(self, folder: str, files: _Files, stats: Int64) -> None:
        """Add the n files of a piece; stats are int64 of shape (n, 2): sizes (-1 for no file), modification times."""
        prefix = f"{folder}/" if folder else ""
        paths = [prefix + name for name, _ in files]
        for path, size in zip(paths, stats[:, 0].tolist(), strict=True):
            if size > 0:
                kind, field_name = MEDIA_SUFFIXES[os.path.splitext(path)[1].lower()]
                self.fields[kind, field_name] += 1
                self.first.setdefault(kind, path)
            else:
                self.skip(_BROKEN if size else _EMPTY, path)
                self.empty += [] if size else [path]
        try:
            names = pa.array(paths, pa.large_string())
        except UnicodeEncodeError as error:
            raise InputError(
                "a file name is not UTF-8",
                place=f"{shown_url(self.root)}, folder {folder!r}",
                found=repr(error.object),
                remedy="rename the file",
            ) from error
        rows = pa.table({FILE_NAME: names, "size": stats[:, 0], "modified_ns": stats[:, 1]})
        self.rows.append((folder, rows.filter(pa.array(stats[:, 0] > 0))))


def find_below(root: str, storage_options: Mapping[str, Any] | None, depth: int) -> Found:
    """List a folder, and get the sizes of its media files, several at once."""
    found, place = Found(root.rstrip("/") or root, depth), place_of(root, storage_options)
    pieces = (piece for folder, names in place.listed(root) for piece in found.pieces(folder, names))
    _add_all(found, pieces)
    found.rows.sort(key=lambda item: item[0].split("/"))
    return found


def find_given(paths: Sequence[str], storage_options: Mapping[str, Any] | None, class_depth: int) -> Found:
    """Get the sizes of single files; their root is their innermost common folder."""
    split = sorted(path.rpartition("/")[::2] for path in paths)
    parts = [folder.split("/") for folder, _ in (split[0], split[-1])]
    depth = next((n for n, pair in enumerate(zip(*parts, strict=False)) if pair[0] != pair[1]), min(map(len, parts)))
    found = Found("/".join(parts[0][:depth]) or (os.sep if paths[0].startswith(os.sep) else ""), class_depth)
    pieces: list[tuple[str, _Files]] = []
    for folder, files in groupby(split, key=lambda item: item[0]):
        names: dict[str, int | None] = dict.fromkeys(name for _, name in files)
        if is_remote(folder):
            sizes = open_readable_storage(folder, storage_options).sizes()
            names = {name: sizes.get(name, -1) for name in names}
        pieces += found.pieces("/".join(folder.split("/")[depth:]), names)
    _add_all(found, pieces)
    return found


def _add_all(found: Found, pieces: Iterable[tuple[str, _Files]]) -> None:
    """Get the sizes of files where they are not known, several at once, and add the files."""

    def sized(piece: tuple[str, _Files]) -> tuple[str, _Files, Int64]:
        folder, files = piece
        place = os.path.join(found.root, folder)
        stats = [_size_and_time(os.path.join(place, name)) if size is None else (size, 0) for name, size in files]
        return folder, files, np.array(stats, np.int64)

    listed = in_order(sized, pieces, _THREADS)
    for result in watched("listing files", listed, count=lambda result: len(result[1])):
        found.add(*result)


def _size_and_time(path: str) -> tuple[int, int]:
    """Return a file's size in bytes (-1 if there is no file) and its modification time in nanoseconds."""
    try:
        found = os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ELOOP):
            return -1, 0
        raise InputError(
            "a media file cannot be read",
            place=path,
            found=error.strerror or type(error).__name__,
            remedy="check the permissions of its folder",
            url=path,
        ) from error
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else (-1, 0)
