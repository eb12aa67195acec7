"""The record of an unfinished run in its output: a folder with its plan, beside the notes of its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson

from wdsplit.errors import ConvertError
from wdsplit.jobs.notes import read_note
from wdsplit.storage.interface import Storage

__all__ = ["Record"]


class Record:
    """The folder of a run in its output."""

    def __init__(self, storage: Storage, folder: str) -> None:
        self.storage, self.folder = storage, folder
        self.plan_path, self.lock_path = f"{folder}/plan.json", f"{folder}/lock"
        self._has_ended = False

    @property
    def is_unfinished(self) -> bool:
        """Whether there is an unfinished run, even if its plan is damaged."""
        return self.storage.size(self.plan_path) is not None

    @property
    def plan(self) -> dict[str, Any]:
        """What the run noted of its plan: `plan` is the hash that names it. Empty if it is damaged or missing."""
        note = read_note(self.storage, self.plan_path)
        return note if isinstance(note, dict) else {}

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock other runs out; the folder, in which the lock is, is removed after the block unless it has a plan.

        Raises:
            StorageError: Another run has the lock.
        """
        with self.storage.lock(self.lock_path):
            try:
                yield
            finally:  # after the end of this run, the folder may be that of the next one
                if not (self.storage.is_remote or self._has_ended or self.is_unfinished):
                    self.end()

    def begin(self, plan: dict[str, Any]) -> None:
        """Note the plan: from here on, the output belongs to this run."""
        self._has_ended = False
        with self.storage.publish(self.plan_path, durable=True) as file:
            file.write([orjson.dumps(plan, option=orjson.OPT_INDENT_2)])

    def end(self, storage: Storage | None = None) -> None:
        """Remove the folder, the plan first, so that a late task notices that its run has ended."""
        (storage or self.storage).remove(self.plan_path, self.folder)
        self._has_ended = True

    def refuse_taken_over(self, plan_hash: str, shared: bool = False) -> None:
        """Refuse to continue if another run has started in the output meanwhile, where no lock prevents that.

        Runs of the same plan are harmless: they write the same bytes. Other machines may write to `shared` outputs, and
        always to remote ones.

        Raises:
            ConvertError: The output belongs to another run, is already finished, or is not the run's original output.
        """
        is_remote = self.storage.is_remote
        if (is_remote or shared) and self.plan.get("plan") != plan_hash:
            raise ConvertError(
                "another run has taken over or finished the output"
                + ("" if is_remote else "; or this machine sees another folder at its path"),
                place=self.storage.url,
                expected=f"plan {plan_hash}",
                found="another plan, or none",
                remedy="make sure that only one run at a time writes to an output, on all machines"
                + ("" if is_remote else ", and that all machines can access it"),
                url=self.storage.url,
            )
