import itertools

import numpy as np
import pytest
import webdataset
from hypothesis import given
from hypothesis import strategies as st

from orders import TAILS, epoch_order, located, options, orders, ranges, real_positions, skips_of, slow_visits
from wdsplit.errors import InputError, TopologyError
from wdsplit.order.epoch import EpochOrder
from wdsplit.order.split import Steps, World, assigned_lanes, reader_positions, readers_per_lane, worker_of

even = st.sampled_from(["pad", "drop"])
world_sizes = st.integers(1, 6)
workers = st.integers(1, 4)
batch_sizes = st.integers(1, 5)


def steps_of_all_ranks(order, world_size, batch_size):
    return [Steps(order, World(rank, world_size), batch_size) for rank in range(world_size)]


# The steps of a rank


def slow_steps(order, world, batch_size, start, left_out):
    """Return the positions of each step and where it ends, told position by position."""
    if order.options.tail == "uneven":
        own = [
            each for each in real_positions(order).tolist() if each >= start and each % world.world_size == world.rank
        ]
        batches = [own[first : first + batch_size] for first in range(0, len(own), batch_size)]
        return [(batch, batch[-1] + 1) for batch in batches]
    due = [each for each in range(start, order.num_positions) if each not in left_out]
    size = batch_size * world.world_size
    if order.options.tail == "drop":
        due = due[: len(due) // size * size]
    else:
        due += range(max(start, order.num_positions), max(start, order.num_positions) + -len(due) % size)
    numbers = {each: each - sum(other < each for other in left_out) for each in due}
    return [
        ([each for each in batch if numbers[each] % world.world_size == world.rank], batch[-1] + 1)
        for batch in (due[first : first + size] for first in range(0, len(due), size))
    ]


@pytest.mark.parametrize("tail", TAILS)
@given(world_sizes, batch_sizes, ranges, st.data())
def test_each_rank_takes_the_steps_that_plain_python_takes(tail, world_size, batch_size, drawn, data):
    order = data.draw(orders(st.just(tail)))
    start = data.draw(st.integers(0, order.num_positions + 3))
    within = [each for each in drawn if sum(each) <= order.num_positions]
    skips, left_out = skips_of([] if order.options.tail == "uneven" else within)
    for rank in range(world_size):
        steps = Steps(order, World(rank, world_size), batch_size, start, skips)
        expected = slow_steps(order, steps.world, batch_size, start, left_out)
        for _ in range(2):  # iterating does not use them up
            assert [(step.positions.tolist(), step.end) for step in steps] == expected
        assert len(steps) == len(expected)
        if order.options.tail != "uneven":
            assert steps.end == (expected[-1][1] if expected else start)


@given(orders(), world_sizes, workers, st.integers(1, 9))
def test_the_readers_of_a_plain_loader_take_each_position_of_their_rank_once(order, world_size, num_workers, chunk):
    for rank, steps in enumerate(steps_of_all_ranks(order, world_size, 1)):
        taken = []
        for worker in range(num_workers):
            world = World(rank, world_size, worker, num_workers)
            parts = list(reader_positions(order, world, chunk))
            assert all(len(part) <= chunk for part in parts)
            mine = np.concatenate([np.zeros(0, np.int64), *parts])
            assert (worker_of(mine, world_size, num_workers) == worker).all()
            assert set(mine % order.options.lanes) <= set(assigned_lanes(order.options.lanes, world))
            assert mine.tolist() == sorted(mine.tolist())
            taken += mine.tolist()
        assert sorted(taken) == [position for step in steps for position in step.positions.tolist()]


@given(orders(even), world_sizes, batch_sizes)
def test_from_the_start_rank_r_has_places_r_and_every_world_size_after_it(order, world_size, batch_size):
    alone = list(Steps(order, World(), batch_size * world_size))
    for rank, steps in enumerate(steps_of_all_ranks(order, world_size, batch_size)):
        for part, whole in zip(steps, alone, strict=True):
            assert part.positions.tolist() == whole.positions[rank::world_size].tolist()


# Whole lanes, as webdataset would split them


@pytest.mark.parametrize(
    ("world_size", "num_workers", "lanes"), [(1, 1, 4), (2, 3, 12), (8, 4, 32), (4, 1, 16), (1, 5, 5)]
)
def test_where_readers_divide_the_lanes_each_has_what_webdatasets_splitters_give(
    world_size, num_workers, lanes, monkeypatch
):
    for rank, worker in itertools.product(range(world_size), range(num_workers)):
        named = {"RANK": rank, "WORLD_SIZE": world_size, "WORKER": worker, "NUM_WORKERS": num_workers}
        for name, value in named.items():
            monkeypatch.setenv(name, str(value))
        theirs = list(webdataset.split_by_worker(webdataset.split_by_node(iter(range(lanes)))))
        ours = assigned_lanes(lanes, World(rank, world_size, worker, num_workers)).tolist()
        assert ours == theirs == list(range(lanes))[rank::world_size][worker::num_workers]


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 8))
def test_each_lane_has_as_many_readers_as_said(lanes, world_size, num_workers):
    readers = [
        World(rank, world_size, worker, num_workers) for rank in range(world_size) for worker in range(num_workers)
    ]
    visits = np.bincount(np.concatenate([assigned_lanes(lanes, reader) for reader in readers]), minlength=lanes)
    assert visits.tolist() == [readers_per_lane(lanes, world_size, num_workers)] * lanes


# Large


@pytest.mark.parametrize("tail", TAILS)
def test_a_million_shards_and_a_billion_samples_are_no_matter(tail):
    num_shards, each, lanes, epoch = 1_000_000, 1_000, 256, 3
    chosen = options(tail=tail, lanes=lanes, window=64)
    order = EpochOrder(np.full(num_shards, each), chosen, epoch)
    assert order.num_samples == num_shards * each
    shards_of_lane = {lane: order.sequence[order.lane_begin[lane] // each :][:3907] for lane in (0, 7, 255)}
    for lane, offset in itertools.product(shards_of_lane, (0, 1, 999, 1000, 3_905_999)):
        ((shard, sample, pad),) = located(order, [offset * lanes + lane])
        assert (shard, pad) == (shards_of_lane[lane][offset // each], False)
        assert sample == slow_visits(chosen, epoch, shard, each)[offset % each]
    ranks = [Steps(order, World(rank, 512), 256) for rank in (0, 1, 511)]
    if tail == "uneven":
        assert [len(steps) for steps in ranks] == [-(-int(order.lane_length[lane]) // 512) for lane in (0, 1, 255)]
    else:
        assert len({len(steps) for steps in ranks}) == 1
        assert abs(ranks[0].end - order.num_positions) < 512 * 256
    assert next(iter(ranks[1])).positions.tolist() == list(range(1, 256 * 512, 512))


# Arguments


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((-1, 1), "rank and world_size"),
        ((1, 1), "rank and world_size"),
        ((0, 0), "rank and world_size"),
        ((0, 1, 4, 4), "worker and num_workers"),
        ((0, 1, -1, 4), "worker and num_workers"),
        ((0, 1, 0, 0), "worker and num_workers"),
    ],
)
def test_a_world_that_cannot_be_is_refused(arguments, names):
    with pytest.raises(TopologyError, match=names) as caught:
        World(*arguments)
    assert caught.value.expected and caught.value.found and caught.value.remedy


@pytest.mark.parametrize("batch_size", [0, -1])
def test_a_batch_size_below_1_is_refused(batch_size):
    with pytest.raises(InputError, match="batch size"):
        Steps(epoch_order([4]), World(), batch_size)
