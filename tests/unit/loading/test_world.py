import subprocess
import sys

import pytest
import torch.distributed
import torch.utils.data
from torch.distributed.device_mesh import init_device_mesh

from wdsplit.errors import TopologyError
from wdsplit.loading.world import detect_rank, is_group_initialised
from wdsplit.order.split import World

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8"}


@pytest.fixture
def gloo(tmp_path):
    """Initialise a process group of one, as a program started without torchrun may."""
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield torch.distributed.group.WORLD
    torch.distributed.destroy_process_group()


def test_arguments_win_over_the_environment():
    assert detect_rank(1, 4, environ=TORCHRUN) == World(1, 4)
    assert detect_rank(rank=0, world_size=1, environ=TORCHRUN) == World()


@pytest.mark.parametrize("half", [{"rank": 0}, {"world_size": 1}, {"rank": 1}, {"world_size": 4}])
def test_rank_and_world_size_go_together(half):
    with pytest.raises(TopologyError, match="go together") as caught:
        detect_rank(**half, environ=TORCHRUN)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("environ", "world"),
    [
        ({}, World()),
        (TORCHRUN, World(3, 8)),
        ({"WORLD_SIZE": "1"}, World()),
        ({"RANK": "0", "WORLD_SIZE": "1"}, World()),
        ({"RANK": "", "WORLD_SIZE": ""}, World()),
        ({"LOCAL_RANK": "2", "SLURM_PROCID": "5"}, World()),
    ],
)
def test_the_environment_of_a_launcher_is_read(environ, world):
    assert detect_rank(environ=environ) == world


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"WORLD_SIZE": "8"}, "not RANK"),
        ({"WORLD_SIZE": "8", "RANK": " "}, "not RANK"),
        ({"RANK": "3"}, "not WORLD_SIZE"),
        ({"RANK": "0"}, "not WORLD_SIZE"),
        ({"RANK": "three", "WORLD_SIZE": "8"}, "RANK is not a number"),
        ({"RANK": "3", "WORLD_SIZE": "8.0"}, "WORLD_SIZE is not a number"),
        ({"RANK": "8", "WORLD_SIZE": "8"}, "contradict"),
        ({"RANK": "-1", "WORLD_SIZE": "8"}, "contradict"),
        ({"WORLD_SIZE": "0"}, "not RANK"),
    ],
)
def test_half_an_environment_is_an_error_and_not_rank_0(environ, named):
    with pytest.raises(TopologyError, match=named) as caught:
        detect_rank(environ=environ)
    assert caught.value.expected and caught.value.found


def test_an_initialised_process_group_wins_over_the_environment(gloo):
    """webdataset takes the environment's RANK although a group was passed in."""
    assert is_group_initialised()
    assert detect_rank(environ=TORCHRUN) == World(0, 1)
    assert detect_rank(group=gloo, environ=TORCHRUN) == World(0, 1)


def test_a_device_mesh_counts_as_a_group(gloo):
    """Meshes of more than one process are in system/test_torchrun.py."""
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    assert detect_rank(group=mesh["dp"], environ=TORCHRUN) == World(0, 1)
    assert detect_rank(group=mesh, environ=TORCHRUN) == World(0, 1)
    assert detect_rank(1, 4, group=mesh) == World(1, 4)


def test_asking_for_the_rank_loads_no_torch():
    ask = "from wdsplit.loading.world import detect_rank; print(detect_rank(environ={}), 'torch' in sys.modules)"
    script = f"import sys; {ask}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.split()[-1] == "False", done.stderr


def test_a_group_without_an_initialised_process_group_is_an_error():
    assert not is_group_initialised()
    with pytest.raises(TopologyError, match="none is initialised") as caught:
        detect_rank(group=object(), environ=TORCHRUN)
    assert "init_process_group" in caught.value.remedy
