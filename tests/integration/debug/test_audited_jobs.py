"""Audits of a torchrun job: trainings that are right, and what is wrong with others."""

import re

import pytest

pytestmark = [pytest.mark.xdist_group("debug"), pytest.mark.slow]


def test_audits_of_trainings_that_are_right_hold(job):
    whole, rest = "epoch {}: 101 samples, each once, by {}; pads: {}; nothing is missing", "__key__ and __position__"
    expected = {
        "pad": [whole.format(epoch, rest, 7) for epoch in (0, 1)],
        "drop": [whole.format(epoch, rest, 0).replace("101", "96") for epoch in (0, 1)],
        "uneven": [whole.format(epoch, rest, 0) for epoch in (0, 1)],
        "workers": [whole.format(0, rest, 7)],
        "tuples": [whole.format(0, rest, 7)],
        "positions alone": [whole.format(0, "__position__", 7)],
        "replicas": [whole.format(0, rest, 1)],
        "whole mesh": [whole.format(0, rest, 7)],
        "left early": [f"epoch 0: 36 samples, each once, by {rest}; pads: 0; left before its end"],
        "resumed": [
            f"epoch 0 from position 36 on: 65 samples, each once, by {rest}; pads: 7; nothing is missing",
            whole.format(1, rest, 7),
        ],
    }
    for rank in job.ranks:
        held = dict(rank["audits that hold"])
        resumed, left = held.pop("resumed, uneven"), held.pop("left early, uneven")
        assert left == [f"epoch 0: 36 samples, each once, by {rest}; pads: 0; left before its end"]
        assert held == expected
        assert re.fullmatch(r"epoch 0 from position \d+ on: 65 samples, each once, .*nothing is missing", resumed[0])


def test_nobody_waits_for_a_rank_that_has_left_an_audit_by_an_error(job):
    first = job.ranks[0]["a rank that fails"]
    assert "rank 1 left: EndedError: the loss is nan (after 3 of " in first["text"]
    assert re.search(r"; this rank has done (\d+) of \1 steps", first["text"])
    assert first["waited_s"] < 100


def test_nobody_waits_for_a_rank_whose_comparison_fails(job):
    own, other = (rank["audits that fail"]["comparison"] for rank in job.ranks)
    assert own["error"] == "OSError"
    assert "rank 0 left: OSError: the disk is gone" in other["text"]


def test_nobody_waits_for_a_rank_that_has_fewer_epochs(job):
    first, second = (rank["unequal epochs"] for rank in job.ranks)
    assert "rank 1 left: its audit is over" in first["text"]
    assert len(second["returned"]) == 1
