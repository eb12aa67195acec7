"""Delta and Iceberg tables as inputs: the parquet files of one version of a table.

The libraries of the formats say which files a version has. These are then read as any others: conditions prune row
groups, only needed columns are read, and tasks on any machine read their own rows. A version whose rows are not just
those of its files is refused.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from wdsplit.errors import InputError, MissingDependencyError, WdsplitError, first_line
from wdsplit.storage.local import local_path
from wdsplit.storage.opening import is_remote
from wdsplit.tables.find import find_inputs
from wdsplit.tables.schemas import Partitions
from wdsplit.urls import shown_url

__all__ = ["Inputs", "folder_of_table", "open_inputs_of"]

_NAMED = re.compile(r"(delta|iceberg)\+(.+?)(?:@(\d+))?", re.DOTALL)
_READABLE_FEATURES = {"deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
"""Features of Delta tables whose files have all rows, if there are no deletion vectors."""


@dataclass(frozen=True)
class Inputs:
    """The files of an input.

    Attributes:
        paths: Their paths and URLs.
        hive: Whether names of folders may be columns.
        snapshot: The version of a table, as an input that names it; empty without a table.
    """

    paths: list[str]
    hive: bool = True
    snapshot: str = ""


def folder_of_table(argument: str) -> str:
    """Return the folder of a Delta table; another argument as it is."""
    match = _NAMED.fullmatch(argument)
    return match[2] if match is not None and match[1] == "delta" else argument


def open_inputs_of(
    arguments: Sequence[str], storage_options: Mapping[str, Any] | None = None, pinned: str = ""
) -> Inputs:
    """Return the files that paths, folders, patterns, or a Delta or Iceberg table have.

    Args:
        arguments: Paths or URLs; or one table: `delta+PATH`, `iceberg+CATALOG/NAMESPACE.TABLE`, with `@VERSION`.
        storage_options: Options for remote stores.
        pinned: The `snapshot` of an unfinished run: its version is used if an argument names none.

    Raises:
        InputError: An argument matches nothing; or a table cannot be opened, or has rows that its files do not give.
        MissingDependencyError: The library of the table's format is not installed.
    """
    match = next(filter(None, map(_NAMED.fullmatch, arguments)), None)
    if match is None:
        return Inputs(find_inputs(arguments, storage_options))
    kind, name, version = match.groups()
    place = f"{kind}+{shown_url(name)}"
    if len(arguments) > 1:
        raise InputError(
            "a Delta or Iceberg table is not the only input",
            expected=f"only {place}",
            found=f"{len(arguments)} inputs",
            remedy="convert it on its own, and add other rows with --append",
        )
    if version is None and pinned.startswith(f"{place}@"):
        version = pinned.rpartition("@")[2]
    try:
        version, files = (_delta_files if kind == "delta" else _iceberg_files)(
            name, None if version is None else int(version)
        )
    except ImportError as error:
        raise MissingDependencyError.for_extra(kind) from error
    except WdsplitError as error:
        raise error.at(place) from error
    except Exception as error:  # each library has many errors of its own, and of its catalogues and stores
        raise InputError(
            "a table cannot be opened",
            place=place,
            expected="delta+PATH, or iceberg+CATALOG/NAMESPACE.TABLE with a catalogue that pyiceberg is configured for",
            found=f"{type(error).__name__}: {first_line(error)}",
            remedy="check the name and the version, and the credentials in the environment",
        ) from error
    if not files:
        raise InputError("a table has no rows", place=f"{place}@{version}", remedy="check the version")
    return Inputs(sorted(files), kind == "delta", f"{place}@{version}")


def _delta_files(path: str, version: int | None) -> tuple[int, list[str]]:
    """Return a version of a Delta table, the latest if None, and its files."""
    from deltalake import DeltaTable

    root = path if is_remote(path) else local_path(path)
    table = DeltaTable(root, version)
    features = {*(table.protocol().reader_features or ())}  # older tables name none
    if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        features.add("columnMapping")
    unread = sorted(features - _READABLE_FEATURES)
    if pa.table(table.deletion_vectors()).num_rows:
        unread.append("deletion vectors")
    if unread:
        raise InputError(
            "deleted rows or other names of columns are not in the files of a Delta table",
            expected="a version without " + ", ".join(unread),
            remedy="rewrite its files, or pass its rows from Python: wdsplit.convert(DeltaTable(...).scan(), ...)",
        )
    actions = pa.table(table.get_add_actions(flatten=True))
    files = [unquote(each) for each in actions["path"].to_pylist()]
    files = [each if each.startswith("/") or is_remote(each) else os.path.join(root, each) for each in files]
    values = {name: actions[f"partition.{name}"].to_pylist() for name in table.metadata().partition_columns}
    if values:
        _check_folders(files, values)
    return table.version(), files


def _check_folders(files: Sequence[str], values: Mapping[str, Sequence[Any]]) -> None:
    """Refuse partitions that the folders of files do not state: the columns are read from the folders."""
    folders = [os.path.dirname(file) for file in files]
    partitions = Partitions(folders)
    for number, folder in enumerate(folders):
        found = partitions.values(folder)
        row = {name: column[number] for name, column in values.items()}
        stated = {name: value.isoformat() if type(value) is datetime.date else value for name, value in row.items()}
        if found != stated or any(type(found[name]) is not type(value) for name, value in stated.items()):
            raise InputError(
                "a partition of a Delta table is not stated by the folder of its files",
                expected=f"{found}, from {shown_url(folder)}",
                found=str(row),
                remedy="pass its rows from Python: wdsplit.convert(DeltaTable(...).scan(), ...)",
            )


def _iceberg_files(name: str, version: int | None) -> tuple[int, list[str]]:
    """Return a snapshot of an Iceberg table, the current one if None, and its files."""
    from pyiceberg.catalog import load_catalog

    catalog, _, identifier = name.partition("/")
    table = load_catalog(catalog).load_table(identifier)
    scan = table.scan(snapshot_id=version)
    snapshot = scan.snapshot()
    if snapshot is None:
        return 0, []
    tasks, schema = list(scan.plan_files()), scan.projection()
    problems = list(_iceberg_problems(table, schema, tasks))
    if problems:
        raise InputError(
            "the rows of an Iceberg table are not just those of its files",
            expected="parquet files without deleted rows, and columns that were only added",
            found=", ".join(problems),
            remedy="rewrite its files, or pass rows from Python: "
            "wdsplit.convert(table.scan().to_arrow_batch_reader(), ...)",
        )
    urls = [re.sub("^s3[an]://", "s3://", task.file.file_path) for task in tasks]
    return snapshot.snapshot_id, [url if is_remote(url) else local_path(url) for url in urls]


def _iceberg_problems(table: Any, schema: Any, tasks: Sequence[Any]) -> Iterator[str]:
    """Yield why the files (`tasks`) of an Iceberg table do not have the rows of the version with this schema."""
    num_deleting = sum(bool(task.delete_files) for task in tasks)
    if num_deleting:
        yield f"{num_deleting:,} of {len(tasks):,} files with delete files"
    formats = {task.file.file_format.value.lower() for task in tasks} - {"parquet"}
    if formats:
        yield f"files in {', '.join(sorted(formats))}"
    known = {number: schema.find_column_name(number) for number in schema.field_ids}
    for other in table.schemas().values():  # files keep the names and columns of the schema that wrote them
        for number in other.field_ids:
            if known.get(number) != other.find_column_name(number):
                yield f"column {other.find_column_name(number)!r} was renamed, dropped or added later"
    if any(schema.find_field(number).initial_default is not None for number in known):
        yield "a column with a default for older files"
    for task in tasks:
        spec = table.specs()[task.file.spec_id]
        lacks = [field.source_id for field in spec.fields if field.source_id not in (task.file.value_counts or {})]
        if lacks:
            yield f"no counts of values of {known.get(lacks[0])!r} in {task.file.file_path}: it may lack the column"
            return
