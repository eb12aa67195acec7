"""Folders of images, audio or videos as a table: a row for each file, with its path and class.

Classes are the folders directly below the given one, as in torchvision's ImageFolder. Lists files and their sizes, but
opens only metadata files such as `metadata.csv`.
"""

from __future__ import annotations

import dataclasses
import errno
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from wdsplit.engines.local import in_order
from wdsplit.engines.watching import watched
from wdsplit.errors import InputError
from wdsplit.fields.infer import MEDIA_SUFFIXES, class_names
from wdsplit.storage.opening import is_remote, open_object, open_readable_storage
from wdsplit.storage.patterns import Files
from wdsplit.tables.find import SPLIT
from wdsplit.tables.formats.media import GROUP_ROWS, LABEL, common_schema, field_of_media, media_schema
from wdsplit.tables.formats.registry import is_media, is_table
from wdsplit.tables.media_metadata import is_metadata, read_metadata
from wdsplit.tables.read import read_rows
from wdsplit.tables.table import FILE_NAME, InputFile, Remote, Table
from wdsplit.texts import counted
from wdsplit.urls import is_web, shown_url

__all__ = ["class_counts", "is_media_input", "open_media"]

_FILES_AT_ONCE = 1024
_THREADS = 8
_HIDDEN, _OTHER, _EMPTY, _BROKEN = "hidden", "of other kinds", "empty", "not files, or broken links"
_TABLE, _METADATA = "table", "metadata"
_KINDS = {field: kind for kind, field in MEDIA_SUFFIXES.values()}
"""Field to the kind of media."""

_Names = tuple[str, Mapping[str, int | None]]
"""A folder below the root, and the names in it with their sizes, if these are known."""


@dataclass(frozen=True)
class _Listing:
    """The names below a folder.

    Attributes:
        root: The folder: a path or a URL.
        pieces: Folders below it, sorted, each with a table of names in it: `file_name`, its path below the root; `what`
            it is, a field of media, a table, metadata, or a reason to leave it out; `size` and `modified_ns`.
        known: The classes of the dataset that they are appended to, by their numbers.
    """

    root: str
    pieces: list[tuple[str, pa.Table]]
    known: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The folder, for messages."""
        return shown_url(self.root)

    @cached_property
    def names(self) -> pa.Table:
        """The names of all folders, in order."""
        return pa.concat_tables([names for _, names in self.pieces])

    @cached_property
    def media(self) -> pa.Table:
        """The media files, without empty ones."""
        return self.names.filter(_is_one_of(self.names, _KINDS)).combine_chunks()

    def paths(self, *whats: str) -> pa.LargeStringArray:
        """Return the paths of some names, by what they are."""
        return self.names[FILE_NAME].filter(_is_one_of(self.names, whats)).combine_chunks()

    @cached_property
    def fields(self) -> Counter[str]:
        """How many media files go to each field."""
        return Counter({each["values"]: each["counts"] for each in self.media["what"].value_counts().to_pylist()})

    @cached_property
    def kinds(self) -> dict[str, pa.LargeStringArray]:
        """The kinds of media, each with the paths of its files."""
        kinds = dict.fromkeys(_KINDS.values())
        found = {kind: self.paths(*(field for field in _KINDS if _KINDS[field] == kind)) for kind in kinds}
        return {kind: paths for kind, paths in found.items() if len(paths)}

    def count_of(self, kind: str) -> str:
        """Return a text with the number of files of a kind, and the first of them."""
        paths = self.kinds[kind]
        return f"{counted(len(paths), f'{kind} file')}, such as {paths[0]}"

    def pattern_of(self, path: str) -> str:
        """Return a pattern for all files with the same suffix as a path."""
        return f"'{self.place}/**/*{os.path.splitext(path)[1]}'"

    @cached_property
    def classes(self) -> dict[str, int]:
        """The known classes, then the folders of others, sorted, and how many media files are below each.

        An empty folder is a class, but a folder of other files only is none.
        """
        media, others = Counter[str](), Counter[str]()
        for folder, names in self.pieces:
            num_media = pc.sum(_is_one_of(names, [*_KINDS, _EMPTY, _BROKEN])).as_py() or 0
            media[folder.partition("/")[0]] += num_media
            others[folder.partition("/")[0]] += len(names) - num_media
        found = [name for name in sorted(media) if name and (media[name] or not others[name])]
        return {name: media[name] for name in (*self.known, *found)}

    @cached_property
    def filled(self) -> list[str]:
        """The classes with media files."""
        return [name for name, count in self.classes.items() if count]

    @cached_property
    def is_level_above(self) -> bool:
        """Whether all files are further below one folder, which is no class."""
        folders = map(os.path.dirname, self.media[FILE_NAME].to_pylist())
        return len(self.filled) == 1 and self.filled[0] not in self.known and all("/" in each for each in folders)

    def labels(self) -> pa.DictionaryArray:
        """Return the class of each media file; null where it is in none."""
        folders = pc.struct_field(pc.extract_regex(self.media[FILE_NAME], "^(?P<folder>[^/]+)/"), "folder")
        classes = pa.array(list(self.classes), pa.large_string())
        return pa.DictionaryArray.from_arrays(pc.index_in(folders, classes).combine_chunks(), classes)


def _is_one_of(names: pa.Table, whats: Iterable[str]) -> pa.ChunkedArray:
    return pc.is_in(names["what"], pa.array([*whats], pa.string()))


def is_media_input(path: str, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Return whether a path from `find_inputs` is a media file or a folder of them, not a table."""
    return is_media(path) or (not is_table(path) and Files(path, storage_options).is_folder(path))


def open_media(
    paths: Sequence[str], storage_options: Mapping[str, Any] | None = None, known: tuple[str, ...] = ()
) -> Table:
    """List folders of media files, and single files; these count as one folder, their innermost common one.

    `known` are the classes of the dataset that they are appended to; a folder of another name is a new class.

    Raises:
        InputError: A folder cannot be read, or is ambiguous; or an input is a table.
    """
    _refuse_tables(paths, storage_options)
    _refuse_overlaps(paths)
    files = [path for path in paths if is_media(path)]
    notes: list[str] = []
    found = [_list_below(path, storage_options) for path in paths if not is_media(path)]
    for each in found:
        _refuse_ambiguous(each)
    if files:
        found.append(_list_given(files, storage_options))
    opened = [_open(dataclasses.replace(each, known=known), storage_options, notes) for each in found]
    if len(opened) > 1 and not any(LABEL in schema.names for _, schema in opened):
        raise InputError(
            "several folders, none of which has folders of classes",
            place=f"{opened[0][0].path}, ...",
            expected="folders that contain a folder for each class",
            found=f"{len(opened):,} folders without classes",
            remedy="if they are the classes, give the folder above them; if there are no classes, name the files by a "
            "pattern, as in 'photos/*/*.jpg', and write them alone: --columns image",
        )
    schema = common_schema({file.path: schema for file, schema in opened}, known)
    counts, name = sum((each.fields for each in found), Counter[str]()), field_of_media(schema)[1]
    others = [f"{counts[field]:,} {field}" for field in sorted(counts, key=lambda each: (-counts[each], each))]
    if len(others) > 1:
        others.remove(f"{counts[name]:,} {name}")
        notes.append(f"files of other formats are written to the field {name!r}, too: {', '.join(others)}")
    return Table(tuple(file for file, _ in opened), schema, notes=tuple(notes))


def class_counts(table: Table) -> dict[str, int]:
    """Return the number of selected rows of each class; empty if folders give no classes."""
    names = class_names(table.schema).get(LABEL)
    if not (names and table.names_files):
        return {}
    counts = np.zeros(len(names), np.int64)
    for rows in read_rows(table, 0, table.num_rows, [LABEL]):
        counts += np.bincount(rows.columns[LABEL].to_numpy(), minlength=len(names))
    return dict(zip(names, counts.tolist(), strict=True))


def _refuse_tables(paths: Sequence[str], storage_options: Mapping[str, Any] | None) -> None:
    tables = [path for path in paths if not is_media_input(path, storage_options)]
    if tables:
        raise InputError(
            "the inputs mix tables and media files",
            expected="tables, or folders and files of images, audio or videos",
            found=f"{counted(len(tables), 'table')}, such as {shown_url(tables[0])}, and "
            f"{counted(len(paths) - len(tables), 'other')}",
            remedy="convert them as two datasets; a table beside images is used if it is named metadata.csv",
        )


def _refuse_overlaps(paths: Sequence[str]) -> None:
    """Refuse an input inside another one: it would be written twice."""
    if all(map(is_media, paths)):
        return
    real = {path: path.rstrip("/") if is_remote(path) else os.path.realpath(path) for path in paths}
    folder = ""
    for path in sorted(paths, key=lambda path: f"{real[path]}/"):  # what is in a folder comes right after it
        if folder and real[path].startswith(f"{real[folder]}/"):
            raise InputError(
                "an input is inside another one",
                expected=f"an input outside {shown_url(folder)}",
                remedy="name each file once: it would be written twice",
                url=shown_url(path),
            )
        folder = folder if is_media(path) else path


def _refuse_ambiguous(found: _Listing) -> None:
    """Refuse a folder that also contains tables, or has splits instead of classes."""
    tables = found.paths(_TABLE).to_pylist()
    if tables:
        paths = (tables[0], *(str(paths[0]) for paths in found.kinds.values()))
        raise InputError(
            "a folder contains tables and media files",
            expected="one or the other; or a table metadata.csv, metadata.jsonl or metadata.parquet about the files",
            found="; ".join(
                [f"{counted(len(tables), 'table')}, such as {paths[0]}", *map(found.count_of, found.kinds)]
            ),
            remedy=f"select one kind: {' or '.join(map(found.pattern_of, paths))}; or rename the table",
            url=found.place,
        )
    if found.filled and all(SPLIT.fullmatch(name) for name in found.filled):
        command = f"wdsplit convert {found.place}/{found.filled[0]} OUTPUT"
        raise InputError(
            "a folder contains splits, not classes",
            expected="folders that are named after classes",
            found=", ".join(found.filled),
            remedy=f"convert each split to a dataset of its own, as in `{command}`",
            url=found.place,
        )


def _open(found: _Listing, storage_options: Mapping[str, Any] | None, notes: list[str]) -> tuple[InputFile, pa.Schema]:
    """Return a folder as one input file, and the columns of its rows; add notes for the user."""
    root = found.place
    if not found.kinds:
        raise InputError("a folder contains no media files, or only empty ones", remedy="check the path", url=root)
    if len(found.kinds) > 1:
        patterns = (found.pattern_of(str(paths[0])) for paths in found.kinds.values())
        raise InputError(
            "a folder contains several kinds of media",
            expected="images, or audio, or videos",
            found="; ".join(map(found.count_of, found.kinds)),
            remedy=f"select one kind: {' or '.join(patterns)}",
            url=root,
        )
    ((kind, names),) = found.kinds.items()
    sizes, times = (found.media[name].chunk(0) for name in ("size", "modified_ns"))
    columns = {kind: pa.StructArray.from_arrays([sizes, times], ["size", "modified_ns"]), FILE_NAME: names}
    metadata, footers = read_metadata(
        names, found.paths(_EMPTY), found.root, found.paths(_METADATA).to_pylist(), storage_options, taken=kind
    )
    classes = [] if LABEL in metadata else _classes(found, bool(metadata))
    if classes:
        columns[LABEL] = found.labels()
    members, count = pa.table(columns | metadata), len(names)
    digest = xxhash.xxh3_128(orjson.dumps([classes, footers]))
    for values in (pc.binary_length(names), sizes):
        digest.update(np.asarray(values).astype("<i8").tobytes())
    digest.update(names.buffers()[2])
    file = InputFile(
        root,
        pc.sum(sizes).as_py(),
        count,
        tuple(min(GROUP_ROWS, count - first) for first in range(0, count, GROUP_ROWS)),
        members.nbytes + count * len(root),
        digest.hexdigest(),
        xxhash.xxh3_64_intdigest(times.to_numpy().tobytes()),
        "media",
        remote=Remote(found.root, storage_options) if is_remote(found.root) else None,
        members=members,
    )
    notes += _notes(found)
    num_folders = len(found.filled)
    if LABEL in members.schema.names and not classes and num_folders > 1:
        notes.append(f"{root}: the column {LABEL!r} of the metadata replaces the classes of {num_folders:,} folders")
    name = min(found.fields, key=lambda field: (-found.fields[field], field))
    return file, media_schema(kind, name, classes, members.schema)


def _notes(found: _Listing) -> list[str]:
    """Return notes on files that are left out, and on classes."""
    root, notes = found.place, []
    skipped = {reason: found.paths(reason) for reason in sorted((_HIDDEN, _OTHER, _EMPTY, _BROKEN))}
    texts = [f"{len(paths):,} {reason}, such as {paths[0]}" for reason, paths in skipped.items() if len(paths)]
    if texts:
        notes.append(f"{root}: left out: {'; '.join(texts)}")
    if found.is_level_above:
        notes.append(f"{root}: no classes, as all files are below one folder: did you mean {root}/{found.filled[0]}?")
    if 1 < len(found.filled) < len(found.classes) and not found.known:  # not each append has a file of each class
        empty = ", ".join(name for name in found.classes if name not in found.filled)
        notes.append(f"{root}: classes without files, which keep their numbers: {empty}")
    return notes


def _classes(found: _Listing, has_metadata: bool) -> list[str]:
    """Return the folders that are classes, sorted; empty for none."""
    outside = found.media[FILE_NAME].filter(found.labels().is_null())
    is_none = len(found.filled) < 2 - bool(found.known) or found.is_level_above
    if is_none or (len(outside) and has_metadata):
        return []
    if len(outside):
        raise InputError(
            "some files are not in a class folder",
            expected="all files in class folders, or none",
            found=f"{len(outside):,} files beside {len(found.filled):,} folders, such as {outside[0]}",
            remedy=f"move them, or leave them out by a pattern such as '{found.place}/*/*.jpg'",
            url=found.place,
        )
    return list(found.classes)


# Listing


def _list_below(root: str, storage_options: Mapping[str, Any] | None) -> _Listing:
    """List a folder, and get the sizes of its media files."""
    inside = root.rstrip("/") or root
    pieces = _described(inside, Files(root, storage_options).listed(root))
    return _Listing(inside, sorted(pieces, key=lambda piece: piece[0].split("/")))


def _list_given(paths: Sequence[str], storage_options: Mapping[str, Any] | None) -> _Listing:
    """Get the sizes of single files; their root is their innermost common folder."""
    split = sorted(path.rpartition("/")[::2] for path in paths)
    common = os.path.commonprefix([folder.split("/") for folder, _ in split])  # noqa: RUF071 (of parts)
    root = "/".join(common) or (os.sep if paths[0].startswith(os.sep) else "")
    folders: list[_Names] = []
    for folder, files in groupby(split, key=lambda item: item[0]):
        names: dict[str, int | None] = dict.fromkeys(name for _, name in files)
        if is_web(folder):  # it lists no files
            opened = [open_object(f"{folder}/{name}", storage_options) for name in names]
            names = dict(zip(names, in_order(lambda file: file.size, opened, _THREADS), strict=True))
        elif is_remote(folder):
            sizes = open_readable_storage(folder, storage_options).sizes()
            names = {name: sizes.get(name, -1) for name in names}
        folders.append(("/".join(folder.split("/")[len(common) :]), names))
    return _Listing(root, list(_described(root, folders)))


def _described(root: str, folders: Iterable[_Names]) -> Iterator[tuple[str, pa.Table]]:
    """Yield folders with a table of their names, in pieces; sizes that are not known are read, several at once."""

    def described(piece: tuple[str, list[tuple[str, int | None]]]) -> tuple[str, pa.Table]:
        folder, names = piece
        paths = [f"{folder}/{name}" if folder else name for name, _ in names]
        found = [_what(os.path.join(root, path), size) for path, (_, size) in zip(paths, names, strict=True)]
        whats, sizes, times = zip(*found, strict=True) if found else ((), (), ())
        try:
            errors = ["strict" if what in _KINDS else "backslashreplace" for what in whats]
            texts = [path.encode("utf-8", on_error) for path, on_error in zip(paths, errors, strict=True)]
        except UnicodeEncodeError as error:
            raise InputError(
                "a file name is not UTF-8",
                place=f"{shown_url(root)}, folder {folder!r}",
                found=repr(error.object),
                remedy="rename the file",
            ) from error
        columns = (texts, pa.large_string()), (whats, pa.string()), (sizes, pa.int64()), (times, pa.int64())
        names_of_columns = [FILE_NAME, "what", "size", "modified_ns"]
        return folder, pa.table([pa.array(*column) for column in columns], names_of_columns)

    pieces = (
        (folder, items[first : first + _FILES_AT_ONCE])
        for folder, items in ((folder, list(names.items())) for folder, names in folders)
        for first in range(0, max(1, len(items)), _FILES_AT_ONCE)
    )
    yield from watched("listing files", in_order(described, pieces, _THREADS), count=lambda piece: len(piece[1]))


def _what(path: str, size: int | None) -> tuple[str, int, int]:
    """Return what a name is, and of media the size in bytes and the modification time in nanoseconds."""
    name, modified_ns = os.path.basename(path), 0
    _, field = MEDIA_SUFFIXES.get(os.path.splitext(name)[1].lower(), ("", ""))
    if name.startswith("."):
        return _HIDDEN, 0, 0
    if not field:
        return _METADATA if is_metadata(name) else _TABLE if is_table(name) else _OTHER, 0, 0
    if size is None:
        try:
            found = os.stat(path)
            size, modified_ns = (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else (-1, 0)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise InputError(
                    "a media file cannot be read",
                    found=error.strerror or type(error).__name__,
                    remedy="check the permissions of its folder",
                    url=path,
                ) from error
            size = -1
    return field if size > 0 else _EMPTY if size == 0 else _BROKEN, size, modified_ns
