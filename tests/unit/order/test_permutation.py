import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.order.permutation import RowPermutation

seeds = st.integers(0, 2**63 - 1)


def places(num_rows, seed=0):
    return RowPermutation(num_rows, seed).positions(np.arange(num_rows))


@pytest.mark.parametrize("num_rows", [0, 1, 2, 3, 1000, 65_535, 65_536, 65_537, 65_600, 131_072, 131_073, 300_001])
def test_every_row_has_a_place_of_its_own(num_rows):
    assert np.array_equal(np.sort(places(num_rows)), np.arange(num_rows))


@given(st.integers(1, 2**50), seeds, st.data())
def test_a_place_is_in_range_and_no_other_row_has_it_whatever_the_number_of_rows(num_rows, seed, data):
    rows = np.array(data.draw(st.lists(st.integers(0, num_rows - 1), max_size=20, unique=True)), np.int64)
    found = RowPermutation(num_rows, seed).positions(rows)
    assert len(set(found.tolist())) == len(rows)
    assert ((found >= 0) & (found < num_rows)).all()


@pytest.mark.parametrize("num_rows", [1000, 100_000])
def test_another_seed_gives_another_order(num_rows):
    orders = {RowPermutation(num_rows, seed).positions(np.arange(50)).tobytes() for seed in range(100)}
    assert len(orders) == 100


def test_the_places_are_pinned_for_ever():
    assert places(8, 0).tolist() == [0, 3, 7, 6, 5, 2, 1, 4]
    assert RowPermutation(1_000_003, 42).positions(np.arange(6)).tolist() == [
        908963,
        519360,
        184648,
        655191,
        923850,
        849006,
    ]


@pytest.mark.parametrize("num_rows", [60_000, 400_003])
@pytest.mark.parametrize("seed", [0, 1, 12_345])
def test_where_a_row_goes_says_nothing_of_where_it_came_from(num_rows, seed):
    """Chi-square over 64 x 64 blocks: 3,969 degrees of freedom, standard deviation 89; six are allowed."""
    blocks = 64
    table, _, _ = np.histogram2d(np.arange(num_rows) * blocks // num_rows, places(num_rows, seed), bins=blocks)
    expected = num_rows / blocks**2
    statistic = ((table - expected) ** 2 / expected).sum()
    assert abs(statistic - 3969) < 6 * 89
