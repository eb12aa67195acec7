from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.conversion.plan.grouping import Groups, group_order, place_groups

U64 = st.integers(0, 2**64 - 1)
rows = st.lists(st.sampled_from([0, 1, 7, 2**63, 2**64 - 1, *range(100, 112)]), max_size=60)
"""The hash of each row's group."""

seeds = st.none() | st.integers(0, 2**63 - 1)


def groups_of(hashes, first=0):
    return Groups.of(np.array(hashes, np.uint64), np.arange(first, first + len(hashes)))


def as_lists(groups):
    return groups.hashes.tolist(), groups.counts.tolist(), groups.firsts.tolist()


@st.composite
def many_groups(draw):
    """Draw groups of any sizes, and a number of shards that they are enough for."""
    hashes = sorted(draw(st.sets(U64, min_size=1, max_size=40)))
    size = st.integers(1, 5) | st.integers(1, 10**6) | st.just(1)
    counts = draw(st.lists(size, min_size=len(hashes), max_size=len(hashes)))
    firsts = draw(st.permutations(range(len(hashes))))
    groups = Groups(np.array(hashes, np.uint64), np.array(counts, np.int64), np.array(firsts, np.int64))
    return groups, draw(st.integers(1, len(hashes)))


def shard_contents(groups, num_shards, seed):
    """Return the groups of each shard in the order of their places; check that they lie there without a gap."""
    places, bounds = place_groups(groups, num_shards, seed)
    by_place = np.argsort(places.starts).tolist()
    assert places.hashes.tolist() == groups.hashes.tolist()
    assert [bounds[0], bounds[-1], len(bounds)] == [0, groups.counts.sum(), num_shards + 1]
    place, shards = 0, [[] for _ in range(num_shards)]
    for group in by_place:
        start, stop = int(places.starts[group]), int(places.starts[group] + groups.counts[group])
        assert start == place
        (shard,) = [n for n, (low, high) in enumerate(pairwise(bounds)) if low <= start and stop <= high]
        shards[shard].append(group)
        place = stop
    return shards


# Counting


@given(rows)
def test_groups_are_counted_with_their_first_rows(hashes):
    expected = sorted((value, hashes.count(value), 1000 + hashes.index(value)) for value in set(hashes))
    assert list(zip(*as_lists(groups_of(hashes, 1000)), strict=True)) == expected


@given(rows, st.lists(st.integers(0, 60), max_size=5), st.data())
def test_groups_that_are_counted_in_parts_and_merged_are_those_that_are_counted_at_once(hashes, cuts, data):
    cuts = [0, *sorted(min(cut, len(hashes)) for cut in cuts), len(hashes)]
    parts = [groups_of(hashes[low:high], low) for low, high in pairwise(cuts)]
    parts = data.draw(st.permutations(parts))
    assert as_lists(Groups.merged(parts)) == as_lists(groups_of(hashes))
    half = len(parts) // 2
    merged = Groups.merged([Groups.merged(parts[:half]), Groups.merged(parts[half:])])
    assert as_lists(merged) == as_lists(groups_of(hashes))


def test_no_groups_at_all_merge_to_none():
    for parts in ([], [groups_of([])], [groups_of([]), groups_of([])]):
        merged = Groups.merged(parts)
        assert len(merged) == 0
        assert as_lists(merged) == ([], [], [])
        assert (merged.hashes.dtype, merged.counts.dtype, merged.firsts.dtype) == (np.uint64, np.int64, np.int64)


# Placing


@given(many_groups(), seeds)
def test_every_group_is_whole_in_one_shard_and_no_shard_is_empty(drawn, seed):
    groups, num_shards = drawn
    shards = shard_contents(groups, num_shards, seed)
    assert sorted(group for shard in shards for group in shard) == list(range(len(groups)))
    assert all(shards)


@given(many_groups(), seeds)
def test_shards_differ_by_no_more_than_the_smallest_group_of_the_largest_shard(drawn, seed):
    """Whatever was put last into the largest shard was put there because it had the fewest rows."""
    groups, num_shards = drawn
    sizes = [[int(groups.counts[group]) for group in shard] for shard in shard_contents(groups, num_shards, seed)]
    largest = max(sizes, key=sum)
    assert sum(largest) - min(map(sum, sizes)) <= min(largest)


@given(many_groups(), seeds)
def test_groups_are_dealt_out_largest_first_each_to_the_smallest_shard(drawn, seed):
    groups, num_shards = drawn
    order = group_order(groups, seed).tolist()
    expected, loads = [[] for _ in range(num_shards)], [0] * num_shards
    for group in sorted(order, key=lambda group: -groups.counts[group]):
        shard = loads.index(min(loads))
        expected[shard].append(group)
        loads[shard] += int(groups.counts[group])
    found = shard_contents(groups, num_shards, seed)
    assert list(map(sorted, found)) == list(map(sorted, expected))


@given(many_groups())
def test_groups_of_a_shard_stand_in_the_order_of_their_first_rows(drawn):
    groups, num_shards = drawn
    for shard in shard_contents(groups, num_shards, None):
        firsts = groups.firsts[shard].tolist()
        assert firsts == sorted(firsts)


@given(many_groups(), st.integers(0, 2**63 - 1))
def test_with_a_seed_groups_stand_in_an_order_that_the_table_says_nothing_of(drawn, seed):
    groups, num_shards = drawn
    ((*order,),) = shard_contents(groups, 1, seed)
    for shard in shard_contents(groups, num_shards, seed):
        assert shard == [group for group in order if group in shard]
    other = Groups(groups.hashes, groups.counts, groups.firsts[::-1])
    assert shard_contents(other, num_shards, seed) == shard_contents(groups, num_shards, seed)


@given(many_groups(), seeds)
def test_the_same_groups_go_to_the_same_places_again(drawn, seed):
    groups, num_shards = drawn
    (one, bounds), (other, again) = place_groups(groups, num_shards, seed), place_groups(groups, num_shards, seed)
    assert (one.starts.tolist(), bounds) == (other.starts.tolist(), again)


def test_seeds_give_orders_that_differ_and_never_change():
    groups = Groups(np.arange(8, dtype=np.uint64) * 10**18, np.ones(8, np.int64), np.arange(8))
    orders = [group_order(groups, seed).tolist() for seed in (None, 0, 1, 2**63 - 1)]
    assert orders == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [0, 2, 5, 1, 6, 7, 3, 4],
        [6, 4, 5, 7, 0, 1, 2, 3],
        [3, 4, 6, 0, 1, 5, 7, 2],
    ]


def test_places_never_change():
    groups = Groups(np.arange(6, dtype=np.uint64), np.array([3, 1, 4, 1, 5, 9]), np.array([5, 3, 0, 4, 1, 2]))
    places, bounds = place_groups(groups, 3, None)
    assert bounds == (0, 9, 16, 23)
    assert places.starts.tolist() == [20, 14, 16, 15, 9, 0]


def test_one_huge_group_has_a_shard_of_its_own():
    groups = Groups(np.arange(11, dtype=np.uint64), np.array([10**9, *[7] * 10]), np.arange(11))
    _, bounds = place_groups(groups, 3, None)
    assert [high - low for low, high in pairwise(bounds)] == [10**9, 35, 35]


def test_equal_groups_are_dealt_out_evenly():
    groups = Groups(np.arange(1000, dtype=np.uint64), np.full(1000, 3), np.arange(1000))
    _, bounds = place_groups(groups, 8, 4)
    assert {high - low for low, high in pairwise(bounds)} == {375}


def test_the_first_place_of_each_rows_group_is_found():
    groups = groups_of([5, 9, 5, 2**64 - 1, 9, 5])
    places, _ = place_groups(groups, 1, None)
    assert places.starts_of(np.array([9, 5, 5, 2**64 - 1], np.uint64)).tolist() == [3, 0, 0, 5]
    assert places.starts_of(np.zeros(0, np.uint64)).tolist() == []


@pytest.mark.parametrize("num_groups", [1, 2, 50_000])
def test_as_many_shards_as_groups_have_one_each(num_groups):
    groups = Groups(np.arange(num_groups, dtype=np.uint64), np.arange(1, num_groups + 1), np.arange(num_groups))
    _, bounds = place_groups(groups, num_groups, None)
    assert sorted(np.diff(bounds).tolist()) == list(range(1, num_groups + 1))
