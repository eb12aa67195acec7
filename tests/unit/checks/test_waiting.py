"""Waiting over time, in intervals whose length doubles."""

import pytest

from wdsplit.checks.bench import Waiting


def test_waiting_is_spread_over_the_intervals_that_it_touches():
    waiting = Waiting()
    waiting.add(0.005, 0.025)
    waiting.add(0.032, 0.034)
    assert waiting.shares(0.035) == pytest.approx((0.5, 1, 0.5, 0.4))
    assert waiting.interval_s == 0.01


def test_intervals_double_where_there_would_be_too_many():
    waiting = Waiting()
    for second in range(10):
        waiting.add(second, second + 0.25)
    shares = waiting.shares(10)
    assert (waiting.interval_s, len(shares)) == (0.04, 250)
    assert sum(shares) * waiting.interval_s == pytest.approx(2.5)
    assert shares[25:50] == pytest.approx((1,) * 6 + (0.25,) + (0,) * 18)


def test_without_a_batch_there_is_no_interval():
    assert Waiting().shares(0) == ()
