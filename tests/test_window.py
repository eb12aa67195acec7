import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.errors import CorruptDataError
from wdsplit.tar import build_body, parse_members
from wdsplit.tarheaders import BLOCK_BYTES
from wdsplit.window import Window

BASE = 3 * BLOCK_BYTES
"""Where the samples begin in the shard: a window is rarely its beginning."""


def window_of(samples, is_copied):
    """Return the window of samples, dicts of fields to bytes or None, as a reader opens it."""
    keys = [f"folder/{row:04d}" for row in range(len(samples))]
    fields = {
        name: pa.array([sample.get(name) for sample in samples], pa.large_binary())
        for name in sorted({name for sample in samples for name in sample})
    }
    body = build_body(pa.array(keys, pa.string()), fields)
    data = bytes(body.join())
    shard = bytes(BASE) + data
    offsets = np.append(0, np.cumsum(body.sample_bytes))
    members = parse_members(memoryview(data), BASE + offsets, BASE)

    def read(offset, num_bytes):
        return shard[offset : offset + num_bytes]

    if is_copied:
        return keys, Window("a.tar", members, read, data, BASE)
    return keys, Window("a.tar", members, read, shard, most_copied=100)


samples = st.lists(
    st.dictionaries(st.sampled_from(["cls", "txt", "seg.png"]), st.binary(max_size=600), min_size=1), min_size=1
)


@given(samples, st.booleans(), st.data())
def test_any_rows_are_the_samples_that_were_written(samples, is_copied, data):
    keys, window = window_of(samples, is_copied)
    rows = data.draw(st.lists(st.integers(0, len(samples) - 1), max_size=5))
    taken = list(window.take(rows, [9] * len(rows), [False] * len(rows)))
    same = {"__url__": "a.tar", "__position__": 9, "__pad__": False}
    assert taken == [{"__key__": keys[row], **same, **samples[row]} for row in rows]
    assert window.sizes_at(np.array(rows, np.int64)).tolist() == [sum(map(len, samples[row].values())) for row in rows]


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
        Window("a.tar", members, lambda offset, num_bytes: b"", data)
