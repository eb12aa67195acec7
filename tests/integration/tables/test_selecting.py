"""Conversions of selected rows: --columns, --where, --limit, --split and --group-by, compared with brute force.

Keys number the rows of the whole table, so they tell where a sample came from.
"""

import datetime
import json
import os
import shutil
import signal
from collections import Counter
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from made_datasets import all_deliveries, delivering, loaders_of, real_rows
from tables import (
    all_samples,
    files_below,
    little_memory,
    mixed_table,
    real_samples,
    session_processes,
    shard_files,
    start_script,
    tar_samples,
    wait_until,
    write_files,
    write_table,
)
from wdsplit import InputError, OutputExistsError, PlanOptions
from wdsplit.checks.audit import AuditOptions, audit
from wdsplit.checks.verify import verify
from wdsplit.cli.main import main
from wdsplit.conversion.convert import convert, convert_splits
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.plan.plan import make_plan
from wdsplit.conversion.planning import plan_splits
from wdsplit.conversion.task import keys_of
from wdsplit.loading.dataset import Dataset
from wdsplit.loading.loader import Loader
from wdsplit.order.permutation import RowPermutation
from wdsplit.shards.manifest import HEADER_NAME, RUN_FOLDER, Field
from wdsplit.storage.local import is_temporary
from wdsplit.tables.formats import parquet
from wdsplit.tables.read import Rows, read_rows
from wdsplit.tables.select import Picker, in_part, parts_of
from wdsplit.tables.table import InputFile, Table
from wdsplit.tar.names import is_pad_key, unescape_key

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


def options_of(**changes):
    plan = {name: changes.pop(name) for name in PlanOptions.__dataclass_fields__ if name in changes}
    return ConvertOptions(PlanOptions(**plan), **changes)


def made(inputs, output, progress=None, **changes):
    """Convert; the manifest is returned, or with splits that of each, once all of it is verified."""
    options, inputs = options_of(**changes), [inputs] if isinstance(inputs, str) else inputs
    if not options.splits:
        manifest = convert(inputs, output, options, progress)
        assert verify(str(output)).problems == ()
        return manifest
    manifests = convert_splits(inputs, output, options, progress)
    assert list(manifests) == list(options.splits)
    assert [verify(str(output / name)).problems for name in manifests] == [()] * len(manifests)
    return manifests


def refused(inputs, output, match, error=InputError, **changes):
    """Convert, which must be refused, before anything is written."""
    before = {path: os.stat(output / path).st_mtime_ns for path in files_below(output)} if output.exists() else None
    with pytest.raises(error, match=match) as caught:
        made(inputs, output, **changes)
    after = {path: os.stat(output / path).st_mtime_ns for path in files_below(output)} if output.exists() else None
    assert after == before
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


def shard_numbers(folder):
    """Return the numbers of the rows of each shard, and what its pads repeat: the labels."""
    shards = []
    for path in sorted(Path(folder).glob("*.tar")):
        samples = tar_samples(path)
        reals = [int(key) for key, _ in samples if not is_pad_key(key)]
        pads = [int(fields["cls" if "cls" in fields else "label.cls"]) for key, fields in samples if is_pad_key(key)]
        assert [is_pad_key(key) for key, _ in samples] == [False] * len(reals) + [True] * len(pads)
        shards.append((reals, pads))
    return shards


def shuffled(numbers, seed):
    """Return rows in the order that a shuffle gives them."""
    places = RowPermutation(len(numbers), seed).positions(np.arange(len(numbers)))
    return np.asarray(numbers)[np.argsort(places)].tolist()


# Where and limit

CONDITIONS = {
    "label >= 100 and label < 180": lambda n: 100 <= n < 180,
    'user == "user 1" or user == "user 0"': lambda n: USERS[n] in ("user 1", "user 0"),
    'column("odd name.x") == 3': lambda n: n % 7 == 3,
    "meta.x < 10 and label != 5": lambda n: n / 7 < 10 and n != 5,
    "len(vector) == 2": lambda n: n % 5 == 2,
    "label == 239": lambda n: n == 239,
}


@pytest.mark.parametrize("shuffle", [False, True], ids=["plain", "shuffle"])
@pytest.mark.parametrize("where", CONDITIONS)
def test_rows_that_meet_a_condition_are_written_as_a_table_of_them_is_but_for_the_keys(
    inputs, whole, tmp_path, where, shuffle
):
    expected = [number for number in NUMBERS if CONDITIONS[where](number)]
    manifest = made(inputs, tmp_path / "out", where=where, shards=4, shuffle=shuffle)
    found = real_samples(tmp_path / "out")
    assert [int(key) for key, _ in found] == (shuffled(expected, 0) if shuffle else expected)
    assert all(fields == whole[int(key)] for key, fields in found)
    filtered = write_table(tmp_path / "filtered.parquet", TABLE.take(pa.array(expected)))
    made(filtered, tmp_path / "filtered", shards=4, shuffle=shuffle)
    assert [fields for _, fields in all_samples(tmp_path / "out")] == [
        fields for _, fields in all_samples(tmp_path / "filtered")
    ]
    assert (manifest.num_samples, manifest.provenance["num_rows"]) == (len(expected), NUM_ROWS)


@pytest.mark.parametrize("batch_bytes", [100, 16 * 1024**2])
@pytest.mark.parametrize("limit", [1, 30, 80, 1000])
def test_the_limit_counts_the_rows_that_meet_the_condition(inputs, tmp_path, monkeypatch, limit, batch_bytes):
    monkeypatch.setattr(parquet, "BATCH_BYTES", batch_bytes)
    where = "label >= 100 and label < 180"
    manifest = made(inputs, tmp_path / "out", where=where, limit=limit, shards=3)
    assert numbers_of(tmp_path / "out") == list(range(100, min(180, 100 + limit)))
    assert manifest.provenance["num_selected"] == min(80, limit)
    assert manifest.provenance["selection"] == {"where": where, "limit": limit, "part": None}


def test_a_limit_alone_takes_the_first_rows(inputs, tmp_path):
    made(inputs, tmp_path / "out", limit=111)
    assert numbers_of(tmp_path / "out") == list(range(111))


@pytest.mark.parametrize("changes", [{"jobs": 2}, {"jobs": 2, "shuffle": True, "seed": 3}])
def test_the_bytes_of_a_selection_do_not_depend_on_jobs_or_memory(inputs, tmp_path, monkeypatch, changes):
    chosen = {"where": "label != 3 and label != 100", "limit": 150, "shards": 5}
    made(inputs, tmp_path / "one", **chosen, **{**changes, "jobs": 1})
    little_memory(monkeypatch)
    made(inputs, tmp_path / "two", **chosen, **changes)
    assert shard_files(tmp_path / "one") == shard_files(tmp_path / "two")


def test_rows_by_a_column_that_is_not_written(inputs, tmp_path):
    where = 'column("odd name.x") == 3 and user != "user 0"'
    manifest = made(inputs, tmp_path / "out", where=where, mapping={"cls": "label"})
    assert [field.name for field in manifest.fields] == ["cls"]
    assert numbers_of(tmp_path / "out") == [n for n in NUMBERS if n % 7 == 3 and USERS[n] != "user 0"]


def test_selected_rows_may_have_keys_of_their_own(inputs, tmp_path):
    made(inputs, tmp_path / "out", where="label >= 237", key="name", columns=("label",))
    found = [(unescape_key(key), fields) for key, fields in real_samples(tmp_path / "out")]
    assert found == [(f"img.{number}/é", {"cls": str(number).encode()}) for number in (237, 238, 239)]


def test_keys_of_few_rows_of_a_large_table_have_the_digits_of_the_table():
    file = InputFile("a.parquet", 10**9, 2 * 10**9, (10**9, 10**9), 10**10, "00", selected=(3, 2))
    table = Table((file,), pa.schema([("label", pa.int64())]))
    plan = make_plan(table, (Field("cls", "label", "integer", "int64"),), None, PlanOptions())
    keys = keys_of(plan, Rows({}, np.array([5, 10**9 + 7]), table)).to_pylist()
    assert keys == ["0000000005", "1000000007"]


def test_a_key_that_stands_twice_in_rows_left_out_is_no_matter(tmp_path):
    path = write_table(tmp_path / "a.parquet", {"id": ["a", "b", "a"], "n": [0, 1, 2]})
    made(path, tmp_path / "out", key="id", where="n > 0")
    error = refused(path, tmp_path / "twice", "duplicate key", key="id", where="n != 1")
    assert error.place == f"{path}, row 2"


def test_a_fault_of_a_selected_row_is_named_by_its_place_in_its_file(tmp_path):
    table = pa.table({"n": range(60), "label": [None if number == 47 else number for number in range(60)]})
    paths = write_files(tmp_path / "in", table, [20], 5)
    for number, more in enumerate(({}, {"shuffle": True}, {"group_by": "n"})):
        with pytest.raises(ValueError, match="a value is null") as caught:
            made(paths, tmp_path / f"out-{number}", where="n > 33", mapping={"cls": "label"}, shards=2, **more)
        assert caught.value.place == f"{paths[2]}, row 7, column 'label'"


@pytest.mark.parametrize("more", [{}, {"shuffle": True}, {"group_by": "user"}, {"splits": SPLITS}, {"limit": 5}])
def test_a_condition_that_no_row_meets_is_refused(inputs, tmp_path, more):
    error = refused(inputs, tmp_path / "out", "no row is selected", where="label > 1000", **more)
    assert f"none of {NUM_ROWS} rows" in error.found
    assert "--where" in error.remedy


# Columns


def test_only_the_columns_that_are_named_are_written_in_their_order(inputs, tmp_path, whole):
    manifest = made(inputs, tmp_path / "out", columns=("meta", "label"), shards=2)
    assert [(field.name, field.column) for field in manifest.fields] == [("json", "meta"), ("cls", "label")]
    expected = [{"json": fields["json"], "cls": fields["label.cls"]} for fields in whole]
    assert [fields for _, fields in real_samples(tmp_path / "out")] == expected


def test_columns_are_written_besides_those_that_are_mapped(inputs, tmp_path):
    manifest = made(inputs, tmp_path / "out", mapping={"jpeg": "image"}, columns=("label", "caption"), limit=5)
    found = [(field.name, field.column) for field in manifest.fields]
    assert found == [("jpeg", "image"), ("cls", "label"), ("txt", "caption")]


def test_a_column_that_is_mapped_and_named_too_is_written_once_as_it_is_mapped(inputs, tmp_path):
    manifest = made(inputs, tmp_path / "out", mapping={"id.txt": "label"}, columns=("label", "caption"), limit=5)
    found = [(field.name, field.column) for field in manifest.fields]
    assert found == [("id.txt", "label"), ("txt", "caption")]


def test_a_column_that_is_named_twice_is_written_once(inputs, tmp_path):
    manifest = made(inputs, tmp_path / "out", columns=("label", "label"), limit=5)
    assert [field.name for field in manifest.fields] == ["cls"]


def test_a_column_that_is_not_there_is_refused_with_those_that_are(inputs, tmp_path):
    error = refused(inputs, tmp_path / "out", "columns cannot be used", columns=("label", "lable"))
    assert "column 'lable' is not in the table" in error.found
    assert "odd name.x" in error.found


# Splits


def members(output, names=SPLITS):
    return {name: sorted(numbers_of(output / name)) for name in names}


@pytest.fixture(scope="module")
def drawn(inputs, tmp_path_factory):
    """Return the folder of the splits of the whole table, drawn by row number."""
    folder = tmp_path_factory.mktemp("drawn") / "out"
    made(inputs, folder, splits=SPLITS, shards=4)
    return folder


def test_splits_are_datasets_of_their_own_that_share_out_all_rows(drawn, whole):
    assert sorted(os.listdir(drawn)) == sorted(SPLITS)
    found = members(drawn)
    assert sorted(number for numbers in found.values() for number in numbers) == list(NUMBERS)
    for name, numbers in found.items():
        assert numbers_of(drawn / name) == numbers
        assert all(fields == whole[int(key)] for key, fields in real_samples(drawn / name))
        assert len(all_samples(drawn / name)) % 4 == 0
        assert abs(len(numbers) - NUM_ROWS * SPLITS[name]) < 5 * (NUM_ROWS * SPLITS[name] * (1 - SPLITS[name])) ** 0.5


def test_a_split_has_the_rows_whose_hash_lies_in_its_part(drawn, inputs):
    plans = plan_splits(inputs, options_of(splits=SPLITS))
    for (name, part), plan in zip(parts_of(SPLITS, None).items(), plans.values(), strict=True):
        assert plan.table.selection.part == part
        hashes = Picker(plan.table).hashes({}, np.arange(NUM_ROWS))
        assert np.flatnonzero(in_part(hashes, part)).tolist() == members(drawn)[name]


VARIED = [
    {"shuffle": True, "seed": 9},
    {"shards": 3, "pad": "none"},
    {"columns": ("label",)},
    {"world_size": 2, "workers": 2},
    {"emit": ("wids",), "shards": 2},
]


@pytest.mark.parametrize("changes", VARIED, ids=str)
def test_the_rows_of_a_split_depend_on_no_other_option(inputs, drawn, tmp_path, changes):
    made(inputs, tmp_path / "out", splits=SPLITS, **changes)
    assert members(tmp_path / "out") == members(drawn)


def test_a_split_of_a_selection_has_those_of_the_rows_selected_that_it_has_of_all(inputs, drawn, tmp_path):
    made(inputs, tmp_path / "out", splits=SPLITS, where="label >= 50", limit=150, shards=2)
    assert members(tmp_path / "out") == {
        name: [number for number in numbers if 50 <= number < 200] for name, numbers in members(drawn).items()
    }


def key_members(output, names=SPLITS):
    return {name: {key for key, _ in real_samples(output / name)} for name in names}


@pytest.mark.parametrize("column", ["name", "user", "label", "day"])
def test_rows_stay_in_their_split_when_others_come_and_all_change_their_places(inputs, tmp_path, column):
    """By the key, or by the group; the row keeps its `name`, which is a field or the key."""
    days = pa.array([datetime.date(2024, 1, 1 + number % 28) for number in range(400)])
    table = selecting_table(400).append_column("day", days)
    by = {"key": column} if column in ("name", "label") else {"group_by": column}
    fields = {"mapping": {"txt": "name"} if column != "name" else {"txt": "caption"}, "shards": 2}

    splits = {"train": 0.6, "val": 0.4} if column == "user" else SPLITS  # few users

    def texts(folder):
        return {name: {fields["txt"] for _, fields in real_samples(folder / name)} for name in splits}

    old = write_table(tmp_path / "old.parquet", table.slice(0, 150), 40)
    made(old, tmp_path / "old", splits=splits, **by, **fields)
    order = np.random.default_rng(1).permutation(400)
    new = write_files(tmp_path / "new", table.take(pa.array(order)), [170, 230], 64)
    made(new, tmp_path / "new", splits=splits, **by, **fields)
    before, after = texts(tmp_path / "old"), texts(tmp_path / "new")
    assert sum(map(len, after.values())) == 400
    assert all(before[name] <= after[name] for name in splits)


def test_rows_that_are_added_at_the_end_leave_the_others_in_their_split(inputs, drawn, tmp_path):
    path = write_table(tmp_path / "a.parquet", selecting_table(500).select(["label"]))
    made(path, tmp_path / "out", splits=SPLITS, shards=2)
    longer = members(tmp_path / "out")
    assert members(drawn) == {name: [n for n in longer[name] if n < NUM_ROWS] for name in SPLITS}


def test_keys_of_their_own_do_not_collide_between_splits(inputs, tmp_path):
    made(inputs, tmp_path / "out", splits=SPLITS, key="name", columns=("label",), shards=2)
    found = key_members(tmp_path / "out")
    assert sum(map(len, found.values())) == len(set().union(*found.values())) == NUM_ROWS


def test_no_group_is_in_two_splits(inputs, tmp_path):
    splits = {"train": 0.6, "val": 0.4}
    made(inputs, tmp_path / "out", splits=splits, group_by="user", shards=3)
    users = {name: {USERS[number] for number in numbers_of(tmp_path / "out" / name)} for name in splits}
    assert users["train"] | users["val"] == set(USERS)
    assert not users["train"] & users["val"]
    assert min(map(len, users.values())) >= 3
    assert sorted(n for numbers in members(tmp_path / "out", splits).values() for n in numbers) == list(NUMBERS)


def test_a_key_that_stands_twice_is_found_though_its_rows_are_in_splits(tmp_path):
    path = write_table(tmp_path / "a.parquet", {"id": [*map(str, range(50)), "7"], "n": range(51)})
    error = refused(path, tmp_path / "out", "duplicate key", splits={"a": 0.5, "b": 0.5}, key="id")
    assert error.key == "7"


def test_a_key_that_stands_in_two_splits_by_its_group_is_refused(tmp_path):
    path = write_table(tmp_path / "a.parquet", {"id": ["7"] * 50, "group": range(50)})
    splits = {"a": 0.5, "b": 0.5}
    refused(path, tmp_path / "same", "duplicate key", splits=splits, key="id", group_by="group")
    drawn = plan_splits([path], options_of(splits=splits, group_by="group"))
    ones = [next(iter(read_rows(plan.table, 0, 1, ["group"]))).columns["group"][0].as_py() for plan in drawn.values()]
    where = f"group in {ones}"
    error = refused(path, tmp_path / "out", "duplicate key", splits=splits, key="id", group_by="group", where=where)
    assert error.key == "7"


@pytest.mark.parametrize("column", ["user", "id"])
def test_a_null_that_should_draw_a_split_is_named(tmp_path, column):
    table = pa.table({"user": ["a", "b", None, "c"], "id": ["a", "b", None, "c"], "n": range(4)})
    paths = write_files(tmp_path / "in", table, [1, 3])
    by = {"key": "id"} if column == "id" else {"group_by": "user"}
    error = refused(paths, tmp_path / "out", "null", splits={"a": 0.5, "b": 0.5}, columns=("n",), **by)
    assert error.place == f"{paths[1]}, row 1, column {column!r}"


def test_an_empty_split_is_refused_by_its_name_before_anything_is_written(tmp_path):
    path = write_table(tmp_path / "a.parquet", {"n": range(10)})
    error = refused(path, tmp_path / "out", "no row is selected", splits={"most": 0.9999, "few": 0.0001})
    assert "split 'few'" in error.place
    error = refused(path, tmp_path / "out", "no row is selected", splits={"few": 0.0001, "most": 0.9999})
    assert "split 'few'" in error.place


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"splits": {"a": 0.5, "b": 0.6}}, "do not make a whole"),
        ({"splits": {"a": 1.0, "b": 0.0}}, "do not make a whole"),
        ({"splits": {"a/b": 1.0}}, "becomes a folder"),
        ({"splits": {"..": 1.0}}, "becomes a folder"),
        ({"splits": {"": 1.0}}, "becomes a folder"),
        ({"splits": SPLITS, "key": "no"}, "columns cannot be used|not in the table"),
        ({"splits": SPLITS, "key": "vector"}, "cannot hold keys"),
        ({"splits": SPLITS, "group_by": "no"}, "not in the table"),
        ({"splits": SPLITS, "columns": ("no",)}, "columns cannot be used"),
        ({"splits": SPLITS, "where": "no == 1"}, "no column 'no'"),
        ({"splits": SPLITS, "where": "label =="}, "cannot be understood"),
        ({"splits": SPLITS, "shards": 100, "pad": "none"}, "more shards than rows"),
        ({"group_by": "no"}, "not in the table"),
        ({"group_by": "vector"}, "cannot name groups"),
        ({"group_by": "user", "pad": "drop"}, "invalid options"),
        ({"group_by": "user", "shards": 20}, "more shards than groups"),
        ({"limit": 0}, "limit = 0"),
        ({"where": "no == 1"}, "no column 'no'"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(inputs, tmp_path, changes, match):
    refused(inputs, tmp_path / "out", match, **changes)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("changes", [{"group_by": "g"}, {"key": "g", "splits": {"a": 0.5, "b": 0.5}}])
def test_a_column_that_stands_twice_is_refused_where_it_should_decide(tmp_path, changes):
    table = pa.table([pa.array([1, 2]), pa.array([1, 2]), pa.array([3, 4])], names=["g", "g", "n"])
    path = write_table(tmp_path / "a.parquet", table)
    refused(path, tmp_path / "out", "'g'|columns cannot be used", **changes)


# Outputs of splits, resuming and overwriting


class Stop(Exception):  # noqa: N818 (it is no error)
    """Stops a conversion."""


def stop_at(split, shards=1):
    """Return a progress that stops the conversion when so many shards of a split are published."""

    def stop(progress):
        if progress.split == split and progress.name == "write" and progress.done >= shards:
            raise Stop

    return stop


def written_at(folder):
    return {path: os.stat(folder / path).st_mtime_ns for path in files_below(folder)}


RUNS = {
    "plain": {"shards": 6},
    "shuffle": {"shards": 6, "shuffle": True},
    "groups": {"shards": 2, "group_by": "user"},
}
STOPS = [
    *(("plain", "train", 1), ("plain", "val", 0), ("plain", "val", 1), ("plain", "test", 0)),
    *(("shuffle", "val", 1), ("groups", "train", 0), ("groups", "train", 1), ("groups", "val", 1)),
]
HALVES = {"train": 0.5, "val": 0.3, "test": 0.2}


@pytest.fixture(scope="module")
def undisturbed(inputs, tmp_path_factory):
    """Return the folder of each run, made without a stop."""
    folder = tmp_path_factory.mktemp("undisturbed")
    for run, chosen in RUNS.items():
        made(inputs, folder / run, splits=HALVES, **chosen)
    return folder


@pytest.mark.parametrize(("run", "split", "shards"), STOPS)
def test_splits_that_were_interrupted_are_continued(inputs, undisturbed, tmp_path, run, split, shards):
    chosen, out = {"splits": HALVES, **RUNS[run]}, tmp_path / "out"
    with pytest.raises(Stop):
        made(inputs, out, stop_at(split, shards), **chosen)
    done = [name for name in HALVES if (out / name / HEADER_NAME).exists()]
    assert done == list(HALVES)[: list(HALVES).index(split)]
    times = {name: written_at(out / name) for name in done}
    if done or shards or run == "groups":  # rows that were spilled are kept
        refused(inputs, out, "the output is", OutputExistsError, **chosen)
        made(inputs, out, resume=True, **chosen)
    else:
        made(inputs, out, **chosen)
    for name in HALVES:
        assert shard_files(out / name) == shard_files(undisturbed / run / name)
        assert name not in done or written_at(out / name) == times[name]
    assert files_below(out) == files_below(undisturbed / run)


def test_splits_that_are_finished_are_left_as_they_are_when_they_are_resumed(inputs, tmp_path):
    manifests = made(inputs, tmp_path / "out", splits=SPLITS, shards=2)
    times = written_at(tmp_path / "out")
    seen = []
    again = made(
        inputs,
        tmp_path / "out",
        lambda progress: seen.append((progress.split, progress.skipped)),
        splits=SPLITS,
        shards=2,
        resume=True,
    )
    assert again == manifests
    assert seen == [(name, 2) for name in SPLITS]
    assert written_at(tmp_path / "out") == times


def test_there_is_nothing_to_resume_where_no_split_was_begun(inputs, tmp_path):
    refused(inputs, tmp_path / "out", "no unfinished run", OutputExistsError, splits=SPLITS, resume=True)


OTHERS = [
    {"train": 0.6, "val": 0.3, "test": 0.1},
    {"train": 0.7, "val": 0.3},
    {"train": 0.7, "more": 0.1, "val": 0.1, "test": 0.1},
    {"val": 0.2, "train": 0.7, "test": 0.1},
]


@pytest.mark.parametrize("others", OTHERS, ids=str)
@pytest.mark.parametrize("finished", [False, True], ids=["interrupted", "finished"])
def test_splits_of_other_fractions_are_not_continued(inputs, drawn, tmp_path, others, finished):
    chosen = {"splits": SPLITS, "shards": 4}
    if finished:
        shutil.copytree(drawn, tmp_path / "out")
    else:
        with pytest.raises(Stop):
            made(inputs, tmp_path / "out", stop_at("val"), **chosen)
    changed = {**chosen, "splits": others, "resume": True}
    refused(inputs, tmp_path / "out", "another plan", OutputExistsError, **changed)


def test_splits_are_written_anew_over_finished_and_unfinished_ones(inputs, tmp_path):
    chosen = {"splits": SPLITS, "shards": 4}
    with pytest.raises(Stop):
        made(inputs, tmp_path / "out", stop_at("val"), **chosen)
    refused(inputs, tmp_path / "out", "the output is a finished dataset", OutputExistsError, **chosen)
    made(inputs, tmp_path / "out", overwrite=True, **{**chosen, "where": "label < 200"})
    found = members(tmp_path / "out")
    assert sorted(number for numbers in found.values() for number in numbers) == list(range(200))
    assert not list((tmp_path / "out").rglob(RUN_FOLDER))


def test_an_interrupted_run_that_overwrites_splits_leaves_none_of_the_old_ones_and_can_be_continued(inputs, tmp_path):
    """Else the new rows of one split would stand beside the old rows of another, as if they had been drawn together."""
    old, new = {"splits": SPLITS, "shards": 4}, {"splits": SPLITS, "shards": 4, "where": "label < 200"}
    made(inputs, tmp_path / "new", **new)
    made(inputs, tmp_path / "out", **old)
    with pytest.raises(Stop):
        made(inputs, tmp_path / "out", stop_at("train"), overwrite=True, **new)
    assert not list((tmp_path / "out").rglob(HEADER_NAME))
    made(inputs, tmp_path / "out", resume=True, **new)
    for name in SPLITS:
        assert shard_files(tmp_path / "out" / name) == shard_files(tmp_path / "new" / name)


def test_foreign_files_in_the_folder_of_a_split_are_refused_before_any_split_is_written(inputs, tmp_path):
    (tmp_path / "out" / "test").mkdir(parents=True)
    (tmp_path / "out" / "test" / "notes.txt").write_text("mine")
    error = refused(inputs, tmp_path / "out", "the output is not empty", OutputExistsError, splits=SPLITS)
    assert "notes.txt" in error.found
    assert error.place.endswith("test")
    refused(inputs, tmp_path / "out", "did not write", OutputExistsError, splits=SPLITS, overwrite=True)
    assert files_below(tmp_path / "out") == ["test/notes.txt"]


def test_what_lies_beside_the_folders_of_the_splits_is_left_alone(inputs, tmp_path):
    made(inputs, tmp_path / "out" / "other", shards=2)
    (tmp_path / "out" / "notes.txt").write_text("mine")
    times = written_at(tmp_path / "out")
    for overwrite in (False, True):
        made(inputs, tmp_path / "out", splits=SPLITS, shards=2, overwrite=overwrite)
        now = written_at(tmp_path / "out")
        assert {path: now[path] for path in times} == times


@pytest.mark.parametrize("changes", [{}, {"overwrite": True}, {"resume": True}], ids=str)
@pytest.mark.parametrize("finished", [False, True], ids=["unfinished", "finished"])
def test_a_dataset_cannot_hold_the_datasets_of_splits(inputs, tmp_path, changes, finished):
    if finished:
        made(inputs, tmp_path / "out", shards=4)
    else:
        with pytest.raises(Stop):
            made(inputs, tmp_path / "out", stop_at(""), shards=10)
    refused(inputs, tmp_path / "out", "is a dataset itself", OutputExistsError, splits=SPLITS, **changes)


def test_a_folder_that_holds_splits_is_no_output_of_one_dataset(drawn, inputs):
    for changes in ({}, {"overwrite": True}):
        refused(inputs, drawn, "not empty|did not write", OutputExistsError, **changes)


def test_an_input_in_the_folder_of_a_split_is_refused(tmp_path):
    path = write_table(tmp_path / "out" / "val" / "a.parquet", {"n": range(50)})
    refused(path, tmp_path / "out", "an input lies inside the output", splits={"train": 0.5, "val": 0.5})


CHANGES = [
    {"where": "label != 4"},
    {"where": "label < 238"},
    {"where": ""},
    {"limit": 199},
    {"limit": None},
    {"group_by": "user"},
    {"columns": ("label",)},
    {"columns": ("label", "caption", "user")},
]


@pytest.mark.parametrize("finished", [False, True], ids=["interrupted", "finished"])
def test_a_run_is_not_continued_with_another_selection(inputs, tmp_path, finished):
    chosen = {"where": "label != 3", "limit": 200, "columns": ("label", "caption"), "shards": 10}
    with pytest.raises(Stop):
        made(inputs, tmp_path / "out", stop_at(""), **chosen)
    if finished:
        made(inputs, tmp_path / "out", resume=True, **chosen)
    for changes in CHANGES:
        changed = {**chosen, **changes, "resume": True}
        refused(inputs, tmp_path / "out", "another plan", OutputExistsError, **changed)
    made(inputs, tmp_path / "out", resume=True, **chosen)
    assert numbers_of(tmp_path / "out") == [number for number in range(201) if number != 3]


def test_a_run_is_not_continued_with_other_groups(inputs, tmp_path):
    chosen = {"group_by": "user", "shards": 6}
    with pytest.raises(Stop):
        made(inputs, tmp_path / "out", stop_at(""), **chosen)
    for group_by in ("label", None, "odd name.x"):
        changed = {**chosen, "group_by": group_by, "resume": True}
        refused(inputs, tmp_path / "out", "another plan", OutputExistsError, **changed)


# Groups


def assert_groups_stand_together(shards, values, numbers):
    """Check that all groups are there, each in one shard, its rows side by side as the table has them; return them."""
    assert sorted(number for reals, _ in shards for number in reals) == list(numbers)
    runs = [(values[reals[0]], reals) for shard, _ in shards for reals in _runs(shard, values)]
    assert len({value for value, _ in runs}) == len(runs)
    for value, reals in runs:
        assert reals == [number for number in numbers if values[number] == value]
    return [[value for value, _ in groupby(values[number] for number in shard)] for shard, _ in shards]


def _runs(shard, values):
    return [list(rows) for _, rows in groupby(shard, key=lambda number: values[number])]


@pytest.fixture(scope="module")
def grouped(inputs, tmp_path_factory):
    """Return the folder of a conversion by user, made by one process with memory enough for all."""
    folder = tmp_path_factory.mktemp("grouped") / "out"
    made(inputs, folder, group_by="user", shards=5)
    return folder


def test_groups_stand_whole_in_one_shard_in_the_order_of_their_first_rows(grouped, whole):
    groups = assert_groups_stand_together(shard_numbers(grouped), USERS, NUMBERS)
    for users in groups:
        assert users == sorted(users, key=USERS.index)
    assert all(fields == whole[int(key)] for key, fields in real_samples(grouped))
    sizes = [len(reals) for reals, _ in shard_numbers(grouped)]
    assert max(sizes) - min(sizes) <= max(Counter(USERS).values())


def test_the_bytes_of_groups_do_not_depend_on_jobs_or_memory(inputs, grouped, tmp_path, monkeypatch):
    little_memory(monkeypatch)
    made(inputs, tmp_path / "memory", group_by="user", shards=5)
    assert shard_files(tmp_path / "memory") == shard_files(grouped)
    made(inputs, tmp_path / "jobs", group_by="user", shards=5, jobs=2)
    assert shard_files(tmp_path / "jobs") == shard_files(grouped)


def test_the_order_of_groups_depends_on_the_seed_of_a_shuffle_and_on_nothing_else(inputs, tmp_path, monkeypatch):
    orders = []
    for seed in (0, 1):
        made(inputs, tmp_path / f"seed-{seed}", group_by="user", shards=5, shuffle=True, seed=seed)
        shards = shard_numbers(tmp_path / f"seed-{seed}")
        orders.append(assert_groups_stand_together(shards, USERS, NUMBERS))
    assert orders[0] != orders[1]
    assert all(users != sorted(users, key=USERS.index) for users in orders[0][:1])
    little_memory(monkeypatch)
    made(inputs, tmp_path / "again", group_by="user", shards=5, shuffle=True, seed=1, jobs=2)
    assert shard_files(tmp_path / "again") == shard_files(tmp_path / "seed-1")


def test_a_seed_without_a_shuffle_changes_nothing(inputs, grouped, tmp_path):
    made(inputs, tmp_path / "out", group_by="user", shards=5, seed=7)
    assert shard_files(tmp_path / "out") == shard_files(grouped)


def test_shards_of_groups_are_filled_up_with_their_own_samples(inputs, tmp_path):
    where = 'user != "user 1" or label == 1'
    manifest = made(inputs, tmp_path / "out", group_by="user", shards=6, where=where)
    shards = shard_numbers(tmp_path / "out")
    assert len({len(reals) + len(pads) for reals, pads in shards}) == 1
    assert [manifest.shards[n].num_pads for n in range(6)] == [len(pads) for _, pads in shards]
    assert manifest.num_pads == sum(len(pads) for _, pads in shards) > 0
    for reals, pads in shards:
        assert pads == reals[: len(pads)]
    for number, path in enumerate(sorted((tmp_path / "out").glob("*.tar"))):
        keys = [key for key, _ in tar_samples(path) if is_pad_key(key)]
        assert all(key.startswith(f"_pad_/{number:06d}") for key in keys)
        fields = dict(tar_samples(path))
        reals = [key for key in fields if not is_pad_key(key)]
        assert all(fields[pad] == fields[real] for pad, real in zip(keys, reals, strict=False))


@pytest.mark.parametrize("memory", ["much", "little"])
def test_one_huge_group_makes_the_others_repeat_their_samples_many_times(tmp_path, monkeypatch, memory):
    if memory == "little":
        little_memory(monkeypatch)
    values = ["huge" if number % 50 else f"small {number}" for number in range(300)]
    path = write_table(tmp_path / "a.parquet", {"label": range(300), "group": values}, 64)
    manifest = made(path, tmp_path / "out", group_by="group", shards=4, mapping={"cls": "label"})
    shards = shard_numbers(tmp_path / "out")
    assert_groups_stand_together(shards, values, range(300))
    assert [len(reals) for reals, _ in shards] == [294, 2, 2, 2]
    assert manifest.num_pads == 3 * 294 - 6
    for reals, pads in shards:
        assert (reals * 300)[:294] == reals + pads


def test_without_pads_shards_of_groups_are_as_large_as_they_are(inputs, tmp_path):
    manifest = made(
        inputs, tmp_path / "out", group_by="user", shards=6, pad="none", where='user != "user 1" or label == 1'
    )
    shards = shard_numbers(tmp_path / "out")
    assert manifest.num_pads == 0
    assert len({len(reals) for reals, _ in shards}) > 1
    assert all(not pads for _, pads in shards)
    numbers = [number for number in NUMBERS if USERS[number] != "user 1" or number == 1]
    assert_groups_stand_together(shards, USERS, numbers)


def test_there_are_no_more_shards_than_groups(tmp_path):
    path = write_table(tmp_path / "a.parquet", {"label": range(100), "group": [n % 5 for n in range(100)]})
    assert len(made(path, tmp_path / "out", group_by="group").shards) == 5
    assert len(made(path, tmp_path / "two", group_by="group", world_size=2).shards) == 4
    error = refused(path, tmp_path / "more", "more shards than groups", group_by="group", world_size=3, workers=2)
    assert (error.expected, error.found) == ("at most 5 shards", "6")
    error = refused(path, tmp_path / "more", "more shards than groups", group_by="group", shards=6)
    assert "--pad" not in error.remedy


def test_groups_of_one_row_each_are_any_table(inputs, tmp_path):
    made(inputs, tmp_path / "out", group_by="label", shards=8)
    assert sorted(numbers_of(tmp_path / "out")) == list(NUMBERS)
    assert {len(reals) for reals, _ in shard_numbers(tmp_path / "out")} == {30}


GROUP_COLUMNS = {
    "int": pa.array([number % 9 - 4 for number in range(100)], pa.int16()),
    "uint64": pa.array([2**64 - 1 - number % 9 for number in range(100)], pa.uint64()),
    "bool": pa.array([number % 3 == 0 for number in range(100)]),
    "date": pa.array([datetime.date(2024, 2, 27 + number % 3) for number in range(100)]),
    "string": pa.array([["", "a", "A", "é"][number * number % 4 + number % 2] for number in range(100)]),
    "large_string": pa.array([str(number % 6) * 150 for number in range(100)], pa.large_string()),
    "dictionary": pa.array([f"g{number % 8}" for number in range(100)]).dictionary_encode(),
    "dictionary of ints": pa.array([number % 8 for number in range(100)]).dictionary_encode(),
}


@pytest.mark.parametrize("kind", GROUP_COLUMNS)
@pytest.mark.parametrize("written", [False, True], ids=["not written", "written"])
def test_columns_of_many_types_tell_groups(tmp_path, kind, written):
    values = GROUP_COLUMNS[kind].to_pylist()
    path = write_table(tmp_path / "a.parquet", pa.table({"label": range(100), "group": GROUP_COLUMNS[kind]}), 16)
    mapping = {"cls": "label", **({"group.json": "group"} if written and kind in ("int", "uint64", "date") else {})}
    made(path, tmp_path / "out", group_by="group", shards=2, mapping=mapping)
    assert_groups_stand_together(shard_numbers(tmp_path / "out"), values, range(100))


@pytest.mark.parametrize("values", [[1.0, 2.0], [b"a", b"b"], [[1], [2]], [datetime.datetime(2024, 1, 1)] * 2], ids=str)
def test_columns_of_other_types_are_refused_as_groups(tmp_path, values):
    path = write_table(tmp_path / "a.parquet", {"label": [0, 1], "group": values})
    error = refused(path, tmp_path / "out", "column 'group' cannot name groups", group_by="group")
    assert error.expected


def test_a_row_of_no_group_is_refused_unless_it_is_left_out(tmp_path):
    table = pa.table(
        {"label": range(20), "group": [None if number == 13 else "ab"[number % 2] for number in range(20)]}
    )
    paths = write_files(tmp_path / "in", table, [8], 3)
    error = refused(paths, tmp_path / "out", "belongs to no group", group_by="group", columns=("label",))
    assert error.place == f"{paths[1]}, row 5, column 'group'"
    where = "group is not None"
    made(paths, tmp_path / "out", group_by="group", columns=("label",), where=where, shards=2)
    assert sorted(numbers_of(tmp_path / "out")) == [number for number in range(20) if number != 13]


def test_values_that_differ_by_a_nul_alone_are_groups_of_their_own(tmp_path):
    values = ["a" if number % 2 else "a\0" for number in range(20)]
    path = write_table(tmp_path / "a.parquet", {"label": range(20), "group": values})
    made(path, tmp_path / "out", group_by="group", columns=("label",), shards=2)
    assert_groups_stand_together(shard_numbers(tmp_path / "out"), values, range(20))


CONVERT = """
import sys
import wdsplit.conversion.shuffle.steps
import wdsplit.conversion.shuffle.scatter
from wdsplit.conversion.convert import convert_splits
from wdsplit.conversion.plan.options import ConvertOptions, PlanOptions

if __name__ == "__main__":
    source, output, jobs, resume = sys.argv[1:]
    wdsplit.conversion.shuffle.scatter._LEAST_BYTES, wdsplit.conversion.shuffle.steps._MAX_PARTS = 20_000, 3
    options = ConvertOptions(
        PlanOptions(shards=9, group_by="label", shuffle=True), where="label != 77", splits={"train": 0.6, "val": 0.4},
        jobs=int(jobs), memory=2**20, resume=resume == "resume"
    )
    convert_splits(source, output, options, lambda progress: print(progress, flush=True))
"""


@pytest.mark.parametrize(("jobs", "kills"), [(1, (0, 6)), (2, (3, 9, 16))])
def test_splits_of_groups_that_are_killed_again_and_again_end_with_the_same_bytes(tmp_path, jobs, kills):
    rows = mixed_table(1500)
    table = rows.set_column(2, "label", pa.array([number * number % 301 for number in range(1500)]))
    write_files(tmp_path / "in", table, [400, 1], 50)
    folder, out, splits = tmp_path / "in", tmp_path / "out", {"train": 0.6, "val": 0.4}
    chosen = {"shards": 9, "group_by": "label", "shuffle": True, "where": "label != 77", "splits": splits}
    made(str(folder), tmp_path / "undisturbed", **chosen)
    whole = {name: shard_files(tmp_path / "undisturbed" / name) for name in splits}
    begun = False
    for lines in kills:
        script = start_script(CONVERT, folder, out, jobs, "resume" if begun else "new")
        for _ in range(lines):
            script.stdout.readline()
        os.killpg(script.pid, signal.SIGKILL)
        script.communicate()
        wait_until(lambda script=script: not session_processes(script.pid), "no process is left")
        for name in splits:
            found = shard_files(out / name)
            assert all(found[path] == whole[name][path] for path in found if not is_temporary(path))
        begun = any((out / name / RUN_FOLDER / "plan.json").exists() for name in splits)
        begun = begun or any((out / name / HEADER_NAME).exists() for name in splits)
    made(str(folder), out, resume=begun, **chosen)
    assert {name: shard_files(out / name) for name in splits} == whole
    assert files_below(out) == files_below(tmp_path / "undisturbed")


# Loading


def test_loaders_read_each_sample_of_a_dataset_of_groups_once(tmp_path):
    values = [number * number % 37 for number in range(300)]
    path = write_table(tmp_path / "a.parquet", {"label": range(300), "group": values}, 64)
    manifest = made(path, tmp_path / "out", group_by="group", shards=6, mapping={"cls": "label"}, where="label < 290")
    assert manifest.num_pads > 0
    found = list(audit(str(tmp_path / "out"), AuditOptions(world_size=2, batch_size=4, epochs=2, read=True)))
    assert [finding for finding in found if not finding.held] == []
    for epoch in range(2):
        ranks = loaders_of(str(tmp_path / "out"), 2, epoch=epoch)
        assert real_rows(all_deliveries(batch for rank in ranks for batch in rank)) == list(range(290))
    loader = Loader(delivering(Dataset(str(tmp_path / "out"), shuffle=False)), 7, num_workers=2)
    assert real_rows(all_deliveries(loader)) == list(range(290))


# All of it at once


@pytest.mark.parametrize(("shuffle", "jobs"), [(False, 1), (True, 2)], ids=["plain", "shuffle"])
def test_all_at_once_is_what_brute_force_makes_of_it(inputs, whole, tmp_path, monkeypatch, shuffle, jobs):
    little_memory(monkeypatch)
    where, splits = 'column("odd name.x") != 3 and user != "user 4"', {"train": 0.6, "val": 0.4}
    columns, emit = ("label", "caption", "image"), ("wids", "dali", "energon")
    rows = {"where": where, "limit": 180, "splits": splits, "group_by": "user"}
    chosen = {**rows, "columns": columns, "shards": 3, "shuffle": shuffle, "seed": 5, "emit": emit}
    manifests = made(inputs, tmp_path / "out", jobs=jobs, **chosen)
    if jobs > 1:
        made(inputs, tmp_path / "one", jobs=1, **chosen)
    kept = [number for number in NUMBERS if number % 7 != 3 and USERS[number] != "user 4"][:180]
    hashes = Picker(plan_splits(inputs, options_of(**chosen))["val"].table).hashes(
        {"user": pa.array(USERS)}, np.arange(NUM_ROWS)
    )
    for name, part in parts_of(splits, "user").items():
        folder, inside = tmp_path / "out" / name, in_part(hashes, part)
        expected = [number for number in kept if inside[number]]
        groups = assert_groups_stand_together(shard_numbers(folder), USERS, expected)
        firsts = [USERS[number] for number in expected].index
        assert shuffle or all(users == sorted(users, key=firsts) for users in groups)
        for key, fields in real_samples(folder):
            row = whole[int(key)]
            assert fields == {"cls": row["label.cls"], "txt": row["caption.txt"], "jpg": row["jpg"]}
        assert jobs == 1 or shard_files(folder) == shard_files(tmp_path / "one" / name)
        assert manifests[name].num_samples == len(expected)
        wids = json.loads((folder / "wids.json").read_text())
        assert sum(shard["nsamples"] for shard in wids["shardlist"]) == len(expected)
        energon = json.loads((folder / ".nv-meta" / ".info.json").read_text())
        assert sum(energon["shard_counts"].values()) == len(expected)
        assert sorted(path.name for path in folder.glob("*.idx") if ".tar" not in path.name) == [
            f"{number:06d}.idx" for number in range(3)
        ]


# The command line


@pytest.fixture
def run(capsys):
    """Return a function that runs the command line in this process; returns its exit code and what it said."""

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        return end.value.code or 0, *capsys.readouterr()

    return run


@pytest.fixture
def source(inputs):
    return os.path.dirname(inputs[0])


def test_the_command_line_selects_rows(run, source, tmp_path):
    code, out, err = run(
        *("convert", source, tmp_path / "out", "--where", 'column("odd name.x") < 3', "--limit", 50, "--shards", 2),
        *("--columns", "label,caption", "--jobs", 1),
    )
    assert (code, err) == (0, "")
    assert f"selected: 50 of {NUM_ROWS} rows" in out
    assert numbers_of(tmp_path / "out") == [number for number in NUMBERS if number % 7 < 3][:50]
    assert set(real_samples(tmp_path / "out")[0][1]) == {"cls", "txt"}


def test_the_command_line_writes_splits_of_groups(run, source, tmp_path):
    split = ("--split", "train=0.6, val=0.4", "--group-by", "user", "--shards", 2)
    code, out, err = run("convert", source, tmp_path / "out", *split, "--jobs", 1)
    assert (code, err) == (0, "")
    for name in ("train", "val"):
        assert f"{tmp_path / 'out' / name}: 2 shards, {len(numbers_of(tmp_path / 'out' / name))} samples" in out
    users = [{USERS[number] for number in numbers_of(tmp_path / "out" / name)} for name in ("train", "val")]
    assert not users[0] & users[1]
    code, out, err = run("convert", source, tmp_path / "out", *split, "--jobs", 1, "--resume")
    assert (code, err) == (0, "")
    assert out.count("resumed: 2 shards were there already") == 2


def test_plan_says_what_would_be_selected(run, source):
    code, out, err = run("plan", source, "--where", "label < 100", "--shards", 4)
    assert (code, err) == (0, "")
    assert out.startswith(f"100 rows of {NUM_ROWS} in 10 files -> 4 shards of 25 samples")
    code, out, _ = run("plan", source, "--where", "label < 100", "--limit", 30, "--shards", 4, "--json")
    summary = json.loads(out)
    assert (code, summary["rows"], summary["input_rows"], summary["shards"]) == (0, 30, NUM_ROWS, 4)


def test_plan_says_what_each_split_would_be(run, source, drawn):
    split = ("--split", "train=0.7,val=0.2,test=0.1", "--shards", 4)
    counts = {name: len(numbers_of(drawn / name)) for name in SPLITS}
    code, out, err = run("plan", source, *split)
    assert (code, err) == (0, "")
    for name, count in counts.items():
        assert f"{name}: {count} rows of {NUM_ROWS}" in out
    code, out, _ = run("plan", source, *split, "--json")
    summaries = json.loads(out)
    assert code == 0
    assert {name: summary["rows"] for name, summary in summaries.items()} == counts
    headers = {name: json.loads((drawn / name / HEADER_NAME).read_text()) for name in SPLITS}
    assert all(summaries[name]["plan"] in json.dumps(headers[name]) for name in SPLITS)


def test_plan_counts_the_pads_that_groups_take(run, source, grouped):
    code, out, _ = run("plan", source, "--group-by", "user", "--shards", 5, "--json")
    summary = json.loads(out)
    shards = shard_numbers(grouped)
    assert code == 0
    assert summary["pads"] == sum(len(pads) for _, pads in shards)
    assert summary["samples_per_shard"] == len(shards[0][0]) + len(shards[0][1])


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("train", ["'train'", "NAME=FRACTION"]),
        ("train=0.9,val", ["'val'", "NAME=FRACTION"]),
        ("train=0.9,train=0.1", ["'train=0.1'", "given twice"]),
        ("=1", ["'=1'", "NAME=FRACTION"]),
        ("train=x", ["'train=x'", "NAME=FRACTION"]),
        ("train=nan", ["'train=nan'", "NAME=FRACTION"]),
        ("train=inf", ["'train=inf'", "NAME=FRACTION"]),
        ("", ["NAME=FRACTION"]),
        ("train=0.9,", ["NAME=FRACTION"]),
        ("train=0.9,val=0.2", ["do not make a whole", "train=0.9, val=0.2"]),
        ("train=1,val=0", ["do not make a whole"]),
        ("a/b=1", ["becomes a folder", "'a/b'"]),
        ("..=1", ["becomes a folder", "'..'"]),
    ],
)
@pytest.mark.parametrize("command", ["plan", "convert"])
def test_splits_that_cannot_be_are_refused_as_they_were_typed(run, source, tmp_path, text, parts, command):
    output = [tmp_path / "out"] if command == "convert" else []
    code, out, err = run(command, source, *output, "--split", text)
    assert (code, out) == (2, "")
    assert [part for part in parts if part not in err] == []
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["--where", "label <"],
        ["--where", "lable < 3"],
        ["--where", "label > 1000"],
        ["--limit", "0"],
        ["--limit", "x"],
        ["--columns", "lable"],
        ["--columns", "label,,caption"],
        ["--columns", ""],
        ["--group-by", "vector"],
        ["--group-by", "no"],
        ["--group-by", "user", "--pad", "drop"],
        ["--split", "a=0.5,b=0.5", "--key", "no"],
    ],
    ids=str,
)
@pytest.mark.parametrize("command", ["plan", "convert"])
def test_a_selection_that_cannot_be_is_refused(run, source, tmp_path, arguments, command):
    output = [tmp_path / "out"] if command == "convert" else []
    code, out, err = run(command, source, *output, *arguments)
    assert (code, out) == (2, "")
    assert "rror: " in err
    assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["plan", "convert"])
def test_the_help_tells_how_to_select(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    for option in (
        "--columns NAME",
        "--where CONDITION",
        "--limit INTEGER",
        "--split NAME=FRACTION",
        "--group-by COLUMN",
    ):
        assert option in out


def test_the_members_of_the_package_tell_how_to_make_splits(inputs, tmp_path):
    with pytest.raises(InputError, match="convert writes one dataset"):
        convert(inputs, tmp_path / "out", options_of(splits=SPLITS))
    with pytest.raises(InputError, match="splits is empty"):
        convert_splits(inputs, tmp_path / "out", options_of())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("changes", [{"where": "n < 30"}, {"where": "text == 'a3'"}, {"splits": {"a": 0.5, "b": 0.5}}])
def test_tables_with_views_are_selected_from(tmp_path, changes):
    if not hasattr(pa, "string_view"):
        pytest.skip("this pyarrow has no views")
    numbers = list(range(60))
    table = pa.table({"n": numbers, "text": pa.array([f"a{n}" for n in numbers], pa.string_view())})
    path = str(tmp_path / "in.arrow")
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    if "splits" in changes:
        manifests = convert_splits(path, tmp_path / "out", ConvertOptions(PlanOptions(shards=1), **changes))
        assert sum(manifest.num_samples for manifest in manifests.values()) == 60
        return
    convert(path, tmp_path / "out", ConvertOptions(PlanOptions(shards=1), **changes))
    found = [int(fields["cls"]) for _, fields in real_samples(tmp_path / "out")]
    assert found == (list(range(30)) if "n" in changes["where"] else [3])
