import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from wdsplit.loading.reading.block import Block, Pending, as_objects

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


@given(
    blocks(),
    st.integers(0, 6),
    st.integers(0, 6),
    st.sets(st.sampled_from(["cls", "jpg", "none"])) | st.none(),
    st.booleans(),
)
def test_a_cut_holds_the_samples_in_between_and_columns_are_samples_turned(drawn, first, stop, wanted, is_pending):
    """Columns are None where a wanted field is missing."""
    block, samples = drawn[0].cut(first, stop), drawn[1][first:stop]
    assert list(block.samples()) == samples
    assert (len(block), block.num_bytes) == (len(samples), sum(block.sizes.tolist()))
    names = [name for name in block.fields if wanted is None or name in wanted]
    columns = block.columns(wanted, is_pending)
    if any(name not in sample for name in names for sample in samples):
        assert columns is None
        return
    for name in names:
        is_left = is_pending and set(map(type, block.fields[name])) == {Pending}
        assert set(map(type, columns[name])) <= {Pending if is_left else bytes}
        columns[name] = list(map(bytes, columns[name]))
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
