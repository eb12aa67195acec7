"""Who am I: the one room that reads rank, world size and worker from the outside.

From the arguments, else from an initialised process group, else from RANK and WORLD_SIZE, else 0 of 1. torch is asked
only if the program has loaded it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from wdsplit.errors import TopologyError
from wdsplit.split import World, whole

__all__ = ["detect_rank", "is_group_initialised", "is_worker_process", "with_worker"]


def detect_rank(
    rank: int | None = None,
    world_size: int | None = None,
    group: Any = None,
    environ: Mapping[str, str] | None = None,
) -> World:
    """Return rank and world size of this process, as a world of one worker.

    Args:
        rank: The rank; goes with `world_size`, and wins over all else.
        world_size: The number of ranks.
        group: A torch process group: its ranks count, not those of the whole job. Or a torch DeviceMesh, whole or
            sliced, such as mesh["dp"] or mesh["dp_replicate", "dp_shard"]: its places count, row by row, and
            processes at the same place of such a slice are the same rank.
        environ: Instead of the environment.

    Raises:
        TopologyError: The values contradict each other, or only half of them is known.
    """
    if rank is not None or world_size is not None:
        if rank is None or world_size is None:
            raise TopologyError(
                "rank and world_size go together",
                expected="both, or neither",
                found=f"rank {rank}, world_size {world_size}",
                remedy="pass both, or leave both out to have them detected",
            )
        return World(whole(rank), whole(world_size))
    if is_group_initialised():
        return _of_group(sys.modules["torch"].distributed, group)
    if group is not None:
        raise TopologyError(
            "a process group was given, but none is initialised",
            remedy="call torch.distributed.init_process_group before the loader is iterated",
        )
    return _of_environ(os.environ if environ is None else environ)


def is_group_initialised() -> bool:
    """Tell whether this process belongs to an initialised torch process group."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _of_group(distributed: Any, group: Any) -> World:
    if _is_mesh(group):
        place = group.get_coordinate()
        rank = -1 if place is None else int(np.ravel_multi_index(tuple(place), tuple(group.shape)))
        world_size = group.size()
    else:
        rank, world_size = distributed.get_rank(group), distributed.get_world_size(group)
    if rank < 0:
        raise TopologyError(
            "this process is not in the group that was given",
            remedy="iterate the loader on the members of its group only",
        )
    return World(rank, world_size)


def _is_mesh(group: Any) -> bool:
    """Tell whether a group is a torch DeviceMesh: if the program has one, it has loaded the module."""
    module = sys.modules.get("torch.distributed.device_mesh")
    return module is not None and isinstance(group, module.DeviceMesh)


def _of_environ(environ: Mapping[str, str]) -> World:
    values: dict[str, int | None] = {}
    for name in ("RANK", "WORLD_SIZE"):
        text = environ.get(name)
        try:
            values[name] = None if text is None or not text.strip() else int(text)
        except ValueError as error:
            raise TopologyError(
                f"the environment's {name} is no number", expected="an integer", found=repr(text)
            ) from error
    rank, world_size = values["RANK"], values["WORLD_SIZE"]
    if rank is None and world_size in (None, 1):
        return World()
    if rank is None or world_size is None:
        missing = "RANK" if rank is None else "WORLD_SIZE"
        raise TopologyError(
            f"the environment has one of RANK and WORLD_SIZE, but not {missing}",
            expected="both, as torchrun sets them",
            found=f"RANK {rank}, WORLD_SIZE {world_size}",
            remedy="start the program with torchrun, set both, or pass rank= and world_size=",
        )
    return World(rank, world_size)


def is_worker_process() -> bool:
    """Tell whether this process is a worker of a torch DataLoader."""
    return _worker_info() is not None


def with_worker(world: World) -> World:
    """Return the world with worker and number of workers of this DataLoader worker process, if it is one."""
    info = _worker_info()
    return world if info is None else World(world.rank, world.world_size, info.id, info.num_workers)


def _worker_info() -> Any:
    torch_data = sys.modules.get("torch.utils.data")
    return None if torch_data is None else torch_data.get_worker_info()
