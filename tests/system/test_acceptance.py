"""What a loader promises, kept by real torchrun jobs: on 8, 2, 1, 4 and 3 ranks, each with 0 to 3 workers of a kind.

Starting ranks takes seconds, so each job (acceptance_worker.py) runs all datasets and both kinds of workers, resumes
from the states of the job before, and trains on from its last checkpoint. A rank of each job but the last is killed.
That the epoch of one reader holds each sample once is for test_promises.py.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from acceptance_worker import (
    DATASETS,
    GLOBAL_BATCH,
    KILLED_AFTER,
    MIXED,
    RESUMED_EPOCH,
    TRAINED_EPOCHS,
    opened,
    readers_of,
)
from made_datasets import deliveries, expected_batches, sized_dataset
from torchruns import Ended, end_processes, processes_of, processes_that_stay, torchrun, woven
from wdsplit.loading.loader import Loader

pytestmark = pytest.mark.xdist_group("acceptance")

VICTIMS = {8: 5, 2: 0, 1: 0, 4: 3, 3: -1}
"""The jobs in their order: world size, and the rank that is killed. The last trains a whole epoch besides the rest."""

SHARDS = {
    "wild": ([1, 45, 0, 2, 30, 7, 12], 5),  # sizes that differ wildly, and lanes that no number of readers divides
    "few": ([9, 22], 4),  # fewer shards than ranks
    "tiny": ([5, 0, 6], 7),  # fewer samples than a global batch
    "even": ([4] * 24, 24),  # whole shards, and lanes that every number of readers divides
    "training": ([3, 80, 0, 25, 1, 40, 8, 0, 6], 6),
}
NUM_SAMPLES = {name: sum(counts) for name, (counts, _) in SHARDS.items()} | {"mixture": sum(MIXED.values())}
NUM_STEPS = {name: -(-count // GLOBAL_BATCH) for name, count in NUM_SAMPLES.items()}

on_all_ranks = pytest.mark.parametrize("world_size", VICTIMS)


@dataclass
class Job:
    """What a torchrun job left.

    Attributes:
        out: Its folder, by which its processes are known.
        ended: Exit status and output.
        ranks: What the loaders of each rank gave.
        gradients: The last gradients of each rank, if it was not killed.
        trained: The batches of each rank and step that it trained.
    """

    out: Path
    ended: Ended
    ranks: list
    gradients: list
    trained: list


def run_job(folder, world_size, victim):
    out = folder / f"{world_size} ranks"
    ended = torchrun(world_size, "acceptance_worker.py", folder, out, victim, out=out)
    files = [out / f"{rank}.json" for rank in range(world_size)]
    assert all(file.exists() for file in files), ended.output
    ranks = [json.loads(file.read_text()) for file in files]
    gradients = [json.loads(file.read_text()) for file in sorted(out.glob("*.gradient"))]
    logs = [(out / f"{rank}.trained").read_text() for rank in range(world_size)]
    return Job(out, ended, ranks, gradients, [list(map(json.loads, log.splitlines())) for log in logs])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder of datasets."""
    folder = tmp_path_factory.mktemp("acceptance")
    for name, (counts, lanes) in SHARDS.items():
        sized_dataset(folder / name, counts, lanes, window=4)
    return folder


@pytest.fixture(scope="module")
def jobs(folder):
    """Return the jobs, each of which went on where the one before was killed."""
    jobs = {world_size: run_job(folder, world_size, victim) for world_size, victim in VICTIMS.items()}
    yield jobs
    for job in jobs.values():
        end_processes(processes_of(job.out))


def one_reader(folder, name, epoch=0, shuffle=True):
    """Return the global batches of an epoch: as plain Python tells them, or those of a mixture as one reader does."""
    if name != "mixture":
        return expected_batches(str(folder / name), NUM_STEPS[name], GLOBAL_BATCH, epoch, shuffle=shuffle)
    loader = Loader(opened(folder, name, shuffle=shuffle, rank=0, world_size=1), GLOBAL_BATCH)
    loader.set_epoch(epoch)
    return [deliveries(batch) for batch in loader]


@pytest.mark.parametrize("name", DATASETS)
@on_all_ranks
def test_global_batches_are_those_of_one_reader_whatever_the_ranks_and_workers(folder, jobs, world_size, name):
    for shuffle in (False, True):
        expected = one_reader(folder, name, shuffle=shuffle)
        for readers in readers_of(name, shuffle):
            epochs = [rank["epochs"][f"{name} {shuffle} {readers}"] for rank in jobs[world_size].ranks]
            assert {epoch["len"] for epoch in epochs} == {NUM_STEPS[name]}
            assert woven([epoch["batches"] for epoch in epochs]) == expected


@pytest.mark.parametrize("name", ["wild", "mixture"])
@on_all_ranks
def test_a_state_is_the_same_on_any_ranks_and_workers(jobs, world_size, name):
    states = jobs[1].ranks[0]["states"][name]
    assert [state["position"] for state in states] == list(range(0, NUM_STEPS[name] * GLOBAL_BATCH, GLOBAL_BATCH))
    assert all(rank["states"][name] == states for rank in jobs[world_size].ranks)


@pytest.mark.parametrize("name", ["wild", "mixture"])
@on_all_ranks
def test_resuming_twice_from_every_step_on_other_ranks_and_workers_gives_the_rest(folder, jobs, world_size, name):
    expected = one_reader(folder, name, RESUMED_EPOCH)
    for step in range(NUM_STEPS[name]):
        assert woven([rank["resumed"][name][step] for rank in jobs[world_size].ranks]) == expected[step:]


@on_all_ranks
def test_a_job_of_which_a_rank_is_killed_fails_and_leaves_no_process(jobs, world_size):
    job, is_killed = jobs[world_size], VICTIMS[world_size] >= 0
    assert (job.ended.returncode != 0) == is_killed, job.ended.output
    assert ("SIGKILL" in job.ended.output) == is_killed
    assert processes_that_stay(job.out) == {}


def test_killed_jobs_that_restart_from_the_last_checkpoint_on_other_ranks_train_each_batch_once_in_order(folder, jobs):
    expected = [batch for epoch in range(TRAINED_EPOCHS) for batch in one_reader(folder, "training", epoch)]
    trained = []
    for world_size, victim in VICTIMS.items():
        committed = KILLED_AFTER if victim >= 0 else None
        trained += woven([steps[:committed] for steps in jobs[world_size].trained])
    assert trained == expected


def test_ranks_that_train_with_ddp_have_the_same_gradients(jobs):
    one, another, third = jobs[3].gradients
    assert one == another == third != [[0.0]]
