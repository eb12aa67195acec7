"""Groups and meshes of ranks in real torchrun jobs; the ranks' script is torchrun_worker.py, which also checks them.

What the ranks of a whole job are given is in test_acceptance.py.
"""

import json

import pytest

from made_datasets import expected_batches
from torchruns import torchrun, woven


def run_task(world_size, task, path, out):
    """Run a task on some ranks; return the result of each."""
    ended = torchrun(world_size, "torchrun_worker.py", task, path, out, out=out)
    assert ended.returncode == 0, ended.output
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(world_size)]


def test_each_group_sees_the_whole_dataset_and_spawned_workers_know_their_rank(numbers, tmp_path):
    """Under torchrun, webdataset takes the environment's RANK although a group was passed in."""
    ranks = run_task(4, "groups", numbers, tmp_path)
    expected = expected_batches(numbers, 9)
    for members in (ranks[:2], ranks[2:]):
        for num_workers in (0, 2):
            assert woven([rank[f"workers {num_workers}"] for rank in members]) == expected
    delivered = [list(delivery) for batch in expected for delivery in batch]
    assert ranks[3]["spawned, DataLoader"] == delivered[3:104:4]
    assert ranks[3]["forkserver, Loader"] == delivered[3::4]
    assert ranks[3]["spawned, Loader, group"] == delivered[1::2]


@pytest.mark.slow
def test_ranks_at_the_same_data_parallel_place_of_a_mesh_see_the_same_and_the_places_see_all(numbers, tmp_path):
    ranks = run_task(4, "mesh", numbers, tmp_path)
    expected = expected_batches(numbers, 9)
    assert ranks[0]["dp"] == ranks[1]["dp"]
    assert ranks[2]["dp"] == ranks[3]["dp"]
    assert woven([ranks[0]["dp"], ranks[2]["dp"]]) == expected
    assert woven([rank["whole"] for rank in ranks]) == expected
    delivered = [list(delivery) for batch in expected for delivery in batch]
    assert ranks[2]["spawned"] == delivered[1::2]
