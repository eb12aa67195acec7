import numpy as np
import pyarrow as pa
import pytest

from tables import shard_files, write_table
from wdsplit.conversion.convert import convert
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.tables.read import open_inputs, read_rows
from written_formats import arrow_bytes

MIB = 1024**2


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


@pytest.mark.parametrize(
    ("plan", "changes"),
    [
        ({}, {"where": "text != 'text 7' and n < 30"}),
        ({"shuffle": True}, {"where": "n > 3", "key": "last"}),
    ],
    ids=str,
)
def test_views_give_the_shards_that_plain_columns_give(tmp_path, plan, changes):
    numbers, texts, data = list(range(40)), [f"text {n}" for n in range(40)], [b"\0x%d" % n for n in range(40)]
    nested = [{"a": [text, None], "m": [("k", item)]} for text, item in zip(texts, data, strict=True)]
    shards = {}
    for name, text, binary in (("plain", pa.string(), pa.binary()), ("view", pa.string_view(), pa.binary_view())):
        kind = pa.struct([("a", pa.list_(text)), ("m", pa.map_(text, binary))])
        arrays = {"n": pa.array(numbers), "text": pa.array(texts, text), "data": pa.array(data, binary)}
        table = pa.table({**arrays, "nested": pa.array(nested, kind), "last": pa.array(texts, text)})
        path = tmp_path / f"{name}.arrow"
        path.write_bytes(arrow_bytes(table, pa.ipc.new_file, rows=15))
        convert(str(path), tmp_path / name, ConvertOptions(shards=2, **plan, **changes))
        shards[name] = shard_files(tmp_path / name)
    assert shards["view"] == shards["plain"]
