"""Small payloads as arrays of Arrow, from the shard to the batch: the same values as objects give."""

import pickle

import numpy as np
import pyarrow as pa
import pytest
import torch

from made_datasets import converted
from wdsplit.engines.shared_memory import SharedMemory
from wdsplit.errors import WdsplitError
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.loading.reading.block import Block, as_list, as_objects, flat, gathered
from wdsplit.loading.stages.decoders import decode_sample_stage
from wdsplit.loading.transport.collate import Column, collate, num_bytes, weave
from wdsplit.loading.transport.shared_segments import Ring, Segments
from wdsplit.order.split import World

ROWS = 61
NAMES = ("txt", "dat", "big", "cls")
KINDS = {"txt": pa.large_string(), "dat": pa.large_binary(), "big": pa.large_binary()}


@pytest.fixture(scope="module")
def uniform(tmp_path_factory):
    """Return a dataset of small texts, bytes and numbers, and of payloads that are too large for Arrow."""
    table = pa.table(
        {
            "txt": ["ä" * (row % 4) for row in range(ROWS)],
            "dat": pa.array([bytes([row]) * (row % 3) for row in range(ROWS)], pa.binary()),
            "big": pa.array([bytes([row]) * 900 for row in range(ROWS)], pa.binary()),
            "cls": [row - 30 for row in range(ROWS)],
        }
    )
    mapping = {name: name for name in NAMES}
    return converted(tmp_path_factory.mktemp("uniform"), table, mapping=mapping, shards=3, lanes=2)


def batches(path, decoded=True, **options):
    dataset = Dataset(path, rank=0, world_size=1)
    dataset = dataset.decode(only="txt cls") if decoded else dataset
    return list(Loader(dataset.to_tuple(*NAMES, "__key__"), 7, **options))


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "workers": "thread"}, {"num_workers": 2}])
def test_arrays_of_arrow_have_the_values_of_lists(uniform, options):
    expected = batches(uniform, **options)
    found = batches(uniform, strings="arrow", **options)
    for lists, arrays in zip(expected, found, strict=True):
        assert [array.to_pylist() for array in (*arrays[:3], arrays[4])] == [*lists[:3], lists[4]]
        assert [array.type for array in arrays[:3]] == list(KINDS.values())
        assert torch.equal(lists[3], arrays[3]) and arrays[3].dtype == torch.int64


def test_readers_make_no_object_for_a_small_payload_unless_it_is_needed(uniform):
    source = Dataset(uniform, rank=0, world_size=1).source
    order = source.order(0)
    for as_arrow in (True, False):
        reader = source.reader(order, World(0, 1, 0, 1))
        reader.as_arrow = as_arrow
        block = reader.carry_out(reader.plan(np.arange(ROWS)))
        is_arrow = {name: isinstance(values, pa.Array) for name, values in block.fields.items()}
        assert is_arrow == {"txt": as_arrow, "dat": as_arrow, "cls": as_arrow, "big": False}
        assert len(list(block.samples())) == ROWS


# Decoding


@pytest.mark.parametrize(
    "texts",
    [
        [b"0", b"-5", b"007"],
        [b"+5"],
        [b" 5", b"6"],
        [b"1_0"],
        [b"%d" % 2**70, b"1"],
        [b"0x1f"],
        [b""],
        [b"1.5"],
        [b"\xff"],
    ],
)
@pytest.mark.parametrize("name", ["cls", "txt"])
def test_columns_of_arrow_are_decoded_as_lists_are(name, texts):
    stage = decode_sample_stage()

    def outcome(values):
        try:
            column = stage.columns({name: values})[name]
        except WdsplitError as error:
            return type(error), error.cause, error.place
        return as_list(column) if not isinstance(column, np.ndarray) else (column.dtype, column.tolist())

    assert outcome(pa.array(texts, pa.large_binary())) == outcome(texts)


# Gathering


def block_of(values, whole):
    keys, ones = as_objects([""] * len(values)), np.ones(len(values), np.int64)
    return Block(keys, keys, ones, ones > 1, ones, {"f": values}, whole)


def test_a_gathered_field_is_whole_and_of_arrow_only_if_all_that_was_put_there_is():
    arrow, objects = pa.array([b"a", b"b", b"c"], pa.large_binary()), as_objects([b"d", None])
    for second, expected in (
        (pa.array([b"d", b"e"], pa.large_binary()), b"cadbe"),
        (objects, [b"c", b"a", b"d", b"b", None]),
    ):
        whole = {"f"} if isinstance(second, pa.Array) else set()
        parts = [
            (np.array([3, 0, 1]), block_of(arrow, {"f"}), np.array([1, 2, 0])),
            (np.array([2, 4]), block_of(second, whole), np.arange(2)),
        ]
        block = gathered(parts, np.arange(5), np.zeros(5, np.bool_))
        payloads, is_lacking = block.payloads("f")
        assert payloads == (expected if isinstance(expected, list) else [bytes([value]) for value in expected])
        assert (is_lacking, isinstance(block.fields["f"], pa.Array)) == (not whole, bool(whole))
        assert set(block.whole) == set(block.cut(1, 3).whole) == whole


# On the way


@pytest.mark.parametrize("kind", [pa.large_string(), pa.large_binary()])
def test_a_slice_of_arrow_comes_back_by_columns_or_pickled(kind):
    values = pa.array(["", "a", "ä" * 300_000, "b"], pa.large_string()).cast(kind)[1:]
    memory = SharedMemory()
    ring, segments = Ring(0, memory, 1), Segments([memory])
    column = Column("other", values, is_plain=True)
    assert num_bytes(column) >= 600_000
    (placed,) = segments.parcel(ring.place([(column,)], 600_000))
    assert placed[0].data.equals(values) and placed[0].is_plain
    assert pickle.loads(pickle.dumps(column, 5)).data.equals(values)
    cuts, data = flat(values)
    assert cuts[0] == 0 and cuts[-1] == len(data)


def test_text_beside_bytes_and_text_that_is_not_utf_8_come_as_lists_whatever_the_sub_batches():
    parts = [(np.array([0]), collate(["a"])), (np.array([1]), collate([b"b"]))]
    assert weave(parts, 2, pin=False, strings="arrow") == ["a", b"b"]
    assert weave([(np.arange(2), collate(["a", b"b"]))], 2, pin=False, strings="arrow") == ["a", b"b"]
    assert weave([(np.array([0]), collate(["\udcff"]))], 1, pin=False, strings="arrow") == ["\udcff"]
