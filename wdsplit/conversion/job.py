"""The input of every task of a conversion."""

from __future__ import annotations

from dataclasses import dataclass

from wdsplit.conversion.plan.plan import Plan
from wdsplit.jobs.run import Job
from wdsplit.shards.manifest import RUN_FOLDER

__all__ = ["ConvertJob"]


@dataclass(frozen=True, kw_only=True)
class ConvertJob(Job):
    """The input of every task of a conversion.

    Attributes:
        plan: The plan.
        buffer_bytes: Bytes of rows that a task may buffer, if the plan reorders rows.
        emit: The sidecars to write.
    """

    plan: Plan
    buffer_bytes: int
    emit: tuple[str, ...] = ()

    @property
    def run(self) -> str:
        """The hash of the plan."""
        return self.plan.hash

    @property
    def run_folder(self) -> str:
        """The folder of the run's record in the output."""
        return RUN_FOLDER
