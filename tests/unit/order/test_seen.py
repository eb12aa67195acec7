"""The steps of all ranks by their numbers, compared with the steps of each rank."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orders import epoch_order, orders
from wdsplit.errors import InputError
from wdsplit.order.seen import SeenSteps
from wdsplit.order.skips import NO_SKIPS
from wdsplit.order.split import Steps, World
from wdsplit.order.state import State

even = st.sampled_from(["pad", "drop"])


def global_steps(order, batch_size, world_size, state):
    """Return the (position, rank) pairs of each step from a state on, as the ranks' own steps have them."""
    ranks = [
        [
            step.positions.tolist()
            for step in Steps(order, World(rank, world_size), batch_size, state.position, state.skips)
        ]
        for rank in range(world_size)
    ]
    lockstep = itertools.zip_longest(*ranks, fillvalue=[])
    return [sorted((position, rank) for rank, own in enumerate(parts) for position in own) for parts in lockstep]


def pairs(seen):
    return list(zip(seen.positions.tolist(), seen.ranks.tolist(), strict=True))


@given(orders(even), st.integers(1, 5), st.integers(1, 4), st.integers(0, 200), st.integers(0, 30), st.integers(0, 9))
def test_after_a_resume_steps_are_counted_to_end_where_the_epoch_ends(
    order, world_size, batch_size, position, first, length
):
    assume(position < order.num_positions)
    size = world_size * batch_size
    whole_steps = len(Steps(order, World(0, world_size), batch_size))
    offset = Steps(order, World(0, world_size), batch_size, position).first_number
    begin = min(position + first * size, order.num_positions)
    skips = NO_SKIPS.added(begin, min(begin + length * size, order.num_positions))
    state = State(order.epoch, position, skips=skips)
    seen = SeenSteps(order, batch_size, world_size, state)
    assert len(seen) == whole_steps
    found = [seen.step(number) for number in range(offset, whole_steps)]
    assert [pairs(each) for each in found if not each.is_skipped] == global_steps(order, batch_size, world_size, state)
    last = min(offset + first + length, whole_steps)
    assert [each.number for each in found if each.is_skipped] == list(range(offset + first, last))
    unskipped = SeenSteps(order, batch_size, world_size, State(order.epoch, position))
    assert [each.positions.tolist() for each in found] == [
        unskipped.step(number).positions.tolist() for number in range(offset, whole_steps)
    ]


def test_a_step_that_is_skipped_right_after_a_resume_between_two_steps_has_all_of_its_positions():
    order = epoch_order([6, 6], lanes=1)
    seen = SeenSteps(order, 2, 1, State(order.epoch, 1, skips=NO_SKIPS.added(1, 3)))
    assert [(step.positions.tolist(), step.is_skipped) for step in map(seen.step, range(2))] == [
        ([1, 2], True),
        ([3, 4], False),
    ]


def test_steps_before_a_state_end_where_the_global_batch_changed():
    order = epoch_order([50, 50], lanes=2)
    seen = SeenSteps(order, 4, 2, State(0, 20, global_batch=8, since=4))
    assert [(each.number, each.positions.tolist()[0]) for each in seen.before()] == [(2, 12), (1, 4)]
    assert seen.step(3).positions.tolist() == list(range(20, 28))
    with pytest.raises(InputError, match="no such step"):
        seen.step(0)
    assert list(SeenSteps(order, 4, 2, State(0, 20, global_batch=4)).before()) == []


@pytest.mark.parametrize("number", [-1, 13, 10**9])
def test_a_step_that_is_none_is_refused(number):
    order = epoch_order([50, 50], lanes=2)
    with pytest.raises(InputError, match="no such step") as error:
        SeenSteps(order, 4, 2).step(number)
    assert error.value.expected == "a step from 0 to 12"
    with pytest.raises(InputError, match="no steps"):
        SeenSteps(epoch_order([], lanes=2), 4, 2).step(0)


def test_a_step_deep_in_an_epoch_of_a_billion_samples_takes_no_time():
    for tail in ("pad", "uneven"):
        order = epoch_order(np.full(100_000, 10_000), tail=tail, lanes=192, window=14)
        seen = SeenSteps(order, 32, 64)
        assert len(seen.step(len(seen) // 2).positions) == 32 * 64
