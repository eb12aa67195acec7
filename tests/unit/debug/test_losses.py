"""Losses written by each rank, and read together."""

import json
import logging
import math

import numpy as np
import pytest
import torch

from wdsplit import debug
from wdsplit.errors import DatasetNotFoundError


def logged(folder, losses):
    """Write the losses of some ranks, {rank: losses}."""
    for rank, values in losses.items():
        with debug.LossLog(folder, rank) as log:
            for step, loss in enumerate(values):
                log.log(step, loss)
    return debug.read_losses(folder)


def test_ranks_stand_side_by_side_and_those_that_end_early_or_break_are_named_with_the_step(tmp_path):
    losses = logged(tmp_path, {2: [4.0] * 20, 0: [9.0] * 10 + [0.5] * 10, 1: [1.0, math.inf, math.nan], 10: []})
    assert list(losses) == [0, 1, 2, 10]
    assert str(losses).splitlines() == [
        "losses of 4 ranks up to step 19; mean of the last 10: rank 0 0.5, rank 1 nan, rank 2 4, rank 10 nan",
        "ends early: rank 1, at step 2",
        "ends early: rank 10, at step -1",
        "not finite: rank 1, from step 1 on",
    ]


def test_a_log_is_plain_json_and_goes_on_after_a_kill(tmp_path, caplog):
    with debug.LossLog(tmp_path, 3) as log:
        log.log(np.int64(7), torch.tensor(0.5, requires_grad=True), norm=math.nan)
    assert log.path == tmp_path / "rank-00003.jsonl"
    assert json.loads(log.path.read_text()) == {"step": 7, "rank": 3, "loss": 0.5, "norm": "nan"}
    with log.path.open("a") as file:
        file.write('{"step": 8, "ra')
    with debug.LossLog(tmp_path, 3) as log:
        log.log(8, 0.125)
        log.log(7, 0.25)
    with caplog.at_level(logging.WARNING):
        assert list(debug.read_losses(tmp_path)[3].items()) == [(7, 0.25), (8, 0.125)]
    assert "rank-00003.jsonl, line 2" in caplog.text


def test_what_is_no_loss_is_refused(tmp_path):
    with debug.LossLog(tmp_path, 0) as log:
        for step, loss, values in (
            (0, "much", {}),
            (0, torch.ones(2), {}),
            (0, None, {}),
            (0.5, 1.0, {}),
            (0, 1.0, {"rank": 7}),
        ):
            with pytest.raises((TypeError, ValueError, RuntimeError)):
                log.log(step, loss, **values)
    assert log.path.read_text() == ""
    with pytest.raises(DatasetNotFoundError):
        debug.read_losses(tmp_path / "nowhere")
