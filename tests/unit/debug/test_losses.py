"""Losses written by each rank, read together and compared."""

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


def noisy(rank, num_steps, away=lambda step: 0.0):
    numbers = np.random.default_rng(rank).normal(0, 0.1, num_steps)
    return [3 * math.exp(-step / 40) + number + away(step) for step, number in enumerate(numbers.tolist())]


def test_ranks_that_see_different_samples_do_not_diverge(tmp_path):
    losses = logged(tmp_path, {rank: noisy(rank, 300) for rank in range(8)})
    assert losses.diverged() == []
    assert str(losses).startswith("8 ranks, steps 0 to 299; mean loss of the last 10: rank 0 ")


def test_the_rank_that_leaves_the_others_is_named_with_the_step(tmp_path):
    def away(step):
        return 0.05 * max(0, step - 150)

    losses = logged(tmp_path, {rank: noisy(rank, 300, away if rank == 2 else lambda step: 0.0) for rank in range(4)})
    [found] = losses.diverged()
    assert found.rank == 2
    assert 150 < found.step < 170
    assert found.loss > found.others
    assert f"diverges: rank 2 from step {found.step} on" in str(losses)


@pytest.mark.parametrize("deviation", [0.002, 0.0015])
def test_losses_that_are_rounded_so_that_most_do_not_change_do_not_diverge(deviation):
    def rounded(values):
        return debug.Losses((0, 1, 2, 3), np.arange(2000), np.ma.array((values * 128).round() / 128))

    values = 2 + deviation * np.random.default_rng(0).standard_normal((2000, 4))
    losses = rounded(values)
    assert 0 < (np.diff(losses.losses, axis=0) != 0).mean() < 0.2
    assert losses.diverged() == []
    values[500:, 2] += 0.05
    [found] = rounded(values).diverged()
    assert (found.rank, 500 <= found.step < 505) == (2, True)


def test_after_a_resume_on_fewer_ranks_those_that_are_left_are_compared(tmp_path):
    def away(step):
        return 50.0 * (step > 100)

    losses = logged(tmp_path, {0: noisy(0, 300), 1: noisy(1, 300, away), 2: noisy(2, 300), 3: noisy(3, 50)})
    [found] = losses.diverged()
    assert (found.rank, found.step) == (1, 101)
    assert losses.behind() == {3: 49}


def test_a_loss_that_is_not_finite_diverges_at_once_also_alone(tmp_path):
    losses = logged(tmp_path / "one", {0: [1.0, 0.9, math.inf, math.nan]})
    assert [(each.rank, each.step) for each in losses.diverged()] == [(0, 2)]
    losses = logged(tmp_path / "two", {0: [1.0, 0.5], 1: [1.0, math.nan]})
    assert [(each.rank, each.step, each.others) for each in losses.diverged()] == [(1, 1, 0.5)]
    assert "rank 0 0.75, rank 1 nan" in str(losses)


def test_a_rank_that_ends_early_is_named(tmp_path):
    losses = logged(tmp_path, {0: noisy(0, 40), 1: noisy(1, 25), 2: []})
    assert losses.behind() == {1: 24, 2: -1}
    assert "ends early: rank 1, at step 24" in str(losses)


def test_a_log_is_plain_json_and_goes_on_after_a_kill(tmp_path, caplog):
    with debug.LossLog(tmp_path, 3) as log:
        log.log(np.int64(7), torch.tensor(0.5, requires_grad=True), norm=math.nan)
    assert log.path == tmp_path / "rank-00003.jsonl"
    assert json.loads(log.path.read_text()) == {"step": 7, "rank": 3, "loss": 0.5, "norm": "nan"}
    with log.path.open("a") as file:
        file.write('{"step": 8, "ra')
    with debug.LossLog(tmp_path, 3) as log:
        log.log(7, 0.25)
        log.log(8, 0.125)
    with caplog.at_level(logging.WARNING):
        losses = debug.read_losses(tmp_path)
    assert (losses.steps.tolist(), losses.losses.tolist()) == ([7, 8], [[0.25], [0.125]])
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
    assert str(debug.read_losses(tmp_path)) == "no steps"
