"""The input of every task of a conversion, and the check that its output still belongs to the run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.record.notes import read_note_of_plan
from wdsplit.errors import ConvertError, CorruptDataError, DatasetNotFoundError, StorageError, UnansweredError
from wdsplit.shards.manifest import RUN_FOLDER
from wdsplit.storage.interface import Storage
from wdsplit.storage.opening import open_storage

__all__ = ["PLAN_NAME", "Job", "holds_plan", "open_output", "refuse_taken_over"]

PLAN_NAME = f"{RUN_FOLDER}/plan.json"


@dataclass(frozen=True)
class Job:
    """The input of every task of a conversion; each worker process receives it once.

    Attributes:
        output: The dataset's folder.
        plan: The plan.
        buffer_bytes: Bytes of rows that a task may buffer, if the plan reorders rows.
        emit: The sidecars to write.
        storage_options: Options for a remote store.
        shared: Whether other machines also write to the output, so that a local lock cannot exclude other runs.
    """

    output: str
    plan: Plan
    buffer_bytes: int
    emit: tuple[str, ...] = ()
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    shared: bool = False

    def open_storage(self) -> Storage:
        """Open the output."""
        return open_storage(self.output, self.storage_options)


@contextmanager
def open_output(job: Job) -> Iterator[Storage]:
    """Open the output for a task; report another run's takeover, rather than the missing files that it causes.

    Raises:
        ConvertError: The output belongs to another run, at the start or when an error occurs.
    """
    storage = job.open_storage()
    if job.shared:
        refuse_taken_over(storage, job.plan, shared=True)
    try:
        yield storage
    except UnansweredError:
        raise
    except (CorruptDataError, DatasetNotFoundError, StorageError):
        refuse_taken_over(storage, job.plan, job.shared)
        raise


def holds_plan(storage: Storage, plan: Plan) -> bool:
    """Return whether the unfinished run in an output has this plan."""
    return bool(read_note_of_plan(storage, plan, PLAN_NAME))


def refuse_taken_over(storage: Storage, plan: Plan, shared: bool = False) -> None:
    """Refuse to continue if another run has started in the output meanwhile, where no lock prevents that.

    Runs of the same plan are harmless: they write the same bytes. Other machines may write to `shared` outputs, and
    always to remote ones.

    Raises:
        ConvertError: The output belongs to another run, is already a dataset, or is not the run's original output.
    """
    if (storage.is_remote or shared) and not holds_plan(storage, plan):
        raise ConvertError(
            "another run has taken over or finished the output"
            + ("" if storage.is_remote else "; or this machine sees another folder at its path"),
            place=storage.url,
            expected=f"plan {plan.hash}",
            found="another plan, or none",
            remedy="make sure that only one conversion at a time writes to an output, on all machines"
            + ("" if storage.is_remote else ", and that all machines can access it"),
            url=storage.url,
        )
