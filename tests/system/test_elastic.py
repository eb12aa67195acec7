"""Trainings whose ranks come and go: real torchrun agents on one machine that are killed, and processes that stay.

What the ranks do is in elastic_worker.py.
"""

import contextlib
import json
import os
import subprocess
import sys
import time

import pytest

from elastic_worker import GLOBAL_BATCH, JOINED_AT, LOST_AT, LOST_NODE, NODE, NUM_EPOCHS
from made_datasets import expected_batches, real_rows, sized_dataset
from paths import SUPPORT
from s3server import HOST, free_port
from torchruns import JOB_MARK, delivered, end_processes, processes_of, processes_that_stay, woven

COUNTS = [3, 80, 0, 25, 1, 40, 8, 0, 6]
NUM_STEPS = -(-sum(COUNTS) // GLOBAL_BATCH)
DEADLINE_S = 500

pytestmark = pytest.mark.xdist_group("elastic")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Return a dataset whose shards differ wildly."""
    return sized_dataset(tmp_path_factory.mktemp("dataset"), COUNTS, lanes=6, window=4)


@pytest.fixture
def start(dataset, tmp_path):
    """Return a function that starts a process of a task, which ends with the test."""
    with contextlib.ExitStack() as stack:

        def begin(task, node, *launcher):
            environ = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
            environ |= {"OMP_NUM_THREADS": "1", JOB_MARK: str(tmp_path), NODE: str(node)}
            # Else torch 2.13 to 2.15 never tell rank 0 to added nodes.
            environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
            command = [sys.executable, *launcher, str(SUPPORT / "elastic_worker.py"), task, dataset, str(tmp_path)]
            output = stack.enter_context(open(tmp_path / f"output-{node}.txt", "wb"))
            process = stack.enter_context(subprocess.Popen(command, env=environ, stdout=output, stderr=output))
            stack.callback(lambda: end_processes(processes_of(tmp_path)))
            return process

        yield begin


def output_of(folder):
    return "\n".join(path.read_text(errors="replace") for path in sorted(folder.glob("output-*.txt")))


def wait_for(processes, folder):
    """Wait for processes; return how they ended."""
    deadline = time.monotonic() + DEADLINE_S
    try:
        return [process.wait(max(0.0, deadline - time.monotonic())) for process in processes]
    except subprocess.TimeoutExpired:
        pytest.fail(output_of(folder))


def position_of(folder):
    """Return the number of steps that are committed, of all epochs."""
    path = folder / "checkpoint.json"
    state = json.loads(path.read_text()) if path.exists() else {"epoch": 0, "position": 0}
    return state["epoch"] * NUM_STEPS + state["position"] // GLOBAL_BATCH


def committed_batches(folder):
    """Return world size and global batches of each start, up to the step at which the next one began."""
    starts = {}
    for path in sorted(folder.glob("[0-9]-*.jsonl")):
        epoch, step, _ = map(int, path.stem.split("-"))
        starts.setdefault(epoch * NUM_STEPS + step, []).append([*map(json.loads, path.read_text().splitlines())])
    ends = [*list(starts)[1:], NUM_EPOCHS * NUM_STEPS]
    steps = zip(starts.items(), ends, strict=True)
    return [(len(parts), woven([part[: end - begin] for part in parts])) for (begin, parts), end in steps]


def test_torchrun_goes_on_without_a_node_that_is_killed_and_with_one_that_is_added(dataset, start, tmp_path):
    launcher = ["-m", "torch.distributed.run", "--nnodes=1:3", "--nproc-per-node=1", "--max-restarts=3"]
    launcher += ["--rdzv-backend=c10d", f"--rdzv-endpoint={HOST}:{free_port()}", "--rdzv-id=elastic"]
    agents = []
    for node in range(3):
        agents.append(start("restarted", node, *launcher, f"--rdzv-conf=is_host={not node}"))
    deadline = time.monotonic() + DEADLINE_S
    while position_of(tmp_path) < JOINED_AT:
        assert time.monotonic() < deadline, output_of(tmp_path)
        time.sleep(0.1)
    agents.append(start("restarted", 3, *launcher, "--rdzv-conf=is_host=False"))
    codes = wait_for(agents, tmp_path)
    assert [code == 0 for code in codes] == [node != LOST_NODE for node in range(4)], output_of(tmp_path)
    assert processes_that_stay(tmp_path) == {}

    found = committed_batches(tmp_path)
    assert [(world_size, len(batches)) for world_size, batches in found] == [
        (3, LOST_AT),
        (2, JOINED_AT - LOST_AT),
        (3, NUM_EPOCHS * NUM_STEPS - JOINED_AT),
    ]
    trained = delivered(batches for _, batches in found)
    assert trained == delivered(expected_batches(dataset, NUM_STEPS, epoch=epoch) for epoch in range(NUM_EPOCHS))
    assert real_rows(delivered(trained)) == sorted([*range(sum(COUNTS))] * NUM_EPOCHS)


def test_processes_that_stay_reshape_their_loaders_when_one_is_killed_and_when_one_is_added(start, tmp_path):
    codes = wait_for([start("surviving", process) for process in range(4)], tmp_path)
    assert [code == 0 for code in codes] == [True, False, True, True], output_of(tmp_path)
    trained = json.loads((tmp_path / "trained.json").read_text())
    assert trained["rows"] == [NUM_EPOCHS] * sum(COUNTS)
    assert [world_size for *_, world_size in trained["steps"]] == (
        [3] * LOST_AT + [2] * (JOINED_AT - LOST_AT) + [3] * (NUM_EPOCHS * NUM_STEPS - JOINED_AT)
    )
    assert [step for _, step, _ in trained["steps"]] == list(range(NUM_STEPS)) * NUM_EPOCHS
