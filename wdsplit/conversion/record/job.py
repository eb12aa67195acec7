"""What every task of a conversion is given, and how a task finds out that its output is another run's by now."""

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
    """What every task of a conversion needs; a worker process gets it once.

    Attributes:
        output: The dataset's folder.
        plan: The plan.
        buffer_bytes: Bytes of rows that a task may buffer, where the plan puts rows into another order.
        emit: The sidecars to write.
        storage_options: Options for a remote store.
        shared: Whether other machines write to the output too, so that no lock of a local one keeps other runs out.
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
    """Open the output for a task; say that it is another run's, rather than which of our files that run has removed.

    Raises:
        ConvertError: The output is another run's, at the beginning or when something goes wrong.
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
    """Tell whether the unfinished run of an output is that of a plan."""
    return bool(read_note_of_plan(storage, plan, PLAN_NAME))


def refuse_taken_over(storage: Storage, plan: Plan, shared: bool = False) -> None:
    """Refuse to go on with an output where another run has begun meanwhile, if no lock keeps it out.

    A run of the same plan does no harm: it writes the same bytes. Other machines write to an output that is `shared`;
    to a remote one they always may.

    Raises:
        ConvertError: The output is another run's, or a dataset already, or not the one that the run has begun with.
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
