"""Ranges of positions that are left out, compared with plain sets."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from orders import orders
from wdsplit.order.skips import NO_SKIPS
from wdsplit.order.split import Steps, World

ranges = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 12)), max_size=6)


def skips_of(drawn):
    """Return the skips of some (begin, length), and the set of positions."""
    skips, left_out = NO_SKIPS, set()
    for begin, length in drawn:
        skips = skips.added(begin, begin + length)
        left_out |= set(range(begin, begin + length))
    return skips, left_out


@given(ranges)
def test_ranges_are_those_that_were_added_and_neither_overlap_nor_touch(drawn):
    skips, left_out = skips_of(drawn)
    assert {position for begin, end in skips.ranges for position in range(begin, end)} == left_out
    flat = [bound for each in skips.ranges for bound in each]
    assert flat == sorted(set(flat))
    assert bool(skips) == bool(left_out)


@given(ranges)
def test_positions_and_their_numbers_are_inverse(drawn):
    skips, left_out = skips_of(drawn)
    kept = [position for position in range(100) if position not in left_out]
    assert skips.positions(np.arange(len(kept))).tolist() == kept
    assert skips.numbers(np.array(kept)).tolist() == list(range(len(kept)))
    assert [int(skips.numbers(position)) for position in range(100)] == [
        sum(each < position for each in kept) for position in range(100)
    ]
    assert skips.contains(np.arange(100)).tolist() == [position in left_out for position in range(100)]


@given(ranges, st.integers(0, 80), st.integers(0, 20))
def test_a_range_is_covered_if_all_its_positions_are_left_out(drawn, begin, length):
    skips, left_out = skips_of(drawn)
    assert skips.covers(begin, begin + length) == (set(range(begin, begin + length)) <= left_out)


@given(orders(tails=st.sampled_from(["pad", "drop"])), ranges, st.integers(1, 5), st.integers(1, 4), st.integers(0, 40))
def test_steps_are_made_of_the_positions_that_are_not_left_out(order, drawn, world_size, batch_size, start):
    skips, left_out = skips_of([(begin, min(length, order.num_positions - begin)) for begin, length in drawn])
    ranks = [Steps(order, World(rank, world_size), batch_size, start, skips) for rank in range(world_size)]
    assert len({len(steps) for steps in ranks}) == 1
    batches = [np.sort(np.concatenate([step.positions for step in steps])) for steps in zip(*ranks, strict=True)]
    assert all(len(batch) == batch_size * world_size for batch in batches)
    given_all = [position for batch in batches for position in batch.tolist()]
    due = [position for position in range(start, order.num_positions) if position not in left_out]
    if order.options.tail == "pad":
        assert given_all[: len(due)] == due
        assert given_all[len(due) :] == list(range(max(start, order.num_positions), max(given_all, default=-1) + 1))
    else:
        assert given_all == due[: len(given_all)]
        assert len(due) - len(given_all) < batch_size * world_size
    for rank, steps in enumerate(ranks):
        for number, step in enumerate(steps):
            later = Steps(order, World(rank, world_size), batch_size, step.end, skips)
            assert len(later) == len(steps) - number - 1
            assert step.end == batches[number][-1] + 1
