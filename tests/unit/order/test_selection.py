import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.order import selection as module
from wdsplit.order.selection import Selection


@st.composite
def masks(draw, totals=None):
    sizes = draw(st.lists(st.integers(0, 20), max_size=6)) if totals is None else totals
    kinds = [draw(st.sampled_from(["all", "none", "some"])) for _ in sizes]
    bits = {"all": st.just(True), "none": st.just(False), "some": st.booleans()}
    return [
        np.array(draw(st.lists(bits[kind], min_size=size, max_size=size)), np.bool_)
        for kind, size in zip(kinds, sizes, strict=True)
    ]


@given(masks(), st.data())
def test_each_shard_gives_the_samples_that_its_mask_names(chosen, data):
    selection = Selection.of_masks(chosen)
    assert masks_of(selection) == [mask.tolist() for mask in chosen]
    assert [selection.places(shard).tolist() for shard in range(len(chosen))] == [
        np.flatnonzero(mask).tolist() for mask in chosen
    ]
    assert selection.counts.tolist() == [mask.sum() for mask in chosen]
    assert selection.totals.tolist() == [len(mask) for mask in chosen]
    assert selection.num_samples == sum(selection.counts)
    for shard, mask in enumerate(chosen):
        first = data.draw(st.integers(0, len(mask)))
        stop = data.draw(st.integers(first, len(mask)))
        assert selection.mask(shard, first, stop).tolist() == mask[first:stop].tolist()


@given(masks(), masks())
def test_selections_have_one_fingerprint_if_they_are_equal(chosen, others):
    one, other = map(Selection.of_masks, (chosen, others))
    assert (one.fingerprint == other.fingerprint) == (masks_of(one) == masks_of(other))


def test_only_a_shard_that_is_selected_in_part_takes_a_bitmap():
    chosen = [np.arange(9) > 0, np.ones(100, np.bool_), np.zeros(100, np.bool_), np.arange(2) > 0]
    assert len(Selection.of_masks(chosen).bitmaps) == 2 + 1


def test_bitmaps_may_be_a_map_of_a_file(tmp_path):
    expected = Selection.of_masks([np.arange(3) != 1, np.arange(3) >= 0, np.arange(9) == 8])
    expected.bitmaps.tofile(tmp_path / "bitmaps")
    mapped = Selection(expected.totals, expected.counts, np.memmap(tmp_path / "bitmaps", np.uint8, "r"))
    assert mapped.fingerprint == expected.fingerprint
    assert mapped.places(2).tolist() == [8]


def masks_of(selection):
    return [selection.mask(shard).tolist() for shard in range(len(selection))]


def same(selection, expected):
    assert masks_of(selection) == [mask.tolist() for mask in expected]
    assert selection.fingerprint == Selection.of_masks(expected).fingerprint
    assert selection.is_intact


@given(masks())
def test_the_bits_of_all_samples_are_the_selection_again(chosen):
    selection = Selection.of_masks(chosen)
    bits = selection.bits
    expected = [np.packbits(mask, bitorder="little") for mask in chosen]
    assert bits.tolist() == np.concatenate([np.zeros(0, np.uint8), *expected]).tolist()
    same(Selection.of_bits(selection.totals, bits), chosen)


@given(st.data())
def test_both_is_what_is_in_both(data):
    one = data.draw(masks())
    other = data.draw(masks([len(mask) for mask in one]))
    expected = [left & right for left, right in zip(one, other, strict=True)]
    same(Selection.of_masks(one) & Selection.of_masks(other), expected)


@given(masks(), st.integers(0, 100))
def test_the_first_samples_of_a_selection(chosen, limit):
    totals, left = [], limit
    for mask in chosen:
        if left > 0:
            totals.append(min(left, len(mask)))
            left -= totals[-1]
    expected = [mask[:total] for mask, total in zip(chosen, totals, strict=False)]
    same(Selection.of_masks(chosen).first(np.array(totals, np.int64)), expected)


def test_many_shards_are_counted_some_at_a_time(monkeypatch):
    monkeypatch.setattr(module, "_SHARDS_AT_ONCE", 3)
    totals = np.array([0, 9, 8, 0, 0, 0, 1, 17, 0, 3])
    chosen = [np.arange(total) % 2 == 0 for total in totals]
    same(Selection.of_bits(totals, Selection.of_masks(chosen).bits), chosen)


@pytest.mark.parametrize("wrong", [0b0000_0111, 0b0010_0001, 0b1000_0001])
def test_a_bitmap_that_is_not_as_its_count_says_is_found(wrong):
    right = Selection.of_masks([[True, False, True, False, False]])
    assert right.is_intact
    assert not Selection(right.totals, right.counts, np.array([wrong], np.uint8)).is_intact
