"""Ranges of positions that are left out, compared with plain sets."""

import numpy as np
from hypothesis import given

from orders import ranges, skips_of


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
