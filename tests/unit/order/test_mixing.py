"""The figure of meeting again: against pairs counted one by one, and the sampled against the counted."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orders import options, slow_lanes
from wdsplit.order import mixing as module
from wdsplit.order.epoch import EpochOrder, OrderOptions
from wdsplit.order.mixing import mixing


def orders_of(num_samples, num_shards, lanes, window, shuffle=True):
    each, rest = divmod(num_samples, num_shards)
    counts = each + (np.arange(num_shards) < rest).astype(np.int64)
    chosen = OrderOptions(0, shuffle, lanes, window, "pad")
    return EpochOrder(counts, chosen, 0), EpochOrder(counts, chosen, 1)


def slow_steps(counts, chosen, epoch, batch):
    """Return the step of each sample, by (shard, sample)."""
    lanes, _ = slow_lanes(counts, chosen, epoch)
    return {
        sample: (offset * len(lanes) + number) // batch
        for number, lane in enumerate(lanes)
        for offset, sample in enumerate(lane)
    }


def slow_figure(counts, chosen, batch):
    first, second = (slow_steps(counts, chosen, epoch, batch) for epoch in (0, 1))
    pairs = list(combinations(first, 2))
    met = [pair for pair in pairs if first[pair[0]] == first[pair[1]]]
    again = sum(second[one] == second[other] for one, other in met) / len(met)
    by_chance = sum(second[one] == second[other] for one, other in pairs) / len(pairs)
    return again / by_chance


@pytest.mark.parametrize("counts", [[6] * 8, [5, 1, 9, 14, 0, 3]])
@pytest.mark.parametrize("batch", [2, 5, 16])
def test_the_figure_is_that_of_all_pairs_counted_one_by_one(counts, batch):
    chosen = options()
    numbers = np.array(counts, np.int64)
    found = mixing(EpochOrder(numbers, chosen, 0), EpochOrder(numbers, chosen, 1), batch)
    assert found.figure == pytest.approx(slow_figure(counts, chosen, batch))
    assert found.error == 0


@pytest.mark.parametrize(("lanes", "window"), [(16, 80), (48, 27), (192, 13)])
@pytest.mark.parametrize("batch", [256, 2048])
def test_the_sampled_figure_is_near_the_counted_one(monkeypatch, lanes, window, batch):
    orders = orders_of(60_000, lanes, lanes, window)
    counted = mixing(*orders, batch)
    monkeypatch.setattr(module, "MAX_COUNTED", 0)
    sampled = mixing(*orders, batch)
    assert sampled.figure == pytest.approx(counted.figure, rel=0.05)
    assert sampled.met_again == pytest.approx(counted.met_again, rel=0.05)
    assert sampled.by_chance == pytest.approx(counted.by_chance, rel=0.05)


@pytest.mark.parametrize(("batch", "most"), [(64, 1.1), (256, 1.15), (2048, 1.3)])
def test_the_default_lanes_and_windows_mix_320_000_samples_of_100_kb_nearly_as_chance_would(batch, most):
    assert mixing(*orders_of(320_000, 192, 192, 13), batch).figure <= most


def test_few_lanes_mix_worse():
    assert mixing(*orders_of(320_000, 128, 16, 80), 256).figure > 10


def test_an_order_without_shuffle_meets_the_same_samples_again():
    orders = orders_of(6_400, 16, 16, 10, shuffle=False)
    assert mixing(*orders, 64).met_again == 63


@given(st.integers(0, 4), st.integers(0, 3))
def test_where_no_two_samples_share_a_batch_there_is_no_figure(num_samples, batch):
    found = mixing(*orders_of(num_samples, 1, 1, 2), batch)
    assert (found is None) == (num_samples < 2 or batch < 2)


def test_a_billion_samples_in_a_few_seconds_at_most_and_the_same_each_time():
    orders = orders_of(1_000_000_000, 19_200, 192, 13)
    assert mixing(*orders, 64) == mixing(*orders, 64)
