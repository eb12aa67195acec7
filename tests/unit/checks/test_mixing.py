"""The figure of meeting again: against pairs counted one by one, and the sampled against the counted."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orders import options, slow_lanes
from wdsplit.checks import mixing as module
from wdsplit.checks.mixing import Batches, class_mixing, draw_batches, mixing
from wdsplit.order.epoch import EpochOrder, OrderOptions
from wdsplit.order.split import Steps, World


def order_of(num_samples, num_shards, lanes, window, shuffle=True):
    each, rest = divmod(num_samples, num_shards)
    counts = each + (np.arange(num_shards) < rest).astype(np.int64)
    chosen = OrderOptions(0, shuffle, lanes, window, "pad")
    return EpochOrder(counts, chosen, 0)


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
    found = mixing(EpochOrder(np.array(counts, np.int64), chosen, 0), batch)
    assert found.figure == pytest.approx(slow_figure(counts, chosen, batch))
    assert found.error == 0


@pytest.mark.parametrize(("lanes", "window", "batch"), [(16, 80, 256), (192, 13, 2048)])
@pytest.mark.parametrize("is_even", [True, False])
def test_the_sampled_figure_is_near_the_counted_one(monkeypatch, lanes, window, batch, is_even):
    order = order_of(60_000, lanes, lanes, window)
    counted = mixing(order, batch)
    monkeypatch.setattr(module, "MAX_COUNTED", 0)
    monkeypatch.setattr(module, "_MAX_LISTED", 1000)
    order.is_even = is_even  # if not, as of units that are listed, fewer are looked up
    sampled = mixing(order, batch)
    for name in ("figure", "met_again", "by_chance"):
        assert getattr(sampled, name) == pytest.approx(getattr(counted, name), rel=0.05)


@pytest.mark.parametrize(("batch", "most"), [(64, 1.1), (2048, 1.3)])
def test_the_default_lanes_and_windows_mix_320_000_samples_of_100_kb_nearly_as_chance_would(batch, most):
    assert mixing(order_of(320_000, 192, 192, 13), batch).figure <= most


def test_an_order_without_shuffle_meets_the_same_samples_again():
    order = order_of(6_400, 16, 16, 10, shuffle=False)
    assert mixing(order, 64).met_again == 63


@given(st.integers(0, 4), st.integers(0, 3))
def test_where_no_two_samples_share_a_batch_there_is_no_figure(num_samples, batch):
    found = mixing(order_of(num_samples, 1, 1, 2), batch)
    assert (found is None) == (num_samples < 2 or batch < 2)


def slow_chi_squared(batch, classes):
    """Return the mean chi-squared of batches over classes, class by class, corrected for the shares being theirs."""
    kinds, numbers = sorted(set(classes)), sorted(set(batch))
    total = 0.0
    for number in numbers:
        own = [kind for kind, its in zip(classes, batch, strict=True) if its == number]
        for kind in kinds:
            expected = len(own) * classes.count(kind) / len(classes)
            total += (own.count(kind) - expected) ** 2 / expected
    return total / (len(numbers) - 1)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=2, max_size=60))
def test_chi_squared_is_that_of_all_batches_and_classes_counted_one_by_one(pairs):
    batch, classes = ([pair[number] for pair in pairs] for number in (0, 1))
    found = class_mixing(Batches(np.array(batch), None, True, 1), np.array(classes))
    if len(set(batch)) < 2 or len(set(classes)) < 2 or len(set(batch)) == len(batch):
        assert found is None
        return
    assert found.chi_squared == pytest.approx(slow_chi_squared(batch, classes))
    assert found.ideal == len(set(classes)) - 1
    assert found.num_batches == len(set(batch))
    largest = max(map(batch.count, batch))
    whole = [number for number in set(batch) if batch.count(number) == largest]
    assert found.classes_in_batch == pytest.approx(sum(own in whole for own, _ in set(pairs)) / len(whole))


@pytest.mark.parametrize("num_classes", [2, 10, 1000])
def test_classes_drawn_at_random_have_the_ideal_chi_squared(num_classes):
    drawn = np.random.default_rng(0).integers(0, num_classes, (2, 64_000)).sum(0) // 2  # not equally many
    found = class_mixing(Batches(np.arange(64_000) // 64, None, True, 1), drawn)
    assert found.ideal == len(set(drawn.tolist())) - 1
    assert abs(found.chi_squared - found.ideal) < 4 * found.error < 0.2 * found.ideal


def pairs_of(samples, rows=slice(None)):
    return sorted(zip(samples.shard[rows].tolist(), samples.sample[rows].tolist(), strict=True))


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 10), (3, 7), (8, 128)])
def test_all_batches_are_those_of_the_steps_of_each_rank(world_size, batch_size):
    order = EpochOrder(np.array([5, 1, 9, 14, 0, 3], np.int64), options(), 0)
    steps = [step for rank in range(world_size) for step in Steps(order, World(rank, world_size), batch_size)]
    located = [order.locate(step.positions) for step in steps]
    expected = [pairs_of(each, ~each.pad) for each in located]
    found = draw_batches(order, world_size, batch_size, max_samples=1000)
    batches = [pairs_of(found.samples, found.batch == number) for number in set(found.batch.tolist())]
    assert found.is_all and sorted(batches) == sorted(filter(None, expected))
    drawn = draw_batches(order, world_size, batch_size, max_samples=1)
    assert not drawn.is_all
    assert all(pairs_of(drawn.samples, drawn.batch == number) in expected for number in set(drawn.batch.tolist()))


def test_batches_are_drawn_from_the_whole_epoch_and_always_the_same():
    order = order_of(100_000, 16, 1, 10, shuffle=False)
    drawn = [draw_batches(order, 8, 16, max_samples=1600) for _ in range(2)]
    assert np.array_equal(drawn[0].samples.shard, drawn[1].samples.shard)
    assert np.array_equal(drawn[0].samples.sample, drawn[1].samples.sample)
    assert len(drawn[0].batch) == 1600
    visits = np.bincount(drawn[0].samples.shard, minlength=16)
    assert visits.min() > 0
