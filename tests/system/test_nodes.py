"""Jobs on two nodes that stream a dataset from S3: two torchrun agents on one machine."""

import shutil

import pytest

from made_datasets import expected_batches, real_rows, sized_dataset
from nodes import Job, run
from torchruns import delivered, processes_that_stay

COUNTS = [3, 80, 0, 25, 1, 40, 8, 0, 6]
GLOBAL_BATCH = 12
NUM_STEPS = -(-sum(COUNTS) // GLOBAL_BATCH)


@pytest.fixture(scope="module")
def local(tmp_path_factory):
    """Return a dataset on the disk whose shards differ wildly."""
    return sized_dataset(tmp_path_factory.mktemp("local"), COUNTS, lanes=6, window=4)


@pytest.fixture
def remote(local, bucket):
    """Return the same dataset in a bucket."""
    shutil.copytree(local, bucket.folder / "train")
    return f"{bucket.url}/train"


def epoch_of_one_reader(local, epoch):
    return expected_batches(local, NUM_STEPS, GLOBAL_BATCH, epoch)


def kept_by(done, node):
    """Return the shards that a node keeps."""
    return [path for path in done.cache(node).rglob("*") if path.suffix == ".shard"]


def test_two_nodes_of_which_a_rank_is_killed_and_two_others_that_resume_train_each_batch_once(local, remote, tmp_path):
    """The rank is killed in the middle of the second epoch; those that resume have another number of ranks."""
    committed = NUM_STEPS + 5
    first = Job(remote, GLOBAL_BATCH, stop_epoch=2, num_workers=1, cached=True, victim=3, killed_after=committed)
    killed = run(tmp_path / "first", first, [2, 2])
    assert 0 not in killed.returncodes, killed.output
    assert "SIGKILL" in killed.outputs[1]
    assert processes_that_stay(killed.folder) == {}
    assert [rank["len"] for rank in killed.ranks] == [NUM_STEPS] * 4
    assert kept_by(killed, 0) and kept_by(killed, 1)
    assert (killed.state["epoch"], killed.state["position"]) == (1, 5 * GLOBAL_BATCH)
    done = killed.batches(committed)
    assert done == epoch_of_one_reader(local, 0) + epoch_of_one_reader(local, 1)[:5]

    second = Job(remote, GLOBAL_BATCH, stop_epoch=2, num_workers=0, state=killed.state)
    resumed = run(tmp_path / "second", second, [1, 2])
    assert resumed.returncodes == [0, 0], resumed.output
    assert len(resumed.ranks) == 3
    second_epoch = done[NUM_STEPS:] + resumed.batches()
    assert second_epoch == epoch_of_one_reader(local, 1)
    assert real_rows(delivered(second_epoch)) == list(range(sum(COUNTS)))
