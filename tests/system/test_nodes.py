"""Jobs on two nodes that stream a dataset from S3: two torchrun agents, on one machine and in network namespaces."""

import contextlib
import json
import shutil
import subprocess

import pytest

from made_datasets import expected_batches, real_rows, sized_dataset
from namespaces import namespaces, why_not
from nodes import Job, Node, run
from s3server import KEY_ID, SECRET, bound_to_tests, rclone
from torchruns import delivered, processes_that_stay

COUNTS = [3, 80, 0, 25, 1, 40, 8, 0, 6]
GLOBAL_BATCH = 12
NUM_STEPS = -(-sum(COUNTS) // GLOBAL_BATCH)
STORE_PORT = 9000


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
    killed = run(tmp_path / "first", first, [Node(2), Node(2)])
    assert 0 not in killed.returncodes, killed.output
    assert "SIGKILL" in killed.outputs[1]
    assert processes_that_stay(killed.folder) == {}
    assert [rank["len"] for rank in killed.ranks] == [NUM_STEPS] * 4
    assert kept_by(killed, 0) and kept_by(killed, 1)
    assert (killed.state["epoch"], killed.state["position"]) == (1, 5 * GLOBAL_BATCH)
    done = killed.batches(committed)
    assert done == epoch_of_one_reader(local, 0) + epoch_of_one_reader(local, 1)[:5]

    second = Job(remote, GLOBAL_BATCH, stop_epoch=2, num_workers=0, state=killed.state)
    resumed = run(tmp_path / "second", second, [Node(1), Node(2)])
    assert resumed.returncodes == [0, 0], resumed.output
    assert len(resumed.ranks) == 3
    second_epoch = done[NUM_STEPS:] + resumed.batches()
    assert second_epoch == epoch_of_one_reader(local, 1)
    assert real_rows(delivered(second_epoch)) == list(range(sum(COUNTS)))


# Network namespaces


@pytest.fixture(scope="module")
def networks():
    """Return three namespaces: of two nodes and of the store."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with namespaces(3) as made:
        yield made
    left = subprocess.run(["ip", "netns", "list"], check=True, capture_output=True, text=True).stdout
    assert not set(made.names) & set(left.split())


@contextlib.contextmanager
def store_in(networks, number, folder):
    """Run an S3 server over a folder in a namespace."""
    command = [rclone(), "serve", "s3", str(folder), f"--addr=:{STORE_PORT}", f"--auth-key={KEY_ID},{SECRET}"]
    command += ["--config=", "--dir-cache-time=1ms"]
    launch = [*networks.prefix(number), *bound_to_tests(command)]
    with open(folder.with_name("store.log"), "wb") as log, subprocess.Popen(launch, stdout=log, stderr=log) as server:
        try:
            yield
        finally:
            server.kill()


def test_nodes_with_networks_of_their_own_read_from_a_store_in_a_third(local, networks, s3_server, tmp_path):
    """Nothing listens in the namespace of the tests: all that the nodes get comes through their interfaces."""
    shutil.copytree(local, tmp_path / "buckets" / "bucket" / "train")
    s3_server.stop()
    nodes = []
    for number in (0, 1):
        environ = {
            "AWS_ENDPOINT_URL": f"http://{networks.address(2, seen_from=number)}:{STORE_PORT}",
            "NO_PROXY": "*",
            "GLOO_SOCKET_IFNAME": networks.interface(number, towards=1 - number),
            "TP_SOCKET_IFNAME": networks.interface(number, towards=1 - number),
        }
        nodes.append(Node(1, networks.prefix(number), environ))
    with store_in(networks, 2, tmp_path / "buckets"):
        job = Job("s3://bucket/train", GLOBAL_BATCH, stop_epoch=1, num_workers=1)
        done = run(tmp_path / "job", job, nodes, address=networks.address(0, seen_from=1), port=29_500)
    assert done.returncodes == [0, 0], done.output
    assert done.batches() == epoch_of_one_reader(local, 0)
    assert {json.dumps(rank["len"]) for rank in done.ranks} == {str(NUM_STEPS)}
