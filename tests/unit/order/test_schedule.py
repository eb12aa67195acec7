"""Weights that change over time, against a plain simulation."""

import itertools
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from orders import led, options
from wdsplit.errors import InputError
from wdsplit.order.mixture import EpochShares, MixedOrder
from wdsplit.order.schedule import Schedule
from wdsplit.order.shares import epoch_counts


@st.composite
def schedules(draw, most=400):
    """Draw a schedule, with its sizes and lanes: (schedule, sizes, lanes)."""
    num_sources = draw(st.integers(1, 5))
    weights = st.lists(st.integers(0, 9), min_size=num_sources, max_size=num_sources).filter(any)
    positions = [0, *itertools.accumulate(draw(st.lists(st.integers(1, most), max_size=4)))]
    points = [(position, draw(weights)) for position in positions]
    sizes = draw(st.lists(st.integers(1, 40), min_size=num_sources, max_size=num_sources))
    lanes = draw(st.integers(1, 6))
    try:
        schedule = Schedule(points, sizes, "abcde"[:num_sources], draw(st.integers(40, 150)))
    except InputError as error:
        assume("rounds to 0" not in error.found)
        raise
    return schedule, sizes, lanes


def order_of(schedule, sizes, lanes, epoch, **others):
    return MixedOrder(sizes, schedule.epoch(epoch), options(lanes=lanes, **others), epoch)


def stream(schedule, sizes, lanes, epochs, **others):
    """Return (source, number in the source's stream) of the positions of epochs, one after another."""
    found = []
    for epoch in epochs:
        order = order_of(schedule, sizes, lanes, epoch, **others)
        assert order.num_positions == schedule.num_samples
        samples = led(order, range(order.num_positions))
        found += [(source, source_epoch * sizes[source] + place) for source, source_epoch, place in samples]
    return found


def due(schedule, begin):
    """Return the share of each source from a point on."""
    weights = dict(schedule.points)[max(each for each, _ in schedule.points if each <= begin)]
    return [Fraction(weight, sum(weights)) for weight in weights]


# Shares


@given(schedules(), st.booleans())
def test_each_stretch_has_its_exact_shares_rounded_by_the_largest_remainders(made, shuffle):
    schedule, sizes, _ = made
    begins, each_epoch = [begin for begin, _ in schedule.points], schedule.num_samples
    num_epochs = -(-begins[-1] // each_epoch) + 1
    found = stream(*made, range(num_epochs), shuffle=shuffle)
    stretches = [*itertools.pairwise(begins), ((num_epochs - 1) * each_epoch, num_epochs * each_epoch)]
    for begin, end in stretches:
        expected = [share * (end - begin) for share in due(schedule, begin)]
        taken = Counter(source for source, _ in found[begin:end])
        counts = [taken[source] for source in range(len(sizes))]
        assert sum(counts) == end - begin
        order = sorted(range(len(sizes)), key=lambda source: expected[source] // 1 - expected[source])
        up = set(order[: end - begin - sum(each // 1 for each in expected)])
        assert counts == [each // 1 + (source in up) for source, each in enumerate(expected)]


@given(schedules(most=4000))
def test_what_is_taken_never_falls_and_adds_up(made):
    schedule, sizes, _ = made
    end = schedule.points[-1][0] + 3 * schedule.num_samples
    before = schedule.taken(0)
    assert before == (0,) * len(sizes)
    for position in range(0, end, 7):
        taken = schedule.taken(position)
        assert sum(taken) == position
        assert all(a <= b for a, b in zip(before, taken, strict=True))
        before = taken


# Exactly once


@given(schedules(), st.booleans(), st.integers(0, 5))
def test_each_source_goes_on_where_it_stopped_through_stretches_and_epochs(made, shuffle, first):
    schedule = made[0]
    found = stream(*made, range(first, first + 4), shuffle=shuffle)
    for source, before in enumerate(schedule.taken(first * schedule.num_samples)):
        numbers = sorted(number for each, number in found if each == source)
        assert numbers == list(range(before, before + len(numbers)))


# A function of the position


def test_a_schedule_of_one_point_is_a_mixture_of_constant_weights():
    sizes, weights = [40, 25, 7], [0.5, 0.3, 0.2]
    schedule = Schedule([(0, weights)], sizes, "abc", 66)
    counts = epoch_counts(sizes, "abc", weights=weights, num_samples=66)
    for epoch in (0, 3, 2**61):
        shares = schedule.epoch(epoch)
        assert shares == EpochShares((tuple(counts),), tuple(epoch * count for count in counts))
        positions = range(90)
        chosen = options(lanes=4)
        one, other = MixedOrder(sizes, counts, chosen, epoch), MixedOrder(sizes, shares, chosen, epoch)
        assert led(one, positions) == led(other, positions)


def test_golden_epoch_of_a_schedule():
    schedule = Schedule([(0, [3, 1]), (12, [1, 1]), (20, [0, 1])], [5, 4], "ab", 8)
    found = [order_of(schedule, [5, 4], 2, epoch, seed=42) for epoch in range(3)]
    assert [order.num_positions for order in found] == [8, 8, 8]
    assert [schedule.epoch(epoch).segments for epoch in range(4)] == GOLDEN_SEGMENTS
    assert schedule.fingerprint == "3 points (step, epochs of 8) b9d39049691a113d"
    assert [(source, place) for order in found for source, _, place in led(order, range(8))] == GOLDEN


GOLDEN_SEGMENTS = [((6, 2),), ((3, 1), (2, 2)), ((2, 2), (0, 4)), ((0, 8),)]
GOLDEN = [
    *[(1, 0), (1, 1), (0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (0, 0)],
    *[(0, 1), (1, 2), (0, 3), (0, 2), (1, 3), (1, 0), (0, 4), (0, 0)],
    *[(1, 1), (1, 2), (0, 1), (0, 2), (1, 3), (1, 0), (1, 1), (1, 2)],
]


@settings(max_examples=5)
@given(st.integers(0, 10**6))
def test_a_billion_positions_and_a_thousand_points_are_no_matter(epoch):
    points = [(number * 10**9, [1 + number % 7, 3, number % 2]) for number in range(300)]
    schedule = Schedule(points, [10**9] * 3, "abc", 10**9)
    assert sum(schedule.taken(10**15 + 1)) == 10**15 + 1
    order = order_of(schedule, [10**9] * 3, 192, epoch)
    assert len(set(led(order, range(5 * 10**8, 5 * 10**8 + 1000)))) == 1000


# What is refused


@pytest.mark.parametrize(
    ("points", "others", "found"),
    [
        ([], {}, ["at least one point"]),
        ([(5, [1, 1])], {}, ["point 0: position = 5: expected 0"]),
        ([(0, [1, 1]), (9, [1, 1]), (9, [1, 2])], {}, ["point 2: position = 9: expected an integer above 9"]),
        ([(0, [1, 1]), (9, [1, 1]), (3, [1, 2])], {}, ["point 2: position = 3"]),
        (
            [(500, [1, 1]), (0, [1, 1])],
            {},
            ["point 1: position = 0: expected an integer above 500, the position of the point before"],
        ),
        ([("x", [1, 1]), (0, [1, 1])], {}, ["point 1: position = 0: expected an integer above 0"]),
        ([(0, [1, 1]), (1.5, [1, 1])], {}, ["point 1: position = 1.5"]),
        ([(0, [1, 1]), (2**60, [1, 1])], {}, ["at most 2**50"]),
        ([(0, [1, -1])], {}, ["point 0, b: weight = -1"]),
        ([(0, [1, 1]), (9, [1, float("nan")])], {}, ["point 1, b: weight = nan"]),
        ([(0, [0, 0])], {}, ["point 0: weights: expected at least one above 0"]),
        ([(0, [1])], {}, ["point 0: expected 2 weights, one per source, found 1"]),
        ([(0, [1, 1])], {"num_samples": 0}, ["num_samples = 0"]),
        ([(0, [1, 1])], {"num_samples": True}, ["num_samples = True"]),
        ([(0, [1, 999]), (10, [1, 1])], {}, ["a: its share of positions 0 to 9, 0.01 of a sample, rounds to 0"]),
        ([(0, [1, 999])], {}, ["a: its share of each epoch from 0 on, 0.012 of a sample, rounds to 0"]),
    ],
)
def test_what_is_no_schedule_is_refused_and_named(points, others, found):
    with pytest.raises(InputError) as caught:
        Schedule(points, [5, 7], "ab", **others)
    assert all(each in caught.value.found for each in found), caught.value.found


def test_the_fingerprint_tells_schedules_apart_but_not_the_scale_of_weights():
    def fingerprint(*points, **others):
        return Schedule(points, [50, 70], "ab", **{"num_samples": 100, **others}).fingerprint

    one = fingerprint((0, [0.9, 0.1]), (50, [1, 1]))
    assert one == fingerprint((0, [9, 1]), (50, [0.5, 0.5]))
    others = [
        fingerprint((0, [0.9, 0.1]), (51, [1, 1])),
        fingerprint((0, [0.8, 0.2]), (50, [1, 1])),
        fingerprint((0, [0.9, 0.1]), (50, [1, 1]), num_samples=101),
        fingerprint((0, [0.9, 0.1])),
    ]
    assert len({one, *others}) == 5
