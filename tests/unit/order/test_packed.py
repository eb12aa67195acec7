import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.order import packed as packing
from wdsplit.order.packed import both, first_of, is_whole, num_set, packed, selection_of
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


def masks_of(selection):
    return [selection.mask(shard).tolist() for shard in range(len(selection))]


def same(selection, expected):
    assert masks_of(selection) == [mask.tolist() for mask in expected]
    assert selection.fingerprint == Selection.of_masks(expected).fingerprint
    assert is_whole(selection)


@given(masks())
def test_the_bits_of_all_samples_are_the_selection_again(chosen):
    selection = Selection.of_masks(chosen)
    bits = packed(selection)
    expected = [np.packbits(mask, bitorder="little") for mask in chosen]
    assert bits.tolist() == np.concatenate([np.zeros(0, np.uint8), *expected]).tolist()
    assert num_set(selection.totals, bits).tolist() == [int(mask.sum()) for mask in chosen]
    same(selection_of(selection.totals, bits), chosen)


@given(st.data())
def test_both_is_what_is_in_both(data):
    one = data.draw(masks())
    other = data.draw(masks([len(mask) for mask in one]))
    expected = [left & right for left, right in zip(one, other, strict=True)]
    same(both(Selection.of_masks(one), Selection.of_masks(other)), expected)


@given(masks(), st.integers(0, 100))
def test_the_first_samples_of_a_selection(chosen, limit):
    totals, left = [], limit
    for mask in chosen:
        if left > 0:
            totals.append(min(left, len(mask)))
            left -= totals[-1]
    expected = [mask[:total] for mask, total in zip(chosen, totals, strict=False)]
    same(first_of(Selection.of_masks(chosen), np.array(totals, np.int64)), expected)


def test_many_shards_are_counted_some_at_a_time(monkeypatch):
    monkeypatch.setattr(packing, "_SHARDS_AT_ONCE", 3)
    totals = np.array([0, 9, 8, 0, 0, 0, 1, 17, 0, 3])
    chosen = [np.arange(total) % 2 == 0 for total in totals]
    assert num_set(totals, packed(Selection.of_masks(chosen))).tolist() == [mask.sum() for mask in chosen]


@pytest.mark.parametrize("wrong", [0b0000_0111, 0b0010_0001, 0b1000_0001])
def test_a_bitmap_that_is_not_as_its_count_says_is_found(wrong):
    right = Selection.of_masks([[True, False, True, False, False]])
    assert is_whole(right)
    assert not is_whole(Selection(right.totals, right.counts, np.array([wrong], np.uint8)))
