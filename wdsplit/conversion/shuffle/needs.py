"""How much memory a conversion needs, and temporary space on the output's disk."""

from __future__ import annotations

from dataclasses import dataclass

from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.shuffle.steps import BATCH_BYTES, ROW_BYTES, cut_into_regions, cut_table
from wdsplit.engines.limits import usable_memory
from wdsplit.tables.table import Table

__all__ = ["Needs", "loadable_bytes", "memory_budget", "needs_of", "rows_bytes", "task_bytes", "task_memory"]

_MEMORY_SHARE = 4
"""The default memory budget, as a fraction of the memory that the process may use."""
_REMOTE_MEMORY = 1024**3
"""The same on unknown machines."""
_BASE_BYTES = 256 * 1024**2
_JOB_BYTES = 128 * 1024**2
"""Memory besides rows, of all jobs together and of each job: libraries, pages being decoded."""
_COPIES = 6
"""Maximum copies of its rows that a task has in memory: as read, sorted, encoded, laid out and written."""
_FILE_BYTES, _ROW_GROUP_BYTES = 1024, 64
"""Approximate bytes of an input file, and of one of its row groups, in a plan."""
_LEAST_BYTES, _USUAL_BYTES, _MAX_BYTES = 8 * 1024**2, 32 * 1024**2, 1024**3
_USUAL_TASKS = 128
_SPILLED_ROW_BYTES = 16
"""Bytes of a row in a spill file besides its columns: its place and its number."""


@dataclass(frozen=True)
class Needs:
    """The resources that the conversion of a plan needs.

    Attributes:
        memory: Memory budget of all jobs of a machine, in bytes.
        loadable_bytes: Bytes of rows that may be in memory at once; 0 if tasks run on several machines.
        buffer_bytes: Bytes of rows that a task may buffer, if rows are spilled.
        temporary_bytes: Approximate bytes on the disk of the output during the shuffle; 0 if rows are not spilled.
    """

    memory: int
    loadable_bytes: int
    buffer_bytes: int
    temporary_bytes: int


def memory_budget(memory: int | None, is_local: bool) -> int:
    """Return the bytes of memory that all jobs of a machine may use, given the option."""
    return memory or (usable_memory() // _MEMORY_SHARE if is_local else _REMOTE_MEMORY)


def needs_of(plan: Plan, memory: int | None, jobs: int, is_local: bool, on_disk: bool) -> Needs:
    """Return the resources that a conversion needs.

    Args:
        plan: The plan.
        memory: Bytes of memory, as for `ConvertOptions`.
        jobs: Number of parallel tasks that share the memory of a machine.
        is_local: Whether all tasks run on this machine.
        on_disk: Whether the output is on a disk of this machine.
    """
    memory, temporary = memory_budget(memory, is_local), 0
    loadable = loadable_bytes(memory, jobs) if is_local else 0
    buffer_bytes = task_bytes(memory, jobs, plan.table.data_bytes if on_disk else None)
    if plan.scatters and rows_bytes(plan.table) > loadable:
        num_regions, _ = cut_into_regions(plan.num_rows, len(cut_table(plan.table, buffer_bytes)) - 1)
        temporary = (2 if num_regions > 1 else 1) * (plan.table.data_bytes + plan.num_rows * _SPILLED_ROW_BYTES)
    return Needs(memory, loadable, buffer_bytes, temporary)


def rows_bytes(table: Table) -> int:
    """Return the bytes of all rows in memory, estimated from their files."""
    return table.data_bytes + table.num_rows * ROW_BYTES


def loadable_bytes(memory_bytes: int, jobs: int) -> int:
    """Return how many bytes of rows may be in memory at once, while all jobs write shards from them."""
    return max(0, memory_bytes - _BASE_BYTES - jobs * (_JOB_BYTES + _COPIES * BATCH_BYTES))


def task_bytes(memory_bytes: int, jobs: int, local_bytes: int | None = None) -> int:
    """Return how many bytes of rows a task may buffer so that all jobs together stay within a memory limit.

    Args:
        memory_bytes: The limit.
        jobs: Number of jobs.
        local_bytes: The bytes of all rows, if they are spilled to a local disk. There, a task buffers little more than
            it must, because fresh memory costs a process more than small reads. None for a bucket.
    """
    free = (memory_bytes - _BASE_BYTES - _JOB_BYTES * jobs) // (jobs * _COPIES)
    enough = _MAX_BYTES if local_bytes is None else max(_USUAL_BYTES, local_bytes // _USUAL_TASKS)
    return min(_MAX_BYTES, enough, max(_LEAST_BYTES, free))


def task_memory(plan: Plan, buffer_bytes: int) -> int:
    """Return the approximate memory of a task in bytes, libraries included; it may buffer `buffer_bytes` of rows."""
    files = plan.table.files
    plan_bytes = sum(_FILE_BYTES + _ROW_GROUP_BYTES * len(file.row_groups) for file in files)
    if not plan.scatters:
        row_group = max(max(file.row_groups, default=0) * file.row_bytes for file in files)
        return _JOB_BYTES + _COPIES * BATCH_BYTES + int(row_group) + plan_bytes
    return _JOB_BYTES + _COPIES * buffer_bytes + plan_bytes
