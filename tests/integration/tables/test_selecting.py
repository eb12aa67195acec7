"""Conversions of selected rows: --columns, --where, --limit, --split and --group-by, compared with brute force.

Keys number the rows of the whole table, so they tell where a sample came from.
"""

import datetime
import json
import os
import signal
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
    labels,
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
from wdsplit.order.permutation import RowPermutation
from wdsplit.shards.manifest import HEADER_NAME, RUN_FOLDER, Field
from wdsplit.storage.local import is_temporary
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


def test_a_key_that_stands_twice_in_rows_left_out_is_no_matter(tmp_path):
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
    error = refused(inputs, tmp_path / "out", "no row is selected", where="label > 1000", **more)
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


@pytest.mark.parametrize("splits", [{"most": 0.9999, "few": 0.0001}, {"few": 0.0001, "most": 0.9999}], ids=str)
def test_an_empty_split_is_refused_by_its_name(tmp_path, splits):
    path = write_table(tmp_path / "a.parquet", {"n": range(10)})
    error = refused(path, tmp_path / "out", "no row is selected", splits=splits)
    assert "split 'few'" in error.place


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"splits": {"a": 0.5, "b": 0.6}}, "do not make a whole"),
        ({"splits": {"a/b": 1.0}}, "becomes a folder"),
        ({"splits": {"": 1.0}}, "becomes a folder"),
        ({"splits": SPLITS, "key": "vector"}, "cannot hold keys"),
        ({"splits": SPLITS, "shards": 100, "pad": "none"}, "more shards than rows"),
        ({"group_by": "no"}, "not in the table"),
        ({"group_by": "user", "pad": "drop"}, "invalid options"),
        ({"group_by": "user", "shards": 20}, "more shards than groups"),
        ({"group_by": "user", "world_size": 5, "workers": 4}, "more shards than groups"),
        ({"limit": 0}, "limit = 0"),
        ({"where": "no == 1"}, "no column 'no'"),
        ({"columns": ("label", "lable")}, "columns cannot be used"),
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
    *(("plain", "val", 0), ("plain", "val", 1), ("shuffle", "val", 1), ("groups", "train", 0)),
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


def test_splits_are_resumed_only_as_they_were_begun(inputs, tmp_path):
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
    """Else rows of one split would stand beside the old rows of another, as if they had been drawn together."""
    old, new = {"splits": SPLITS, "shards": 4}, {"splits": SPLITS, "shards": 4, "where": "label < 200"}
    made(inputs, tmp_path / "out", **old)
    refused(inputs, tmp_path / "out", "the output is a finished dataset", OutputExistsError, **old)
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
        refused(inputs, tmp_path / "out", "is a dataset itself", OutputExistsError, splits=SPLITS, **more)


def test_a_folder_that_holds_splits_is_no_output_of_one_dataset(drawn, inputs):
    for changes in ({}, {"overwrite": True}):
        refused(inputs, drawn, "not empty|did not write", OutputExistsError, **changes)


def test_an_input_in_the_folder_of_a_split_is_refused(tmp_path):
    path = write_table(tmp_path / "out" / "val" / "a.parquet", {"n": range(50)})
    refused(path, tmp_path / "out", "an input lies inside the output", splits={"train": 0.5, "val": 0.5})


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


def test_the_bytes_of_groups_do_not_depend_on_jobs_memory_or_an_unused_seed(inputs, grouped, tmp_path, monkeypatch):
    little_memory(monkeypatch)
    made(inputs, tmp_path / "out", group_by="user", shards=5, jobs=2, seed=7)
    assert shard_files(tmp_path / "out") == shard_files(grouped)


def test_the_order_of_groups_depends_on_the_seed_of_a_shuffle(inputs, tmp_path):
    orders = []
    for seed in (0, 1):
        made(inputs, tmp_path / f"seed-{seed}", group_by="user", shards=5, shuffle=True, seed=seed)
        shards = shard_numbers(tmp_path / f"seed-{seed}")
        orders.append(assert_groups_stand_together(shards, USERS, NUMBERS))
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
    assert_groups_stand_together(shards, values, range(300))
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
    assert_groups_stand_together(shard_numbers(tmp_path / "out"), days, range(100))


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


def test_splits_of_groups_that_are_killed_again_and_again_end_with_the_same_bytes(tmp_path):
    rows = mixed_table(1500)
    table = rows.set_column(2, "label", pa.array([number * number % 301 for number in range(1500)]))
    write_files(tmp_path / "in", table, [400, 1], 50)
    folder, out, splits = tmp_path / "in", tmp_path / "out", {"train": 0.6, "val": 0.4}
    chosen = {"shards": 9, "group_by": "label", "shuffle": True, "where": "label != 77", "splits": splits}
    made(str(folder), tmp_path / "undisturbed", **chosen)
    whole = {name: shard_files(tmp_path / "undisturbed" / name) for name in splits}
    begun = False
    for lines in (0, 5, 16):
        script = start_script(CONVERT, folder, out, 2, "resume" if begun else "new")
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


def test_loaders_read_each_sample_of_a_dataset_of_groups_once(inputs, tmp_path):
    chosen = {"group_by": "user", "shards": 6, "where": 'user != "user 1"', "mapping": {"cls": "label"}}
    assert made(inputs, tmp_path / "out", **chosen).num_pads > 0
    found = list(audit(str(tmp_path / "out"), AuditOptions(world_size=2, batch_size=4, epochs=2, read=True)))
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


def test_plan_says_what_would_be_selected(run, source, drawn):
    code, out, err = run("plan", source, "--where", "label < 100", "--shards", 4)
    assert (code, err) == (0, "")
    assert out.startswith(f"100 rows of {NUM_ROWS} in 10 files -> 4 shards of 25 samples")
    code, out, _ = run("plan", source, "--where", "label < 100", "--limit", 30, "--shards", 4, "--json")
    summary = json.loads(out)
    assert (code, summary["rows"], summary["input_rows"], summary["shards"]) == (0, 30, NUM_ROWS, 4)
    split = ("--split", "train=0.7,val=0.2,test=0.1", "--shards", 4)
    code, out, _ = run("plan", source, *split)
    summaries = json.loads(run("plan", source, *split, "--json")[1])
    assert code == 0
    for name in SPLITS:
        count = len(numbers_of(drawn / name))
        assert f"{name}: {count} rows of {NUM_ROWS}" in out
        assert summaries[name]["rows"] == count
        assert summaries[name]["plan"] in (drawn / name / HEADER_NAME).read_text()


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
        ("train=0.9,train=0.1", ["'train=0.1'", "given twice"]),
        ("=1", ["'=1'", "NAME=FRACTION"]),
        ("train=inf", ["'train=inf'", "NAME=FRACTION"]),
        ("", ["NAME=FRACTION"]),
        ("train=0.9,val=0.2", ["do not make a whole", "train=0.9, val=0.2"]),
        ("..=1", ["becomes a folder", "'..'"]),
    ],
)
def test_splits_that_cannot_be_are_refused_as_they_were_typed(run, source, tmp_path, text, parts):
    code, out, err = run("convert", source, tmp_path / "out", "--split", text)
    assert (code, out) == (2, "")
    assert [part for part in parts if part not in err] == []


@pytest.mark.parametrize("command", ["plan", "convert"])
def test_a_selection_that_cannot_be_is_refused_by_both_commands(run, source, tmp_path, command):
    output = [tmp_path / "out"] if command == "convert" else []
    for arguments in (
        ["--where", "lable < 3"],
        ["--limit", "0"],
        ["--columns", "lable"],
        ["--columns", "label,,caption"],
        ["--columns", ""],
        ["--group-by", "vector"],
        ["--group-by", "user", "--pad", "drop"],
        ["--split", "a=0.5,b=0.5", "--key", "no"],
        ["--split", "a=0.5,b=0.6"],
    ):
        code, out, err = run(command, source, *output, *arguments)
        assert (code, out) == (2, ""), arguments
        assert "rror: " in err
        assert "Traceback" not in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["plan", "convert"])
def test_the_help_tells_how_to_select(run, command):
    code, out, _ = run(command, "--help")
    assert code == 0
    options = ("--columns NAME", "--where CONDITION", "--limit INTEGER", "--split NAME=FRACTION", "--group-by COLUMN")
    assert [option for option in options if option not in out] == []


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
