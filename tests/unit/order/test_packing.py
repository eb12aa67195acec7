"""Packing of lengths."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.order.packing import best_fit, block_of, packed


def slow_best_fit(lengths, capacity):
    """Return the bin of each item: the longest first, into the fullest bin that it fits into."""
    room, found = [], {}
    for number in sorted(range(len(lengths)), key=lambda number: (-lengths[number], number)):
        fitting = [each for each, left in enumerate(room) if left >= lengths[number]]
        chosen = min(fitting, key=lambda each: (room[each], each), default=len(room))
        if chosen == len(room):
            room.append(capacity)
        room[chosen] -= lengths[number]
        found[number] = chosen
    return [found[number] for number in range(len(lengths))]


@given(st.lists(st.integers(0, 12), max_size=40), st.integers(12, 20), st.integers(1, 9))
def test_packs_are_those_of_plain_python_block_by_block(lengths, capacity, block):
    expected = []
    for first in range(0, len(lengths), block):
        own = slow_best_fit(lengths[first : first + block], capacity)
        expected += [max(expected, default=-1) + 1 + each for each in own]
    found = packed(np.array(lengths, np.int64), capacity, block)
    assert found.tolist() == expected
    assert (np.bincount(found, lengths, minlength=1) <= capacity).all()


def test_golden_packs():
    assert best_fit(np.array([5, 5, 3, 7, 2, 2, 6, 0, 9, 1]), 10).tolist() == [3, 3, 1, 1, 2, 2, 2, 0, 0, 0]


@pytest.mark.parametrize(("capacity", "least"), [(2048, 0.98), (8192, 0.98), (32_768, 0.97)])
def test_packs_of_lognormal_texts_are_well_filled(capacity, least):
    total = num_packs = 0
    for seed in range(5):  # shards: the last pack of each is rarely full
        lengths = np.random.default_rng(seed).lognormal(np.log(400) - 0.5, 1, 2000)
        lengths = np.minimum(lengths, capacity).astype(np.int64)
        total += lengths.sum()
        num_packs += packed(lengths, capacity, block_of(capacity)).max() + 1
    assert total / capacity / num_packs > least
