"""Folders of images, audio or videos as a table: a row for each file, with its path and class.

Classes are the folders directly below the given one, as in torchvision's ImageFolder. Lists files and their sizes, but
opens only metadata files such as `metadata.csv`.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from wdsplit.arrays import Int64
from wdsplit.errors import InputError
from wdsplit.fields.infer import class_names
from wdsplit.storage.opening import is_remote
from wdsplit.storage.patterns import place_of
from wdsplit.tables.find import SPLIT
from wdsplit.tables.formats.media import GROUP_ROWS, LABEL, common_schema, field_of_media, media_schema
from wdsplit.tables.formats.registry import is_media, is_table
from wdsplit.tables.media_listing import Found, find_below, find_given
from wdsplit.tables.media_metadata import read_metadata
from wdsplit.tables.read import read_rows
from wdsplit.tables.table import FILE_NAME, InputFile, Remote, Table
from wdsplit.texts import counted
from wdsplit.urls import shown_url

__all__ = ["class_counts", "is_media_input", "open_media"]


def is_media_input(path: str, storage_options: Mapping[str, Any] | None = None) -> bool:
    """Return whether a path from `find_inputs` is a media file or a folder of them, not a table."""
    return is_media(path) or (not is_table(path) and place_of(path, storage_options).is_folder(path))


def open_media(
    paths: Sequence[str], storage_options: Mapping[str, Any] | None = None, class_depth: int | None = None
) -> Table:
    """List folders of media files, and single files; these count as one folder, their innermost common one.

    Args:
        paths: The folders and files.
        storage_options: Options for a remote store.
        class_depth: How deep below each input the folders of classes are: 0 for no classes, None for 1 if there are.

    Raises:
        InputError: A folder cannot be read, or is ambiguous; or an input is a table.
    """
    depth = 1 if class_depth is None else class_depth
    _refuse_tables(paths, storage_options)
    _refuse_overlaps(paths)
    files = [path for path in paths if is_media(path)]
    notes: list[str] = []
    found = [find_below(path, storage_options, depth) for path in paths if not is_media(path)]
    for each in found:
        _refuse_ambiguous(each)
    if files:
        found.append(find_given(files, storage_options, depth))
    opened = [_open(each, storage_options, notes) for each in found]
    if len(opened) > 1 and class_depth is None and not any(LABEL in schema.names for _, schema in opened):
        raise InputError(
            "several folders, none of which has folders of classes",
            place=f"{opened[0][0].path}, ...",
            expected="folders that contain a folder for each class",
            found=f"{len(opened):,} folders without classes",
            remedy="if they are the classes, give the folder above them (and --class-depth if others lie between); "
            "if there are no classes, add --class-depth 0",
        )
    schema = common_schema({file.path: schema for file, schema in opened})
    notes += _other_fields(found, field_of_media(schema)[1])
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
                place=shown_url(path),
                expected=f"an input outside {shown_url(folder)}",
                remedy="name each file once: it would be written twice",
                url=shown_url(path),
            )
        folder = folder if is_media(path) else path


def _kind(found: Found) -> str:
    """Return the kind of media of a folder; refuse several."""
    if len(found.first) > 1:
        raise InputError(
            "a folder contains several kinds of media",
            place=shown_url(found.root),
            expected="images, or audio, or videos",
            found="; ".join(map(found.count_of, found.first)),
            remedy=f"select one kind: {' or '.join(map(found.pattern_of, found.first.values()))}",
            url=shown_url(found.root),
        )
    return next(iter(found.first))


def _refuse_ambiguous(found: Found) -> None:
    """Refuse a folder that also contains tables, or has splits instead of classes."""
    root = shown_url(found.root)
    if found.tables:
        paths = (found.tables[0], *found.first.values())
        raise InputError(
            "a folder contains tables and media files",
            place=root,
            expected="one or the other; or a table metadata.csv, metadata.jsonl or metadata.parquet about the files",
            found="; ".join(
                [f"{counted(len(found.tables), 'table')}, such as {paths[0]}", *map(found.count_of, found.first)]
            ),
            remedy=f"select one kind: {' or '.join(map(found.pattern_of, paths))}; or rename the table",
            url=root,
        )
    folders = [name for name, count in found.classes.items() if count]
    if folders and all(SPLIT.fullmatch(name) for name in folders):
        raise InputError(
            "a folder contains splits, not classes",
            place=root,
            expected="folders that are named after classes",
            found=", ".join(sorted(folders)),
            remedy=f"convert each split to a dataset of its own, as in `wdsplit convert {root}/{folders[0]} OUTPUT`",
            url=root,
        )


def _open(found: Found, storage_options: Mapping[str, Any] | None, notes: list[str]) -> tuple[InputFile, pa.Schema]:
    """Return a folder as one input file, and the columns of its rows; add notes for the user."""
    root = shown_url(found.root)
    remote = Remote(found.root, storage_options) if is_remote(found.root) else None
    if not sum(len(rows) for _, rows in found.rows):
        raise InputError(
            "a folder contains no media files, or only empty ones", place=root, remedy="check the path", url=root
        )
    kind = _kind(found)
    name = min(found.fields, key=lambda key: (-found.fields[key], key))[1]
    members, classes, footers = _members(found, kind, storage_options)
    sizes, times = (members[kind].chunk(0).field(each).to_numpy() for each in ("size", "modified_ns"))
    count = len(members)
    file = InputFile(
        root,
        int(sizes.sum()),
        count,
        tuple(min(GROUP_ROWS, count - first) for first in range(0, count, GROUP_ROWS)),
        members.nbytes + count * len(root),
        _checksum(members[FILE_NAME].chunk(0), sizes, [classes, footers, *([found.depth] if found.depth > 1 else [])]),
        xxhash.xxh3_64_intdigest(times.tobytes()),
        "media",
        remote=remote,
        members=members,
    )
    notes += _notes(found)
    num_folders = sum(bool(count) for count in found.classes.values())
    if LABEL in members.schema.names and not classes and num_folders > 1:
        notes.append(f"{root}: the column {LABEL!r} of the metadata replaces the classes of {num_folders:,} folders")
    return file, media_schema(kind, name, classes, members.schema)


def _members(
    found: Found, kind: str, storage_options: Mapping[str, Any] | None
) -> tuple[pa.Table, list[str], list[str]]:
    """Return the rows of a folder, the names of its classes, and the checksums of its metadata files."""
    rows = pa.concat_tables([rows for _, rows in found.rows])
    names, *numbers = (rows[name].combine_chunks() for name in (FILE_NAME, "size", "modified_ns"))
    columns = {kind: pa.StructArray.from_arrays(numbers, ["size", "modified_ns"]), FILE_NAME: names}
    metadata, footers = read_metadata(names, found.empty, found.root, found.metadata, storage_options, taken=kind)
    classes = [] if LABEL in metadata else _classes(found, bool(metadata))
    if classes:
        columns[LABEL] = _labels(found, classes)
    return pa.table(columns | metadata), classes, footers


def _checksum(names: pa.LargeStringArray, sizes: Int64, more: Any) -> str:
    """Return the checksum of the files' names and sizes, and of `more`."""
    digest = xxhash.xxh3_128(orjson.dumps(more))
    for values in (np.asarray(pc.binary_length(names)), sizes):
        digest.update(values.astype("<i8").tobytes())
    digest.update(names.buffers()[2])
    return str(digest.hexdigest())


def _other_fields(found: Sequence[Found], field: str) -> list[str]:
    """Return a note on files that are written to a field of another kind, if there are any."""
    counts = sum((Counter({name: count for (_, name), count in each.fields.items()}) for each in found), Counter())
    others = sorted((-count, name) for name, count in counts.items() if name != field)
    texts = [f"{-count:,} {name}" for count, name in others]
    return [f"files of other kinds are written to the field {field!r}, too: {', '.join(texts)}"] if texts else []


def _notes(found: Found) -> list[str]:
    """Return notes on files that are left out, and on classes."""
    root, notes = shown_url(found.root), []
    if found.skipped:
        texts = [f"{count:,} {reason}, such as {first}" for reason, (count, first) in sorted(found.skipped.items())]
        notes.append(f"{root}: left out: {'; '.join(texts)}")
    classes = [name for name, count in found.classes.items() if count is not None]
    filled = [name for name in classes if found.classes[name]]
    if len(filled) == found.depth == 1 and all("/" in folder for folder, _ in found.rows):
        near = f"{root}/{filled[0]}, or --class-depth 2"
        notes.append(f"{root}: no classes, as all files are below one folder: did you mean {near}?")
    if 1 < len(filled) < len(classes):
        empty = ", ".join(sorted({*classes} - {*filled}))
        notes.append(f"{root}: classes without files, which keep their numbers: {empty}")
    return notes


def _classes(found: Found, has_metadata: bool) -> list[str]:
    """Return the folders that are classes, sorted; empty for none."""
    root = shown_url(found.root)
    classes = sorted(name for name, count in found.classes.items() if count is not None)
    filled = [name for name in classes if found.classes[name]]
    outside = [(folder, rows) for folder, rows in found.rows if len(rows) and not found.class_of(folder)]
    num_outside = sum(len(rows) for _, rows in outside)
    if not found.depth or (found.depth == 1 and (len(filled) < 2 or (num_outside and has_metadata))):
        return []
    if num_outside:
        first = outside[0][1][FILE_NAME][0]
        raise InputError(
            "some files are not in a class folder",
            place=root,
            expected="all files in class folders, or none" if found.depth == 1 else f"folders {found.depth} deep",
            found=f"{num_outside:,} files beside {len(filled):,} folders, such as {first}",
            remedy=f"move them, or leave them out by a pattern such as '{root}{'/*' * found.depth}/*.jpg'",
            url=root,
        )
    return classes


def _labels(found: Found, classes: Sequence[str]) -> pa.DictionaryArray:
    """Return the class of each file."""
    numbers = {name: number for number, name in enumerate(classes)}
    codes = [np.full(len(rows), numbers[found.class_of(folder)], np.int32) for folder, rows in found.rows if len(rows)]
    return pa.DictionaryArray.from_arrays(pa.array(np.concatenate(codes)), pa.array(classes, pa.large_string()))
