"""Plan files in storage: checks their paths, saves them, and opens their runs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.plan.saved_plan import SavedPlan, dump_plan, is_plan, parse_plan
from wdsplit.conversion.run import Run
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, OutputExistsError
from wdsplit.storage.given import PathLike
from wdsplit.storage.interface import Storage
from wdsplit.storage.local import local_path
from wdsplit.storage.opening import is_remote, open_readable_storage, open_storage
from wdsplit.tables.table import InputFile, Remote
from wdsplit.urls import divided_url, shown_url

__all__ = ["PlanFile", "locate_inputs", "open_run"]

_BEGINNING_BYTES = 64


class PlanFile:
    """A plan file, which need not exist.

    Args:
        path: Its path; also a file:// or other URL.
        storage_options: Options for a remote store.

    Raises:
        InputError: The path names no file.
    """

    def __init__(self, path: PathLike, storage_options: Mapping[str, Any] | None) -> None:
        path = os.fspath(path)
        self.path = path if is_remote(path) else local_path(path)
        self._folder, self._name = divided_url(self.path)
        if not self._name or self._folder.endswith(":/"):
            expected = "a path, or s3://bucket/file"
            raise InputError("invalid path of a plan file", place=shown_url(path), expected=expected)
        self._options = storage_options

    @property
    def _storage(self) -> Storage:
        return open_storage(self._folder, self._options)

    def refuse_existing(self, overwrite: bool) -> None:
        """Refuse to replace a file, except for a plan that may be overwritten."""
        storage = self._storage
        size = storage.size(self._name)
        if size is None:
            return
        ours = is_plan(storage.open(self._name).read(0, min(size, _BEGINNING_BYTES)))
        if not (overwrite and ours):
            raise OutputExistsError(
                "the plan file exists already" if ours else "another file exists at the path of the plan file",
                expected="no such file" + (", or a plan to replace" if overwrite else ""),
                found="the plan of another run, or of this one" if ours else "a file that is not a plan",
                remedy="choose another file" + (", or use --overwrite to start again" if ours else ""),
                url=self.path,
            )

    def write(self, saved: SavedPlan) -> None:
        """Save a plan, or replace one.

        Raises:
            InputError: The plan contains credentials.
            StorageError: The file cannot be written.
        """
        data = dump_plan(saved)
        with self._storage.publish(self._name, durable=True) as file:
            file.write([data])

    def remove(self) -> None:
        """Remove the plan of a run that could not start; does not wait for a store that does not answer."""
        self._storage.with_short_deadline().remove(self._name)

    def read(self) -> SavedPlan:
        """Return the plan.

        Raises:
            DatasetNotFoundError: The file does not exist.
            CorruptDataError: It is damaged, or not a plan file.
            InputError: Another version of wdsplit wrote it.
        """
        place = shown_url(self.path)
        try:
            data = open_readable_storage(self._folder, self._options).read(self._name)
            return parse_plan(data, version("wdsplit"))
        except DatasetNotFoundError as error:
            raise DatasetNotFoundError(
                "plan file not found",
                expected="a file written by `wdsplit plan -o`",
                remedy="check the path, which all machines must be able to access",
                url=place,
            ) from error
        except (CorruptDataError, InputError) as error:
            raise error.at(place) from error


def open_run(path: PathLike, storage_options: Mapping[str, Any] | None) -> tuple[SavedPlan, Run]:
    """Read a plan file; return the plan and the run in its output, which may not exist; raises as `PlanFile.read`."""
    saved = PlanFile(path, storage_options).read()
    return saved, Run(open_storage(saved.output, storage_options), saved.emit)


def locate_inputs(saved: SavedPlan, storage_options: Mapping[str, Any] | None) -> Plan:
    """Return a plan whose inputs can be found from any folder, with this machine's storage options."""

    def placed(file: InputFile) -> InputFile:
        if file.remote is not None:
            return dataclasses.replace(file, remote=Remote(file.remote.url, storage_options))
        return dataclasses.replace(file, path=os.path.join(saved.folder, file.path))

    table = saved.plan.table
    return dataclasses.replace(saved.plan, table=dataclasses.replace(table, files=tuple(map(placed, table.files))))
