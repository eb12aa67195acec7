"""Conversions of selected rows: --columns, --where, --limit, --split and --group-by, compared with brute force.

Keys number the rows of the whole table, so they tell where a sample came from.
"""

import datetime
import json
import os
from collections import Counter
from itertools import groupby
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from made_datasets import all_deliveries, loaders_of, real_rows
from tables import (
    all_samples,
    files_below,
    is_pad_key,
    labels,
    little_memory,
    mixed_table,
    options,
    real_samples,
    shard_files,
    tar_samples,
    write_files,
    write_table,
)
from wdsplit import InputError, OutputExistsError
from wdsplit.checks.audit import AuditOptions, audit
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


def shard_numbers(folder):
    """Return the numbers of the rows of each shard, and what its pads repeat: the labels."""
    shards = []
    for path in sorted(Path(folder).glob("*.tar")):
        samples = tar_samples(path)
        reals = [int(key) for key, _ in samples if not is_pad_key(key)]
        pads = [int(fields["cls"]) for key, fields in samples if is_pad_key(key)]
        assert [is_pad_key(key) for key, _ in samples] == [False] * len(reals) + [True] * len(pads)
        shards.append((reals, pads))
    return shards


def shuffled(numbers, seed):
    """Return rows in the order that a shuffle gives them."""
    places = RowPermutation(len(numbers), seed).positions(np.arange(len(numbers)))
    return np.asarray(numbers)[np.argsort(places)].tolist()


# Where and limit

WHERE = 'label >= 50 and meta.x < 30 and len(vector) != 2 and column("odd name.x") != 3 and user != "user 0"'
MEETING = [n for n in range(50, 210) if n % 5 != 2 and n % 7 != 3 and USERS[n] != "user 0"]


@pytest.mark.parametrize("shuffle", [False, True], ids=["plain", "shuffle"])
def test_selected_rows_are_written_as_a_table_of_them_is_but_for_the_keys(
    inputs, whole, tmp_path, monkeypatch, shuffle
):
    chosen = {"where": WHERE, "limit": 80, "shards": 4, "shuffle": shuffle}
    manifest = made(inputs, tmp_path / "out", **chosen)
    expected, found = MEETING[:80], real_samples(tmp_path / "out")
    assert [int(key) for key, _ in found] == (shuffled(expected, 0) if shuffle else expected)
    assert all(fields == whole[int(key)] for key, fields in found)
    filtered = write_table(tmp_path / "filtered.parquet", TABLE.take(pa.array(expected)))
    made(filtered, tmp_path / "filtered", shards=4, shuffle=shuffle)
    assert [fields for _, fields in all_samples(tmp_path / "out")] == [
        fields for _, fields in all_samples(tmp_path / "filtered")
    ]
    assert (manifest.num_samples, manifest.provenance["num_rows"]) == (80, NUM_ROWS)
    assert manifest.provenance["num_selected"] == 80
    assert manifest.provenance["selection"] == {"where": WHERE, "limit": 80, "part": None}
    little_memory(monkeypatch)
    made(inputs, tmp_path / "jobs", jobs=2, **chosen)
    assert shard_files(tmp_path / "jobs") == shard_files(tmp_path / "out")


def test_rows_are_selected_by_columns_that_are_not_written_and_have_keys_of_their_own(inputs, tmp_path):
    made(inputs, tmp_path / "out", where="len(vector) == 2", limit=2, key="name", columns=("label",))
    found = [(unescape_key(key), fields) for key, fields in real_samples(tmp_path / "out")]
    assert found == [(f"img.{number}/é", {"cls": str(number).encode()}) for number in (2, 7)]


def test_keys_of_few_rows_of_a_large_table_have_the_digits_of_the_table():
    file = InputFile("a.parquet", 10**9, 2 * 10**9, (10**9, 10**9), 10**10, "00", selected=(3, 2))
    table = Table((file,), pa.schema([("label", pa.int64())]))
    plan = make_plan(table, (Field("cls", "label", "integer", "int64"),), None, PlanOptions())
    keys = keys_of(plan, Rows({}, np.array([5, 10**9 + 7]), table)).to_pylist()
    assert keys == ["0000000005", "1000000007"]


def test_a_duplicate_key_in_rows_left_out_is_no_matter(tmp_path):
    path = write_table(tmp_path / "a.parquet", {"id": ["a", "b", "a"], "n": [0, 1, 2]})
    made(path, tmp_path / "out", key="id", where="n > 0")
    error = refused(path, tmp_path / "twice", "duplicate key", key="id", where="n != 1")
    assert error.place == f"{path}, row 2"


@pytest.mark.parametrize("more", [{}, {"shuffle": True}, {"group_by": "n"}], ids=str)
def test_a_fault_of_a_selected_row_is_named_by_its_place_in_its_file(tmp_path, more):
    table = pa.table({"n": range(60), "label": [None if number == 47 else number for number in range(60)]})
    paths = write_files(tmp_path / "in", table, [20], 5)
    with pytest.raises(ValueError, match="a value is null") as caught:
        made(paths, tmp_path / "out", where="n > 33", mapping={"cls": "label"}, shards=2, **more)
    assert caught.value.place == f"{paths[2]}, row 7, column 'label'"


@pytest.mark.parametrize("more", [{}, {"splits": SPLITS}])
def test_a_condition_that_no_row_meets_is_refused(inputs, tmp_path, more):
    error = refused(inputs, tmp_path / "out", "no rows are selected", where="label > 1000", **more)
    assert f"none of {NUM_ROWS} rows" in error.found
    assert "--where" in error.remedy


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


@pytest.mark.parametrize("by", [{"key": "name"}, {"group_by": "user"}, {}], ids=str)
def test_rows_stay_in_their_split_when_others_come(inputs, tmp_path, by):
    """With a key or a group also when all change their places; else when the others come at the end."""
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


def test_a_duplicate_key_is_found_in_splits(tmp_path):
    path = write_table(tmp_path / "a.parquet", {"id": [*map(str, range(50)), "7"], "n": range(51)})
    error = refused(path, tmp_path / "out", "duplicate key", splits={"a": 0.5, "b": 0.5}, key="id")
    assert error.key == "7"


def test_a_duplicate_key_in_two_splits_by_its_group_is_refused(tmp_path):
    path = write_table(tmp_path / "a.parquet", {"id": ["7"] * 50, "group": range(50)})
    splits = {"a": 0.5, "b": 0.5}
    refused(path, tmp_path / "same", "duplicate key", splits=splits, key="id", group_by="group")
    drawn = plan_splits([path], options(splits=splits, group_by="group"))
    ones = [next(iter(read_rows(plan.table, 0, 1, ["group"]))).columns["group"][0].as_py() for plan in drawn.values()]
    where = f"group in {ones}"
    error = refused(path, tmp_path / "out", "duplicate key", splits=splits, key="id", group_by="group", where=where)
    assert error.key == "7"


@pytest.mark.parametrize("splits", [{"most": 0.9999, "few": 0.0001}, {"few": 0.0001, "most": 0.9999}], ids=str)
def test_an_empty_split_is_refused_by_its_name(tmp_path, splits):
    path = write_table(tmp_path / "a.parquet", {"n": range(10)})
    error = refused(path, tmp_path / "out", "no rows are selected", splits=splits)
    assert "split 'few'" in error.place


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"splits": SPLITS, "key": "vector"}, "cannot be the key"),
        ({"splits": SPLITS, "shards": 100, "pad": "none"}, "more shards than rows"),
        ({"group_by": "no"}, "not in the table"),
        ({"group_by": "user", "world_size": 5, "workers": 4}, "more shards than groups"),
        ({"where": "no == 1"}, "no column 'no'"),
        ({"columns": ("label", "lable")}, "invalid columns"),
        ({"columns": ("label", "")}, "invalid columns"),
        ({"splits": {"a": 0.5, "b": 0.6}}, "do not add up to 1"),
    ],
)
def test_an_invalid_selection_is_refused_before_anything_is_written(inputs, tmp_path, changes, match):
    refused(inputs, tmp_path / "out", match, **changes)


@pytest.mark.parametrize("changes", [{"group_by": "g"}, {"key": "g", "splits": {"a": 0.5, "b": 0.5}}])
def test_a_repeated_column_is_refused_where_it_should_decide(tmp_path, changes):
    table = pa.table([pa.array([1, 2]), pa.array([1, 2]), pa.array([3, 4])], names=["g", "g", "n"])
    path = write_table(tmp_path / "a.parquet", table)
    refused(path, tmp_path / "out", "'g'|invalid columns", **changes)


# Outputs of splits, resuming and overwriting


class Stop(Exception):  # noqa: N818 (it is no error)
    """Stops a conversion."""


def stop_at(split, shards=1):
    """Return a progress that stops the conversion when so many shards of a split are published."""

    def stop(progress):
        if progress.split == split and progress.name == "write" and progress.done >= shards:
            raise Stop

    return stop


RUNS = {
    "plain": {"shards": 6},
    "shuffle": {"shards": 6, "shuffle": True},
    "groups": {"shards": 2, "group_by": "user", "memory": 1},
}
STOPS = [("plain", "val", 0), ("plain", "val", 1), ("shuffle", "val", 1), ("groups", "train", 0)]
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
    assert made(inputs, tmp_path / "out", seen.append, splits=SPLITS, shards=2, resume=True) == manifests
    assert [(progress.split, progress.skipped) for progress in seen] == [(name, 2) for name in SPLITS]
    assert written_at(tmp_path / "out") == times


def test_splits_are_resumed_only_with_the_options_they_were_started_with(inputs, tmp_path):
    chosen = {"splits": SPLITS, "shards": 4, "resume": True}
    refused(inputs, tmp_path / "out", "no unfinished run", OutputExistsError, **chosen)
    with pytest.raises(Stop):
        made(inputs, tmp_path / "out", stop_at("val"), **{**chosen, "resume": False})
    for finished in (False, True):
        for others in ({"train": 0.6, "val": 0.3, "test": 0.1}, {"val": 0.2, "train": 0.7, "test": 0.1}):
            refused(inputs, tmp_path / "out", "another plan", OutputExistsError, **{**chosen, "splits": others})
        if not finished:
            made(inputs, tmp_path / "out", **chosen)


def test_splits_are_written_anew_over_others_and_none_of_the_old_ones_is_left_beside_them(inputs, tmp_path):
    """Else new rows of one split would be beside old rows of another, as if they had been drawn together."""
    old, new = {"splits": SPLITS, "shards": 4}, {"splits": SPLITS, "shards": 4, "where": "label < 200"}
    made(inputs, tmp_path / "out", **old)
    refused(inputs, tmp_path / "out", "the output is already a finished dataset", OutputExistsError, **old)
    with pytest.raises(Stop):
        made(inputs, tmp_path / "out", stop_at("train"), overwrite=True, **new)
    assert not list((tmp_path / "out").rglob(HEADER_NAME))
    made(inputs, tmp_path / "out", resume=True, **new)
    found = members(tmp_path / "out")
    assert sorted(number for numbers in found.values() for number in numbers) == list(range(200))
    assert not list((tmp_path / "out").rglob(RUN_FOLDER))


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


@pytest.mark.parametrize("finished", [False, True], ids=["unfinished", "finished"])
def test_a_dataset_cannot_hold_the_datasets_of_splits(inputs, tmp_path, finished):
    if finished:
        made(inputs, tmp_path / "out", shards=4)
    else:
        with pytest.raises(Stop):
            made(inputs, tmp_path / "out", stop_at(""), shards=10)
    for more in ({}, {"overwrite": True}, {"resume": True}):
        refused(
            inputs, tmp_path / "out", "cannot contain the datasets of splits", OutputExistsError, splits=SPLITS, **more
        )


def test_a_folder_that_holds_splits_is_no_output_of_one_dataset(drawn, inputs):
    for changes in ({}, {"overwrite": True}):
        refused(inputs, drawn, "not empty|did not write", OutputExistsError, **changes)


def test_an_input_in_the_folder_of_a_split_is_refused(tmp_path):
    path = write_table(tmp_path / "out" / "val" / "a.parquet", {"n": range(50)})
    refused(path, tmp_path / "out", "an input is inside the output", splits={"train": 0.5, "val": 0.5})


CHANGES = [{"where": "label != 4"}, {"where": ""}, {"limit": None}, {"group_by": "user"}, {"columns": ("label",)}]


def test_a_run_is_not_continued_with_another_selection(inputs, tmp_path):
    chosen = {"where": "label != 3", "limit": 200, "columns": ("label", "caption"), "shards": 10}
    with pytest.raises(Stop):
        made(inputs, tmp_path / "out", stop_at(""), **chosen)
    for _ in ("interrupted", "finished"):
        for changes in CHANGES:
            refused(
                inputs, tmp_path / "out", "another plan", OutputExistsError, **{**chosen, **changes, "resume": True}
            )
        made(inputs, tmp_path / "out", resume=True, **chosen)
    assert numbers_of(tmp_path / "out") == [number for number in range(201) if number != 3]


# Groups


def assert_groups_are_together(shards, values, numbers):
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


def test_groups_are_whole_in_one_shard_in_the_order_of_their_first_rows(grouped, whole):
    groups = assert_groups_are_together(shard_numbers(grouped), USERS, NUMBERS)
    for users in groups:
        assert users == sorted(users, key=USERS.index)
    assert all(fields == whole[int(key)] for key, fields in real_samples(grouped))
    sizes = [len(reals) for reals, _ in shard_numbers(grouped)]
    assert max(sizes) - min(sizes) <= max(Counter(USERS).values())


def test_the_bytes_of_groups_do_not_depend_on_jobs_memory_or_an_unused_seed(inputs, grouped, tmp_path, monkeypatch):
    little_memory(monkeypatch)
    made(inputs, tmp_path / "out", group_by="user", shards=5, jobs=2, seed=7)
    assert shard_files(tmp_path / "out") == shard_files(grouped)


def test_the_order_of_groups_depends_on_the_seed_of_a_shuffle(inputs, tmp_path):
    orders = []
    for seed in (0, 1):
        made(inputs, tmp_path / f"seed-{seed}", group_by="user", shards=5, shuffle=True, seed=seed)
        shards = shard_numbers(tmp_path / f"seed-{seed}")
        orders.append(assert_groups_are_together(shards, USERS, NUMBERS))
    assert orders[0] != orders[1]
    assert orders[0][0] != sorted(orders[0][0], key=USERS.index)


@pytest.mark.parametrize("memory", ["much", "little"])
def test_shards_of_groups_are_filled_up_with_their_own_samples(tmp_path, monkeypatch, memory):
    """One huge group makes the others repeat their samples many times."""
    if memory == "little":
        little_memory(monkeypatch)
    values = ["huge" if number % 50 else f"small {number}" for number in range(300)]
    path = write_table(tmp_path / "a.parquet", {"label": range(300), "group": values}, 64)
    chosen = {"group_by": "group", "shards": 4, "mapping": {"cls": "label"}}
    manifest = made(path, tmp_path / "out", **chosen)
    shards = shard_numbers(tmp_path / "out")
    assert_groups_are_together(shards, values, range(300))
    assert [len(reals) for reals, _ in shards] == [294, 2, 2, 2]
    assert [shard.num_pads for shard in manifest.shards] == [len(pads) for _, pads in shards] == [0, 292, 292, 292]
    for number, (reals, pads) in enumerate(shards):
        assert (reals * 300)[:294] == reals + pads
        keys = [key for key, _ in tar_samples(tmp_path / "out" / f"{number:06d}.tar") if is_pad_key(key)]
        assert all(key.startswith(f"_pad_/{number:06d}") for key in keys)
    without = made(path, tmp_path / "without", pad="none", **chosen)
    assert without.num_pads == 0
    assert [reals for reals, _ in shard_numbers(tmp_path / "without")] == [reals for reals, _ in shards]


def test_there_are_no_more_shards_than_groups(tmp_path):
    path = write_table(tmp_path / "a.parquet", {"label": range(100), "group": [n % 5 for n in range(100)]})
    assert len(made(path, tmp_path / "out", group_by="group").shards) == 5
    assert len(made(path, tmp_path / "two", group_by="group", world_size=2).shards) == 4
    error = refused(path, tmp_path / "more", "more shards than groups", group_by="group", shards=6)
    assert (error.expected, error.found) == ("at most 5 shards", "6")
    assert "--pad" not in error.remedy


def test_a_column_that_is_written_too_can_name_groups(tmp_path):
    days = [datetime.date(2024, 2, 27 + number % 3) for number in range(100)]
    path = write_table(tmp_path / "a.parquet", {"label": range(100), "day": pa.array(days).dictionary_encode()}, 16)
    made(path, tmp_path / "out", group_by="day", shards=2, mapping={"cls": "label", "day.json": "day"})
    assert_groups_are_together(shard_numbers(tmp_path / "out"), days, range(100))


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


# Loading


def test_loaders_read_each_sample_of_a_dataset_of_groups_once(inputs, tmp_path):
    chosen = {"group_by": "user", "shards": 6, "where": 'user != "user 1"', "mapping": {"cls": "label"}}
    assert made(inputs, tmp_path / "out", **chosen).num_pads > 0
    found = audit(str(tmp_path / "out"), AuditOptions(world_size=2, batch_size=4, epochs=2, read=True)).findings
    assert [finding for finding in found if not finding.held] == []
    ranks = loaders_of(str(tmp_path / "out"), 2, epoch=1)
    expected = [number for number in NUMBERS if USERS[number] != "user 1"]
    assert real_rows(all_deliveries(batch for rank in ranks for batch in rank)) == expected


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
    hashes = Picker(plan_splits(inputs, options(**chosen))["val"].table).hashes(
        {"user": pa.array(USERS)}, np.arange(NUM_ROWS)
    )
    for name, split in cut_splits(splits, "user").items():
        folder, inside = tmp_path / "out" / name, in_split(hashes, split)
        expected = [number for number in kept if inside[number]]
        groups = assert_groups_are_together(shard_numbers(folder), USERS, expected)
        firsts = [USERS[number] for number in expected].index
        assert shuffle or all(users == sorted(users, key=firsts) for users in groups)
        for key, fields in real_samples(folder):
            row = whole[int(key)]
            assert fields == {"cls": row["cls"], "txt": row["caption.txt"], "jpg": row["jpg"]}
        assert jobs == 1 or shard_files(folder) == shard_files(tmp_path / "one" / name)
        assert manifests[name].num_samples == len(expected)
        wids = json.loads((folder / "wids.json").read_text())
        assert sum(shard["nsamples"] for shard in wids["shardlist"]) == len(expected)
        energon = json.loads((folder / ".nv-meta" / ".info.json").read_text())
        assert sum(energon["shard_counts"].values()) == len(expected)
        assert sorted(path.name for path in folder.glob("*.idx") if ".tar" not in path.name) == [
            f"{number:06d}.idx" for number in range(3)
        ]


def test_convert_and_convert_splits_refuse_the_options_of_each_other(inputs, tmp_path):
    with pytest.raises(InputError, match="convert writes one dataset"):
        convert(inputs, tmp_path / "out", options(splits=SPLITS))
    with pytest.raises(InputError, match="splits is empty"):
        convert_splits(inputs, tmp_path / "out", options())
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
        manifests = convert_splits(path, tmp_path / "out", options(shards=1, **changes))
        assert sum(manifest.num_samples for manifest in manifests.values()) == 60
        return
    convert(path, tmp_path / "out", options(shards=1, **changes))
    found = [int(fields["n.json"]) for _, fields in real_samples(tmp_path / "out")]
    assert found == (list(range(30)) if "n" in changes["where"] else [3])
