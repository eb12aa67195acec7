import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alike import alike
from wdsplit.engines.shared_memory import SharedMemory
from wdsplit.loading.reading.block import Pending
from wdsplit.loading.transport.collate import Column, collate
from wdsplit.loading.transport.shared_segments import Ring, travelling, unpacked

DTYPES = [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.complex64]


def tensor_of(dtype, shape):
    return (torch.arange(int(np.prod(shape))) % 2).reshape(shape).to(dtype)


def parcel_sent(parcel):
    """Place a parcel in shared memory, send where it lies as a pipe does, and take it."""
    memory = SharedMemory()
    return unpacked(memory, pickle.loads(pickle.dumps(Ring(memory, 1).place(parcel, 8))))


PARTS = {
    "empty bytes": [b"", b""],
    "huge and empty bytes": [b"", b"x" * 100_000, b""],
    "strings": ["", "größer", "\ud800"],
    "nested": [{"a": [1, {"b": None}], "c": "x"}, {}],
    "tensors in lists": [[torch.ones(2), torch.zeros(3, dtype=torch.bool)], []],
    "arrays of objects": [np.array([b"a", None, 1], object)],
    "arrays of text": [np.array(["a", "bc"])],
}


@pytest.mark.parametrize("values", PARTS.values(), ids=PARTS.keys())
def test_values_that_are_no_tensors_come_back(values):
    part = collate([{"__key__": "k", "x": value, "n": 1} for value in values])
    assert part["x"].kind == "other"
    assert alike(parcel_sent([part, values]), [part, values])


columns = st.one_of(
    st.lists(st.binary(max_size=30), min_size=1).map(lambda values: Column("other", values, is_plain=True)),
    st.lists(st.text(max_size=5), min_size=1).map(lambda values: Column("other", values, is_plain=True)),
    st.lists(st.binary(max_size=3) | st.text(max_size=5), min_size=1).map(lambda values: Column("other", values)),
    st.builds(
        lambda dtype, shape: Column("tensor", tensor_of(dtype, shape)),
        st.sampled_from(DTYPES),
        st.lists(st.integers(0, 4), min_size=1, max_size=4).map(tuple),
    ),
)
parts = columns | st.lists(columns, max_size=4).map(tuple) | st.dictionaries(st.text(max_size=3), columns, max_size=4)


@settings(max_examples=25)
@given(st.lists(parts | st.none(), min_size=1, max_size=4), st.booleans())
def test_parcels_come_back_pickled_if_they_are_small_and_part_by_part_if_not(parcel, may_be_large):
    ready, size = travelling(parcel, may_be_large)
    assert type(ready) is bytes and size == len(ready)
    assert alike(parcel_sent(ready), parcel)
    assert alike(parcel_sent(parcel), parcel)


class Memory:
    def __init__(self, data):
        self.data = data
        self.num_read = 0

    def read(self, offset, num_bytes):
        self.num_read += num_bytes
        return self.data[offset : offset + num_bytes]

    def read_into(self, buffer, offset):
        buffer[:] = self.data[offset : offset + len(buffer)]


@pytest.mark.parametrize("size", [0, 5_000, 300_000])
def test_pending_payloads_come_back_as_bytes_and_large_ones_are_read_to_their_place(size):
    memory = Memory(np.random.default_rng(size).bytes(4 * size + 3))
    pending = [Pending(memory, number * size, size + number) for number in range(4)]
    expected = [memory.data[number * size : (number + 1) * size + number] for number in range(4)]
    parcel = [(Column("other", pending, is_plain=True), Column("number", np.arange(4)))]
    for may_be_large in (False, True):
        memory.num_read = 0
        ((payloads, numbers),) = parcel_sent(travelling(parcel, may_be_large)[0])
        assert alike(payloads, Column("other", expected, is_plain=True))
        assert numbers.data.tolist() == [0, 1, 2, 3]
        assert (memory.num_read == 0) == (may_be_large and size == 300_000)


def test_the_bytes_under_way_are_bounded_but_one_part_always_has_room():
    ring = Ring(SharedMemory(), 9)
    assert ring.has_room(1000, 1)
    ring.place([b"x"], 60)
    assert ring.has_room(40, 100)
    assert not ring.has_room(41, 100)
    ring.place([b"x"], 40)
    ring.release()
    assert ring.has_room(60, 100)


def test_arrays_inside_of_values_have_memory_of_their_own():
    """No batch copies them: they must not lie in a segment that is used again."""
    memory = SharedMemory()
    ring = Ring(memory, 1)
    (kept,) = unpacked(memory, ring.place([collate([[[np.arange(1000)]]])], 8000))
    ring.release()
    unpacked(memory, ring.place([collate([[[np.zeros(1000, np.int64)]]])], 8000))
    assert kept[0].data[0][0].tolist() == list(range(1000))
