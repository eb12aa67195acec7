"""Ranks, as arguments, process groups and the variables of launchers give them."""

import json
import sys
import types

import pytest
import torch.distributed
from torch.distributed.device_mesh import init_device_mesh

from loaded import all_modules_loaded_by
from wdsplit.errors import TopologyError
from wdsplit.loading.world import detect_rank, is_group_initialised
from wdsplit.order.split import World

SLURM_JOB = {"SLURM_JOB_ID": "71", "SLURM_JOB_NAME": "train", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}
"""What SLURM sets in all processes of a job; the batch script and the shell of salloc are task 0 of it too."""
SLURM = {**SLURM_JOB, "SLURM_PROCID": "2", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
SRUN_SHELL = {**SLURM, "SLURM_PROCID": "0", "SLURM_JOB_NAME": "bash", "SLURM_PTY_PORT": "33333"}
INTERACTIVE = {**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_ID": "4294967290", "SLURM_PTY_PORT": "33333", "PMIX_RANK": "0"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "3"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "6", "PMIX_RANK": "5"}
BY_PMI2 = {"PMI_RANK": "0", "PMI_SIZE": "4", "PMI_JOBID": "71.0"}
"""What `srun --mpi=pmi2` adds; then what mpiexec of MPICH sets in a shell that has that."""
BY_MPIEXEC = {**BY_PMI2, "PMI_RANK": "1", "PMI_SIZE": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "3"}
HOROVOD = {"HOROVOD_RANK": "1", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "1"}


def tf_config(kinds, kind, index):
    """Return the environment of a task in a cluster of so many chiefs, workers, ..."""
    cluster = {name: [f"{name}{each}:1" for each in range(count)] for name, count in kinds.items()}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


FOUND = {
    "no launcher": ({}, World()),
    "torchrun": (TORCHRUN, World(3, 8)),
    "a world of nothing": ({"RANK": "", "WORLD_SIZE": ""}, World()),
    "what is left of a launcher": ({"LOCAL_RANK": "2", "SLURM_PROCID": "5"}, World()),
    "TF_CONFIG of one": (tf_config({"worker": 1}, "worker", 0), World()),
    "TF_CONFIG of a worker": (tf_config({"worker": 3}, "worker", 2), World(2, 3)),
    "TF_CONFIG of a chief": (tf_config({"chief": 1, "worker": 2, "ps": 1}, "chief", 0), World(0, 3)),
    "TF_CONFIG of a worker beside a chief": (tf_config({"chief": 1, "worker": 2, "ps": 1}, "worker", 1), World(2, 3)),
    "TF_CONFIG of a server": (tf_config({"chief": 1, "worker": 2, "ps": 1}, "ps", 0), World()),
    "TF_CONFIG of a master": (tf_config({"master": 1, "worker": 1}, "master", 0), World(0, 2)),
    "srun": (SLURM, World(2, 4)),
    "srun of old, without the step's tasks": ({**SLURM, "SLURM_STEP_NUM_TASKS": ""}, World(2, 4)),
    "srun -n 3 in a job of 4 tasks": ({**SLURM, "SLURM_STEP_NUM_TASKS": "3"}, World(2, 3)),
    "srun -n 1, and python in its shell": ({**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, World()),
    "batch script": (SLURM_JOB, World()),
    "salloc": ({**SLURM_JOB, "SLURM_JOB_NAME": "interactive"}, World()),
    "salloc, with its shell on a node": (INTERACTIVE, World()),
    "srun in the shell of salloc": ({**SLURM, "SLURM_JOB_NAME": "interactive", "SLURM_PTY_PORT": "33333"}, World(2, 4)),
    "srun --pty bash": (SRUN_SHELL, World()),
    "srun --mpi=pmi2 --pty bash": ({**SRUN_SHELL, **BY_PMI2}, World()),
    "mpiexec in the shell of srun --mpi=pmi2 --pty bash": ({**SRUN_SHELL, **BY_MPIEXEC}, World(1, 3)),
    "mpiexec in a batch script": ({**SLURM_JOB, "PMI_RANK": "1", "PMI_SIZE": "3"}, World(1, 3)),
    "srun in the shell of srun --pty bash": ({**SRUN_SHELL, "SLURM_PROCID": "1", "SLURM_STEP_ID": "1"}, World(1, 4)),
    "srun --mpi=pmi2": ({**SLURM, "PMI_RANK": "2", "PMI_SIZE": "4"}, World(2, 4)),
    "srun of a program whose script exports WORLD_SIZE": ({**SLURM, "WORLD_SIZE": "4"}, World(2, 4)),
    "torchrun, one on each node, by srun": ({**SLURM, **TORCHRUN}, World(3, 8)),
    "mpirun in a SLURM job": ({**SLURM, **OPEN_MPI}, World(5, 6)),
    "Open MPI": (OPEN_MPI, World(5, 6)),
    "MPICH, Intel MPI": ({"PMI_RANK": "1", "PMI_SIZE": "3"}, World(1, 3)),
    "MVAPICH": ({"MV2_COMM_WORLD_RANK": "1", "MV2_COMM_WORLD_SIZE": "3"}, World(1, 3)),
    "horovodrun by mpirun": ({**HOROVOD, "OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}, World(1, 2)),
    "deepspeed": ({**TORCHRUN, "LOCAL_SIZE": "8", "CROSS_SIZE": "1"}, World(3, 8)),
}

REFUSED = {
    "half of torchrun": ({"WORLD_SIZE": "8"}, "not RANK"),
    "another half": ({"RANK": "0"}, "not WORLD_SIZE"),
    "a size that is no number": ({"RANK": "3", "WORLD_SIZE": "8.0"}, "WORLD_SIZE is not a number"),
    "a rank of the next world": ({"RANK": "8", "WORLD_SIZE": "8"}, "contradict"),
    "a world of none": ({"WORLD_SIZE": "0"}, "not RANK"),
    **{
        f"TF_CONFIG={config}": ({"TF_CONFIG": config}, "TF_CONFIG cannot be read")
        for config in (
            "{",
            "[]",
            '{"cluster": {"worker": 3}}',
            '{"cluster": {}, "task": {"type": "worker", "index": "x"}}',
        )
    },
    "the next launcher does not match its shard": (
        {**SLURM, "WORLD_SIZE": "8"},
        "WORLD_SIZE contradicts SLURM_STEP_NUM_TASKS",
    ),
    "prterun in a SLURM job": ({**SLURM, "PMIX_RANK": "7"}, "PMIX_RANK contradicts SLURM_PROCID"),
    "PMIx has no size": ({"PMIX_RANK": "0"}, "has PMIX_RANK, but no size"),
    "half of Open MPI": ({"OMPI_COMM_WORLD_SIZE": "6"}, "has OMPI_COMM_WORLD_SIZE, but not OMPI_COMM_WORLD_RANK"),
    "Lightning's own launcher": ({"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0"}, "Lightning Trainer"),
    "half of SLURM": ({**SLURM, "SLURM_PROCID": ""}, "has SLURM_STEP_NUM_TASKS, but not SLURM_PROCID"),
    "no rank of so many": ({**SLURM, "SLURM_PROCID": "4"}, "the environment's SLURM_PROCID and SLURM_STEP_NUM_TASKS"),
}


@pytest.fixture
def gloo(tmp_path):
    """Initialise a process group of one, as a program started without torchrun may."""
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", FOUND)
def test_the_innermost_launcher_says_who_a_process_is(name):
    environ, expected = FOUND[name]
    assert detect_rank(environ=environ) == expected


@pytest.mark.parametrize("name", REFUSED)
def test_what_contradicts_itself_is_refused_and_its_variables_are_named(name):
    environ, told = REFUSED[name]
    with pytest.raises(TopologyError) as caught:
        detect_rank(environ=environ)
    assert told in str(caught.value)
    assert caught.value.found and (caught.value.remedy or "TF_CONFIG" in environ)


def test_arguments_win_over_the_environment_and_go_together():
    assert detect_rank(1, 4, environ=TORCHRUN) == World(1, 4)
    assert detect_rank(rank=0, world_size=1, environ=TORCHRUN) == World()
    for half in ({"rank": 0}, {"world_size": 1}, {"rank": 1}, {"world_size": 4}):
        with pytest.raises(TopologyError, match="go together"):
            detect_rank(**half, environ=TORCHRUN)


def test_an_initialised_horovod_wins_over_its_environment(monkeypatch):
    """After elastic Horovod has lost a worker, the environment still tells the old ranks."""
    horovod = types.SimpleNamespace(is_initialized=lambda: True, rank=lambda: 2, size=lambda: 3)
    monkeypatch.setitem(sys.modules, "horovod.torch", horovod)
    assert detect_rank(environ=HOROVOD) == World(2, 3)
    assert detect_rank(0, 1, environ=HOROVOD) == World()
    horovod.is_initialized = lambda: False
    assert detect_rank(environ=HOROVOD) == World(1, 2)


def test_an_initialised_process_group_wins_over_the_environment_and_over_horovod(gloo, monkeypatch):
    """webdataset takes the environment's RANK although a group was passed in."""
    assert is_group_initialised()
    horovod = types.SimpleNamespace(is_initialized=lambda: True, rank=lambda: 2, size=lambda: 3)
    monkeypatch.setitem(sys.modules, "horovod.torch", horovod)
    assert detect_rank(environ=HOROVOD) == detect_rank(environ=TORCHRUN) == World(0, 1)
    assert detect_rank(group=gloo, environ=TORCHRUN) == World(0, 1)


def test_a_device_mesh_counts_as_a_group(gloo):
    """Meshes of more than one process are in system/test_torchrun.py."""
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    assert detect_rank(group=mesh["dp"], environ=TORCHRUN) == World(0, 1)
    assert detect_rank(group=mesh, environ=TORCHRUN) == World(0, 1)
    assert detect_rank(1, 4, group=mesh) == World(1, 4)


def test_asking_for_the_rank_loads_no_torch():
    ask = "from wdsplit.loading.world import detect_rank; detect_rank(environ={})"
    assert "torch" not in all_modules_loaded_by(ask)


def test_a_group_without_an_initialised_process_group_is_an_error():
    assert not is_group_initialised()
    with pytest.raises(TopologyError, match="none is initialised") as caught:
        detect_rank(group=object(), environ=TORCHRUN)
    assert "init_process_group" in caught.value.remedy
