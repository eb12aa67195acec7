"""Conversions of selected rows: --columns, --where, --limit, --split and --split-by, compared with brute force.

Keys number the rows of the whole table, so they tell where a sample came from.
"""

import json
import os

import numpy as np
import pyarrow as pa
import pytest

from stops import stopped_at
from tables import (
    files_below,
    labels,
    little_memory,
    mixed_table,
    options,
    real_samples,
    shard_files,
    write_files,
    write_table,
)
from wdsplit import InputError, OutputExistsError
from wdsplit.checks.verify import verify
from wdsplit.conversion.convert import convert, convert_splits
from wdsplit.conversion.plan.options import PlanOptions
from wdsplit.conversion.plan.plan import make_plan
from wdsplit.conversion.planning import plan_splits
from wdsplit.conversion.task import keys_of
from wdsplit.order.permutation import RowPermutation
from wdsplit.shards.manifest import HEADER_NAME, RUN_FOLDER, Field
from wdsplit.tables.read import Rows, read_rows
from wdsplit.tables.select import Picker, cut_splits, in_split
from wdsplit.tables.table import InputFile, Table
from wdsplit.tar.names import unescape_key

NUM_ROWS = 240
NUMBERS = range(NUM_ROWS)
SPLITS = {"train": 0.7, "val": 0.2, "test": 0.1}
USERS = [f"user {number * number % 37}" for number in NUMBERS]
"""19 users, whose rows lie all over the table."""


def selecting_table(num_rows=NUM_ROWS):
    """Return a table of all kinds of fields, with columns to select by."""
    numbers = range(num_rows)
    more = {
        "user": [f"user {number * number % 37}" for number in numbers],
        "odd name.x": [number % 7 for number in numbers],
        "name": [f"img.{number}/é" for number in numbers],
    }
    table = mixed_table(num_rows)
    for name, values in more.items():
        table = table.append_column(name, pa.array(values))
    return table


TABLE = selecting_table()


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """Return uneven files of small row groups, an empty file among them."""
    return write_files(tmp_path_factory.mktemp("input"), TABLE, [90, 0, 20, 7, 60], 25)


def made(inputs, output, progress=None, **changes):
    """Convert; the manifest is returned, or with splits that of each, once all of it is verified."""
    chosen = options(**changes)
    if not chosen.splits:
        manifest = convert(inputs, output, chosen, progress)
        assert verify(str(output)).problems == ()
        return manifest
    manifests = convert_splits(inputs, output, chosen, progress)
    assert list(manifests) == list(chosen.splits)
    assert [verify(str(output / name)).problems for name in manifests] == [()] * len(manifests)
    return manifests


def written_at(folder):
    return {path: os.stat(folder / path).st_mtime_ns for path in files_below(folder)}


def refused(inputs, output, match, error=InputError, **changes):
    """Convert, which must be refused, before anything is written."""
    before = output.exists(), written_at(output)
    with pytest.raises(error, match=match) as caught:
        made(inputs, output, **changes)
    assert (output.exists(), written_at(output)) == before
    return caught.value


@pytest.fixture(scope="module")
def whole(inputs, tmp_path_factory):
    """Return the fields of each row, as the whole table is converted."""
    folder = tmp_path_factory.mktemp("whole") / "out"
    made(inputs, folder, shards=8)
    samples = real_samples(folder)
    assert [int(key) for key, _ in samples] == list(NUMBERS)
    return [fields for _, fields in samples]


def numbers_of(folder):
    """Return the numbers of the rows that a dataset holds, in order; its keys must have eight digits."""
    keys = [key for key, _ in real_samples(folder)]
    assert {len(key) for key in keys} == {8}
    return [int(key) for key in keys]


def shuffled(numbers, seed):
    """Return rows in the order that a shuffle gives them."""
    places = RowPermutation(len(numbers), seed).positions(np.arange(len(numbers)))
    return np.asarray(numbers)[np.argsort(places)].tolist()


# Keys and faults of selected rows


def test_keys_are_the_numbers_of_the_rows_in_the_digits_of_the_table_or_those_of_a_column(inputs, tmp_path):
    """Columns that are not written may select rows, and a key that stands twice elsewhere is no matter."""
    file = InputFile("a.parquet", 10**9, 2 * 10**9, (10**9, 10**9), 10**10, "00", selected=(3, 2))
    table = Table((file,), pa.schema([("label", pa.int64())]))
    plan = make_plan(table, (Field("cls", "label", "integer", "int64"),), None, PlanOptions())
    keys = keys_of(plan, Rows({}, np.array([5, 10**9 + 7]), table)).to_pylist()
    assert keys == ["0000000005", "1000000007"]
    made(inputs, tmp_path / "out", where="len(vector) == 2", limit=2, key="name", columns=("label",))
    found = [(unescape_key(key), fields) for key, fields in real_samples(tmp_path / "out")]
    assert found == [(f"img.{number}/é", {"cls": str(number).encode()}) for number in (2, 7)]
    path = write_table(tmp_path / "a.parquet", {"id": ["a", "b", "a"], "n": [0, 1, 2]})
    made(path, tmp_path / "once", key="id", where="n > 0")
    assert refused(path, tmp_path / "twice", "duplicate key", key="id", where="n != 1").place == f"{path}, row 2"


def test_a_fault_of_a_selected_row_is_named_by_its_place_in_its_file(tmp_path):
    table = pa.table({"n": range(60), "label": [None if number == 47 else number for number in range(60)]})
    paths = write_files(tmp_path / "in", table, [20], 5)
    with pytest.raises(ValueError, match="a value is null") as caught:
        made(paths, tmp_path / "out", where="n > 33", mapping={"cls": "label"}, shards=2, shuffle=True)
    assert caught.value.place == f"{paths[2]}, row 7, column 'label'"


# Splits


@pytest.mark.parametrize("by", [{"split_by": "user"}, {}], ids=str)
def test_rows_stay_in_their_split_when_others_come(inputs, tmp_path, by):
    """With a key or a column also when all change their places; else when the others come at the end."""
    splits, table = {"train": 0.6, "val": 0.4}, selecting_table(400)
    order = np.random.default_rng(1).permutation(400) if by else np.arange(400)
    paths = {
        "old": write_table(tmp_path / "old.parquet", table.slice(0, 150), 40),
        "new": write_files(tmp_path / "new", table.take(pa.array(order)), [170, 230], 64),
    }
    found = {}
    for age, path in paths.items():
        made(path, tmp_path / f"{age} out", splits=splits, mapping={"cls": "label"}, shards=2, **by)
        found[age] = {name: set(labels(tmp_path / f"{age} out" / name)) for name in splits}
    assert sum(map(len, found["new"].values())) == 400
    assert all(found["old"][name] <= found["new"][name] for name in splits)


def test_a_duplicate_key_is_found_in_one_split_and_in_two(tmp_path):
    path = write_table(tmp_path / "a.parquet", {"id": ["7"] * 50, "group": range(50)})
    chosen = {"splits": {"a": 0.5, "b": 0.5}, "split_by": "group"}
    refused(path, tmp_path / "same", "duplicate key", key="id", **chosen)
    drawn = plan_splits([path], options(**chosen))
    ones = [next(iter(read_rows(plan.table, 0, 1, ["group"]))).columns["group"][0].as_py() for plan in drawn.values()]
    assert refused(path, tmp_path / "out", "duplicate key", key="id", where=f"group in {ones}", **chosen).key == "7"


def test_an_empty_selection_or_split_is_refused_by_its_name(inputs, tmp_path):
    path = write_table(tmp_path / "a.parquet", {"n": range(10)})
    error = refused(path, tmp_path / "out", "no rows are selected", splits={"most": 0.9999, "few": 0.0001})
    assert "split 'few'" in error.place
    for more in ({}, {"splits": SPLITS}):
        error = refused(inputs, tmp_path / "out", "no rows are selected", where="label > 1000", **more)
        assert f"none of {NUM_ROWS} rows" in error.found and "--where" in error.remedy


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"splits": SPLITS, "key": "vector"}, "cannot be the key"),
        ({"splits": SPLITS, "shards": 100, "pad": "none"}, "more shards than rows"),
        ({"splits": SPLITS, "split_by": "no"}, "not in the table"),
        ({"where": "no == 1"}, "no column 'no'"),
        ({"columns": ("label", "lable")}, "invalid columns"),
        ({"columns": ("label", "")}, "invalid columns"),
        ({"splits": {"a": 0.5, "b": 0.6}}, "do not add up to 1"),
    ],
)
def test_an_invalid_selection_is_refused_before_anything_is_written(inputs, tmp_path, changes, match):
    refused(inputs, tmp_path / "out", match, **changes)
    with pytest.raises(InputError, match="convert writes one dataset"):
        convert(inputs, tmp_path / "out", options(splits=SPLITS))
    with pytest.raises(InputError, match="splits is empty"):
        convert_splits(inputs, tmp_path / "out", options())


# Outputs of splits, resuming and overwriting


RUNS = {
    "plain": {"shards": 6},
    "shuffle": {"shards": 6, "shuffle": True},
    "spilled": {"shards": 2, "shuffle": True, "split_by": "user", "memory": 1},
}
STOPS = [("plain", "val", 0), ("shuffle", "val", 1), ("spilled", "train", 0)]
HALVES = {"train": 0.5, "val": 0.3, "test": 0.2}


@pytest.fixture(scope="module")
def undisturbed(inputs, tmp_path_factory):
    """Return the folder of each run, made without a stop."""
    folder = tmp_path_factory.mktemp("undisturbed")
    for run, chosen in RUNS.items():
        made(inputs, folder / run, splits=HALVES, **chosen)
    return folder


@pytest.mark.parametrize(("run", "split", "shards"), STOPS)
def test_splits_that_were_interrupted_are_continued_and_left_as_they_are_when_they_are_finished(
    inputs, undisturbed, tmp_path, run, split, shards
):
    chosen, out = {"splits": HALVES, **RUNS[run]}, tmp_path / "out"
    with stopped_at(split=split, done=shards) as stop:
        made(inputs, out, stop, **chosen)
    done = [name for name in HALVES if (out / name / HEADER_NAME).exists()]
    assert done == list(HALVES)[: list(HALVES).index(split)]
    times = {name: written_at(out / name) for name in done}
    if done or shards or run == "spilled":  # rows that were spilled are kept
        refused(inputs, out, "the output is", OutputExistsError, **chosen)
        manifests = made(inputs, out, resume=True, **chosen)
    else:
        manifests = made(inputs, out, **chosen)
    for name in HALVES:
        assert shard_files(out / name) == shard_files(undisturbed / run / name)
        assert name not in done or written_at(out / name) == times[name]
    assert files_below(out) == files_below(undisturbed / run)
    times, seen = written_at(out), []
    assert made(inputs, out, seen.append, resume=True, **chosen) == manifests
    assert [(one.split, one.skipped) for one in seen] == [(name, RUNS[run]["shards"]) for name in HALVES]
    assert written_at(out) == times


def test_splits_are_written_anew_over_others_and_none_of_the_old_ones_is_left_beside_them(inputs, tmp_path):
    """Else new rows of one split would be beside old rows of another, as if they had been drawn together."""
    old, new = {"splits": SPLITS, "shards": 4}, {"splits": SPLITS, "shards": 4, "where": "label < 200"}
    made(inputs, tmp_path / "out", **old)
    refused(inputs, tmp_path / "out", "the output is already a finished dataset", OutputExistsError, **old)
    with stopped_at(split="train") as stop:
        made(inputs, tmp_path / "out", stop, overwrite=True, **new)
    assert not list((tmp_path / "out").rglob(HEADER_NAME))
    made(inputs, tmp_path / "out", resume=True, **new)
    assert sorted(number for name in SPLITS for number in numbers_of(tmp_path / "out" / name)) == list(range(200))
    assert not list((tmp_path / "out").rglob(RUN_FOLDER))


def test_foreign_files_in_the_folder_of_a_split_are_refused_and_beside_the_splits_left_alone(inputs, tmp_path):
    out = tmp_path / "out"
    made(inputs, out / "other", shards=2)
    (out / "notes.txt").write_text("mine")
    times = written_at(out)
    for overwrite in (False, True):
        made(inputs, out, splits=SPLITS, shards=2, overwrite=overwrite)
        assert times.items() <= written_at(out).items()
        refused(inputs, out, "not empty|did not write", OutputExistsError, overwrite=overwrite)
    (out / "test" / "notes.txt").write_text("mine")
    error = refused(inputs, out, "did not write", OutputExistsError, splits=SPLITS, overwrite=True)
    assert "notes.txt" in error.found and error.place.endswith("test")
    (tmp_path / "new" / "test").mkdir(parents=True)
    (tmp_path / "new" / "test" / "notes.txt").write_text("mine")
    refused(inputs, tmp_path / "new", "the output is not empty", OutputExistsError, splits=SPLITS)
    path = write_table(tmp_path / "new" / "val" / "a.parquet", {"n": range(50)})
    refused(path, tmp_path / "new", "an input is inside the output", splits={"train": 0.5, "val": 0.5})


@pytest.mark.parametrize("finished", [False, True], ids=["unfinished", "finished"])
def test_a_dataset_cannot_hold_the_datasets_of_splits(inputs, tmp_path, finished):
    if finished:
        made(inputs, tmp_path / "out", shards=4)
    else:
        with stopped_at(split="") as stop:
            made(inputs, tmp_path / "out", stop, shards=10)
    match = "cannot contain the datasets of splits"
    for more in ({}, {"overwrite": True}, {"resume": True}):
        refused(inputs, tmp_path / "out", match, OutputExistsError, splits=SPLITS, **more)


# All of it at once


@pytest.mark.parametrize(("shuffle", "jobs"), [(False, 1), (True, 2)], ids=["plain", "shuffle"])
def test_all_at_once_is_what_brute_force_makes_of_it(inputs, whole, tmp_path, monkeypatch, shuffle, jobs):
    little_memory(monkeypatch)
    where, splits = 'column("odd name.x") != 3 and user != "user 4"', {"train": 0.6, "val": 0.4}
    columns, emit = ("label", "caption", "image"), ("wids", "dali", "energon")
    rows = {"where": where, "limit": 180, "splits": splits, "split_by": "user"}
    chosen = {**rows, "columns": columns, "shards": 3, "shuffle": shuffle, "seed": 5, "emit": emit}
    manifests = made(inputs, tmp_path / "out", jobs=jobs, **chosen)
    if jobs > 1:
        made(inputs, tmp_path / "one", jobs=1, **chosen)
    kept = [number for number in NUMBERS if number % 7 != 3 and USERS[number] != "user 4"][:180]
    hashes = Picker(plan_splits(inputs, options(**chosen))["val"].table).hashes(
        {"user": pa.array(USERS)}, np.arange(NUM_ROWS)
    )
    assert sorted(os.listdir(tmp_path / "out")) == sorted(splits)
    for name, split in cut_splits(splits, "user").items():
        folder, inside = tmp_path / "out" / name, in_split(hashes, split)
        expected = [number for number in kept if inside[number]]
        assert numbers_of(folder) == (shuffled(expected, 5) if shuffle else expected)
        for key, fields in real_samples(folder):
            row = whole[int(key)]
            assert fields == {"cls": row["cls"], "txt": row["caption.txt"], "jpg": row["jpg"]}
        assert jobs == 1 or shard_files(folder) == shard_files(tmp_path / "one" / name)
        provenance = manifests[name].provenance
        assert manifests[name].num_samples == provenance["num_selected"] == len(expected)
        assert provenance["selection"].items() >= {"where": where, "limit": 180}.items()
        wids = json.loads((folder / "wids.json").read_text())
        assert sum(shard["nsamples"] for shard in wids["shardlist"]) == len(expected)
        energon = json.loads((folder / ".nv-meta" / ".info.json").read_text())
        assert sum(energon["shard_counts"].values()) == len(expected)
        assert sorted(path.name for path in folder.glob("*.idx") if ".tar" not in path.name) == [
            f"{number:06d}.idx" for number in range(3)
        ]
