from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.order import selection as module
from wdsplit.order.selection import Selection

MASKS = st.lists(st.lists(st.booleans(), max_size=40), max_size=12)


def of(masks):
    return Selection.of_masks([np.array(mask, np.bool_) for mask in masks])


@given(MASKS)
def test_each_shard_gives_the_samples_that_its_mask_names(masks):
    selection = of(masks)
    assert [selection.mask(shard).tolist() for shard in range(len(masks))] == masks
    assert [selection.places(shard).tolist() for shard in range(len(masks))] == [
        [place for place, chosen in enumerate(mask) if chosen] for mask in masks
    ]
    assert selection.counts.tolist() == [sum(mask) for mask in masks]
    assert selection.totals.tolist() == [len(mask) for mask in masks]
    assert selection.num_samples == sum(map(sum, masks))


@given(MASKS, st.integers(1, 20))
def test_windows_are_cut_out_of_a_shard(masks, window):
    selection = of(masks)
    for shard, mask in enumerate(masks):
        windows = [mask[first : first + window] for first in range(0, len(mask), window)]
        assert selection.window_counts(shard, window).tolist() == [sum(each) for each in windows]
        for number, each in enumerate(windows):
            first = number * window
            assert selection.mask(shard, first, first + len(each)).tolist() == each


@given(MASKS, st.integers(1, 20), st.integers(1, 20), st.integers(1, 50), st.data())
def test_windows_of_many_shards_are_counted_together(masks, window, max_each, at_once, data):
    shards = [shard for shard in range(len(masks)) if data.draw(st.booleans())]
    selection = of(masks)
    counts = [count for shard in shards for count in selection.window_counts(shard, window).tolist()]
    with patch.object(module, "_SAMPLES_AT_ONCE", at_once):
        found = selection.sum_of_windows(np.array(shards, np.int64), window, max_each)
    assert found == sum(min(count, max_each) for count in counts)


@given(MASKS, MASKS)
def test_selections_have_one_fingerprint_if_they_are_equal(masks, others):
    assert (of(masks).fingerprint == of(others).fingerprint) == (masks == others)


@pytest.mark.parametrize(
    ("masks", "num_bytes"),
    [
        ([[True] * 100], 0),
        ([[False] * 100], 0),
        ([[True] * 9 + [False]], 2),
        ([[True, False], [True], [False, True]], 2),
    ],
)
def test_only_a_shard_that_is_selected_in_part_takes_a_bitmap(masks, num_bytes):
    assert len(of(masks).bitmaps) == num_bytes


def test_bitmaps_may_be_a_map_of_a_file(tmp_path):
    expected = of([[True, False, True], [True] * 3, [False] * 8 + [True]])
    expected.bitmaps.tofile(tmp_path / "bitmaps")
    mapped = Selection(expected.totals, expected.counts, np.memmap(tmp_path / "bitmaps", np.uint8, "r"))
    assert mapped.fingerprint == expected.fingerprint
    assert mapped.places(2).tolist() == [8]
