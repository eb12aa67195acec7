import dataclasses
import datetime
import decimal

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wdsplit.errors import CorruptDataError
from wdsplit.shards.manifest import Field, Manifest, Shard, Shards, dump_manifest, parse_manifest
from wdsplit.shards.sample_tables import (
    dump_samples,
    dump_schema,
    names_of,
    parse_samples,
    parse_schema,
    sample_type,
    samples_path,
    with_names,
)

SHARD = Shard("000003.tar", 5, 1, 20_480, "xxh3_128:00")
SCHEMA = pa.schema(
    [
        pa.field("__key__", pa.string(), nullable=False),
        pa.field("num_bytes", pa.int64(), nullable=False),
        pa.field("width", pa.int32()),
        with_names(pa.field("label", pa.int64()), ("cat", "dog")),
        pa.field("score", pa.float64()),
        pa.field("caption", pa.string()),
    ]
)
ROWS = pa.table(
    {
        "__key__": ["0", "1", "2/é", "3"],
        "num_bytes": [10, 2**40, 0, 7],
        "width": [32, None, 32, 2**31 - 1],
        "label": [0, 1, 1, None],
        "score": [0.5, float("nan"), -0.0, None],
        "caption": ["", None, "a b", "é"],
    },
    schema=SCHEMA,
)
DATA = dump_samples(ROWS, SHARD.checksum)


def values(table):
    return repr(table.to_pydict())


def refused(data, shard=SHARD, **options):
    with pytest.raises(CorruptDataError) as caught:
        parse_samples(data, shard, **options)
    assert caught.value.found and "copy the dataset again" in caught.value.remedy
    return caught.value


def test_what_was_written_is_read():
    assert samples_path(SHARD.path) == "000003.tar.parquet"
    found = parse_samples(DATA, SHARD, schema=SCHEMA)
    assert values(found) == values(ROWS)
    assert names_of(found.schema) == {"label": ("cat", "dog")}
    assert dump_samples(found, SHARD.checksum) == DATA
    assert pq.read_table(pa.BufferReader(DATA)).column_names == SCHEMA.names


@pytest.mark.parametrize(("column", "row", "value"), [("label", 1, 0), ("score", 0, 0.25), ("caption", 2, "a c")])
def test_a_value_that_was_changed_is_refused(column, row, value):
    """As another program rewrites a table, with all that it says of itself."""
    table = pq.read_table(pa.BufferReader(DATA))
    changed = [*table.column(column).to_pylist()[:row], value, *table.column(column).to_pylist()[row + 1 :]]
    place = table.schema.get_field_index(column)
    table = table.set_column(place, table.schema.field(place), pa.array(changed, table.schema.field(place).type))
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    assert "other values" in refused(bytes(sink.getvalue()), schema=SCHEMA).found


def test_with_more_pads_only_the_first_samples_are_given():
    for num_pads in (3, 5):
        found = parse_samples(DATA, dataclasses.replace(SHARD, num_pads=num_pads), schema=SCHEMA)
        assert values(found) == values(ROWS.slice(0, 5 - num_pads))
    empty = dump_samples(SCHEMA.empty_table(), SHARD.checksum)
    assert parse_samples(empty, dataclasses.replace(SHARD, num_pads=5), schema=SCHEMA).num_rows == 0


@pytest.mark.parametrize(
    "kind, value",
    [
        (pa.bool_(), True),
        *((pa.type_for_alias(name), 100) for name in ("int8", "int64", "uint32")),
        (pa.uint64(), 2**64 - 1),
        (pa.float32(), 0.25),
        (pa.float64(), 0.1),
        (pa.string(), "é"),
        (pa.date32(), datetime.date(2024, 2, 29)),
        (pa.time32("ms"), datetime.time(1, 2, 3)),
        (pa.time64("us"), datetime.time(1, 2, 3, 4)),
        (pa.timestamp("ms"), datetime.datetime(2024, 2, 29)),
        (pa.timestamp("us", "Europe/Berlin"), datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC)),
        (pa.decimal128(10, 2), decimal.Decimal("12.30")),
    ],
    ids=str,
)
def test_every_type_is_read_as_it_was_written(kind, value):
    schema = pa.schema([*SCHEMA.remove(5).remove(4).remove(3).remove(2), pa.field("x", kind)])
    for column in ([value, None, value, value], [None] * 4):
        rows = pa.table({"__key__": list("abcd"), "num_bytes": [1] * 4, "x": pa.array(column, kind)}, schema=schema)
        found = parse_samples(dump_samples(rows, SHARD.checksum), SHARD, schema=schema)
        assert found["x"].type == kind == sample_type(kind)
        assert found["x"].to_pylist() == rows["x"].to_pylist()
    assert parse_schema(dump_schema(schema)) == schema


@pytest.mark.parametrize(
    "kind, held",
    [
        (pa.float16(), pa.float32()),
        (pa.large_string(), pa.string()),
        (pa.date64(), pa.date32()),
        (pa.time32("s"), pa.time32("ms")),
        (pa.timestamp("s", "UTC"), pa.timestamp("ms", "UTC")),
        *((kind, None) for kind in (pa.binary(), pa.list_(pa.int64()), pa.struct([("a", pa.int64())]))),
        *((kind, None) for kind in (pa.duration("s"), pa.decimal256(40, 2), pa.null())),
    ],
    ids=str,
)
def test_types_that_parquet_lacks_become_wider_and_others_are_not_held(kind, held):
    assert sample_type(kind) == held


def test_a_row_takes_few_bytes():
    rng, count = np.random.default_rng(0), 10_000
    rows = pa.table(
        {
            "__key__": [f"{number:07d}" for number in rng.permutation(count)],
            "num_bytes": rng.integers(3_000, 3_500, count),
            "width": np.full(count, 32, np.int32),
            "label": rng.integers(0, 2, count),
            "score": pa.nulls(count, pa.float64()),
            "caption": pa.nulls(count, pa.string()),
        },
        schema=SCHEMA,
    )
    shard = Shard("0.tar", count, 0, 1, "x")
    data = dump_samples(rows, "x")
    assert len(data) < 6 * count
    assert parse_samples(data, shard, schema=SCHEMA).equals(rows)
    assert dump_samples(rows.slice(0, 9).combine_chunks(), "x") == dump_samples(rows.slice(0, 9), "x")


def test_the_table_of_another_shard_and_other_columns_than_the_manifests_are_refused():
    for change in ({"checksum": "xxh3_128:01"}, {"num_samples": 6}, {"num_samples": 3}):
        refused(DATA, dataclasses.replace(SHARD, **change))
    for schema in (SCHEMA.remove(5), SCHEMA.set(2, pa.field("width", pa.int64()))):
        assert "caption: string" in refused(DATA, schema=schema).found


def test_a_file_of_anything_else_or_a_part_is_refused():
    for data in (b"", bytes(1000), DATA[:-1], DATA[: len(DATA) // 2], DATA[:4]):
        refused(data)
    for table in (ROWS.drop(["num_bytes"]), ROWS.append_column("x", pa.array([[1]] * 4))):
        sink = pa.BufferOutputStream()
        pq.write_table(table.replace_schema_metadata({"wdsplit.shard": SHARD.checksum}), sink)
        refused(sink.getvalue().to_pybytes())


@settings(max_examples=100)
@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_changed_byte_is_noticed_or_changes_nothing(place, mask):
    data = bytearray(DATA)
    data[place] ^= mask
    try:
        found = parse_samples(bytes(data), SHARD, schema=SCHEMA)
    except CorruptDataError:
        return
    assert values(found) == values(ROWS)


def test_texts_that_take_far_more_memory_than_the_file_are_refused():
    rows = pa.table(
        {"__key__": ["k"] * 2**10, "num_bytes": [1] * 2**10, "x": ["x" * 2**15] * 2**10},
        schema=pa.schema([SCHEMA.field(0), SCHEMA.field(1), pa.field("x", pa.string())]),
    )
    shard = Shard("0.tar", 2**10, 0, 2**20, "x")
    assert "memory" in refused(dump_samples(rows, "x"), shard).found
    honest = dataclasses.replace(shard, num_bytes=2**28)
    assert parse_samples(dump_samples(rows, "x"), honest).equals(rows)


MANIFEST = Manifest(Shards.of([SHARD]), (Field("cls", "label", "integer", "int64"),), 1, 64, "none", {})


def header_with(samples):
    header, table = dump_manifest(MANIFEST)
    return orjson.dumps({**orjson.loads(header), "samples": samples}), table


KEY, NUM_BYTES = {"name": "__key__", "type": "string"}, {"name": "num_bytes", "type": "int64"}


@pytest.mark.parametrize(
    "samples",
    [
        None,
        [],
        [KEY],
        [NUM_BYTES, KEY],
        [KEY, {"name": "num_bytes", "type": "int32"}],
        [KEY, NUM_BYTES, {"name": "label"}],
        [KEY, NUM_BYTES, {"name": "label", "type": "list<item: int64>"}],
        [KEY, NUM_BYTES, {"name": "label", "type": "decimal128(99, 2)"}],
        [KEY, NUM_BYTES, {"name": "label", "type": "int64", "names": [1]}],
        [KEY, NUM_BYTES, {"name": "label", "type": "int64", "other": 1}],
    ],
    ids=repr,
)
def test_columns_that_no_sample_tables_have_are_refused(samples):
    with pytest.raises(CorruptDataError, match=r"wdsplit\.json cannot be read"):
        parse_manifest(*header_with(samples))
