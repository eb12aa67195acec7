"""The order of a view: that of a dataset that has no other samples."""

from collections import Counter
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orders import (
    GROUPINGS,
    VIEWS,
    located,
    masks_of,
    options,
    samples_of,
    slow_lanes,
    slow_visits,
    slow_windows,
    views,
)
from wdsplit.checks.audit import AuditOptions, audit_order
from wdsplit.checks.mixing import draw_batches
from wdsplit.order.epoch import EpochOrder, Located
from wdsplit.order.evened import evened
from wdsplit.order.selection import Selection
from wdsplit.order.units import spread


@pytest.mark.parametrize("is_packed", [False, True, *GROUPINGS])
@given(st.data())
def test_a_shard_of_a_view_is_visited_as_one_that_has_no_other_samples(is_packed, data):
    order, units = data.draw(views(packed=[is_packed]))
    for shard in range(len(units.counts)):
        expected = slow_visits(
            order.options, order.epoch, shard, slow_windows(units, shard, order.options.window, words_of(order))
        )
        each = np.arange(len(expected))
        numbers = order.units_of(np.full(len(each), shard), each)
        _, visits, _ = order.visits(order.positions_of(np.full(len(each), shard), numbers))
        assert visits.tolist() == each.tolist()
        rows, samples, parts, *_ = order.shard_units(shard).items(numbers)
        assert in_units(each if rows is None else rows, samples, order) == expected
        times = Counter(samples_of(units, shard))
        assert parts is None or set(zip(samples.tolist(), parts.tolist(), strict=True)) == {
            (sample, part) for sample in times for part in range(times[sample])
        }
        assert windows_read(order, shard) == (expected, None if parts is None else parts.tolist())


def words_of(order):
    return (order.options.seed, order.epoch) if order.options.shuffle else None


def in_units(rows, samples, order):
    """Return the units that some samples are of, by the numbers of their units."""
    if not order.is_bundled:
        return samples.tolist()
    return [tuple(each.tolist()) for each in np.split(samples, np.flatnonzero(np.diff(rows)) + 1)] if len(rows) else []


def windows_read(order, shard):
    """Return the units of a shard as its windows are read and visited, and which of its items each sample is."""
    windows, ends = order.shard_windows(shard)
    sizes = np.diff(ends, prepend=0)
    orders = order.places_in_windows(np.full(len(windows), shard), windows, sizes)
    units, parts = [], []
    for window, size, row in zip(windows.tolist(), sizes.tolist(), orders, strict=True):
        read = order.shard_units(shard).window(window)
        assert (np.diff(read.samples) > 0).all() and size > 0
        rows = items = row[:size]
        if read.offsets is not None:
            assert len(read.offsets) == size + 1
            rows, items = spread(read.offsets, row[:size])
        units += in_units(rows, read.samples[read.items[items]], order)
        parts += [] if read.parts is None else read.parts[items].tolist()
    return units, parts if order.part_name else None


@given(views(kinds=["one", "one a shard", "random", "uneven"]))
def test_lanes_are_those_that_plain_python_makes(view):
    order, units = view
    windows = [slow_windows(units, shard, order.options.window, words_of(order)) for shard in range(len(units.counts))]
    found = slow_lanes(order.totals.tolist(), order.options, order.epoch, windows, order.is_recut)
    assert found == (lanes_of(order), order.is_recut)


def lanes_of(order):
    """Return the lanes, each the (shard, sample) pairs that it holds."""
    lanes = range(order.options.lanes)
    positions = [lane + len(lanes) * np.arange(int(order.lane_length[lane])) for lane in lanes]
    made = []
    for each in map(order.locate, positions):
        shards = each.shard[np.searchsorted(each.row, np.unique(each.row))]
        made.append([*zip(shards.tolist(), in_units(each.row, each.sample, order), strict=True)])
    return made


@pytest.mark.parametrize("lanes", [12, 24, 30])
def test_lanes_that_fill_up_each_other_have_the_same_number_modulo_much(lanes):
    """So that the readers of half and of a quarter of the lanes, and so on, find what they share in memory."""
    lengths = 100 + np.array([(1, -1)[lane % lanes * 2 // lanes] * (lane % 5 + 1) for lane in range(lanes)])
    lengths[lanes // 2 :] = 200 - lengths[: lanes // 2]
    begins = np.cumsum(lengths) - lengths
    found = evened(begins, lengths, np.full(lanes, 100))
    source = np.searchsorted(begins, found.sources_of(np.arange(100 * lanes)), side="right") - 1
    lane = np.arange(100 * lanes) // 100
    assert (source != lane).sum() == np.maximum(lengths - 100, 0).sum()
    assert set((source - lane)[source != lane].tolist()) <= {lanes // 2, -lanes // 2}


def test_a_bitmap_of_a_shard_that_is_not_visited_is_not_touched():
    class Untouched(Selection):
        def mask(self, shard, first=0, stop=None):
            assert shard == 1
            return super().mask(shard, first, stop)

    masks = [np.arange(20) % 3 == shard % 3 for shard in range(3)]
    made = Selection.of_masks(masks)
    selection = Untouched(made.totals, made.counts, made.bitmaps)
    order = EpochOrder(selection.totals, options(lanes=1, shuffle=False), 0, selection=selection)
    begin = int(made.counts[0])
    assert [shard for shard, _, _ in located(order, np.arange(begin, begin + int(made.counts[1])))] == [1] * 7


@given(views(st.just("pad"), ["uneven", *VIEWS]))
def test_units_of_a_view_lead_back_to_their_positions(view):
    order, _ = view
    positions = np.flatnonzero(order.is_real(np.arange(order.num_positions)))
    shard, unit, pad = order.units(positions)
    assert order.positions_of(shard, unit).tolist() == positions.tolist() and not pad.any()
    found = order.locate(positions)
    drawn = draw_batches(order, 1, 4, 10**6).samples
    assert sorted(zip(drawn.shard.tolist(), drawn.sample.tolist(), strict=True)) == sorted(
        zip(found.shard.tolist(), found.sample.tolist(), strict=True)
    )


def test_the_audit_of_a_view_finds_a_sample_that_is_not_selected():
    selection = Selection.of_masks(masks_of("every third", [30, 30], 0))
    order = EpochOrder(selection.totals, options(lanes=2), 0, selection=selection)
    other = Selection.of_masks([~selection.mask(0), selection.mask(1)])
    zeros = np.zeros(20, np.int64)
    found = Located(np.arange(20), zeros, zeros, other.places(0), zeros > 0, zeros)
    with patch.object(EpochOrder, "locate", lambda self, positions: found):
        (once,) = (each for each in audit_order(order, AuditOptions()) if each.promise == "exactly once")
    assert not once.held and "20 that are not selected" in once.evidence
