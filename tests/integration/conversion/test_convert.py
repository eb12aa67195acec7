import json
import os
import shutil
import signal
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from forked_workers import living_workers
from stops import stopped_at
from tables import (
    all_samples,
    converted,
    files_below,
    files_of,
    is_pad_key,
    labels,
    mixed_table,
    options,
    planned,
    real_samples,
    sample_offsets,
    shard_files,
    tar_samples,
    write_files,
    write_table,
)
from wdsplit.conversion.convert import convert
from wdsplit.conversion.driver import Driver
from wdsplit.conversion.job import ConvertJob
from wdsplit.conversion.plan.options import ConvertOptions
from wdsplit.conversion.run import Run
from wdsplit.engines.local import LocalEngine
from wdsplit.errors import (
    ConvertError,
    DatasetNotFoundError,
    InputError,
    OutputExistsError,
    StorageError,
)
from wdsplit.jobs.run import Share
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import HEADER_NAME, RUN_FOLDER, SHARDS_NAME
from wdsplit.shards.places import read_places
from wdsplit.shards.sample_tables import read_samples
from wdsplit.storage.opening import open_storage
from wdsplit.tables.read import read_rows
from wdsplit.tar.names import unescape_key

NUM_ROWS = 103
TABLE = mixed_table(NUM_ROWS)


@pytest.fixture(scope="module")
def table_path(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("input") / "table.parquet", TABLE, 17)


@pytest.fixture(scope="module")
def undisturbed(table_path, tmp_path_factory):
    """Return the folder of a conversion with 8 shards that one process made without a stop."""
    folder = tmp_path_factory.mktemp("undisturbed") / "out"
    converted(table_path, folder, shards=8)
    return folder


def numbers(path, num_rows):
    """Write a table whose column `label` numbers its rows."""
    label, text = pa.array(range(num_rows), pa.int64()), pa.array(map(str, range(num_rows)), pa.string())
    return write_table(path, {"label": label, "text": text})


def is_finished(folder):
    try:
        read_manifest(open_storage(str(folder)))
    except DatasetNotFoundError:
        return False
    return True


def assert_whole(folder):
    """Check that a finished dataset is what its manifest says, to the last byte, and that nothing else is there."""
    manifest = read_manifest(open_storage(str(folder)))
    names = ["shards.parquet", "wdsplit.json"]
    for number in range(len(manifest.shards)):
        shard = manifest.shards[number]
        data = (folder / shard.path).read_bytes()
        samples = tar_samples(folder / shard.path)
        pads = [is_pad_key(key) for key, _ in samples]
        assert shard.checksum == f"xxh3_128:{xxhash.xxh3_128_hexdigest(data)}"
        assert (shard.num_bytes, shard.num_samples, shard.num_pads) == (len(data), len(samples), sum(pads))
        assert pads == sorted(pads)
        places = read_places(open_storage(str(folder)), shard, manifest.field_names)
        assert places.offsets().tolist() == sample_offsets(folder / shard.path)
        table = read_samples(open_storage(str(folder)), shard, schema=manifest.samples)
        real = samples[: len(samples) - sum(pads)]
        assert table["__key__"].to_pylist() == [key for key, _ in real]
        assert table["num_bytes"].to_pylist() == [sum(map(len, fields.values())) for _, fields in real]
        names += [shard.path, f"{shard.path}.places", f"{shard.path}.parquet"]
    assert files_below(folder) == sorted(names)
    keys = [key for key, _ in all_samples(folder)]
    assert len(set(keys)) == len(keys)
    return manifest


# What is written


def test_the_tars_hold_the_values_of_the_table(undisturbed):
    manifest = assert_whole(undisturbed)
    assert manifest.num_samples == NUM_ROWS
    assert [field.name for field in manifest.fields] == ["jpg", "txt", "cls", "npy", "json"]
    rows = TABLE.to_pylist()
    for number, ((key, fields), row) in enumerate(zip(real_samples(undisturbed), rows, strict=True)):
        assert key == f"{number:08d}"
        assert list(fields) == ["jpg", "txt", "cls", "npy", "json"]
        assert fields["jpg"] == row["image"]
        assert fields["txt"].decode() == row["caption"]
        assert int(fields["cls"]) == row["label"]
        assert json.loads(fields["json"]) == row["meta"]
        assert np.frombuffer(fields["npy"][128:] if row["vector"] else b"", "<f4").tolist() == row["vector"]


def test_the_manifest_that_is_returned_is_the_one_that_is_read_and_tells_where_it_came_from(table_path, tmp_path):
    chosen = options(key="label", shards=10, pad="drop", null="omit", jobs=1, window=33, lanes=2)
    manifest = convert([table_path], str(tmp_path / "out"), chosen)
    (tmp_path / "out").rename(tmp_path / "moved")
    assert assert_whole(tmp_path / "moved") == manifest
    assert (manifest.window, manifest.lanes, manifest.pad) == (33, 2, "drop")
    provenance, size = manifest.provenance, os.path.getsize(table_path)
    assert provenance["inputs"] == [{"path": table_path, "num_bytes": size, "num_rows": NUM_ROWS}]
    assert provenance["plan"] == planned([table_path], chosen).hash
    assert (provenance["num_dropped"], provenance["key"]) == (3, "label")
    assert (provenance["options"]["pad"], provenance["options"]["shards"]) == ("drop", 10)
    assert set(provenance["versions"]) == {"wdsplit", "pyarrow", "numpy", "python"}


# Shards, pads and what is dropped


@pytest.mark.parametrize(
    ("rows", "shards", "pad"), [(23, 3, "repeat"), (10, 4, "drop"), (23, 3, "none"), (7, 7, "none"), (3, 8, "repeat")]
)
def test_shards_are_equal_or_differ_by_one_sample_and_their_pads_repeat_their_first(tmp_path, rows, shards, pad):
    manifest = converted(numbers(tmp_path / "a.parquet", rows), tmp_path / "out", shards=shards, pad=pad)
    assert assert_whole(tmp_path / "out") == manifest
    sizes = {
        "repeat": [-(-rows // shards)] * shards,
        "drop": [rows // shards] * shards,
        "none": [rows // shards + (number < rows % shards) for number in range(shards)],
    }
    num_dropped = rows % shards if pad == "drop" else 0
    assert manifest.shards.column("num_samples").tolist() == sizes[pad]
    assert manifest.num_pads == (-rows % shards if pad == "repeat" else 0)
    assert manifest.provenance["num_dropped"] == num_dropped
    assert labels(tmp_path / "out") == list(range(rows - num_dropped))
    for path in (tmp_path / "out").glob("*.tar"):
        (_, first), *_, (last_key, last) = tar_samples(path) * 2
        assert last == first or not is_pad_key(last_key)


def test_a_row_group_is_not_read_again_for_pads(tmp_path, monkeypatch):
    begun = []

    def noted(table, first, stop, columns):
        begun.append((first, stop))
        return read_rows(table, first, stop, columns)

    monkeypatch.setattr("wdsplit.conversion.task.read_rows", noted)
    manifest = converted(numbers(tmp_path / "a.parquet", 23), tmp_path / "out", shards=6, jobs=1)
    assert manifest.num_pads == 1
    assert sum(stop - first for first, stop in begun) == 23


# Keys


KEYS = ["img.1", "img.2", "a/b.c", "train/é ü", "日本", "/root", "../up", "a//b", "_x2E", "plain-1", "__pad__/x", "a\n"]
KEYS += ["a.b", "a_x2Eb", "a_b", "a/b", "a", "a/", "A.b"]


def test_the_originals_of_all_keys_can_be_told_whatever_they_hold(tmp_path):
    table = pa.table({"name": pa.array(KEYS).dictionary_encode(), "label": range(len(KEYS))})
    converted(write_table(tmp_path / "a.parquet", table), tmp_path / "out", shards=5, key="name")
    assert_whole(tmp_path / "out")
    assert [unescape_key(key) for key, _ in real_samples(tmp_path / "out")] == KEYS
    assert labels(tmp_path / "out") == list(range(len(KEYS)))
    assert all("." not in key and key.isascii() for key, _ in all_samples(tmp_path / "out"))


def test_integers_can_be_keys_and_the_key_column_a_field_too(tmp_path):
    path = write_table(tmp_path / "a.parquet", {"id": [7, -1, 2**62], "_text": ["x.1", "x.2", "x.3"]})
    converted(path, tmp_path / "out", shards=1, key="id")
    found = all_samples(tmp_path / "out")
    assert [key for key, _ in found] == ["7", "-1", str(2**62)]
    assert [set(fields.values()) for _, fields in found] == [{b"x.1"}, {b"x.2"}, {b"x.3"}]
    converted(path, tmp_path / "both", shards=1, key="_text", mapping={"txt": "_text"})
    assert all_samples(tmp_path / "both")[0] == ("x_x2E1", {"txt": b"x.1"})


LETTERS = [*"abcdefghij"]


@pytest.mark.parametrize(
    ("names", "changes", "cause", "place"),
    [
        ([], {}, "no rows", ""),
        ([*LETTERS, None], {"key": "name"}, "key is null", "/part-00001.parquet, row 2, column 'name'"),
        ([*LETTERS, ""], {"key": "name"}, "key is empty", "/part-00001.parquet, row 2, column 'name'"),
        ([*LETTERS, "x" * 256], {"key": "name"}, "key is too long", "/part-00001.parquet, row 2, column 'name'"),
        ([*LETTERS, "c"], {"key": "name"}, r"duplicate key(.|\n)*row 2", "/part-00001.parquet, row 2"),
        (LETTERS, {"key": "id", "mapping": {"cls": "klass", "jpg": "name"}}, "(?s)'klass'.*'id'|'id'.*'klass'", ""),
    ],
)
def test_what_cannot_be_converted_is_refused_by_its_place_before_anything_is_written(
    tmp_path, names, changes, cause, place
):
    table = pa.table({"name": pa.array(names, pa.string()), "label": pa.array(range(len(names)), pa.int64())})
    paths = write_files(tmp_path / "in", table, [8]) or [write_table(tmp_path / "in.parquet", table)]
    with pytest.raises(InputError, match=cause) as caught:
        converted(paths, tmp_path / "out", shards=2, **changes)
    assert caught.value.place.endswith(place)
    assert "duplicate" not in cause or caught.value.key == "c"
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError):
        converted([], tmp_path / "out")


# An output that exists


def test_a_dataset_is_replaced_only_if_that_is_asked_for_and_then_nothing_of_it_is_left(table_path, tmp_path):
    converted(table_path, tmp_path / "out", shards=12)
    before = files_of(tmp_path / "out")
    with pytest.raises(OutputExistsError, match="finished dataset"):
        converted(table_path, tmp_path / "out", shards=8)
    assert files_of(tmp_path / "out") == before
    converted(table_path, tmp_path / "out", shards=3, overwrite=True)
    assert len(assert_whole(tmp_path / "out").shards) == 3


@pytest.mark.parametrize("bad", ["missing.parquet", "garbage.parquet", "double.parquet"])
def test_overwriting_keeps_the_old_dataset_until_the_new_one_can_be_planned(table_path, tmp_path, bad):
    converted(table_path, tmp_path / "out", shards=3)
    before = files_of(tmp_path / "out")
    (tmp_path / "garbage.parquet").write_bytes(b"garbage")
    write_table(tmp_path / "double.parquet", {"name": ["a", "a"], "label": [1, 2]})
    with pytest.raises(InputError):
        converted(f"{tmp_path}/{bad}", tmp_path / "out", overwrite=True, key="name")
    assert files_of(tmp_path / "out") == before


FOREIGN = ("notes.txt", "train/000000.tar", "a.tar", ".git/config", "000000.tar", "7.tar/precious.txt", ".mine.tmp")
"""The last three are names that a dataset has too: beside one, such a file is taken for a part of it."""


@pytest.mark.parametrize(("beside", "names"), [("nothing", FOREIGN), ("a dataset", FOREIGN[:4])])
def test_files_of_others_are_refused_and_never_removed(table_path, tmp_path, beside, names):
    if beside == "a dataset":
        converted(table_path, tmp_path / "out", shards=2)
    for name in names:
        foreign = tmp_path / "out" / name
        foreign.parent.mkdir(parents=True, exist_ok=True)
        foreign.write_text("mine")
        before = files_of(tmp_path / "out")
        for overwrite in (False, True):
            with pytest.raises(OutputExistsError) as caught:
                converted(table_path, tmp_path / "out", overwrite=overwrite)
            assert files_of(tmp_path / "out") == before
        assert name in FOREIGN[4:] or name.split("/")[0] in caught.value.found
        shutil.rmtree(tmp_path / "out" / name.split("/")[0]) if "/" in name else foreign.unlink()


@pytest.mark.parametrize("overwrite", [False, True])
def test_an_input_inside_the_output_is_refused(tmp_path, overwrite):
    path = numbers(tmp_path / "out" / "a.parquet", 10)
    for output in (tmp_path / "out", tmp_path):
        with pytest.raises(InputError, match="inside the output"):
            converted(path, output, overwrite=overwrite)
    assert pq.read_table(path).num_rows == 10


@pytest.mark.parametrize("inputs", ["raw", "r?w", "raw/*/*", "raw/**/0*.parquet"])
def test_an_output_inside_an_input_folder_is_refused(tmp_path, inputs):
    numbers(tmp_path / "raw" / "a.parquet", 10)
    numbers(tmp_path / "raw" / "sub" / "0.parquet", 10)
    with pytest.raises(InputError, match="inside an input folder"):
        converted(f"{tmp_path}/{inputs}", tmp_path / "raw" / "out")
    assert files_below(tmp_path) == ["raw/a.parquet", "raw/sub/0.parquet"]
    converted(f"{tmp_path}/raw/*.parquet", tmp_path / "raw" / "out", shards=2)
    assert_whole(tmp_path / "raw" / "out")


# Runs that do not end well


def assert_only_whole_shards(folder, undisturbed):
    """Check that every tar under a final name is whole, has index and table and is what an undisturbed run writes."""
    expected = shard_files(undisturbed)
    for path in Path(folder).glob("*.tar"):
        for name in (path.name, f"{path.name}.places", f"{path.name}.parquet"):
            assert path.with_name(name).read_bytes() == expected[name]
    assert not (Path(folder) / "wdsplit.json").exists()


@pytest.fixture(scope="module")
def broken_path(tmp_path_factory):
    """Return a table whose row 80 is null, so that shards before it can be written and its own cannot."""
    captions = [None if row == 80 else f"caption {row}" for row in range(NUM_ROWS)]
    return write_table(tmp_path_factory.mktemp("broken") / "broken.parquet", {"txt": captions}, 10)


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_leaves_no_short_tar_no_manifest_and_nothing_temporary(broken_path, tmp_path, jobs):
    with pytest.raises(InputError, match="a value is null") as caught:
        converted(broken_path, tmp_path / "out", shards=20, jobs=jobs)
    assert caught.value.place == f"{broken_path}, row 80, column 'txt'"
    converted(broken_path, tmp_path / "fine", shards=20, null="empty")
    assert_only_whole_shards(tmp_path / "out", tmp_path / "fine")
    assert not [name for name in files_below(tmp_path / "out") if name.endswith(".tmp")]
    assert not (tmp_path / "out" / "000015.tar").exists()


def interrupt_after(table_path, folder, num_shards, **changes):
    """Convert to 8 shards, but stop as soon as some of them are published."""
    with stopped_at(done=num_shards) as stop:
        convert([table_path], str(folder), options(shards=8, **changes), stop)


@pytest.mark.parametrize("num_shards", [5, 8])
def test_a_resumed_run_ends_with_the_bytes_of_an_undisturbed_one(table_path, undisturbed, tmp_path, num_shards):
    interrupt_after(table_path, tmp_path / "out", num_shards)
    assert_only_whole_shards(tmp_path / "out", undisturbed)
    assert not is_finished(tmp_path / "out")
    published = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.tar")}
    seen = []
    convert([table_path], str(tmp_path / "out"), options(shards=8, resume=True), seen.append)
    assert_whole(tmp_path / "out")
    assert shard_files(tmp_path / "out") == shard_files(undisturbed)
    assert seen[0].done == seen[0].skipped == seen[-1].skipped >= num_shards
    kept = [name for name, time in published.items() if (tmp_path / "out" / name).stat().st_mtime_ns == time]
    assert len(kept) >= seen[0].skipped


def test_a_run_that_stopped_before_its_first_shard_leaves_nothing(table_path, tmp_path):
    interrupt_after(table_path, tmp_path / "out", 0)
    assert files_below(tmp_path / "out") == []
    converted(table_path, tmp_path / "out", shards=8)


def test_an_unfinished_run_is_not_written_over_without_being_asked(table_path, undisturbed, tmp_path):
    interrupt_after(table_path, tmp_path / "out", 3)
    before = files_below(tmp_path / "out")
    with pytest.raises(OutputExistsError, match="unfinished run") as caught:
        converted(table_path, tmp_path / "out", shards=8)
    assert "--resume" in caught.value.remedy and "--overwrite" in caught.value.remedy
    assert files_below(tmp_path / "out") == before
    converted(table_path, tmp_path / "out", shards=3, overwrite=True)
    assert len(assert_whole(tmp_path / "out").shards) == 3


def test_a_run_is_not_resumed_with_options_or_an_input_that_give_other_bytes(table_path, tmp_path):
    interrupt_after(table_path, tmp_path / "out", 3)
    before = files_below(tmp_path / "out")
    other = write_table(tmp_path / "table.parquet", mixed_table(NUM_ROWS, first=1), 17)
    for source, changes in ((table_path, {"shards": 9}), (table_path, {"null": "omit"}), (other, {})):
        with pytest.raises(OutputExistsError, match="another plan") as caught:
            converted(source, tmp_path / "out", resume=True, **{"shards": 8, **changes})
        assert caught.value.expected != caught.value.found
        assert files_below(tmp_path / "out") == before


def test_shards_that_were_damaged_since_are_written_again(table_path, undisturbed, tmp_path):
    out = tmp_path / "out"
    interrupt_after(table_path, out, 5)
    for lost in ("000000.tar", "000001.tar.places", "000002.tar.parquet"):
        (out / lost).unlink()
    os.truncate(out / "000003.tar", 512)
    converted(table_path, out, resume=True, shards=8)
    assert_whole(out)
    assert shard_files(out) == shard_files(undisturbed)


def test_there_must_be_something_to_resume(table_path, tmp_path):
    (tmp_path / "empty").mkdir()
    for output in (tmp_path / "none", tmp_path / "empty"):
        with pytest.raises(OutputExistsError, match="no unfinished run"):
            converted(table_path, output, resume=True)
    assert not (tmp_path / "none").exists()


def test_resuming_what_is_finished_leaves_it_as_it_is_if_the_plan_is_the_same(table_path, tmp_path):
    out = tmp_path / "out"
    manifest = converted(table_path, out, shards=2)
    before = {path: path.stat().st_mtime_ns for path in sorted(out.iterdir())}
    (out / RUN_FOLDER).mkdir()
    assert converted(table_path, out, shards=2, resume=True) == manifest
    assert {path: path.stat().st_mtime_ns for path in sorted(out.iterdir())} == before
    with pytest.raises(OutputExistsError, match="another plan"):
        converted(table_path, out, shards=4, resume=True)
    assert_whole(out)


def test_an_overwrite_that_was_killed_before_it_wrote_anything_can_be_repeated(table_path, tmp_path):
    out = tmp_path / "out"
    plan = planned(str(table_path), options(shards=4))
    for names in ([], [HEADER_NAME], [HEADER_NAME, SHARDS_NAME, "000000.tar"]):
        converted(table_path, out, shards=2, overwrite=True)
        (out / RUN_FOLDER).mkdir()
        (out / RUN_FOLDER / "plan.json").write_bytes(orjson.dumps(plan.summary()))
        for name in names:
            (out / name).unlink()
        converted(table_path, out, shards=4, overwrite=True)
        assert_whole(out)
        assert not (out / RUN_FOLDER).exists()


def write_one_shard(out, plan):
    """Start a run, and write the first of its shards."""
    Run(open_storage(str(out))).start(plan)
    job = ConvertJob(output=str(out), plan=plan, buffer_bytes=2**20)
    Driver(job, LocalEngine(), lambda _: None, Share(0, plan.num_shards)).write({})


@pytest.mark.parametrize("damaged", ["plan.json", "shards/*-00000000-00000001.json"])
def test_a_note_that_was_damaged_is_no_note(table_path, tmp_path, damaged):
    out = tmp_path / "out"
    plan = planned(str(table_path), options(shards=2))
    write_one_shard(out, plan)
    next((out / RUN_FOLDER).glob(damaged)).write_bytes(b"")
    if damaged == "plan.json":
        with pytest.raises(OutputExistsError, match="another plan"):
            converted(table_path, out, shards=2, resume=True)
    else:
        assert converted(table_path, out, shards=2, resume=True).num_samples == plan.num_rows
        assert_whole(out)


@pytest.mark.parametrize("left", ["000000.tar", "000000.tar.places", "000000.tar.parquet"])
def test_a_file_that_was_published_just_before_the_error_does_not_block_a_second_try(table_path, tmp_path, left):
    """An error may come between the files of a shard and the note of it; what is left must be resumable or harmless."""
    out = tmp_path / "out"
    plan = planned(str(table_path), options(shards=8))
    notes = [f".wdsplit-run/shards/{plan.hash}-00000000-{stop:08d}.json" for stop in range(1, 9)]

    def break_in(progress):
        """Put a folder in the way of what is published next."""
        following = {"000000.tar.places": "000000.tar.parquet", "000000.tar.parquet": "000000.tar"}
        for name in [following[left]] if left in following else notes:
            (out / name).mkdir(parents=True)

    with pytest.raises(StorageError):
        convert([table_path], str(out), options(shards=8), break_in)
    assert (out / left).is_file()
    for path in filter(Path.is_dir, [out / "000000.tar", out / "000000.tar.parquet"]):
        path.rmdir()
    for folder in out.glob(".wdsplit-run/shards/*.json"):
        folder.rmdir()
    try:
        converted(table_path, out, shards=8)
    except OutputExistsError as error:
        assert "--resume" in error.remedy
        converted(table_path, out, shards=8, resume=True)
    assert_whole(out)


# Runs that are killed, or that others disturb


@pytest.mark.slow
def test_a_worker_that_is_killed_fails_the_run_which_can_be_resumed(tmp_path):
    out, undisturbed, killed = tmp_path / "out", tmp_path / "undisturbed", []
    path = write_table(tmp_path / "table.parquet", mixed_table(400), 4)
    converted(path, undisturbed, shards=40)

    def kill_a_worker(progress):
        if progress.done and not killed:
            killed.append(living_workers()[0])
            os.kill(killed[0], signal.SIGKILL)

    with pytest.raises(ConvertError, match="a worker process died"):
        convert([path], out, options(shards=40, jobs=2), kill_a_worker)
    assert killed and living_workers() == []
    assert_only_whole_shards(out, undisturbed)
    converted(path, out, shards=40, resume=True)
    assert shard_files(out) == shard_files(undisturbed)


def test_two_runs_at_once_into_one_output_do_not_mix(table_path, undisturbed, tmp_path):
    refused = []

    def try_another_run(progress):
        for changes in ({"resume": True, "shards": 8}, {"overwrite": True, "shards": 7}):
            with pytest.raises(StorageError, match="another process") as caught:
                converted(table_path, tmp_path / "out", **changes)
            refused.append(caught.value.place)

    convert([table_path], str(tmp_path / "out"), options(shards=8), try_another_run)
    assert set(refused) == {str(tmp_path / "out")}
    assert_whole(tmp_path / "out")
    assert shard_files(tmp_path / "out") == shard_files(undisturbed)


def test_a_run_is_not_resumed_on_an_input_that_was_written_since(table_path, tmp_path):
    path, out = tmp_path / "in.parquet", tmp_path / "out"
    path.write_bytes(Path(table_path).read_bytes())
    os.utime(path, ns=(1, 1))
    plan = planned(path, options(shards=2))
    write_one_shard(out, plan)
    os.utime(path, ns=(2, 2))
    with pytest.raises(OutputExistsError, match="has changed since"):
        converted(str(path), out, shards=2, resume=True)
    os.utime(path, ns=(1, 1))
    assert converted(str(path), out, shards=2, resume=True).num_samples == NUM_ROWS


def test_the_size_of_columns_that_are_not_written_does_not_count(tmp_path):
    table = {"image": [os.urandom(10_000) for _ in range(300)], "label": range(300)}
    path = write_table(tmp_path / "in.parquet", table)
    few = planned(path, ConvertOptions(shard_size=500_000, columns=("label",)))
    many = planned(path, options(shard_size=500_000))
    assert (few.num_shards, many.num_shards) == (1, 7)
