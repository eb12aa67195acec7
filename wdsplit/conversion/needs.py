"""Resources of a conversion besides the space for its shards: memory, and temporary space on the output's disk."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from wdsplit.conversion.plan.plan import Plan
from wdsplit.conversion.prepare import Prepared
from wdsplit.conversion.shuffle.in_memory import memory_bytes
from wdsplit.conversion.shuffle.scatter import REMOTE_MEMORY, loadable_bytes, task_bytes
from wdsplit.conversion.shuffle.steps import SPILL_FOLDER, spilled_bytes
from wdsplit.engines.limits import usable_memory
from wdsplit.errors import StorageError

__all__ = ["Needs", "memory_budget", "needs_of", "refuse_little_space"]

logger = logging.getLogger(__name__)

_MEMORY_SHARE = 4
"""The default memory budget, as a fraction of the memory that the process may use."""


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
    return memory or (usable_memory() // _MEMORY_SHARE if is_local else REMOTE_MEMORY)


def needs_of(plan: Plan, memory: int | None, jobs: int, is_local: bool, on_disk: bool) -> Needs:
    """Return the resources that a conversion needs.

    Args:
        plan: The plan.
        memory: Bytes of memory, as for `ConvertOptions`.
        jobs: Number of parallel tasks that share the memory of a machine.
        is_local: Whether all tasks run on this machine.
        on_disk: Whether the output is on a disk of this machine.
    """
    memory = memory_budget(memory, is_local)
    loadable = loadable_bytes(memory, jobs) if is_local else 0
    buffer_bytes = task_bytes(memory, jobs, plan.table.data_bytes if on_disk else None)
    spills = plan.scatters and memory_bytes(plan) > loadable
    return Needs(memory, loadable, buffer_bytes, spilled_bytes(plan, buffer_bytes) if spills else 0)


def refuse_little_space(prepared: Prepared, needs: Mapping[str, Needs]) -> None:
    """Refuse a conversion that spills rows to a disk without enough space for them and the shards.

    Splits are converted one after another. Replaced files are removed before; resumed runs are not checked.

    Raises:
        StorageError: There is too little space.
    """
    runs = {name: run for name, run in prepared.runs.items() if name not in prepared.resumed}
    temporary = max((needs[name].temporary_bytes for name in runs), default=0)
    storages = [run.storage for run in runs.values()]
    if not temporary or storages[0].is_remote:
        return
    folder = Path(storages[0].url).absolute()
    disk = next(each for each in (folder, *folder.parents) if each.exists())
    shards = sum(prepared.plans[name].shard_bytes for name in runs)
    free = shutil.disk_usage(disk).free + sum(sum(storage.sizes().values()) for storage in storages)
    if free < temporary + shards:
        grouped = any(plan.groups is not None for plan in prepared.plans.values())
        raise StorageError(
            f"too little disk space to {'group' if grouped else 'shuffle'} the rows",
            place=str(disk),
            expected=f"about {_gigabytes(temporary + shards)}: {_gigabytes(shards)} for shards, and "
            f"{_gigabytes(temporary)} for rows in {SPILL_FOLDER} until the shards are written",
            found=f"{_gigabytes(free)} free",
            remedy="choose an output on a larger disk, or give enough --memory for all rows"
            + ("" if grouped else ", or keep the order of the table with --no-shuffle, which needs no temporary space"),
            url=str(disk),
        )
    logger.info(
        "shuffling rows through about %s of temporary files in %s/%s", _gigabytes(temporary), folder, SPILL_FOLDER
    )


def _gigabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:,.1f} MB"
