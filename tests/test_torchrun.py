"""Real torchrun jobs with gloo; the ranks' script is torchrun_worker.py, which also checks what the ranks gather."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from made_datasets import expected_batches, interleaved, real_rows
from torchrun_worker import STOPPED_AT, WORKERS

WORKER = Path(__file__).with_name("torchrun_worker.py")


def torchrun(world_size, task, path, out):
    """Run a task on some ranks; return the result of each."""
    out.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world_size}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    job = subprocess.run([*command, str(WORKER), task, path, str(out)], env=environment, capture_output=True, text=True)
    assert job.returncode == 0, job.stderr
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(world_size)]


def global_batches(parts):
    """Return the global batches that the ranks' batches make, as tuples."""
    return [interleaved([list(map(tuple, batch)) for batch in step]) for step in zip(*parts, strict=True)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_global_batches_are_the_same_for_any_ranks_and_workers(numbers, tmp_path, world_size):
    ranks = torchrun(world_size, "epochs", numbers, tmp_path)
    for shuffle in (False, True):
        expected = expected_batches(numbers, 9, shuffle=shuffle)
        for num_workers in WORKERS:
            batches = global_batches([rank[f"{num_workers} {shuffle}"] for rank in ranks])
            assert batches == expected
            assert real_rows(delivery for batch in batches for delivery in batch) == list(range(101))


def test_a_job_that_was_stopped_resumes_on_other_ranks_and_workers(numbers, tmp_path):
    seen = global_batches(torchrun(2, "stop", numbers, tmp_path))
    rest = global_batches(torchrun(3, "resume", numbers, tmp_path))
    assert len(seen) == STOPPED_AT
    assert seen + rest == expected_batches(numbers, 9, epoch=3)


def test_each_group_sees_the_whole_dataset_and_spawned_workers_know_their_rank(numbers, tmp_path):
    """Under torchrun, webdataset takes the environment's RANK although a group was passed in."""
    ranks = torchrun(4, "groups", numbers, tmp_path)
    expected = expected_batches(numbers, 9)
    for members in (ranks[:2], ranks[2:]):
        for num_workers in (0, 2):
            assert global_batches([rank[f"workers {num_workers}"] for rank in members]) == expected
    delivered = [list(delivery) for batch in expected for delivery in batch]
    assert ranks[3]["spawned, DataLoader"] == delivered[3:104:4]
    assert ranks[3]["forkserver, Loader"] == delivered[3::4]
    assert ranks[3]["spawned, Loader, group"] == delivered[1::2]


def test_ranks_at_the_same_data_parallel_place_of_a_mesh_see_the_same_and_the_places_see_all(numbers, tmp_path):
    ranks = torchrun(4, "mesh", numbers, tmp_path)
    expected = expected_batches(numbers, 9)
    assert ranks[0]["dp"] == ranks[1]["dp"]
    assert ranks[2]["dp"] == ranks[3]["dp"]
    assert global_batches([ranks[0]["dp"], ranks[2]["dp"]]) == expected
    assert global_batches([rank["whole"] for rank in ranks]) == expected
    delivered = [list(delivery) for batch in expected for delivery in batch]
    assert ranks[2]["spawned"] == delivered[1::2]
