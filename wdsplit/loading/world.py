"""Rank, world size and worker of this process: the only module that reads them from the outside.

From the arguments, else from an initialised process group, else from jax.distributed, else from Horovod, else from the
environment that a launcher has set, else 0 of 1. torch, JAX and Horovod are asked only if the program has loaded them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from wdsplit.engines.local import end_with_parent
from wdsplit.errors import TopologyError
from wdsplit.integers import whole
from wdsplit.order.split import World

__all__ = ["detect_rank", "is_group_initialised", "job_store", "knows_rank", "with_worker"]

logger = logging.getLogger(__name__)

LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("PMIX_RANK", ""),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""The variables for rank and world size, innermost launcher first: torchrun (also DeepSpeed, Accelerate, Ray Train),
horovodrun, Open MPI, MVAPICH, MPICH and Intel MPI, PMIx (which tells no size), SLURM. A torchrun or mpirun that runs in
a SLURM job counts its own processes; SLURM then starts one a node."""

SLURM_LAST_STEP = 0xFFFFFFEF
"""Steps of higher numbers are SLURM's own: the batch script, and the shell that salloc opens on a node."""

SHELLS = frozenset({"ash", "bash", "csh", "dash", "fish", "ksh", "sh", "tcsh", "zsh"})

_logged: set[tuple[World, str]] = set()


def detect_rank(
    rank: int | None = None,
    world_size: int | None = None,
    group: Any = None,
    environ: Mapping[str, str] | None = None,
) -> World:
    """Return rank and world size of this process, as a world of one worker.

        world = wdsplit.detect_rank()
        print(world.rank, world.world_size)

    Args:
        rank: The rank, together with `world_size`; overrides all other sources.
        world_size: The number of ranks.
        group: A torch process group, whose ranks count instead of those of the whole job. Or a torch DeviceMesh, whole
            or sliced, such as mesh["dp"] or mesh["dp_replicate", "dp_shard"]: its places count, row by row, and
            processes at the same place of a slice are the same rank.
        environ: Variables to use instead of the environment's.

    Raises:
        TopologyError: The values contradict each other, or only one of the two is known.
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
        return _log_once(_of_group(sys.modules["torch"].distributed, group), "the process group")
    if group is not None:
        raise TopologyError(
            "a process group was given, but none is initialised",
            remedy="call torch.distributed.init_process_group before the loader is iterated",
        )
    environ = os.environ if environ is None else environ
    found = _of_jax() or _of_horovod() or _of_environ(environ) or _of_tf_config(environ)
    return World() if found is None else _log_once(*found)


def _log_once(world: World, source: str) -> World:
    """Log once a process where a rank comes from."""
    if (world, source) not in _logged:
        _logged.add((world, source))
        logger.info("rank %d of %d, from %s", world.rank, world.world_size, source)
    return world


def is_group_initialised() -> bool:
    """Tell whether this process belongs to an initialised torch process group."""
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def job_store() -> Any:
    """Return the store over which the ranks of an initialised torch process group have found each other."""
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()  # there is no public name for it


def knows_rank() -> bool:
    """Tell whether this process has its rank from a library, so that processes that it spawns cannot detect it.

    They inherit a rank of the environment. A process that has not joined others by a library may be a rank, or start
    ranks.
    """
    return is_group_initialised() or _of_jax() is not None or _of_horovod() is not None


def _of_group(distributed: Any, group: Any) -> World:
    meshes = sys.modules.get("torch.distributed.device_mesh")  # loaded if the program has one
    if meshes is not None and isinstance(group, meshes.DeviceMesh):
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


def _of_jax() -> tuple[World, str] | None:
    """Return the place of this process among those of jax.distributed, if it is initialised."""
    jax = sys.modules.get("jax")
    is_initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    if jax is None or is_initialized is None or not is_initialized():
        return None
    return World(jax.process_index(), jax.process_count()), "jax.distributed"


def _of_horovod() -> tuple[World, str] | None:
    """Ask Horovod, if the program has imported and initialised it."""
    for name in ("horovod.torch", "horovod.tensorflow"):
        horovod = sys.modules.get(name)
        if horovod is not None and horovod.is_initialized():
            return World(horovod.rank(), horovod.size()), name
    return None


def _of_environ(environ: Mapping[str, str]) -> tuple[World, str] | None:
    """Return the world according to the innermost launcher, and the names of its variables; None without a launcher.

    A launcher with only one of its variables does not count, but must agree with the next one: programs export
    WORLD_SIZE themselves.
    """
    halves: list[tuple[str, str]] = []
    for names in _launchers(environ):
        rank, size = _number(environ, names[0]), _number(environ, names[1])
        rank = 0 if rank is None and size == 1 else rank
        if rank is not None and size is not None:
            _check_halves(environ, halves, names)
            source = " and ".join(names)
            try:
                return World(rank, size), source
            except TopologyError as error:
                raise error.at(f"the environment's {source}") from None
        if rank is not None or size is not None:
            halves.append(names)
    if not halves:
        return None
    remedy = "start the program with a launcher, set both, or pass rank= and world_size="
    if environ.get("LOCAL_RANK") and environ.get("WORLD_SIZE"):
        remedy = (
            "a Lightning Trainer that starts processes itself (devices=2, no torchrun) sets their ranks late: use the "
            "loader after that (in a hook, such as on_fit_start), pass rank= and world_size=, or start the program "
            "with torchrun"
        )
    there, missing = halves[0] if _number(environ, halves[0][0]) is not None else reversed(halves[0])
    raise TopologyError(
        f"the environment has {there}, but not {missing}" if missing else f"the environment has {there}, but no size",
        expected="rank and world size, as torchrun sets RANK and WORLD_SIZE",
        found=f"{there} {environ[there]}",
        remedy=remedy,
    )


def _check_halves(environ: Mapping[str, str], halves: list[tuple[str, str]], names: tuple[str, str]) -> None:
    for half in halves:
        for name, other in zip(half, names, strict=True):
            if _number(environ, name) not in (None, _number(environ, other) or 0):
                raise TopologyError(
                    f"the environment's {name} contradicts {other}",
                    expected=f"{environ.get(other, 0)}, or not set at all",
                    found=f"{name} {environ[name]}, {other} {environ.get(other, 0)}",
                    remedy="unset it, set RANK and WORLD_SIZE both, or pass rank= and world_size=",
                )


def _launchers(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Give the variables that count: SLURM's only in a task, and those that it sets for MPI not in its shells.

    SLURM's plugin for PMI sets PMI_JOBID; mpiexec of MPICH and Intel MPI, in such a shell too, sets MPI_LOCALRANKID.
    """
    is_task = _is_slurm_task(environ)
    hidden = []
    if environ.get("SLURM_JOB_ID") and not is_task:
        is_slurms = environ.get("PMI_JOBID") and not environ.get("MPI_LOCALRANKID")
        hidden = ["PMIX_RANK", "PMI_RANK"] if is_slurms else ["PMIX_RANK"]
    for rank_name, size_name in LAUNCHERS:
        if rank_name == "SLURM_PROCID":
            if is_task:
                yield rank_name, size_name if environ.get(size_name, "").strip() else "SLURM_NTASKS"
        elif rank_name not in hidden:
            yield rank_name, size_name


def _is_slurm_task(environ: Mapping[str, str]) -> bool:
    """Tell whether this process belongs to a task that srun has started: SLURM sets most variables elsewhere too.

    A batch script and the shell of salloc have SLURM_PROCID and SLURM_NTASKS, but no step, or one of SLURM's own. The
    tasks of `srun --pty bash` do not count either: they are in the first step of a job with the shell's name. In the
    shell of salloc, they look the same as the first step of a program.
    """
    step = _number(environ, "SLURM_STEP_ID")
    if step is None or not 0 <= step <= SLURM_LAST_STEP:
        return False
    name = environ.get("SLURM_JOB_NAME", "").rpartition("/")[2]
    return not (step == 0 and name in SHELLS and environ.get("SLURM_PTY_PORT"))


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    try:
        return int(text) if text.strip() else None
    except ValueError as error:
        raise TopologyError(
            f"the environment's {name} is not a number",
            expected="an integer",
            found=repr(text),
            remedy="correct it, or pass rank= and world_size=",
        ) from error


def _of_tf_config(environ: Mapping[str, str]) -> tuple[World, str] | None:
    """Return the place among the workers that TensorFlow's TF_CONFIG names, its chief first; None for other tasks."""
    text = environ.get("TF_CONFIG", "").strip()
    try:
        config = json.loads(text) if text else {}
        cluster, task = config.get("cluster", {}), config.get("task", {})
        kind, index = task.get("type"), int(task.get("index", 0))
        num_chiefs = len(cluster.get("chief", cluster.get("master", ())))
        num_workers = len(cluster.get("worker", ()))
    except (AttributeError, TypeError, ValueError) as error:
        raise TopologyError(
            "the environment's TF_CONFIG cannot be read",
            expected='{"cluster": {"worker": [...]}, "task": {"type": "worker", "index": 0}}',
            found=text[:200],
        ) from error
    if kind not in ("chief", "master", "worker"):
        return None
    try:
        return World(index + (num_chiefs if kind == "worker" else 0), num_chiefs + num_workers), "TF_CONFIG"
    except TopologyError as error:
        raise error.at("the environment's TF_CONFIG") from None


def is_worker() -> bool:
    """Tell whether this is a worker process of a DataLoader."""
    return _worker_info() is not None


def _worker_info() -> Any:
    torch_data = sys.modules.get("torch.utils.data")
    return None if torch_data is None else torch_data.get_worker_info()


def with_worker(world: World) -> World:
    """Return the world with worker and number of workers of this DataLoader worker process, if it is one.

    From then on, the process ends with its parent: torch's own watch waits as long as a store does.
    """
    info = _worker_info()
    if info is None:
        return world
    end_with_parent()
    return World(world.rank, world.world_size, info.id, info.num_workers)
