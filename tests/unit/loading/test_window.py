from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wdsplit.errors import CorruptDataError
from wdsplit.loading.reading.block import Pending, as_objects
from wdsplit.loading.reading.read_windows import InMemory
from wdsplit.loading.reading.window import Window, pieces
from wdsplit.tar.headers import BLOCK_BYTES
from wdsplit.tar.members import build_body, parse_members

BASE = 3 * BLOCK_BYTES
"""Where the samples begin in the shard: a window is rarely its beginning."""


def window_of(samples, is_copied):
    """Return the window of samples, dicts of fields to bytes or None; payloads over 100 bytes may be yet to be read."""
    keys = [f"folder/{row:04d}" for row in range(len(samples))]
    fields = {
        name: pa.array([sample.get(name) for sample in samples], pa.large_binary())
        for name in sorted({name for sample in samples for name in sample})
    }
    body = build_body(pa.array(keys, pa.string()), fields)
    data = bytes(body.join())
    shard = InMemory(memoryview(bytes(BASE) + data))
    offsets = np.append(0, np.cumsum(body.sample_bytes))
    members = parse_members(memoryview(data), BASE + offsets, BASE)

    def payloads(wanted):
        starts, sizes = members.starts - BASE, members.sizes
        at_hand = wanted & (is_copied | (sizes <= 100))
        values = pieces(data, starts, sizes, at_hand)
        rest = np.flatnonzero(wanted & ~at_hand)
        values[rest] = as_objects([Pending(shard, BASE + int(starts[row]), int(sizes[row])) for row in rest])
        return values, not len(rest)

    return keys, Window("a.tar", members, payloads)


samples = st.lists(
    st.dictionaries(st.sampled_from(["cls", "txt", "seg.png"]), st.binary(max_size=600), min_size=1), min_size=1
)


@settings(max_examples=30)
@given(samples, st.booleans(), st.data())
def test_any_rows_are_the_samples_that_were_written(samples, is_copied, data):
    keys, window = window_of(samples, is_copied)
    rows = data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=5))
    taken = list(window.take(rows, [9] * len(rows), [False] * len(rows)))
    same = {"__url__": "a.tar", "__position__": 9, "__pad__": False}
    assert taken == [{"__key__": keys[row], **same, **samples[row]} for row in rows]
    at_hand = is_copied or all(len(value) <= 100 for sample in samples for value in sample.values())
    is_alike = all(sample.keys() == samples[0].keys() for sample in samples)
    assert set(window.whole) == (samples[0].keys() if at_hand and is_alike else set())
    assert window.sizes[rows].tolist() == [sum(map(len, samples[row].values())) for row in rows]


@settings(max_examples=30)
@given(samples)
def test_field_names_are_told_of_each_sample_or_once_if_all_are_alike(samples):
    keys, window = window_of(samples, is_copied=True)
    told = {key: set(names) for key, names in window.field_names()}
    if all(sample.keys() == samples[0].keys() for sample in samples):
        assert told == {keys[0]: set(samples[0])}
    else:
        assert told == {key: set(sample) for key, sample in zip(keys, samples, strict=True)}


def test_an_index_that_joins_two_samples_is_refused():
    keys = pa.array(["a", "b"], pa.string())
    body = build_body(keys, {"cls": pa.array([b"1", b"2"], pa.large_binary())})
    data = bytes(body.join())
    members = parse_members(memoryview(data), np.array([0, len(data)]))
    with pytest.raises(CorruptDataError, match="two samples"):
        Window("a.tar", members, lambda wanted: (np.empty(len(wanted), object), True))


spans = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.booleans()), max_size=40)
"""For each piece: the bytes before it, its own bytes, and whether it is wanted."""


@pytest.mark.parametrize("few", [0, 1024])
@given(spans)
def test_pieces_are_those_of_the_data_and_nothing_of_what_is_between(few, spans):
    data, starts, expected = bytearray(), [], []
    for number, (gap, size, wanted) in enumerate(spans):
        data += b"-" * gap
        starts.append(len(data))
        data += bytes([number]) * size
        expected.append(bytes([number]) * size if wanted else None)
    sizes, wanted = [size for _, size, _ in spans], [wanted for _, _, wanted in spans]
    with patch("wdsplit.loading.reading.window._FEW_PIECES", few):
        taken = pieces(data, np.array(starts, np.int64), np.array(sizes, np.int64), np.array(wanted, np.bool_))
    assert taken.tolist() == expected
    assert all(type(piece) in (bytes, type(None)) for piece in taken)


def test_few_needed_pieces_of_many_are_copied_without_arrow_and_so_without_pandas():
    starts, wanted = np.arange(5000), np.arange(5000) % 1000 == 7
    with patch("wdsplit.loading.reading.window.with_gaps", side_effect=AssertionError):
        taken = pieces(bytes(range(250)) * 20, starts, np.ones(5000, np.int64), wanted)
    assert dict(enumerate(taken)) == {row: bytes([row % 250]) if wanted[row] else None for row in range(5000)}


@pytest.mark.parametrize(("starts", "sizes"), [([-1], [1]), ([0, 4], [5, 1]), ([4, 0], [1, 1]), ([0, 9], [1, 2])])
def test_pieces_outside_of_the_data_or_of_each_other_are_never_read(starts, sizes):
    with pytest.raises(ValueError, match="outside of 10 bytes"):
        pieces(bytes(10), np.array(starts), np.array(sizes), np.ones(len(starts), np.bool_))
