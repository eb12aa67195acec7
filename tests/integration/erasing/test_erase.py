"""Erasing samples: what the new version has, what stays of the old one, and what is read and written.

In the tables of numbers the field `cls` is the number of the row; rows keep their order unless a test says otherwise.
"""

import dataclasses
import io
import itertools
import os
import shutil
import tarfile

import numpy as np
import orjson
import pyarrow as pa
import pytest

import wdsplit
from commands import done
from made_datasets import expected_batches, global_batches, loaders_of, numbers_table, real_rows
from stops import stopped_at
from tables import files_of
from wdsplit.errors import ConvertError, CorruptDataError, DatasetNotFoundError, InputError, StorageError
from wdsplit.shards.files import read_manifest, write_version
from wdsplit.storage.opening import open_storage

NUM_ROWS = 103
PLAN = {"shards": 5, "lanes": 3, "window": 8, "shuffle": False}
ERASED = [0, 7, 8, 9, 20, 45, 102]
"""The first and last samples of shards, neighbours, and one alone; the shards of the rows 21 and 63 have none."""


def rows_of(first, stop, long_keys=False):
    """Return a table with a key; of the field `npy` some samples have none."""
    rows = np.arange(first, stop)
    keys = [f"{'k' * 120 if long_keys else 'k'}/{row}" for row in rows]
    vectors = [None if row % 5 == 3 else [float(row)] * 3 for row in rows]
    table = numbers_table(stop).slice(first)
    return table.append_column("id", [keys]).append_column("v", [pa.array(vectors, pa.list_(pa.float32(), 3))])


def make(url, pad="none", long_keys=False, **options):
    """Make a dataset with fields that were joined later, and with views."""
    table = rows_of(0, NUM_ROWS, long_keys)
    own = {"mapping": {"cls": "cls", "txt": "txt", "npy": "v"}, "null": "omit", "key": "id"}
    wdsplit.convert(table, url, **own, pad=pad, **PLAN, **options)
    more = pa.table(
        {"id": table["id"], "score": np.arange(NUM_ROWS) / 10, "bin": [b"%d" % row * 9 for row in range(NUM_ROWS)]}
    )
    wdsplit.annotate(url, more.slice(5), "id", "later", allow_missing=True)  # the first five have none of it
    wdsplit.make_view(url, "high", where="score > 2")
    wdsplit.make_view(url, "some", keys=[table["id"][row].as_py() for row in (3, 7, 8, 44, 45, 100)])
    wdsplit.make_view(url, "often", repeat="cls", where="cls < 50")
    return url


def keys_of(rows, long_keys=False):
    return [f"{'k' * 120 if long_keys else 'k'}/{row}" for row in rows]


def contents(url, **options):
    """Return the fields of each sample by its row."""
    samples = wdsplit.Samples(url, **options)
    return {
        int(each["cls"]): {name: each[name] for name in each if name[:2] != "__" or name == "__key__"}
        for each in samples
    }


def paths_of(url, version=None):
    return read_manifest(open_storage(url), version).shards.table.column("path").to_pylist()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make(str(tmp_path_factory.mktemp("made") / "train"))


@pytest.fixture
def url(made, tmp_path):
    """Return a copy of a dataset."""
    return str(shutil.copytree(made, tmp_path / "train"))


@pytest.fixture
def place(request, tmp_path):
    """Return the URL of a dataset, and the function that reads its files."""
    if request.param == "memory":
        memory, name = request.getfixturevalue("memory"), f"erased-{os.getpid()}"
        return f"memory://{name}", lambda: {
            path.removeprefix(f"/{name}/"): memory.cat_file(path) for path in memory.find(f"/{name}")
        }
    return str(tmp_path / "train"), lambda: files_of(tmp_path / "train")


def test_samples_keep_their_keys_beside_pads_that_need_longer_names_than_they(tmp_path):
    """A pad's key is longer than theirs: with a long field its name is in an extended header, and so it is listed."""
    url, name = str(tmp_path / "train"), "f" * 70
    wdsplit.convert(rows_of(0, 20), url, mapping={"cls": "cls", name: "txt"}, key="id", pad="repeat", **PLAN)
    wdsplit.erase(url, keys=keys_of([0, 7, 8]))
    assert wdsplit.verify(url).problems == ()
    left = [sample["__key__"] for sample in wdsplit.Samples(url)]
    assert sorted(left) == sorted(keys_of({*range(20)} - {0, 7, 8}))


@pytest.mark.parametrize(
    ("place", "kind"),
    [("disk", {"pad": "repeat", "long_keys": True}), ("memory", {"pad": "none"})],
    indirect=["place"],
    ids=str,
)
def test_the_new_version_has_all_but_the_erased_samples_and_the_old_one_stays_as_it_was(place, kind):
    url, read = place
    make(url, **kind)
    views = {name: set(contents(url, view=name)) for name in ("high", "some")}
    files, before = read(), contents(url, join=["later"])
    old = paths_of(url)
    made = wdsplit.erase(url, keys=keys_of(ERASED, kind.get("long_keys")))
    left = {row: sample for row, sample in before.items() if row not in ERASED}
    assert contents(url, join=["later"]) == left and made.num_samples == len(left)
    assert contents(url, join=["later"], version=1) == before
    after = read()
    assert [name for name in files if after[name] != files[name]] == ["wdsplit.json"]
    is_same = [new == path for new, path in zip(paths_of(url), old, strict=True)]
    assert is_same == [False, True, False, True, False]
    assert [new.partition(".2-")[0] for new in paths_of(url) if "-" in new] == [
        path.removesuffix(".tar") for path, same in zip(old, is_same, strict=True) if not same
    ]
    for name, rows in views.items():
        assert set(contents(url, view=name)) == rows - {*ERASED}
        assert set(contents(url, view=name, version=1)) == rows
    times = np.bincount([int(each["cls"]) for each in wdsplit.Dataset(url, view="often", tail="drop")])
    assert times.tolist() == [row * (row < 50 and row not in ERASED) for row in range(len(times))]
    assert set(contents(url, where="score < 1")) == {row for row in left if 5 <= row < 10}
    assert [wdsplit.list_annotations(url)["later"].num_missing, len(left)] == [4, 96]
    for version in (1, 2):
        assert wdsplit.verify(url, version=version).problems == ()
    num_batches, rows = -(-len(left) // 12), sorted(left)
    expected = [[(g, rows[row], pad) for g, row, pad in batch] for batch in expected_batches(url, num_batches)]
    for world_size in (1, 3):
        loaders = loaders_of(url, world_size, seed=0)
        assert {len(loader) for loader in loaders} == {num_batches}
        found = global_batches(loaders)
        assert found == expected
        assert real_rows(batch for step in found for batch in step) == rows
    if kind["pad"] == "repeat":
        assert len(set(made.shards.column("num_samples").tolist())) == 1, "equal shards for other readers"


def listed_in(folder):
    """Return the shards in the index files of wids and Energon."""
    wids, info = (orjson.loads((folder / name).read_bytes()) for name in ("wids.json", ".nv-meta/.info.json"))
    return [each["url"] for each in wids["shardlist"]], list(info["shard_counts"])


def test_samples_are_erased_again_and_from_appended_shards_and_index_files_list_the_latest_version(tmp_path):
    url = make(str(tmp_path / "train"), emit=("wids", "dali", "energon"))
    wdsplit.convert(rows_of(200, 230), url, append=True, shuffle=False, null="omit", samples_per_shard=10)
    assert listed_in(tmp_path / "train") == (paths_of(url), paths_of(url))
    wdsplit.erase(url, keys=["k/1", "k/201"])
    made = wdsplit.erase(url, where="cls == 2 or cls == 229")
    paths, first = made.shards.table.column("path").to_pylist(), paths_of(url, 2)
    assert [path.count("-") for path in paths] == [1, 0, 0, 0, 0, 1, 0, 1]
    assert paths[0].startswith("000000.4-")
    assert [path.partition(".")[0] for path in paths] == [path.partition(".")[0] for path in first]
    assert sorted(contents(url)) == sorted({*range(103), *range(200, 230)} - {1, 2, 201, 229})
    assert [each.num_samples for each in wdsplit.list_versions(url)] == [103, 133, 131, 129]
    assert wdsplit.verify(url).problems == ()
    assert listed_in(tmp_path / "train") == (paths, paths)
    assert all((tmp_path / "train" / path.replace(".tar", ".idx")).exists() for path in paths)
    wdsplit.convert(rows_of(0, 9), url, **PLAN, key="id", null="omit", overwrite=True)
    assert not any("-" in name for name in files_of(tmp_path / "train") if not name.startswith("fields/"))


def test_what_cannot_be_erased_is_refused_before_anything_is_written(url, tmp_path):
    path = tmp_path / "train" / "000000.tar"
    data = bytearray(path.read_bytes())
    data[data.index(b"row 6")] = 0
    path.write_bytes(data)
    before = files_of(url)
    for asked, found in (
        ({}, "keys or where"),
        ({"keys": ["k/1", "k/900"]}, "k/900"),
        ({"keys": ["k/1"], "where": "clss > 3"}, "clss"),
        ({"keys": [None]}, "null"),
        ({"where": "cls >= 0"}, "no sample would be left"),
    ):
        with pytest.raises(InputError) as raised:
            wdsplit.erase(url, **asked)
        assert found in str(raised.value) and files_of(url) == before
    with pytest.raises(CorruptDataError, match=r"000000\.tar"):  # as a sample that stays is damaged
        wdsplit.erase(url, keys=["k/0"])
    (path,) = tmp_path.glob("train/fields/later-*/000004.tar")
    path.write_bytes(path.read_bytes().replace(b"100100100", b"100100101"))
    with pytest.raises(CorruptDataError, match="--drop later"):
        wdsplit.erase(url, keys=["k/102"])
    assert read_manifest(open_storage(url)).version == 1
    with pytest.raises(DatasetNotFoundError):
        wdsplit.erase(str(tmp_path / "nothing"), where="cls == 1")
    assert not (tmp_path / "nothing").exists()


def test_shards_without_samples_are_left_out(tmp_path):
    url = str(tmp_path / "train")
    wdsplit.convert(numbers_table(4), url, shards=6, lanes=3, shuffle=False)
    made = wdsplit.erase(url, where="cls == 1")  # of which another shard has a pad
    assert made.shards.table.column("path").to_pylist() == ["000000.tar", "000002.tar", "000003.tar"]
    (loader,) = loaders_of(url, 1, global_batch=2)
    assert real_rows(batch for step in global_batches([loader]) for batch in step) == [0, 2, 3]
    assert wdsplit.verify(url).problems == ()


def test_erased_keys_stay_erased_unless_one_says_so(url, caplog):
    wdsplit.erase(url, keys=["k/1", "k/900"], allow_missing=True)
    before = files_of(url)
    wdsplit.erase(url, keys=["k/1"])  # again: it is not missing
    assert files_of(url) == before and "no sample is left to erase" in caplog.text
    wdsplit.erase(url, keys=["k/2", "k/1"])
    again = rows_of(1, 2)
    with pytest.raises(InputError, match="k/1") as raised:
        wdsplit.convert(again, url, append=True)
    assert "--allow-erased" in raised.value.remedy and 1 not in contents(url)
    with pytest.raises(InputError, match="allow_erased"):
        wdsplit.convert(again, url, allow_erased=True)
    wdsplit.convert(again, url, append=True, allow_erased=True)
    assert 1 in contents(url) and 2 not in contents(url)
    hashes = [data for name, data in files_of(url).items() if name.endswith(".erased")]
    assert [len(data) for data in hashes] == [32, 32] and not any(b"k/1" in data for data in hashes)


@pytest.mark.slow
def test_only_the_shards_of_erased_samples_are_read_and_written(made, bucket, fault_proxy):
    url = bucket.put(made)
    manifest, before = read_manifest(open_storage(url)), len(fault_proxy.exchanges)
    wdsplit.erase(url, keys=["k/0", "k/102"])
    found = [each.request for each in fault_proxy.exchanges[before:] if each.request.path.endswith(".tar")]
    paths = {(each.method, each.path.partition("/train/")[2]) for each in found}
    changed = {path for path in paths_of(url) if "-" in path}
    folder = wdsplit.list_annotations(url)["later"].folder
    assert {path.partition(".")[0] for path in changed} == {"000000", "000004"}
    written = {*changed, *(f"{folder}/{path}" for path in changed)}
    assert {path for method, path in paths if method in ("PUT", "POST")} == written
    old = [manifest.shards[0].path, manifest.shards[4].path]
    assert {path for method, path in paths if method == "GET"} == {*old, *(f"{folder}/{path}" for path in old)}
    sizes = sum(
        each.bytes_sent
        for each in fault_proxy.exchanges[before:]
        if each.request.method == "GET" and each.request.path.endswith(("000000.tar", "000004.tar"))
    )
    assert sizes < 2.2 * (manifest.shards[0].num_bytes + manifest.shards[4].num_bytes)


def test_a_stopped_run_continues_and_the_bytes_do_not_depend_on_jobs(url, tmp_path):
    shutil.copytree(url, tmp_path / "copy")
    before = files_of(url)
    with stopped_at(done=2) as stop:
        wdsplit.erase(url, keys=keys_of(ERASED), progress=stop)
    stopped = files_of(url)
    assert {name: stopped[name] for name in before} == before and len(contents(url)) == NUM_ROWS
    seen = []
    wdsplit.erase(url, keys=keys_of(ERASED), progress=seen.append)
    assert next(each.done for each in seen if each.name == "write") == 2
    wdsplit.erase(str(tmp_path / "copy"), keys=keys_of(ERASED)[::-1], jobs=3)
    found, other = files_of(url), files_of(tmp_path / "copy")
    assert found.keys() == other.keys()
    assert {name for name in found if found[name] != other[name]} <= {"wdsplit.json", "versions/2.json"}, "their times"


def test_of_two_writers_one_is_refused(url):
    def erase_another(progress):
        with pytest.raises(StorageError, match="another process"):
            wdsplit.erase(url, keys=["k/5"])

    def win(progress):
        """Make version 3 as a writer on another machine would, while this one writes."""
        if progress.name == "write" and progress.done == progress.total:
            manifest, entries = read_manifest(open_storage(url)), wdsplit.list_versions(url)
            later = dataclasses.replace(entries[-1], number=3)
            write_version(open_storage(url), dataclasses.replace(manifest, history=(*entries, later)))

    wdsplit.erase(url, keys=["k/3"], progress=erase_another)
    with pytest.raises(ConvertError, match="version 3"):
        wdsplit.erase(url, keys=["k/4"], progress=win)
    made = wdsplit.erase(url, keys=["k/4"])
    assert made.version == 4 and sorted({*range(NUM_ROWS)} - contents(url).keys()) == [3, 4]


def test_samples_are_copied_from_tars_of_other_programs(tmp_path):
    (tmp_path / "tars").mkdir()
    for shard in range(2):
        with tarfile.open(tmp_path / "tars" / f"old-{shard}.tar", "w", format=tarfile.PAX_FORMAT) as tar:
            for row in range(10 * shard, 10 * shard + 10):
                members = {"txt": b"row %d" % row * row, "cls": b"%d" % row, "json": b"{}"}
                for name in sorted(members, reverse=row % 2 == 0)[row == 4 :]:  # of various order; one lacks a field
                    info = tarfile.TarInfo(f"a/{row:03d}.{name}")
                    info.size, info.mtime = len(members[name]), 1.5
                    tar.addfile(info, io.BytesIO(members[name]))
    url = str(tmp_path / "tars")
    wdsplit.index_tars(url)
    before = contents(url)
    wdsplit.erase(url, keys=["a/000", "a/005", "a/019"])
    assert contents(url) == {row: sample for row, sample in before.items() if row not in (0, 5, 19)}
    assert wdsplit.verify(url).problems == ()
    assert [each.partition(".2-")[0] for each in paths_of(url)] == ["old-0", "old-1"]


def test_commands_say_which_versions_still_have_erased_samples(url, tmp_path):
    wdsplit.make_view(url, "packed", pack="num_bytes", capacity=1000)
    (tmp_path / "keys.txt").write_text("k/3\nk/4\n")
    said = done("erase", url, "--keys", tmp_path / "keys.txt").out
    assert "2 samples fewer than version 1" in said and "view packed" in said
    for ended in (said, *(done(*command, url).out for command in (["log"], ["verify"], ["inspect"]))):
        assert "version 1 still has erased samples" in ended
    for command in (["erase", "--keys", tmp_path / "keys.txt"], ["verify"], ["inspect"], ["gc", "--keep", 2]):
        assert orjson.loads(done(command[0], url, *command[1:], "--json").out)["with_erased"] == [1]
    shown = done("log", url).out
    assert "-2" in shown and len(shown.splitlines()[0]) <= 80  # what is long comes last, and is wrapped
    assert list(itertools.chain(wdsplit.verify(url).with_erased, wdsplit.inspect(url).with_erased)) == [1, 1]
