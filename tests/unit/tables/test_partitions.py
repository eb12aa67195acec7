import os

import pyarrow as pa
import pytest

from tables import write_table
from tars import by_tarfile
from wdsplit.conversion.counting import select_rows
from wdsplit.errors import InputError
from wdsplit.tables.find import find_inputs
from wdsplit.tables.read import open_inputs, read_rows
from wdsplit.tables.schemas import Partitions
from written_formats import numbered_table, write_as

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


@pytest.mark.parametrize("name", ["a.parquet", "é a.csv", "a.jsonl"])
def test_partitions_of_every_format_are_columns(tmp_path, name):
    table = open_inputs(tree(tmp_path, name))
    assert table.schema.names == ["caption", "label", "year", "lang"]
    assert table.schema.types[2:] == [pa.int64(), pa.string()]
    assert table.notes == ("year: int64, from the names of folders", "lang: string, from the names of folders")
    assert rows_of(table) == ROWS
    assert open_inputs(tree(tmp_path, name), hive=False).schema.names == ["caption", "label"]


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


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
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
