"""Conversions of files whose columns differ, and of Hive partitions."""

import os
from pathlib import Path

import orjson
import pyarrow as pa
import pytest

from commands import run
from stops import by_shares
from tables import converted, options, planned, shard_files, write_table
from wdsplit.errors import InputError, OutputExistsError

PARTS = [
    {"label": pa.array(range(20), pa.int32()), "text": [f"a{n}" for n in range(20)], "old": [True] * 20},
    {"text": pa.nulls(15), "label": pa.array(range(20, 35), pa.int64()), "box": pa.array([[1, 2]] * 15)},
    {"label": pa.array(range(35, 60), pa.uint8()), "text": pa.array(["b"] * 25).dictionary_encode()},
]
WHOLE = {
    "label": pa.array(range(60), pa.int64()),
    "text": [f"a{n}" for n in range(20)] + [None] * 15 + ["b"] * 25,
    "old": [True] * 20 + [None] * 40,
    "box": pa.array([None] * 20 + [[1, 2]] * 15 + [None] * 25),
}


@pytest.fixture
def parts(tmp_path):
    """Return the paths of files whose columns differ."""
    return [write_table(tmp_path / "in" / f"{number}.parquet", part, 7) for number, part in enumerate(PARTS)]


@pytest.fixture
def whole(tmp_path):
    """Return the path of a file that has all of their rows."""
    return write_table(tmp_path / "whole.parquet", WHOLE, 7)


# Promoted columns


@pytest.mark.parametrize("changes", [{"shuffle": True}, {"where": "label >= 3 and text != 'b'"}], ids=str)
def test_promoted_files_give_the_shards_of_one_table(parts, whole, tmp_path, changes):
    shards = []
    for name, inputs in (("parts", parts), ("whole", whole)):
        converted(inputs, tmp_path / name, shards=4, null="omit", **changes)
        shards.append(shard_files(tmp_path / name))
    assert shards[0] == shards[1]


def test_the_plan_names_each_promotion_once_and_of_many_columns_in_few_lines(parts, tmp_path):
    code, out, err = run("plan", *parts, "--null", "omit")
    kinds = {"text": "dictionary<values=string, indices=int32, ordered=0>", "box": "list<element: int64>"}
    notes = [
        "label: int32 in 1 of 3 files, int64 in 1, uint8 in 1: read as int64",
        f"text: string in 1 of 3 files, null in 1, {kinds['text']} in 1: read as string",
        "old: bool in 1 of 3 files, missing in 2: read as bool, null where it is missing",
        f"box: {kinds['box']} in 1 of 3 files, missing in 2: read as {kinds['box']}, null where it is missing",
    ]
    assert (code, err) == (0, "")
    assert [line for line in out.splitlines() if " files, " in line and ": " in line] == notes
    code, out, _ = run("plan", *parts, "--null", "omit", "--json")
    assert orjson.loads(out)["notes"] == notes
    paths = [
        write_table(tmp_path / f"{kind}.parquet", {f"c{n}": pa.array([n], kind) for n in range(50)})
        for kind in (pa.int8(), pa.int16())
    ]
    code, out, _ = run("plan", *paths)
    assert code == 0
    assert out.count("read as int16") == 20
    assert "and 30 more: see `wdsplit plan --json`" in out


def test_a_column_that_a_file_lacks_is_refused_before_anything_is_written(parts, tmp_path):
    with pytest.raises(InputError, match="no values in a file") as caught:
        converted(parts, tmp_path / "out")
    assert caught.value.place == parts[0]
    assert "column 'box' is missing or null in 2 of 3 files" in caught.value.found
    assert "column 'text' is missing or null in 1 of 3 files" in caught.value.found
    with pytest.raises(InputError, match="no values in a file") as caught:
        converted(parts, tmp_path / "out", key="text", null="omit")
    assert caught.value.place == parts[1] and "--key" in caught.value.remedy
    assert not (tmp_path / "out").exists()
    converted(parts, tmp_path / "out", columns=("label",))
    converted(parts, tmp_path / "some", columns=("label", "box"), where="box is not None")


def test_a_column_without_any_value_is_left_out_with_the_nulls(tmp_path):
    path = write_table(tmp_path / "a.parquet", {"n": [1, 2], "nothing": pa.nulls(2)})
    for null in ("error", "empty"):
        with pytest.raises(InputError, match="no values") as caught:
            converted(path, tmp_path / "out", null=null)
        assert "'nothing'" in caught.value.found and "--null omit" in caught.value.remedy
    manifest = converted(path, tmp_path / "out", null="omit")
    assert [field.name for field in manifest.fields] == ["n.json"]
    assert planned([path], options(null="omit")).table.notes == ("nothing: no values in any file: not written",)
    for columns, cause in ((("n", "nothing"), "type null"), (("nothing",), "type null|invalid columns")):
        with pytest.raises(InputError, match=cause):
            converted(path, tmp_path / "named", null="omit", columns=columns)


def test_the_plan_of_files_with_one_schema_is_what_it_was(tmp_path):
    """A run that an earlier version began must be found again."""
    path = tmp_path / "a.csv"
    path.write_text("label,text\n1,a\n2,b\n")
    assert planned([str(path)], options(shards=2, shuffle=False)).hash == "08ea36674d9a381fdddb4e82e562acfa"
    selected = options(shards=2, shuffle=False, where="label > 1")
    assert planned([str(path)], selected).hash == "4f8a09613d3481c932752edc65e2f172"


# Hive partitions


@pytest.fixture
def hive(tmp_path):
    """Return the root of a tree of partitions."""
    for number, (year, lang) in enumerate([(2023, "en"), (2023, "fr"), (2024, "en")]):
        columns = {"label": range(10 * number, 10 * number + 10), "text": [f"t{number}"] * 10}
        write_table(tmp_path / "hive" / f"year={year}" / f"lang={lang}" / "part-0.parquet", columns, 4)
    return str(tmp_path / "hive")


def as_columns(tmp_path, where=lambda row: True):
    """Return the path of a file with the rows of the tree, whose partitions are columns."""
    rows = [
        {"label": n, "text": f"t{n // 10}", "year": 2024 if n >= 20 else 2023, "lang": "fr" if n // 10 == 1 else "en"}
        for n in range(30)
    ]
    return write_table(tmp_path / "columns.parquet", pa.Table.from_pylist([row for row in rows if where(row)]), 4)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"shuffle": True},
        {"mapping": {"cls": "year", "txt": "lang"}},
        {"where": "label in (0, 10)", "key": "lang", "shards": 1},
    ],
    ids=str,
)
def test_partitions_are_columns_as_any_other(hive, tmp_path, changes):
    chosen = {"shards": 2, **changes}
    converted(hive, tmp_path / "out", **chosen)
    converted(as_columns(tmp_path), tmp_path / "expected", **chosen)
    assert shard_files(tmp_path / "out") == shard_files(tmp_path / "expected")


def test_partitions_are_left_out_when_asked(hive, tmp_path):
    manifest = converted(hive, tmp_path / "out", hive=False)
    assert [field.column for field in manifest.fields] == ["label", "text"]
    with pytest.raises(InputError, match="no column 'year'"):
        converted(hive, tmp_path / "other", hive=False, where="year == 2023")
    for more, is_there in ((), True), (("--no-hive",), False):
        code, out, _ = run("plan", hive, *more)
        assert code == 0
        assert ("year: int64, from the names of folders" in out) == ("year" in out) == is_there


def test_the_values_of_partitions_are_part_of_the_plan(hive, tmp_path):
    """File names, sizes and footers are the same after a folder is renamed."""
    before = planned([hive], options())
    converted(hive, tmp_path / "out", shards=2)
    whole = shard_files(tmp_path / "out")
    assert converted(hive, tmp_path / "out", shards=2, resume=True).num_samples == 30
    assert shard_files(tmp_path / "out") == whole
    os.rename(f"{hive}/year=2024", f"{hive}/year=2025")
    after = planned([hive], options())
    assert before.hash != after.hash
    with pytest.raises(OutputExistsError, match="another plan"):
        converted(hive, tmp_path / "out", shards=2, resume=True)
    os.rename(hive, f"{hive}-moved")
    assert planned([f"{hive}-moved"], options()).hash == after.hash


# Shares


def test_shares_know_what_the_plan_knows_of_files_and_rows(parts, hive, tmp_path):
    write_table(Path(hive) / "year=2024" / "lang=en" / "part-1.parquet", {"text": ["y", "x"]})
    plan = {"shards": 4, "null": "omit", "columns": ("label", "text"), "shuffle": True}
    converted(hive, tmp_path / "whole", **plan)
    manifest = by_shares(hive, tmp_path / "out", plan)
    assert manifest.num_samples == 32
    assert shard_files(tmp_path / "out") == shard_files(tmp_path / "whole")
