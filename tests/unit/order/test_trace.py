from operator import itemgetter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orders import epoch_order, orders, views
from wdsplit.order.split import Steps, World, readers_per_lane, worker_of
from wdsplit.order.trace import Trace, reading_advice, runs_of
from wdsplit.texts import counted

world_sizes = st.integers(1, 6)
workers = st.integers(1, 4)
batch_sizes = st.integers(1, 5)

even_shards = [10] * 100


def distribution(order, world_size, num_workers=1, batch_size=1):
    """Return what is known to worker 0 of rank 0."""
    return Trace(order, world_size, num_workers, batch_size).of(0, 0)


# The reference: every position of every reader is gone through


def positions_of(order, world_size, num_workers, batch_size):
    """Return the positions that each (rank, worker) is given, pads included."""
    given = {}
    for rank in range(world_size):
        steps = [step.positions for step in Steps(order, World(rank, world_size), batch_size)]
        positions = np.concatenate([np.zeros(0, np.int64), *steps])
        for worker in range(num_workers):
            given[rank, worker] = positions[worker_of(positions, world_size, num_workers) == worker]
    return given


def visited(order, positions):
    """Return (shard, visit, lane) of each position that is not a pad."""
    shard, visit, pad = order.visits(positions)
    lane = positions % order.options.lanes
    return list(zip(shard[~pad].tolist(), visit[~pad].tolist(), lane[~pad].tolist(), strict=True))


def windows_of(order):
    """Return for each shard the window of each visit."""
    visited = map(order.shard_windows, range(len(order.counts)))
    return [np.repeat(windows, np.diff(ends, prepend=0)).tolist() for windows, ends in visited]


def slow_amplification(order, given):
    windows = windows_of(order)
    read = sum(
        len({(lane, shard, windows[shard][visit]) for shard, visit, lane in visited(order, positions)})
        for positions in given.values()
    )
    total = sum(len(set(of_shard)) for of_shard in windows)
    return read / total if total else 0.0


@given(orders() | views().map(itemgetter(0)), world_sizes, workers, batch_sizes)
def test_all_readers_read_what_going_through_all_their_positions_shows(order, world_size, num_workers, batch_size):
    given = positions_of(order, world_size, num_workers, batch_size)
    trace = Trace(order, world_size, num_workers, batch_size)
    per_worker = {}
    for (rank, worker), positions in given.items():
        shards = list(dict.fromkeys(shard for shard, _, _ in visited(order, positions)))
        assert trace.shards(rank, worker) == shards
        assert trace.num_given(rank, worker) == len(positions)
        per_worker[rank, worker] = set(shards)
    for rank in range(world_size):
        of_rank = [per_worker[rank, worker] for worker in range(num_workers)]
        assert trace.shards_per_worker(rank) == list(map(len, of_rank))
        assert trace.shards_per_rank()[rank] == len(set().union(*of_rank))
    assert trace.num_pads == sum(int(order.visits(positions)[2].sum()) for positions in given.values())
    assert trace.read_amplification == pytest.approx(slow_amplification(order, given), abs=1e-12)


@given(orders() | views().map(itemgetter(0)), st.integers(0, 400))
def test_runs_are_the_samples_below_a_position_each_once(order, stop):
    runs = runs_of(order, stop)
    rows = zip(*(column.tolist() for column in vars(runs).values()), strict=True)
    expanded = {
        lane + order.options.lanes * (offset + number): (shard, first + number, lane)
        for lane, shard, first, length, offset in rows
        for number in range(length)
    }
    assert len(expanded) == runs.length.sum()
    positions = np.array([each for each in range(stop) if order.is_real(np.array([each]))[0]], np.int64)
    assert [expanded[position] for position in sorted(expanded)] == visited(order, positions)
    assert len(runs.lane) <= order.options.lanes + len(order.counts) + (0 if order.stretches is None else 9**2)


# Cases worth a name


def test_of_100_shards_on_8_ranks_with_4_workers_rank_0_worker_0_reads_every_32nd():
    order = epoch_order(even_shards, tail="uneven", lanes=32, shuffle=False)
    found = distribution(order, world_size=8, num_workers=4)
    assert found.as_dict() == {
        "total_shards": 100,
        "shards_per_rank": [13] * 4 + [12] * 4,
        "shards_per_worker": [4, 3, 3, 3],
        "rank": 0,
        "world_size": 8,
        "worker": 0,
        "num_workers": 4,
        "assigned_shards": [0, 32, 64, 96],
        "num_samples": 1000,
        "num_pads": 0,
        "read_amplification": 1.0,
        "advice": None,
    }


def test_seven_shards_keep_eight_ranks_busy():
    order = epoch_order([80] * 7, lanes=8, window=10)
    found = distribution(order, world_size=8, batch_size=16)
    assert sum(found.shards_per_rank) == 14
    assert all(found.shards_per_rank)
    assert (found.num_samples, found.num_pads) == (560, 80)
    assert found.read_amplification == 1.0


def test_thousands_of_readers_of_many_shards_take_no_time():
    order = epoch_order(np.arange(6000) % 997 + 500, lanes=2400, window=256)
    found = distribution(order, world_size=300, num_workers=7)
    assert 6000 < sum(found.shards_per_rank) < 9600
    assert 7 < found.read_amplification < 7.7


# Advice


@given(st.integers(1, 200), st.integers(1, 24), st.integers(1, 9))
def test_there_is_advice_where_lanes_are_shared_and_nowhere_else(lanes, world_size, num_workers):
    advice = reading_advice(lanes, world_size, num_workers)
    assert (advice is None) == (readers_per_lane(lanes, world_size, num_workers) == 1)
    for choice in (advice or "; use  (").partition("; use ")[2].partition(" (")[0].replace(",", "").split(" or "):
        if choice.startswith("lanes="):
            assert readers_per_lane(int(choice[6:]), world_size, num_workers) == 1
        elif "worker" in choice:
            assert readers_per_lane(lanes, world_size, int(choice.split()[0])) == 1
        elif choice:
            assert readers_per_lane(lanes, int(choice.split()[0]), num_workers) == 1


@pytest.mark.parametrize(
    ("lanes", "world_size", "num_workers", "advice"),
    [
        (16, 3, 1, "2 ranks or 4 ranks, or lanes=15 or lanes=18"),
        (16, 8, 3, "2 workers, or lanes=24"),
        (32, 8, 3, "2 workers or 4 workers, or lanes=24 or lanes=48"),
        (12, 5, 1, "4 ranks or 6 ranks, or lanes=10 or lanes=15"),
        (7, 8, 2, "lanes=16"),
    ],
)
def test_advice_names_the_nearest_numbers_that_divide(lanes, world_size, num_workers, advice):
    said = reading_advice(lanes, world_size, num_workers)
    assert f"; use {advice} (" in said
    ranks, workers = counted(world_size, "rank"), counted(num_workers, "worker")
    assert said.startswith(f"{ranks} x {workers} do not divide {counted(lanes, 'lane')}, so ")
