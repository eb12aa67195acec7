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


@given(rows, st.lists(st.integers(0, 60), max_size=5), st.data())
def test_groups_are_counted_with_their_first_rows_at_once_or_in_parts_that_are_merged(hashes, cuts, data):
    cuts = [0, *sorted(min(cut, len(hashes)) for cut in cuts), len(hashes)]
    parts = [groups_of(hashes[low:high], low) for low, high in pairwise(cuts)]
    parts, half = data.draw(st.permutations(parts)), len(parts) // 2
    expected = sorted((value, hashes.count(value), hashes.index(value)) for value in set(hashes))
    halves = Groups.merged([Groups.merged(parts[:half]), Groups.merged(parts[half:])])
    for found in (groups_of(hashes), Groups.merged(parts), halves):
        assert list(zip(found.hashes.tolist(), found.counts.tolist(), found.firsts.tolist(), strict=True)) == expected
        assert (found.hashes.dtype, found.counts.dtype, found.firsts.dtype) == (np.uint64, np.int64, np.int64)


# Placing


@given(many_groups(), seeds)
def test_groups_are_dealt_out_largest_first_each_to_the_smallest_shard(drawn, seed):
    """So each is whole in one shard, none of which is empty, and shards differ by no more than a smallest group."""
    groups, num_shards = drawn
    order = group_order(groups, seed).tolist()
    expected, loads = [[] for _ in range(num_shards)], [0] * num_shards
    for group in sorted(order, key=lambda group: -groups.counts[group]):
        shard = loads.index(min(loads))
        expected[shard].append(group)
        loads[shard] += int(groups.counts[group])
    found = shard_contents(groups, num_shards, seed)
    assert list(map(sorted, found)) == list(map(sorted, expected)) and all(found)
    sizes = [groups.counts[shard] for shard in found]
    assert max(map(sum, sizes)) - min(map(sum, sizes)) <= min(max(sizes, key=sum))
    if seed is None:
        firsts = [groups.firsts[shard].tolist() for shard in found]
        assert firsts == list(map(sorted, firsts)), "groups of a shard stand in the order of their first rows"


@given(many_groups(), st.integers(0, 2**63 - 1))
def test_with_a_seed_groups_stand_in_an_order_that_the_table_says_nothing_of(drawn, seed):
    groups, num_shards = drawn
    ((*order,),) = shard_contents(groups, 1, seed)
    for shard in shard_contents(groups, num_shards, seed):
        assert shard == [group for group in order if group in shard]
    other = Groups(groups.hashes, groups.counts, groups.firsts[::-1])
    assert shard_contents(other, num_shards, seed) == shard_contents(groups, num_shards, seed)


def test_seeds_give_orders_that_differ_and_never_change():
    groups = Groups(np.arange(8, dtype=np.uint64) * 10**18, np.ones(8, np.int64), np.arange(8))
    orders = [group_order(groups, seed).tolist() for seed in (None, 0, 1, 2**63 - 1)]
    assert orders == [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [0, 2, 5, 1, 6, 7, 3, 4],
        [6, 4, 5, 7, 0, 1, 2, 3],
        [3, 4, 6, 0, 1, 5, 7, 2],
    ]


@pytest.mark.parametrize(
    ("counts", "num_shards", "bounds", "starts"),
    [
        ([3, 1, 4, 1, 5, 9], 3, [0, 9, 16, 23], [20, 14, 16, 15, 9, 0]),
        ([10**9, *[7] * 10], 3, [0, 10**9, 10**9 + 35, 10**9 + 70], None),
        ([3] * 1000, 8, [375 * number for number in range(9)], None),
    ],
)
def test_places_never_change(counts, num_shards, bounds, starts):
    firsts = [5, 3, 0, 4, 1, 2] if starts else np.arange(len(counts))
    groups = Groups(np.arange(len(counts), dtype=np.uint64), np.array(counts), np.array(firsts))
    places, found = place_groups(groups, num_shards, None)
    assert list(found) == bounds
    assert starts in (None, places.starts.tolist())


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
