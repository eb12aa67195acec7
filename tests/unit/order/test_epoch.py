import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orders import (
    SHARDS,
    TAILS,
    epoch_order,
    located,
    options,
    orders,
    slow_epoch,
    slow_hash_stream,
    slow_lanes,
    slow_permutation,
)
from wdsplit.errors import InputError
from wdsplit.order.epoch import OrderOptions
from wdsplit.order.hashing import hash_stream, permutation

words = st.lists(st.integers(0, 2**64 - 1), max_size=5)


# Golden values: an epoch is the same for ever, whatever the versions of numpy and of wdsplit.


def test_golden_hash_stream():
    assert [hash_stream(), hash_stream(0), hash_stream(1, 2, 3), hash_stream(2**64 - 1)] == [
        0,
        16294208416658607535,
        9666406879569478978,
        11923130667873509210,
    ]


def test_golden_permutations():
    assert permutation(10, 0).tolist() == [5, 7, 8, 2, 9, 0, 3, 1, 6, 4]
    assert permutation(10, 7, 3, SHARDS).tolist() == [2, 5, 9, 7, 3, 1, 6, 0, 8, 4]


def test_golden_epoch_of_equal_shards():
    order = epoch_order([3, 3, 3, 3], epoch=1, lanes=2, window=2, seed=42)
    assert order.sequence.tolist() == [3, 1, 2, 0]
    shards, samples, pads = zip(*located(order, range(12)), strict=True)
    assert shards == (3, 2, 3, 2, 3, 2, 1, 0, 1, 0, 1, 0)
    assert samples == (2, 2, 0, 1, 1, 0, 0, 0, 1, 1, 2, 2)
    assert not any(pads)


def test_golden_epoch_that_is_cut_again():
    order = epoch_order([5, 0, 2, 4], epoch=3, lanes=3, window=2, seed=9)
    assert order.is_recut
    assert order.sequence.tolist() == [1, 2, 3, 0]
    shards, samples, pads = zip(*located(order, range(13)), strict=True)
    assert shards == (2, 3, 0, 2, 3, 0, 3, 0, 0, 3, 0, 0, 3)
    assert samples == (0, 2, 0, 1, 3, 1, 0, 3, 4, 1, 2, 4, 1)
    assert pads == (False,) * 11 + (True,) * 2


# Permutations


@given(words)
def test_a_hash_is_that_of_the_reference(words):
    assert hash_stream(*words) == slow_hash_stream(*words)


@given(st.integers(0, 200), words)
def test_a_permutation_is_that_of_the_reference(n, words):
    assert permutation(n, *words).tolist() == slow_permutation(n, *words)


def test_no_two_of_many_seeds_epochs_and_shards_share_a_permutation():
    """A peer's seed of 42 + rank * 10000 + worker * 100 + epoch gave two workers of different epochs the same order."""
    named = itertools.chain(
        itertools.product(range(30), range(60), [SHARDS]),
        itertools.product(range(8), range(10), [2, 3], range(10)),
        itertools.product(range(4), range(10), [3], range(5), range(10)),
    )
    seen = [permutation(24, *words).tobytes() for words in named]
    assert len(set(seen)) == len(seen) == 30 * 60 + 8 * 10 * 2 * 10 + 4 * 10 * 5 * 10


# The epoch


@given(orders(), st.data())
def test_any_positions_lead_to_the_samples_of_the_reference(order, data):
    lanes, is_recut = slow_lanes(order.counts.tolist(), order.options, order.epoch)
    assert order.is_recut == is_recut
    assert order.lane_length.tolist() == [len(lane) for lane in lanes]
    assume(order.num_samples)
    positions = range(order.num_positions + 3 * order.options.lanes)
    whole = located(order, positions)
    some = data.draw(st.lists(st.sampled_from(positions), max_size=10))
    assert located(order, some) == [whole[position] for position in some]
    assert [located(order, [position])[0] for position in some] == located(order, some)
    for found, wanted in zip(whole, slow_epoch(lanes), strict=False):
        assert found[2] == wanted[2]
        assert found[:2] == wanted[:2] or wanted[:2] == (None, None)
        assert 0 <= found[1] < order.counts[found[0]]


@given(st.lists(st.integers(970, 1000), min_size=2, max_size=12), st.integers(1, 4), st.sampled_from(["pad", "drop"]))
def test_every_epoch_has_as_many_positions(counts, lanes, tail):
    """Lanes of whole shards differ by about one per cent here: by more in some epochs than in others."""
    found = [epoch_order(counts, epoch, lanes=lanes, tail=tail) for epoch in range(20)]
    assert len({(order.num_positions, order.is_recut) for order in found}) == 1


@given(orders(st.just("drop")))
def test_drop_has_no_pads_and_no_repeats(order):
    found = located(order, range(order.num_positions))
    assert not any(pad for _, _, pad in found)
    assert len({sample[:2] for sample in found}) == len(found)
    dropped = order.num_samples - order.num_positions
    assert dropped == 0 if order.is_recut else dropped <= 0.01 * order.lane_length.max() * order.options.lanes


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("counts", [[], [0], [0, 0, 0, 0, 0]])
def test_a_dataset_without_samples_has_no_positions(counts, tail):
    order = epoch_order(counts, tail=tail)
    assert (order.num_samples, order.num_positions) == (0, 0)
    assert located(order, []) == []


def test_lanes_that_differ_by_more_than_one_per_cent_are_cut_again():
    assert [epoch_order([100, low], lanes=2).is_recut for low in (100, 99, 98, 0)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("seed", -1),
        ("seed", 2**63),
        ("seed", 1.0),
        ("seed", True),
        ("lanes", 0),
        ("lanes", "4"),
        ("window", 0),
        ("window", True),
        ("tail", "wrap"),
    ],
)
def test_options_that_cannot_be_are_refused(field, value):
    with pytest.raises(InputError, match=f"{field} = {value!r}".replace(".", r"\.")):
        options(**{field: value})


def test_all_problems_of_the_options_are_named_at_once():
    with pytest.raises(InputError) as caught:
        OrderOptions(seed=-1, shuffle=True, lanes=0, window=0, tail="wrap")
    assert all(f"{name} = " in caught.value.found for name in ("seed", "lanes", "window", "tail"))


def test_an_epoch_below_zero_is_refused():
    with pytest.raises(InputError, match="epoch"):
        epoch_order([1], epoch=-1)
