import json
import os
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from tables import write_table
from tars import by_tarfile
from wdsplit.conversion.counting import select_rows
from wdsplit.errors import InputError
from wdsplit.fields.infer import class_names
from wdsplit.tables import read
from wdsplit.tables.find import find_inputs
from wdsplit.tables.read import open_inputs, read_rows
from wdsplit.tables.schemas import Partitions, Schemas
from wdsplit.tables.select import Picker
from wdsplit.tables.table import Selection
from written_formats import numbered_table, write_as


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
    other = {"huggingface": metadata["huggingface"].replace('["cat", "dog"]', '["dog", "cat"]')}
    paths.append(write_table(tmp_path / "o.parquet", pa.table({"label": [1]}).replace_schema_metadata(other)))
    with pytest.raises(InputError) as caught:
        open_inputs(paths)
    assert "classes of column 'label'" in caught.value.found


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


# Hive partitions

NULL = "__HIVE_DEFAULT_PARTITION__"


@pytest.mark.parametrize(
    ("folders", "are_integers", "values"),
    [
        (["/d/year=2024", "/d/year=2025"], {"year": True}, [{"year": 2024}, {"year": 2025}]),
        (["/d/m=01", "/d/m=-2"], {"m": True}, [{"m": 1}, {"m": -2}]),
        (["/d/m=1", "/d/m=x"], {"m": False}, [{"m": "1"}, {"m": "x"}]),
        (["/d/m=1.5"], {"m": False}, [{"m": "1.5"}]),
        ([f"/d/m={'9' * 19}"], {"m": False}, [{"m": "9" * 19}]),
        (["/d/m=1", f"/d/m={NULL}"], {"m": True}, [{"m": 1}, {"m": None}]),
        (["s3://b/y=1/l=en"], {"y": True, "l": False}, [{"y": 1, "l": "en"}]),
        (["/d/na%3Dme=a%20b%2Fc%C3%A9"], {"na=me": False}, [{"na=me": "a b/cé"}]),
        (["/d/y=1", "/d"], {"y": True}, [{"y": 1}, {"y": None}]),
        (["/d/y=1/deep"], {}, [{}]),
        (["/lr=1/d/y=2"], {"y": True}, [{"y": 2}]),
        (["/d/=1", ""], {}, [{}, {}]),
    ],
    ids=str,
)
def test_the_folders_right_above_a_file_name_columns(folders, are_integers, values):
    partitions = Partitions(folders)
    assert partitions.are_integers == are_integers
    assert [partitions.values(folder) for folder in folders] == values


@pytest.mark.parametrize("folder", ["/d/y=1/y=2", "/d/y=%FF"])
def test_folders_that_cannot_be_columns_are_refused(folder):
    with pytest.raises(InputError, match="cannot be read as columns") as caught:
        Partitions([folder])
    assert caught.value.place == folder


def tree(folder, name="a.parquet"):
    """Write a table for each of two years, each in two languages; return the paths."""
    paths = []
    for year in (2024, 2025):
        for lang in ("en", "de fr"):
            place = folder / f"year={year}" / f"lang={lang.replace(' ', '%20')}"
            table = numbered_table(3, 3 * len(paths)).select(["caption", "label"])
            paths.append(write_table(place / name, table) if name == "a.parquet" else write_as(place, name, table))
    return paths


ROWS = [(label, 2024 + label // 6, ("en", "de fr")[label // 3 % 2]) for label in range(12)]


def rows_of(table, columns=("label", "year", "lang")):
    parts = [rows.columns for rows in read_rows(table, 0, table.num_rows, columns)]
    return [row for part in parts for row in zip(*(part[name].to_pylist() for name in columns), strict=True)]


@pytest.mark.parametrize("given", ["lang=en", "*/a.parquet", "lang=en/a.parquet", "../year={{2024,2025}}/*", "{path}"])
def test_a_file_has_the_same_columns_however_it_is_named(tmp_path, monkeypatch, given):
    """A pattern that the shell expands, or a part of the tree, must not change the samples."""
    path = tree(tmp_path)[0]
    monkeypatch.chdir(tmp_path / "year=2024")
    table = open_inputs(find_inputs([given.format(path=path)]))
    assert table.schema.names == ["caption", "label", "year", "lang"]
    assert ROWS[0] in rows_of(table)
    monkeypatch.chdir(tmp_path / "year=2024" / "lang=en")
    assert rows_of(open_inputs(find_inputs(["a.parquet"]))) == ROWS[:3]


@pytest.mark.parametrize("name", ["a.parquet", "é a.csv", "a.jsonl"])
def test_files_whose_partition_does_not_meet_a_condition_are_not_read(tmp_path, name):
    paths = tree(tmp_path, name)
    table = open_inputs(paths)
    for path in (paths[0], paths[2], paths[3]):
        os.remove(path)
    (selected,) = select_rows(table, 'year == 2024 and lang in ("de fr", "x") and label > 3', None, [None])
    assert rows_of(selected) == ROWS[4:6]
    (selected,) = select_rows(table, "year < 2025", None, [None])
    assert selected.num_rows == 6, "nothing is read to count by partitions alone"


def test_conditions_see_the_null_of_a_partition(tmp_path):
    paths = [write_table(tmp_path / f"m={value}" / "a.parquet", {"n": [n]}) for n, value in enumerate((7, NULL))]
    table = open_inputs(paths)
    for where, expected in (("m is None", [1]), ("m is not None", [0]), ("m == 7", [0]), ("m != 7", [])):
        (selected,) = select_rows(table, where, None, [None])
        assert rows_of(selected, ["n"]) == [(n,) for n in expected]


def test_a_column_of_both_is_refused_and_tars_have_none(tmp_path):
    paths = [write_table(tmp_path / f"n={value}" / "a.parquet", {"n": [1], "m": [2]}) for value in (1, 2)]
    with pytest.raises(InputError, match="both in the files and in the folder names") as caught:
        open_inputs(paths)
    assert (caught.value.place, caught.value.found) == (paths[0], "'n'")
    assert "--no-hive" in caught.value.remedy
    assert open_inputs(paths, hive=False).schema.names == ["n", "m"]
    (tmp_path / "n=1" / "a.tar").write_bytes(by_tarfile([("0.txt", b"x")]))
    assert open_inputs([f"{tmp_path}/n=1/a.tar"]).schema.names == ["__key__", "txt"]
