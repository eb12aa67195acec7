"""A run of an annotation and its files in the dataset: which can be replaced, continued or removed.

While a run is unfinished, `fields/NAME.run` contains its plan, and the spill files and notes of its tasks.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from wdsplit.annotating.writing import WriteJob
from wdsplit.errors import OutputExistsError
from wdsplit.jobs.record import Record
from wdsplit.shards.annotations import ANNOTATIONS, RUN_SUFFIX, annotation_of_folder, annotation_table_path
from wdsplit.shards.manifest import RUN_FOLDER
from wdsplit.storage.interface import Storage

__all__ = ["AnnotationRun"]


class AnnotationRun(Record):
    """The run that makes, or made, an annotation of a dataset."""

    def __init__(self, storage: Storage, name: str) -> None:
        super().__init__(storage, f"{ANNOTATIONS.folder}/{name}{RUN_SUFFIX}")
        self._name = name

    def refuse(self, overwrite: bool, resume: bool, update: bool = False) -> None:
        """Refuse to replace an annotation or an unfinished run unless requested; an update keeps the annotation.

        Raises:
            OutputExistsError: One exists and may not be replaced, or there is no run to continue.
        """
        names, unfinished = ANNOTATIONS.versions(self.storage), bool(self.plan)
        same_letters = [name for name in names if name.lower() == self._name.lower() and name != self._name]
        if same_letters:
            self._refuse("an annotation has the same name except for case", same_letters[0], "choose another --name")
        if resume and not (unfinished or self._name in names):
            self._refuse("no unfinished run to resume", "nothing", "leave out --resume", "an unfinished run")
        if unfinished and not (overwrite or resume):
            remedy = "use --resume to continue it, or --overwrite to start again"
            self._refuse("a run of this annotation is unfinished", "an unfinished run", remedy)
        if self._name in names and not (overwrite or resume or update):
            remedy = "use --overwrite to replace it, or choose another --name"
            self._refuse(f"the dataset already has an annotation {self._name!r}", "", remedy, "")

    def refuse_other_plan(self, found: str, job: WriteJob) -> None:
        """Refuse to continue a run, or to keep an annotation, of another table, key or columns.

        Raises:
            OutputExistsError: The plans differ.
        """
        if found != job.run:
            remedy = "use the table and options of that run, or --overwrite to replace it"
            self._refuse("the annotation was made by another plan", f"plan {found}", remedy, f"plan {job.run}")

    def _refuse(self, cause: str, found: str, remedy: str, expected: str = "no annotation of this name") -> NoReturn:
        place = f"{self.storage.url}, annotation {self._name!r}"
        raise OutputExistsError(cause, place, expected, found, remedy, self.storage.url)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock out other runs of this annotation; folders made for the lock are removed after the block if empty."""
        try:
            with super().locked():
                yield
        finally:
            ANNOTATIONS.remove_empty_folder(self.storage)

    def start(self, job: WriteJob, modified: str, live: str | None, fingerprint: str) -> None:
        """Start a run: remove what earlier ones left, but not the tables of the annotation in `live`, if there is one.

        `modified` is a hash of the modification times of the inputs, `fingerprint` that of the dataset.
        """
        kept = (self.lock_path, f"{self.folder}/{RUN_FOLDER}")
        left = [f"{self.folder}/{name}" for name in self.storage.list(self.folder)]
        self.storage.remove(*(path for path in left if path not in kept))
        self._remove_tables(live)
        plan = {"plan": job.run, "modified": modified, "task_bytes": job.task_bytes, "fingerprint": fingerprint}
        self.begin(plan)

    def resumed_bytes(self, job: WriteJob, modified: str) -> int:
        """Return the bytes of a task of the unfinished run, which its cuts follow from.

        Raises:
            OutputExistsError: The unfinished run has another table, key, or columns.
        """
        plan = self.plan
        self.refuse_other_plan(str(plan.get("plan")), job)
        if plan.get("modified") != modified:
            remedy = "use --overwrite to start again"
            self._refuse("an input has changed since the run began", "another modification time", remedy, "the same")
        return int(plan["task_bytes"])

    def finish(self, job: WriteJob, live: str | None) -> None:
        """Remove the files of an unfinished run and of killed tasks, and all tables but those in `live`."""
        paths = job.shards.table.column("path").to_pylist()
        tables = dict.fromkeys(posixpath.dirname(annotation_table_path(job.folder, path)) for path in paths)
        for folder in (self.folder, job.spill_folder, *tables):
            self.storage.remove_temporary(folder)
        self.end()
        self._remove_tables(live)

    def _remove_tables(self, live: str | None) -> None:
        self.storage.remove(*(path for path in self._table_folders() if path != live))

    def _table_folders(self) -> list[str]:
        entries = self.storage.list(ANNOTATIONS.folder)
        return [f"{ANNOTATIONS.folder}/{entry}" for entry in entries if annotation_of_folder(entry) == self._name]

    def parts(self) -> list[str]:
        """Return the files and folders of the annotation, and of its unfinished runs.

        Raises:
            InputError: There are none.
        """
        found = [*ANNOTATIONS.paths(self.storage, self._name), *self._table_folders()]
        if not found and not self.storage.list(self.folder):
            raise ANNOTATIONS.unknown(self.storage, self._name)
        return [*found, self.folder]
