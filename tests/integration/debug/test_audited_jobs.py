"""Audits of a torchrun job: trainings that are right, and what is wrong with others."""

import re

import pytest

pytestmark = [pytest.mark.xdist_group("debug"), pytest.mark.slow]


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
