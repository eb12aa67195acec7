import json
import os
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tables import write_table
from wdsplit.conversion.counting import select_rows
from wdsplit.errors import InputError
from wdsplit.fields.infer import class_names
from wdsplit.tables import read
from wdsplit.tables.read import open_inputs, read_rows
from wdsplit.tables.schemas import Schemas
from wdsplit.tables.select import Picker
from wdsplit.tables.table import Selection


def values(table, columns=None):
    """Return the rows of a table, each a dict."""
    columns, found = columns or table.schema.names, []
    for rows in read_rows(table, 0, table.num_rows, columns):
        for name, array in rows.columns.items():
            array.validate(full=True)
            kind = table.schema.field(name).type
            assert array.type == kind or pa.types.is_dictionary(kind)
        parts = [array.to_pylist() for array in rows.columns.values()]
        found += [dict(zip(columns, row, strict=True)) for row in zip(*parts, strict=True)]
    return found


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("a.csv", ["n,t\n1,x\n2,\n", "t\ny\n"]),
        ("a.tsv", ["n\tt\n1\tx\n2\t\n", "t\ny\n"]),
        ("a.jsonl", ['{"n": 1, "t": "x"}\n{"n": 2, "t": ""}\n', '{"t": "y"}\n']),
    ],
)
def test_a_column_that_a_file_of_text_lacks_is_null_there(tmp_path, name, texts):
    for number, text in enumerate(texts):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / name).write_text(text)
    table = open_inputs([f"{tmp_path}/{number}/{name}" for number in (0, 1)])
    assert table.notes == ("n: int64 in 1 of 2 files, missing in 1: read as int64, null where it is missing",)
    assert values(table) == [{"n": 1, "t": "x"}, {"n": 2, "t": ""}, {"n": None, "t": "y"}]
    assert values(table, ["n"]) == [{"n": 1}, {"n": 2}, {"n": None}]


def test_what_cannot_be_promoted_is_refused_with_both_files_and_both_types(tmp_path):
    one = write_table(tmp_path / "a.parquet", {"x": pa.array([1], pa.int8()), "y": ["a"], "z": [True], "w": [1]})
    same = write_table(tmp_path / "b.parquet", {"x": pa.array([2], pa.int64()), "y": ["b"], "z": [None], "w": [1.5]})
    other = write_table(tmp_path / "c.parquet", {"x": ["1"], "z": [1]})
    last = write_table(tmp_path / "d.parquet", {"y": [b"a"]})
    with pytest.raises(InputError, match="differ in their columns") as caught:
        open_inputs([one, same, other, last])
    assert caught.value.place == other
    assert caught.value.found.split("; ") == [
        f"column 'x' is int8 in {one}, string in {other}",
        f"column 'z' is bool in {one}, int64 in {other}",
        f"column 'y' is string in {one}, binary in {last}",
    ]


def test_an_empty_file_must_have_compatible_columns_but_is_not_counted(tmp_path):
    one = write_table(tmp_path / "a.parquet", {"x": pa.array([1], pa.int64()), "y": [1]})
    fine = write_table(tmp_path / "b.parquet", {"x": pa.nulls(0)})
    assert open_inputs([one, fine]).notes == ()
    assert values(open_inputs([fine, one])) == [{"x": 1, "y": 1}]
    other = write_table(tmp_path / "c.parquet", {"x": pa.array([], pa.string())})
    with pytest.raises(InputError, match="differ in their columns"):
        open_inputs([one, other])
    twice = write_table(tmp_path / "d.parquet", pa.Table.from_arrays([pa.array([1]), pa.array(["a"])], ["x", "x"]))
    with pytest.raises(InputError) as caught:
        open_inputs([one, twice])
    assert caught.value.place == twice and "'x'" in caught.value.found


def test_the_names_of_classes_are_kept_if_any_file_has_them(tmp_path):
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    paths = [
        write_table(tmp_path / f"{n}.parquet", pa.table({"label": [n]}).replace_schema_metadata(noted))
        for n, noted in enumerate((None, metadata))
    ]
    assert class_names(open_inputs(paths).schema) == {"label": ("cat", "dog")}


def test_what_writers_note_of_rows_makes_no_schema_of_its_own():
    """pandas notes the number of rows in its metadata."""
    found = Schemas()
    for number in range(5):
        schema = pa.schema({"x": pa.int64()}, metadata={"pandas": f'{{"stop": {number}}}'})
        assert found.add(f"{number}", schema, 1) == 0
    assert found.add("6", pa.schema({"x": pa.int64()}, metadata={"huggingface": "{}"}), 1) == 1
    assert (len(found.schemas), found.counts, found.paths) == (2, [5, 1], ["0", "6"])


@pytest.mark.parametrize(
    ("column", "other", "found", "where"),
    [
        (pa.array([2**53 + 1]), pa.array([0.5]), str(2**53 + 1), "x < 10"),
        (pa.array([2**63], pa.uint64()), pa.array([1], pa.int64()), str(2**63), "x < 10"),
        (pa.array([2**61], pa.timestamp("us")), pa.array([1], pa.timestamp("ns")), str(2**61), 'x < "1980-01-01"'),
    ],
    ids=str,
)
def test_a_value_that_would_be_lost_is_refused_with_file_column_and_value(tmp_path, column, other, found, where):
    one = write_table(tmp_path / "a.parquet", {"x": column})
    table = open_inputs([one, write_table(tmp_path / "b.parquet", {"x": other})])
    with pytest.raises(InputError, match="'x'") as caught:
        values(table)
    assert caught.value.place == one and found in caught.value.found
    with pytest.raises(InputError, match="does not fit the common type"):  # statistics do not hide it
        select_rows(table, where, None, [None])


CONDITIONS = {
    "n < 20": lambda n, m: n < 20,
    "n >= 25": lambda n, m: n >= 25,
    "17 <= n < 23": lambda n, m: (n >= 17) & (n < 23),
    "n is None": lambda n, m: np.isnan(n),
    "n is not None": lambda n, m: ~np.isnan(n),
    "m == 3": lambda n, m: m == 3,
    "not m < 9": lambda n, m: m >= 9,
}


def test_a_condition_finds_the_rows_of_all_types(tmp_path):
    parts = [
        {"n": pa.array(range(10), pa.int8()), "m": pa.array([3.0] * 10, pa.float32())},
        {"n": pa.array(range(10, 20), pa.int64())},
        {"n": pa.array(range(20, 30), pa.uint16()), "m": pa.array(range(10), pa.float64())},
        {"n": pa.nulls(10), "m": pa.array(range(10), pa.int32())},
    ]
    table = open_inputs([write_table(tmp_path / f"{number}.parquet", part, 4) for number, part in enumerate(parts)])
    n = np.array([*range(30), *[np.nan] * 10])
    m = np.array([3.0] * 10 + [np.nan] * 10 + [*range(10)] * 2)
    for where, holds in CONDITIONS.items():
        (selected,) = select_rows(table, where, None, [None])
        rows = np.concatenate([rows.numbers for rows in read_rows(selected, 0, selected.num_rows, ["n"])])
        assert rows.tolist() == np.flatnonzero(holds(n, m)).tolist(), where


def test_statistics_of_another_type_rule_row_groups_out(tmp_path):
    kinds = (pa.int8(), pa.int32(), pa.float64())
    paths = [write_table(tmp_path / f"{kind}.parquet", {"n": pa.array(range(12), kind)}, 4) for kind in kinds]
    table = open_inputs(paths)
    for where in ("n > 7.5", "7 < n < 1000", "n in (8, 9)"):
        for file in table.files:
            expression = Picker(replace(table, selection=Selection(where))).pruning
            assert read.matching_groups(table, file, expression, ["n"]) == [2], (where, file.path)


def test_files_that_cannot_decide_are_not_read(tmp_path):
    path = write_table(tmp_path / "a.parquet", {"a": pa.array([None, 1, None]), "b": [1, 2, 3]})
    table = open_inputs([path, write_table(tmp_path / "c.parquet", {"c": range(5)})])
    os.remove(path)
    (selected,) = select_rows(table, "c > 2", None, [None])
    assert [file.counts for file in selected.files] == [(0,), (2,)]
