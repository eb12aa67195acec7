from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from wdsplit.loading.reading.block import Block, Pending, as_objects, gathered

SHARD = bytes(range(256))
"""What pending payloads are read from."""


class InShard:
    def read(self, offset, num_bytes):
        return SHARD[offset : offset + num_bytes]


pending = st.builds(Pending, st.just(InShard()), st.integers(0, 200), st.integers(0, 50))
payloads = st.binary(max_size=5) | pending


@st.composite
def blocks(draw):
    """Draw a block, and what its samples shall be, told sample by sample."""
    size = draw(st.integers(0, 6))
    names = draw(st.lists(st.sampled_from(["cls", "txt", "jpg"]), unique=True, max_size=3))
    fields = {name: draw(st.lists(payloads | st.none(), min_size=size, max_size=size)) for name in names}
    pads = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    samples = []
    for row in range(size):
        sample = {"__key__": f"{row:03d}", "__url__": "a.tar", "__position__": 7 * row, "__pad__": pads[row]}
        present = {name: bytes(values[row]) for name, values in fields.items() if values[row] is not None}
        samples.append(sample | present)
    sizes = [sum(len(value) for name, value in sample.items() if name[:2] != "__") for sample in samples]
    block = Block(
        as_objects([sample["__key__"] for sample in samples]),
        as_objects(["a.tar"] * size),
        np.arange(size) * 7,
        np.array(pads, np.bool_),
        np.array(sizes, np.int64),
        {name: as_objects(values) for name, values in fields.items()},
    )
    return block, samples


@settings(max_examples=40)
@given(blocks())
def test_samples_have_the_fields_that_are_there_with_their_bytes(drawn):
    block, samples = drawn
    assert list(block.samples()) == samples
    assert block.num_bytes == sum(block.sizes.tolist())


@given(blocks(), st.integers(0, 6), st.integers(0, 6))
def test_a_cut_holds_the_samples_in_between(drawn, first, stop):
    block, samples = drawn
    assert list(block.cut(first, stop).samples()) == samples[first:stop]
    assert len(block.cut(first, stop)) == len(samples[first:stop])


@given(blocks(), st.sets(st.sampled_from(["cls", "jpg", "none"])) | st.none(), st.booleans())
def test_columns_are_the_samples_turned_or_none_where_a_wanted_field_is_missing(drawn, wanted, is_pending):
    block, samples = drawn
    names = [name for name in block.fields if wanted is None or name in wanted]
    columns = block.columns(wanted, is_pending)
    if columns is not None:
        for name in names:
            is_left = is_pending and set(map(type, block.fields[name])) == {Pending}
            assert set(map(type, columns[name])) <= {Pending if is_left else bytes}
            columns[name] = list(map(bytes, columns[name]))
    if any(name not in sample for name in names for sample in samples):
        assert columns is None
        return
    assert list(columns) == ["__key__", "__url__", "__position__", "__pad__", *names]
    assert {name: list(values) for name, values in columns.items()} == {
        name: [sample[name] for sample in samples] for name in columns
    }


def test_samples_of_many_bytes_are_made_a_few_at_a_time():
    """Their memory is used again: a block of Pending payloads is never in memory as a whole."""
    reads = []

    class Zeros:
        def read(self, offset, num_bytes):
            reads.append(offset)
            return bytes(num_bytes)

    fields = {"bin": as_objects([Pending(Zeros(), row, 800_000) for row in range(8)])}
    strings, ones = as_objects(["x"] * 8), np.ones(8, np.int64)
    samples = Block(strings, strings, ones, ones > 1, ones * 800_000, fields).samples()
    next(samples)
    assert len(reads) < 3
    assert len(list(samples)) == 7
    assert reads == list(range(8))


def test_a_field_of_a_gathered_block_is_whole_if_it_is_in_all_parts():
    text, none = as_objects([b"1", b"2"]), np.zeros(3, np.bool_)

    def part(rows, keys, url, fields, whole):
        block = Block(
            as_objects(keys), as_objects([url] * len(keys)), np.arange(len(keys)), none[:2], none[:2], fields, whole
        )
        return np.array(rows), replace(block, sizes=np.full(len(keys), 2)), np.arange(len(keys))

    parts = [
        part([2, 0], ["c", "a"], "x.tar", {"txt": text, "cls": text}, ["txt", "cls"]),
        part([1], ["b"], "y.tar", {"txt": text[:1], "cls": as_objects([None])}, ["txt"]),
    ]
    block = gathered(parts, np.arange(3), none)
    assert set(block.whole) == {"txt"}
    assert [sample.get("cls") for sample in block.samples()] == [b"2", None, b"1"]
    assert [sample["__url__"] for sample in block.cut(1, 3).samples()] == ["y.tar", "x.tar"]
    assert set(block.cut(1, 3).whole) == {"txt"}
