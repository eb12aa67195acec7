"""A run and its files in the dataset: which can be replaced, continued or removed.

While a run is unfinished, `annotations/NAME.run` contains its plan, and the spill files and notes of its tasks.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

import orjson
import pyarrow.compute as pc
import xxhash

from wdsplit.annotating.job import AnnotateCuts, AnnotateJob
from wdsplit.errors import OutputExistsError, WdsplitError
from wdsplit.jobs.record import Record
from wdsplit.shards.annotations import ANNOTATIONS_FOLDER, RUN_SUFFIX, is_part_of
from wdsplit.shards.manifest import RUN_FOLDER
from wdsplit.storage.interface import Storage

__all__ = ["AnnotationRun"]

_LOCK = "lock"


class AnnotationRun(Record):
    """The run that makes, or made, an annotation.

    Args:
        storage: The dataset.
        name: The annotation's name.
    """

    def __init__(self, storage: Storage, name: str) -> None:
        super().__init__(storage, f"{ANNOTATIONS_FOLDER}/{name}{RUN_SUFFIX}")
        self._name = name

    @property
    def path(self) -> str:
        """The path of the run's folder, including that of the dataset."""
        return os.path.join(self.storage.url, self.folder)

    def refuse(self, names: Sequence[str], overwrite: bool, resume: bool) -> None:
        """Refuse to replace an annotation or an unfinished run unless requested.

        Args:
            names: The dataset's annotations.
            overwrite: Whether either may be replaced.
            resume: Whether to continue an unfinished run.

        Raises:
            OutputExistsError: One exists and may not be replaced, or there is no run to continue.
        """
        unfinished, exists = bool(self.plan), self._name in names
        same_letters = [name for name in names if name.lower() == self._name.lower() and name != self._name]
        if same_letters:
            self._refuse("an annotation has the same name except for case", same_letters[0], "choose another --name")
        if resume and not (unfinished or exists):
            self._refuse("no unfinished run to resume", "nothing", "leave out --resume", "an unfinished run")
        if unfinished and not (overwrite or resume):
            remedy = "use --resume to continue it, or --overwrite to start again"
            self._refuse("a run of this annotation is unfinished", "an unfinished run", remedy)
        if exists and not (overwrite or resume):
            remedy = "use --overwrite to replace it, or choose another --name"
            self._refuse(f"the dataset already has an annotation {self._name!r}", "", remedy, "")

    def _refuse(self, cause: str, found: str, remedy: str, expected: str = "no annotation of this name") -> NoReturn:
        place = f"{self.storage.url}, annotation {self._name!r}"
        raise OutputExistsError(cause, place, expected, found, remedy, self.storage.url)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock out other runs of this annotation; folders made for the lock are removed after the block if empty."""
        try:
            with self.storage.lock(f"{self.folder}/{_LOCK}"):
                try:
                    yield
                finally:
                    if not (self.storage.is_remote or self.plan):
                        self.storage.remove(self.folder)
        finally:
            self.tidy()

    def tidy(self) -> None:
        """Remove the folder of all annotations if it is empty."""
        if not self.storage.is_remote:
            with suppress(OSError):  # another run may have started
                os.rmdir(os.path.join(self.storage.url, ANNOTATIONS_FOLDER))

    def refuse_other(self, live: str, folder: str) -> None:
        """Refuse to resume a finished annotation of another plan, given both folders of tables.

        Raises:
            OutputExistsError: The plans differ.
        """
        if live != folder:
            remedy = "use --overwrite to replace it, or choose another --name"
            self._refuse("the existing annotation was made by another plan", live, remedy, folder)

    def cuts(self, job: AnnotateJob, modified: str, resume: bool, live: str | None) -> AnnotateCuts:
        """Start a run, or continue one; return how it is cut into tasks.

        Args:
            job: The input of all tasks; a new run uses its cuts.
            modified: A hash of the modification times of the inputs.
            resume: Whether to continue a run.
            live: The folder of the existing annotation; None if there is none.

        Raises:
            OutputExistsError: The unfinished run has another table, key, or columns.
        """
        plan = self.plan
        if resume and plan:
            if plan.get("plan") != job.run:
                remedy = "use the table and options of that run, or --overwrite to start again"
                self._refuse(
                    "the unfinished run was made by another plan", f"plan {plan.get('plan')}", remedy, f"plan {job.run}"
                )
            if plan.get("modified") != modified:
                remedy = "use --overwrite to start again"
                self._refuse(
                    "an input has changed since the run began", "another modification time", remedy, "the same"
                )
            self._remove_temporary(self.storage, job)
            rows, keys, groups = (tuple(plan[name]) for name in ("rows", "keys", "groups"))
            return AnnotateCuts(rows, keys, groups, plan["num_partitions"])
        left = [name for name in self.storage.list(self.folder) if name not in (_LOCK, RUN_FOLDER)]
        self.storage.remove(*(f"{self.folder}/{name}" for name in left))
        self._remove_folders(live)
        self.begin({"plan": job.run, "modified": modified, **dataclasses.asdict(job.cuts)})
        return job.cuts

    def spill_folder(self, job: AnnotateJob, cuts: AnnotateCuts) -> str:
        """Return the folder of a run's spill files, which late tasks of another run or other cuts do not share."""
        return f"{self.folder}/{job.run}-{xxhash.xxh3_64_hexdigest(orjson.dumps(dataclasses.asdict(cuts)))}"

    def _remove_temporary(self, storage: Storage, job: AnnotateJob) -> None:
        """Remove temporary files of tasks that were killed."""
        spilled = [name for name in storage.list(self.folder) if name.startswith(f"{job.run}-")]
        paths = pc.unique(pc.replace_substring_regex(job.shards.table.column("path"), "[^/]*$", ""))
        tables = [f"{job.folder}/{folder}".rstrip("/") for folder in paths.to_pylist()]
        for folder in (self.folder, *(f"{self.folder}/{name}" for name in spilled), *tables):
            storage.remove_temporary(folder)

    def finish(self, live: str | None) -> None:
        """Remove the files of an unfinished run, and the tables of all but the current annotation."""
        self.end()
        self._remove_folders(live)

    def _remove_folders(self, live: str | None) -> None:
        for entry in self.storage.list(ANNOTATIONS_FOLDER):
            is_folder = is_part_of(entry, self._name) and not entry.endswith((".json", RUN_SUFFIX))
            if is_folder and f"{ANNOTATIONS_FOLDER}/{entry}" != live:
                self.storage.remove(f"{ANNOTATIONS_FOLDER}/{entry}")

    def leave_resumable(self, job: AnnotateJob) -> None:
        """Remove temporary files after an error, without waiting for a store that does not answer."""
        storage = self.storage.with_short_deadline()
        try:
            self._remove_temporary(storage, job)
        except WdsplitError:
            if not storage.is_remote:
                raise
