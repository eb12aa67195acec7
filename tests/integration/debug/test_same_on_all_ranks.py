"""Checks of wdsplit.debug on two ranks of a torchrun job: seeds, models, deliveries, losses, ranks that do not come."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from made_datasets import numbers_dataset
from torchruns import torchrun
from wdsplit import debug
from wdsplit.order.hashing import hash_stream

pytestmark = [pytest.mark.xdist_group("debug"), pytest.mark.slow]


@dataclass(frozen=True)
class Job:
    """What the two ranks of a job reported (debug_worker.py), and the folder that they wrote to."""

    ranks: list[dict[str, Any]]
    folder: Path


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Run the job of two ranks, once for all tests."""
    folder = tmp_path_factory.mktemp("job")
    path = numbers_dataset(folder / "numbers", 101, shards=7, lanes=4, window=4)
    ended = torchrun(2, "debug_worker.py", path, folder / "out", out=folder / "out")
    assert ended.returncode == 0, ended.output
    return Job([json.loads((folder / "out" / f"{rank}.json").read_text()) for rank in range(2)], folder / "out")


EXPECTED = {
    "parameters": {
        "same": 4,
        "running statistics": 2,
        "different": [
            "parameter '2.weight'",
            " on rank 0, float32 of 2 x 4 with hash ",
            " on rank 1",
            "1 of 4 parameters",
        ],
        "shapes": [
            "parameter 'weight'",
            "float32 of 2 x 3 with hash ",
            "rank 0, float32 of 3 x 3",
            "2 of 2 parameters",
        ],
        "names": ["parameter 'b0'", " on rank 0, nothing on rank 1"],
        "all buffers": ["parameter 'running_mean'", "1 of 5"],
        "own buffer": ["parameter 'mask'", "1 of 3"],
    },
    "sharded": {
        "own parts": 0,
        "tensors": 1,
        "a replica that differs": ["parameter 'copies'", "1 of 1 parameters"],
        "old": ["FSDP1"],
    },
    "gradients": {
        "reduced": 4,
        "not reduced": ["different gradients\n  place: gradient '0.weight'", "in all, 4 of 4 gradients differ"],
        "none": ["'module.2.bias'", " on rank 0, nothing on rank 1"],
    },
    "audits that fail": {
        "ignored rank": [
            "samples were delivered more than once in epoch 0",
            "rank 0 reads as rank 0 of 1; rank 1 reads as rank 0 of 1",
        ],
        "other seeds": ["do not read the same epoch", "rank 1 has seed 1, rank 0 0"],
        "other views": ["do not read the same epoch", "rank 1 has view 'cls < 59' (", "rank 0 'cls < 60' ("],
        "other epochs": ["do not read the same epoch", "rank 1 has epoch 1, rank 0 0"],
        "other positions": ["do not read the same epoch", "rank 1 has start position 12, rank 0 0"],
        "lost": ["rank 1: 6 samples missing: position 37 in step 3, ", "rank 0 9, rank 1 8"],
        "lost, uneven": ["rank 1: 6 samples missing: position 37 in step"],
        "lost, left before the end": ["rank 1: 6 samples missing: position 37 in step 3", "samples too many"],
        "one leaves early": ["the delivered samples are not those of epoch 0", "steps: rank 0 9, rank 1 7"],
        "dropped fields": ["cannot tell which samples", "found: cls", "AUDITED"],
    },
}
"""What each check of debug_worker.py returns, or says on both ranks."""


@pytest.mark.parametrize(("part", "name"), [(part, name) for part, checks in EXPECTED.items() for name in checks])
def test_a_check_passes_on_all_ranks_or_names_on_all_what_differs(job, part, name):
    expected = EXPECTED[part][name]
    for outcome in (rank[part][name] for rank in job.ranks):
        if isinstance(expected, int):
            assert outcome == {"returned": expected}
        else:
            assert [each for each in expected if each not in outcome["text"]] == []


def test_hashes_of_the_same_parameters_are_the_same(job):
    assert job.ranks[0]["parameters"]["hash"] == job.ranks[1]["parameters"]["hash"]
    assert job.ranks[0]["sharded"]["hash"] != job.ranks[1]["sharded"]["hash"]


def test_audits_of_trainings_that_are_right_hold(job):
    whole = "epoch {}: 101 samples, each once; pads: {}; nothing is missing"
    left_early = "epoch 0: 36 samples, each once; pads: 0; left before its end"
    expected = {
        "pad": [whole.format(epoch, 7) for epoch in (0, 1)],
        "drop": [whole.format(epoch, 0).replace("101", "96") for epoch in (0, 1)],
        "uneven": [whole.format(epoch, 0) for epoch in (0, 1)],
        "workers": [whole.format(0, 7)],
        "tuples": [whole.format(0, 7)],
        "replicas": [whole.format(0, 1)],
        "whole mesh": [whole.format(0, 7)],
        "left early": [left_early],
        "left early, uneven": [left_early],
        "resumed": [
            "epoch 0 from position 36 on: 65 samples, each once; pads: 7; nothing is missing",
            whole.format(1, 7),
        ],
    }
    for rank in job.ranks:
        held = dict(rank["audits that hold"])
        resumed = held.pop("resumed, uneven")
        assert held == expected
        assert re.fullmatch(r"epoch 0 from position \d+ on: 65 samples, each once; .*nothing is missing", resumed[0])


def test_a_rank_that_does_not_come_to_the_end_of_an_epoch_is_named(job):
    text = job.ranks[0]["an audit of one rank"]["text"]
    assert "rank 1 did not arrive; this rank has done 9 of 9 steps" in text


def test_ranks_find_their_seeds_before_the_process_group_and_with_it(job):
    for rank, said in enumerate(job.ranks):
        value = hash_stream(5, 13, rank)
        assert said["seed"] == [value, value, value]


@pytest.mark.parametrize("where", ["", " in a mesh", " in a check"])
def test_ranks_that_did_not_come_are_named_and_those_that_come_too_late_do_not_go_on_alone(job, where):
    first, second = (rank["late"] for rank in job.ranks)
    assert first["met"] == second["met"] == {"returned": None}
    assert "found: rank 1 did not arrive" in first[f"alone{where}"]["text"]
    assert "found: rank 0 gave up waiting" in second[f"too late{where}"]["text"]


def test_losses_of_a_job_are_lined_up(job):
    losses = debug.read_losses(job.folder / "losses")
    assert [(rank, len(steps)) for rank, steps in losses.items()] == [(0, 60), (1, 60)]
