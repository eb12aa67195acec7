"""Plan files in storage: checks their paths, saves them, and opens their runs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.plan.plan_file import SavedPlan, dump_plan, is_plan, parse_plan
from wdsplit.conversion.planning import PathLike
from wdsplit.conversion.run import Run
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, OutputExistsError
from wdsplit.storage.local import local_path
from wdsplit.storage.opening import is_remote, open_readable_storage, open_storage
from wdsplit.tables.table import InputFile, Remote
from wdsplit.urls import shown_url

__all__ = [
    "check_plan_file",
    "locate_inputs",
    "normalized",
    "open_run",
    "remove_plan",
    "save_plan",
]

_BEGINNING_BYTES = 64


def save_plan(path: str, saved: SavedPlan, storage_options: Mapping[str, Any] | None) -> None:
    """Save a plan, or replace one.

    Raises:
        InputError: The plan contains credentials.
        StorageError: The file cannot be written.
    """
    folder, name = _split_path(path)
    data = dump_plan(saved)
    with open_storage(folder, storage_options).publish(name, durable=True) as file:
        file.write([data])


def remove_plan(path: str, storage_options: Mapping[str, Any] | None) -> None:
    """Remove a plan file whose run could not start."""
    folder, name = _split_path(path)
    open_storage(folder, storage_options).remove(name)


def normalized(path: PathLike) -> str:
    """Return the path of a plan file as a string; for a file:// URL, the local path."""
    path = os.fspath(path)
    return path if is_remote(path) else local_path(path)


def _split_path(path: str) -> tuple[str, str]:
    """Return the folder of a plan file, and the file's name in it."""
    folder, separator, name = path.rpartition("/")
    if not name or folder.endswith(":/"):
        raise InputError("invalid path of a plan file", place=shown_url(path), expected="a path, or s3://bucket/file")
    return folder or separator or ".", name


def check_plan_file(path: str, overwrite: bool, storage_options: Mapping[str, Any] | None) -> None:
    """Refuse a plan file that cannot be written or exists already."""
    folder, name = _split_path(path)
    storage = open_storage(folder, storage_options)
    size = storage.size(name)
    if size is None:
        return
    ours = is_plan(storage.open(name).read(0, min(size, _BEGINNING_BYTES)))
    if not (overwrite and ours):
        raise OutputExistsError(
            "the plan file exists already" if ours else "another file exists at the path of the plan file",
            place=path,
            expected="no such file" + (", or a plan to replace" if overwrite else ""),
            found="the plan of another run, or of this one" if ours else "a file that is not a plan",
            remedy="choose another file" + (", or use --overwrite to start again" if ours else ""),
            url=path,
        )


def open_run(plan_path: PathLike, storage_options: Mapping[str, Any] | None) -> tuple[SavedPlan, Run]:
    """Read a plan file; return the plan and the run in its output, which may not exist.

    Raises:
        DatasetNotFoundError: The file does not exist.
        CorruptDataError: It is damaged, or not a plan file.
        InputError: Another version of wdsplit wrote it.
    """
    path = normalized(plan_path)
    folder, name = _split_path(path)
    try:
        saved = parse_plan(open_readable_storage(folder, storage_options).read(name), version("wdsplit"))
    except DatasetNotFoundError as error:
        raise DatasetNotFoundError(
            "plan file not found",
            place=shown_url(path),
            expected="a file written by `wdsplit plan -o`",
            remedy="check the path, which all machines must be able to access",
            url=shown_url(path),
        ) from error
    except (CorruptDataError, InputError) as error:
        raise error.at(shown_url(path)) from error
    return saved, Run(open_storage(saved.output, storage_options), saved.emit)


def locate_inputs(saved: SavedPlan, storage_options: Mapping[str, Any] | None) -> Plan:
    """Return a plan whose inputs can be found from any folder, with this machine's storage options."""

    def placed(file: InputFile) -> InputFile:
        if file.remote is not None:
            return dataclasses.replace(file, remote=Remote(file.remote.url, storage_options))
        return dataclasses.replace(file, path=os.path.join(saved.folder, file.path))

    table = saved.plan.table
    return dataclasses.replace(saved.plan, table=dataclasses.replace(table, files=tuple(map(placed, table.files))))
