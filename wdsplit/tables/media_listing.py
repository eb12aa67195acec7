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


@dataclass(frozen=True)
class _Piece:
    """Some media files of one folder: its path below the root, their names, and their sizes if these are known."""

    folder: str
    names: list[str]
    sizes: list[int] | None = None


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

    def pieces(self, folder: str, names: Mapping[str, int | None]) -> Iterator[_Piece]:
        """Sort the names in a folder by kind, and yield the media files in pieces."""
        media = []
        for name in names:
            path = f"{folder}/{name}" if folder else name
            kind = MEDIA_SUFFIXES.get(os.path.splitext(name)[1].lower())
            if name.startswith("."):
                self.skip(_HIDDEN, path)
            elif kind is not None:
                media.append(name)
            elif is_metadata(name):
                self.metadata.append(path)
            elif is_table(name):
                self.tables.append(path)
            else:
                self.skip(_OTHER, path)
        if self.class_of(folder):
            self._count(self.class_of(folder), len(media), len(names))
        for first in range(0, len(media), _FILES_AT_ONCE):
            some = media[first : first + _FILES_AT_ONCE]
            known = [size for name in some if (size := names[name]) is not None]
            yield _Piece(folder, some, known if len(known) == len(some) else None)

    def class_of(self, folder: str) -> str:
        """Return the class of the files in a folder, given its path below the root; empty if it is none."""
        parts = folder.split("/") if folder else []
        return parts[self.depth - 1] if 0 < self.depth <= len(parts) else ""

    def _count(self, name: str, num_media: int, num_names: int) -> None:
        """Add a folder as a class. A folder with only other files is no class, but an empty one is."""
        before = self.classes.get(name, 0)
        if num_media or before:
            self.classes[name] = (before or 0) + num_media
        else:
            self.classes[name] = None if num_names or before is None else 0

    def add(self, piece: _Piece, sizes: Int64, modified_ns: Int64) -> None:
        """Add the n files of a piece; sizes (-1 for no file) and modified_ns are int64 of shape (n,)."""
        prefix = f"{piece.folder}/" if piece.folder else ""
        for name, size in zip(piece.names, sizes.tolist(), strict=True):
            if size > 0:
                kind, field_name = MEDIA_SUFFIXES[os.path.splitext(name)[1].lower()]
                self.fields[kind, field_name] += 1
                self.first.setdefault(kind, prefix + name)
            else:
                self.skip(_BROKEN if size else _EMPTY, prefix + name)
                self.empty += [] if size else [prefix + name]
        try:
            names = pa.array([prefix + name for name in piece.names], pa.large_string())
        except UnicodeEncodeError as error:
            raise InputError(
                "a file name is not UTF-8",
                place=f"{shown_url(self.root)}, folder {piece.folder!r}",
                found=repr(error.object),
                remedy="rename the file",
            ) from error
        rows = pa.table({FILE_NAME: names, "size": sizes, "modified_ns": modified_ns})
        self.rows.append((piece.folder, rows.filter(pa.array(sizes > 0))))


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
    pieces: list[_Piece] = []
    for folder, files in groupby(split, key=lambda item: item[0]):
        names: dict[str, int | None] = dict.fromkeys(name for _, name in files)
        if is_remote(folder):
            sizes = open_readable_storage(folder, storage_options).sizes()
            names = {name: sizes.get(name, -1) for name in names}
        pieces += found.pieces("/".join(folder.split("/")[depth:]), names)
    _add_all(found, pieces)
    return found


def _add_all(found: Found, pieces: Iterable[_Piece]) -> None:
    def sized(piece: _Piece) -> tuple[_Piece, Int64, Int64]:
        if piece.sizes is not None:
            return piece, np.array(piece.sizes), np.zeros(len(piece.sizes), np.int64)
        folder = os.path.join(found.root, piece.folder)
        stats = np.array([_size_and_time(os.path.join(folder, name)) for name in piece.names], np.int64)
        return piece, stats[:, 0], stats[:, 1]

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
