import numpy as np
import pyarrow as pa
from tables import converted, real_samples, write_table

from wdsplit.inputs import open_inputs, read_rows
from wdsplit.values import decoded_parts, without_views

MIB = 1024**2


def test_a_dictionary_of_long_values_is_decoded_in_parts_of_bounded_size():
    words = ["a" * 1000, "b", "c" * 3000]
    column = pa.array([words[i % 3] for i in range(100)] + [None]).dictionary_encode()
    other = pa.array(range(101))
    parts = list(decoded_parts([column, other], 5000))
    assert all(sum(len(value or "") for value in part[0].to_pylist()) <= 5000 for part in parts)
    assert len(parts) > 20
    assert [value for part in parts for value in part[0].to_pylist()] == column.to_pylist()
    assert [value for part in parts for value in part[1].to_pylist()] == other.to_pylist()


def test_a_value_that_is_larger_than_a_part_is_a_part_of_its_own():
    column = pa.array(["a" * 100] * 3 + [""]).dictionary_encode()
    assert [len(part[0]) for part in decoded_parts([column], 10)] == [1, 1, 1, 1]


def test_columns_without_dictionaries_are_one_part_and_not_copied():
    column = pa.array(range(1000))
    (part,) = decoded_parts([column], 1)
    assert part[0] is not None
    assert part[0].buffers()[1].address == column.buffers()[1].address


def test_a_dictionary_that_is_small_on_disk_never_fills_the_memory(tmp_path):
    value = "x" * MIB
    column = pa.DictionaryArray.from_arrays(pa.array(np.zeros(4000, np.int8)), [value])
    path = write_table(tmp_path / "in.parquet", {"text": column})
    table = open_inputs([path])
    before = pa.total_allocated_bytes()
    rows = 0
    for batch in read_rows(table, 0, 4000, ["text"]):
        assert pa.total_allocated_bytes() - before < 100 * MIB
        assert batch.numbers.tolist() == list(range(rows, rows + len(batch)))
        rows += len(batch)
        if rows > 40:
            break


def test_dictionaries_that_differ_from_one_row_group_to_the_next_can_be_shuffled(tmp_path):
    values = [f"word {i // 2}" for i in range(50)]
    inputs = write_table(tmp_path / "in.parquet", {"text": pa.array(values).dictionary_encode()}, 7)
    converted(inputs, tmp_path / "out", shards=2, shuffle=True)
    assert sorted(fields["txt"].decode() for _, fields in real_samples(tmp_path / "out")) == sorted(values)


def test_views_are_replaced_wherever_arrow_can_replace_them():
    kind = pa.struct([("a", pa.list_(pa.string_view())), ("m", pa.map_(pa.string_view(), pa.binary_view()))])
    column = pa.array([{"a": ["x", None], "m": [("k", b"v")]}, None], kind)
    found = without_views(column)
    assert "_view" not in str(found.type)
    assert found.to_pylist() == column.to_pylist()
    assert without_views(found) is found
