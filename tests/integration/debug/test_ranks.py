"""Ranks of a torchrun job that meet, or do not come; their seeds and losses."""

import pytest

from wdsplit import debug
from wdsplit.order.hashing import hash_stream

pytestmark = [pytest.mark.xdist_group("debug"), pytest.mark.slow]


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
