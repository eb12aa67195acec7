import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from orders import GOLDEN_RATIO, led, mixed, options, slow_hash_stream
from wdsplit.errors import InputError
from wdsplit.order.epoch import EpochOrder
from wdsplit.order.mixture import BLOCK_OFFSETS, MixedOrder, source_seed
from wdsplit.order.shares import MAX_MIXED_SAMPLES, epoch_counts
from wdsplit.order.split import Steps, World

PHASES, LABELS = 9, 10

epochs = st.integers(0, 60)


def mixed_order(sizes, counts, epoch=0, tail="pad", **others):
    return MixedOrder(sizes, counts, options(tail, **others), epoch)


@st.composite
def mixtures(draw):
    """Draw the arguments of a MixedOrder: (sizes, counts, options)."""
    sizes = draw(st.lists(st.integers(0, 25), min_size=1, max_size=7))
    counts = [draw(st.integers(0, 40)) if size else 0 for size in sizes]
    assume(sum(counts))
    chosen = options(
        tail=draw(st.sampled_from(["pad", "drop"])),
        lanes=draw(st.integers(1, 6)),
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(0, 2**63 - 1)),
    )
    return sizes, counts, chosen


def whole_epoch(order):
    return led(order, range(order.num_positions))


def sources_of(order, positions):
    sources = np.full(len(positions), -1)
    for quota in order.quotas(positions):
        sources[quota.rows] = quota.source
    return sources


# The reference: the order told again, slow, in plain Python


def slow_hash(state, number):
    return mixed(state + (number + 1) * GOLDEN_RATIO)


def slow_phase(state, lane, num_sources, middle, total):
    return (slow_hash(state, lane * num_sources + middle) >> 1) % total


def slow_sources(in_lane, state, lane, low, high):
    """Return the source at each offset of a lane that has in_lane[i] samples of source i; of low <= i < high alone."""
    total = sum(in_lane[low:high])
    if high - low == 1 or not total:
        return [low] * total
    middle = (low + high) // 2
    phase = slow_phase(state, lane, len(in_lane), middle, total)
    left = sum(in_lane[low:middle])
    lefts = iter(slow_sources(in_lane, state, lane, low, middle))
    rights = iter(slow_sources(in_lane, state, lane, middle, high))
    ends = [(left * x + phase) // total for x in range(total + 1)]
    return [next(lefts if end > begin else rights) for begin, end in itertools.pairwise(ends)]


def slow_lanes(sizes, counts, options, epoch):
    """Return the lanes, each its (source, source epoch, position there)."""
    lanes, named = options.lanes, (options.seed, epoch) if options.shuffle else (0, 0)
    dealt = [
        (source, *divmod(epoch * count + number, size))
        for source, (size, count) in enumerate(zip(sizes, counts, strict=True))
        for number in range(count)
    ]
    for lane in range(lanes):
        queues = {source: [] for source in range(len(sizes))}
        for sample in dealt[lane::lanes]:
            queues[sample[0]].append(sample)
        in_lane = [len(queue) for queue in queues.values()]
        sources = slow_sources(in_lane, slow_hash_stream(*named, PHASES), lane, 0, len(sizes))
        if options.shuffle:
            state = slow_hash_stream(*named, LABELS)
            ranks = [
                (offset // 32, slow_hash(state, offset * lanes + lane), source) for offset, source in enumerate(sources)
            ]
            sources = [source for _, _, source in sorted(ranks)]
        yield [queues[source].pop(0) for source in sources]


def slow_step_of_lane(in_lane, state, lane, offset):
    """Return source and number within the lane's samples of that source, for lanes that are too long to be listed."""
    low, high, place = 0, len(in_lane), offset
    while high - low > 1:
        middle, total = (low + high) // 2, sum(in_lane[low:high])
        left, phase = sum(in_lane[low:middle]), slow_phase(state, lane, len(in_lane), middle, total)
        begin, end = ((left * x + phase) // total for x in (place, place + 1))
        low, high, place = (low, middle, begin) if end > begin else (middle, high, place - begin)
    return low, place


# Golden values: an epoch is the same for ever.


def test_golden_epoch_of_a_mixture():
    order = mixed_order([4, 3, 5], [6, 3, 4], epoch=2, lanes=2, seed=42)
    sources, source_epochs, places = zip(*whole_epoch(order), strict=True)
    assert sources == (1, 2, 2, 0, 0, 0, 2, 1, 0, 0, 1, 2, 0)
    assert source_epochs == (2, 1, 1, 3, 3, 3, 2, 2, 3, 4, 2, 2, 4)
    assert places == (0, 3, 4, 1, 0, 3, 1, 1, 2, 1, 2, 0, 0)


def test_golden_epoch_that_is_not_shuffled():
    order = mixed_order([4, 3, 5], [6, 3, 4], epoch=2, lanes=2, shuffle=False)
    sources, source_epochs, places = zip(*whole_epoch(order), strict=True)
    assert sources == (1, 0, 0, 2, 2, 0, 1, 1, 0, 0, 2, 2, 0)
    assert source_epochs == (2, 3, 3, 1, 1, 3, 2, 2, 3, 4, 2, 2, 4)
    assert places == (0, 1, 0, 3, 4, 3, 2, 1, 2, 1, 1, 0, 0)


def test_golden_seeds_of_sources():
    assert [source_seed(0, 0), source_seed(0, 1), source_seed(2**63 - 1, 7)] == [
        4684938952143280539,
        6314433330636160699,
        4124603992377014046,
    ]


# The order


@given(mixtures(), epochs, st.data())
def test_any_positions_lead_to_the_samples_of_the_reference(mixture, epoch, data):
    order = MixedOrder(*mixture, epoch)
    lanes = list(slow_lanes(*mixture, epoch))
    assert order.lane_length.tolist() == [len(lane) for lane in lanes]
    whole = led(order, range(order.num_positions + 20))
    for lane, samples in enumerate(lanes):
        assert whole[lane : order.num_positions : len(lanes)] == samples
    some = data.draw(st.lists(st.sampled_from(range(len(whole))), max_size=10))
    assert led(order, some) == [whole[position] for position in some]
    assert [led(order, [position])[0] for position in some] == led(order, some)


@given(mixtures(), epochs)
def test_pads_repeat_the_samples_of_their_lane(mixture, epoch):
    order = MixedOrder(*mixture, epoch)
    lanes, total = order.options.lanes, order.num_positions
    positions = np.arange(total + 3 * lanes)
    assert order.is_real(positions).tolist() == [position < total for position in positions]
    found = led(order, positions)
    for pad in range(total, total + 3 * lanes):
        lane = list(range(pad % lanes, total, lanes))
        repeated = lane[-1 - (pad // lanes - len(lane)) % len(lane)] if lane else pad % total
        assert found[pad] == found[repeated]


# With the sources' own orders


@pytest.mark.parametrize("tail", ["pad", "drop", "uneven"])
@pytest.mark.parametrize("counts", [[7], [3, 3, 3, 3], [100, 99], [0, 5, 1], []])
def test_lanes_can_be_cut_at_equal_counts_always(counts, tail):
    own = EpochOrder(np.array(counts, np.int64), options(lanes=2, tail=tail), 3, equal_lanes=True)
    assert own.is_recut
    assert own.lane_length.tolist() == [-(-sum(counts) // 2), sum(counts) // 2]
    positions = np.arange(sum(counts) + 5)
    assert own.is_real(positions).tolist() == [position < sum(counts) for position in positions]
    assert own.num_positions == own.num_samples == sum(counts)


# Shares


MANY = ([700, 300], [1, 999], [100] * 50, [5, 80, 3000, 200, 5], [10_000, 1], [333, 333, 334])


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("counts", MANY)
def test_each_stretch_of_a_lane_has_the_shares_of_the_whole(counts, shuffle):
    """A sample more or less each time that the sources are halved would be allowed; it is about one in all."""
    lanes, block = 8, BLOCK_OFFSETS if shuffle else 1
    order = mixed_order(counts, counts, lanes=lanes, shuffle=shuffle)
    for lane in range(lanes):
        sources = sources_of(order, np.arange(lane, order.num_positions, lanes))
        for source in range(len(counts)):
            is_here = np.concatenate([[0], np.cumsum(sources == source)])
            error = is_here - is_here[-1] * np.arange(len(is_here)) / len(sources)
            assert np.ptp(error[::block]) < 2.2


def test_a_shuffled_lane_that_ranks_share_does_not_beat_in_time_with_them():
    """Two equal sources in turn would give rank 0 of 2 the one and rank 1 the other, if all stood in one lane."""
    counts = [3200, 3200]
    plain, shuffled = (mixed_order(counts, counts, lanes=1, shuffle=shuffle) for shuffle in (False, True))
    for rank in (0, 1):
        positions = np.arange(rank, 6400, 2)
        assert len(set(sources_of(plain, positions).tolist())) == 1
        assert abs(sources_of(shuffled, positions).mean() - 0.5) < 0.05


# Large


@given(st.lists(st.integers(1, 2**47), min_size=1, max_size=8), st.integers(1, 2000), st.integers(0, 2**62), st.data())
def test_counts_of_fifty_bits_are_exact(counts, lanes, epoch, data):
    sizes = [data.draw(st.integers(1, MAX_MIXED_SAMPLES)) for _ in counts]
    order = mixed_order(sizes, counts, epoch, lanes=lanes, shuffle=False)
    positions = [0, sum(counts) - 1, *data.draw(st.lists(st.integers(0, sum(counts) - 1), max_size=5))]
    state = slow_hash_stream(0, 0, PHASES)
    starts = [0, *itertools.accumulate(counts)]
    for position, found in zip(positions, led(order, positions), strict=True):
        lane, offset = position % lanes, position // lanes
        ends = [len(range(lane, start, lanes)) for start in starts]
        in_lane = [end - begin for begin, end in itertools.pairwise(ends)]
        source, place = slow_step_of_lane(in_lane, state, lane, offset)
        number = epoch * counts[source] + (lane - starts[source]) % lanes + lanes * place
        assert found == (source, *divmod(number, sizes[source]))


def test_a_thousand_sources_of_a_trillion_samples_are_no_matter():
    sizes = [10**9 + 7 * source for source in range(1000)]
    counts = epoch_counts(sizes, ["x"] * 1000, weights=[1 + source % 7 for source in range(1000)], num_samples=10**12)
    order = mixed_order(sizes, counts, epoch=10**6, lanes=256)
    assert order.num_positions == sum(counts) == 10**12
    for begin in (0, 123_456_789_012, 10**12 - 5000):
        found = led(order, np.arange(begin, begin + 5000))
        assert len(set(found)) == 5000
        assert len({source for source, _, _ in found}) > 900
        for source, source_epoch, place in found:
            number = source_epoch * sizes[source] + place - 10**6 * counts[source]
            assert 0 <= place < sizes[source]
            assert abs(number / counts[source] - begin / 10**12) < 0.001
    steps = Steps(order, World(3, 512), 256)
    assert len(steps) == -(-(10**12) // (512 * 256))
    assert next(iter(steps)).positions[:2].tolist() == [3, 515]


# Counts


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=9), st.integers(1, 10**6))
def test_counts_are_in_proportion_to_the_weights_up_to_one_and_have_the_sum_asked_for(weights, num_samples):
    total = sum(weights)
    assume(total and all(weight * num_samples >= total for weight in weights if weight))
    counts = epoch_counts([5] * len(weights), "x" * len(weights), weights=weights, num_samples=num_samples)
    assert sum(counts) == num_samples
    for count, weight in zip(counts, weights, strict=True):
        assert abs(count - Fraction(num_samples * weight, total)) < 1
    for one, other in itertools.combinations(range(len(weights)), 2):
        assert weights[one] <= weights[other] or counts[one] >= counts[other]


@pytest.mark.parametrize(
    ("weights", "num_samples", "counts"),
    [
        ([0.7, 0.3], None, [70, 30]),
        ([0.1, 0.2, 0.7], 10, [1, 2, 7]),
        ([1, 1, 1], 100, [34, 33, 33]),
        ([0.15, 0.85], 10, [2, 8]),
        ([0.29, 0.71], 100, [29, 71]),
        ([Fraction(1, 3), Fraction(2, 3)], 300, [100, 200]),
        ([np.float32(0.1), np.float64(0.9)], np.int64(10), [1, 9]),
        ([3, 0], 7, [7, 0]),
        ([5], 2**50, [2**50]),
    ],
)
def test_weights_count_as_the_decimal_numbers_that_they_print_as(weights, num_samples, counts):
    found = epoch_counts([60, 40, 1][: len(weights)], "abc"[: len(weights)], weights=weights, num_samples=num_samples)
    assert found == counts
    assert {type(count) for count in found} == {int}


@pytest.mark.parametrize(
    ("repeats", "counts"),
    [(None, [10, 25, 0]), ([1, 2, 1], [10, 50, 0]), ([0.5, 0.1, 0], [5, 2, 0]), ([0.3, 0.7, 1], [3, 18, 0])],
)
def test_repeats_say_it_of_each_source(repeats, counts):
    assert epoch_counts([10, 25, 0], "abc", repeats=repeats) == counts


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"weights": [1]}, ["weights: expected 2 values, one per source, found 1"]),
        ({"weights": [1, 1], "repeats": [1, 1]}, ["weights cannot be combined with repeats"]),
        ({"repeats": [1, 1], "num_samples": 5}, ["num_samples works only with weights"]),
        ({"weights": [1, 1], "num_samples": 0}, ["num_samples = 0"]),
        ({"weights": [1, 1], "num_samples": True}, ["num_samples = True"]),
        ({"weights": [-0.1, float("nan")]}, ["a: weight = -0.1", "b: weight = nan"]),
        ({"weights": [float("inf"), "1"]}, ["a: weight = inf", "b: weight = '1'"]),
        ({"weights": [True, None]}, ["a: weight = True", "b: weight = None"]),
        ({"weights": [0, 0]}, ["at least one above 0"]),
        ({"weights": [1e-3, 1e3]}, ["a: its share, 1.2e-05 of a sample in an epoch, rounds to 0"]),
        ({"repeats": [-1, float("inf")]}, ["a: repeat = -1", "b: repeat = inf"]),
        ({"repeats": [0.01, 1]}, ["a: its share, 0.05 of a sample in an epoch, rounds to 0"]),
        ({"repeats": [0, 0]}, ["an epoch would have no samples"]),
        ({"repeats": [1e300, 1]}, ["at most 2**50"]),
    ],
)
def test_what_cannot_be_mixed_is_refused_and_named(arguments, found):
    with pytest.raises(InputError) as caught:
        epoch_counts([5, 7], "ab", **arguments)
    assert all(each in caught.value.found for each in found)


@pytest.mark.parametrize("sizes", [[], [0], [0, 0]])
def test_a_mixture_of_nothing_is_refused(sizes):
    with pytest.raises(InputError, match="no samples"):
        epoch_counts(sizes, "ab"[: len(sizes)])


def test_a_mixture_with_an_uneven_tail_is_refused():
    with pytest.raises(InputError, match="uneven"):
        mixed_order([5], [5], tail="uneven")
