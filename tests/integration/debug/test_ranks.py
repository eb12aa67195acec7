"""Ranks of a torchrun job that meet, or do not come; their seeds and losses."""

import pytest

from wdsplit import debug
from wdsplit.order.hashing import hash_stream

pytestmark = [pytest.mark.xdist_group("debug"), pytest.mark.slow]


def test_ranks_find_their_seeds_before_the_process_group_and_with_it(job):
    for rank, said in enumerate(job.ranks):
        value = hash_stream(5, 13, rank)
        assert said["seed"] == [value, value, value]


def test_a_barrier_names_the_ranks_that_did_not_come_and_fails_for_one_that_comes_too_late(job):
    first, second = (rank["late"] for rank in job.ranks)
    assert first["met"] == second["met"] == {"returned": None}
    assert "found: rank 1 did not arrive" in first["alone"]["text"]
    assert "place: second" in first["alone"]["text"]
    assert "rank 0 left: gave up waiting for rank 1" in second["too late"]["text"]


@pytest.mark.parametrize("name", ["in a mesh", "in a check"])
def test_nobody_waits_for_a_rank_that_does_not_come_to_a_mesh_or_a_check(job, name):
    first, second = (rank["late"] for rank in job.ranks)
    assert "found: rank 1 did not arrive" in first[f"alone {name}"]["text"]
    assert "rank 0 left: gave up waiting for rank 1" in second[f"too late {name}"]["text"]


def test_a_mesh_of_two_dimensions_costs_one_group_of_each_process_group(job):
    """The job has left its process group and joined another one between the two."""
    for rank in job.ranks:
        for first, second in (rank["groups"], rank["groups again"]):
            assert first == second


def test_losses_of_a_job_are_lined_up_and_a_rank_that_leaves_is_found(job):
    losses = debug.read_losses(job.folder / "losses")
    assert (losses.ranks, len(losses.steps), losses.behind()) == ((0, 1), 60, {})
    assert [each.rank for each in losses.diverged()] == [0, 1], "of two, nobody knows which"
    assert 30 < losses.diverged()[0].step < 36
