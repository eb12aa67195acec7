"""Appending to a dataset: what each version promises, what is refused, and what stopped or concurrent writers leave.

In the tables of numbers the field `cls` is the number of the row, over all tables; rows keep their order.
"""

import dataclasses
import itertools
import shutil

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import wdsplit
from commands import done, refused
from made_datasets import (
    all_deliveries,
    deliveries,
    expected_batches,
    global_batches,
    loaders_of,
    numbers_table,
    real_rows,
)
from media_files import write_files
from stops import stopped_at
from tables import all_samples, files_of, write_table
from tars import by_tarfile
from wdsplit.errors import ConvertError, DatasetNotFoundError, InputError, StateError, StorageError, WdsplitError
from wdsplit.shards.files import read_manifest, write_version
from wdsplit.storage.opening import open_storage

ENDS = (0, 103, 160, 161)
"""The rows before version 1, and at the end of each version."""
PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)
PLAN = {"shards": 5, "lanes": 3, "window": 8, "pad": "none", "shuffle": False}


def part(folder, first, stop):
    """Write the rows first, ..., stop - 1 of the table of numbers as a file; return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    return write_table(folder / f"rows-{first}.parquet", numbers_table(stop).slice(first))


def make(folder, url, last=3):
    """Make a dataset, and append to it up to a version."""
    wdsplit.convert(part(folder, *ENDS[:2]), url, **PLAN)
    for first, stop in itertools.pairwise(ENDS[1 : last + 1]):
        wdsplit.convert(part(folder, first, stop), url, append=True, shuffle=False)


def labelled(path, names, **columns):
    """Write a table with a key and a text for the class of each row."""
    keys = columns.pop("keys", range(len(names)))
    return write_table(path, {"id": [f"k{key}" for key in keys], "label": names, "x": [1.5] * len(names), **columns})


def classes_by_key(url, **options):
    samples = wdsplit.Samples(url, **options)
    return {each["__key__"]: samples.classes[int(each["cls"])] for each in samples}


def test_each_version_keeps_the_promises_and_stays_as_it_was(place, tmp_path):
    url, folder = place
    before = {}
    for last in (1, 2, 3):
        shutil.rmtree(tmp_path / "parts", ignore_errors=True)
        if last == 1:
            make(tmp_path / "parts", url, 1)
        else:
            rows = part(tmp_path / "parts", *ENDS[last - 1 : last + 1])
            wdsplit.convert(rows, url, append=True, shuffle=False)
        files = files_of(folder)
        changed = {name for name in before if files[name] != before[name]}
        assert changed == ({"wdsplit.json"} if last > 1 else set())
        before = files
    for version, stop in enumerate(ENDS[1:], 1):
        num_batches = -(-stop // 12)
        expected = expected_batches(url, num_batches, epoch=version, version=version)
        for world_size in (1, 3):
            loaders = loaders_of(url, world_size, epoch=version, version=version, seed=0)
            assert {len(loader) for loader in loaders} == {num_batches}
            found = global_batches(loaders)
            assert found == expected
        assert real_rows(batch for step in found for batch in step) == list(range(stop))
        assert wdsplit.verify(url, version=version).problems == ()
        assert len(wdsplit.Samples(url, version=version)) == stop
    assert [(each.number, each.num_samples) for each in wdsplit.list_versions(url)] == list(enumerate(ENDS[1:], 1))
    assert expected == expected_batches(url, num_batches, epoch=3)  # the last version is the latest


@pytest.mark.parametrize(("num_workers", "limit"), [(0, None), (2, 120)])
def test_a_training_that_resumes_stays_on_its_version(tmp_path, num_workers, limit):
    url = str(tmp_path / "train")
    make(tmp_path, url, 1)
    whole = expected_batches(url, 9, version=1)
    (loader,) = loaders_of(url, 1, num_workers=num_workers, limit=limit)
    iterator = iter(loader)
    found = [deliveries(next(iterator)) for _ in range(4)]
    state = loader.state_dict()
    make_more = part(tmp_path, 103, 160), url
    wdsplit.convert(*make_more, append=True, shuffle=False)
    assert found + [deliveries(batch) for batch in iterator] == whole  # under way it is not disturbed
    resumed = loaders_of(url, 2, limit=limit)
    assert len(resumed[0]) == -(-min(limit or 160, 160) // 12)
    with pytest.warns(UserWarning, match="version 1"):
        resumed[0].load_state_dict(state)
    resumed[1].load_state_dict(state)
    assert [len(each) for each in resumed] == [9, 9]
    assert global_batches(resumed) == whole[4:]
    resumed[0].set_epoch(5)
    assert len(resumed[0]) == 9  # later epochs are of that version, too
    assert len(resumed[0].dataset.manifest.history) == 0
    (seen,) = wdsplit.batches(url, last=1, state=state, **({} if limit is None else {"limit": limit}))
    assert [int(key) for key in seen.keys.tolist()] == [row for _, row, _ in whole[3]]


def test_a_state_changes_the_version_only_before_the_first_batch_and_only_if_none_was_chosen(tmp_path):
    url = str(tmp_path / "train")
    make(tmp_path, url, 1)
    (old,) = loaders_of(url, 1)
    next(iter(old))
    state = old.state_dict()
    wdsplit.convert(part(tmp_path, 103, 160), url, append=True)
    (begun,) = loaders_of(url, 1)
    next(iter(begun))
    (chosen,) = loaders_of(url, 1, version=2)
    for loader in (begun, chosen):
        with pytest.raises(StateError, match="version") as raised:
            loader.load_state_dict(state)
        assert "fingerprint" in raised.value.found and "version=1" in raised.value.remedy
    later = begun.state_dict()
    with pytest.raises(StateError, match="fingerprint"):
        old.load_state_dict(later)
    (right,) = loaders_of(url, 1, version=1)
    right.load_state_dict(state)
    assert [deliveries(batch) for batch in right] == expected_batches(url, 9, version=1)[1:]


@pytest.mark.parametrize("version", [0, 4, "2"])
def test_a_version_that_does_not_exist_is_refused(tmp_path, version):
    make(tmp_path, str(tmp_path / "train"), 2)
    for open_it in (wdsplit.Dataset, wdsplit.Samples, wdsplit.inspect, wdsplit.verify):
        with pytest.raises(InputError, match="version"):
            open_it(str(tmp_path / "train"), version=version)
    with pytest.raises(InputError, match="version"):
        wdsplit.Dataset(str(tmp_path / "train" / "*.tar"), version=1)


def test_a_mixture_opens_the_versions_that_it_is_given(tmp_path):
    url, other = str(tmp_path / "train"), str(tmp_path / "other")
    make(tmp_path, url, 2)
    make(tmp_path / "b", other, 1)
    for version, count in ((None, 263), ({url: 1}, 206)):
        dataset = wdsplit.mix(repeat={url: 1, other: 1}, version=version)
        assert dataset.source.num_samples == count
    for version in ({"unknown": 1}, 1):
        with pytest.raises(InputError, match="version"):
            wdsplit.mix(repeat={url: 1, other: 1}, version=version)


def test_keys_are_numbered_on_and_no_number_comes_again(tmp_path):
    url = str(tmp_path / "train")
    make(tmp_path, url)
    rows = [{"cls": number, "txt": "x"} for number in range(5)]
    wdsplit.convert(iter(rows), url, append=True, limit=2)
    wdsplit.convert(iter(rows), url, append=True)
    keys = sorted(each["__key__"] for each in wdsplit.Samples(url))
    assert keys == [f"{key:08d}" for key in [*range(163), *range(166, 171)]]  # 2 of 5 rows were selected
    assert [each.next_key for each in wdsplit.list_versions(url)] == [103, 160, 161, 166, 171]


def test_running_an_append_again_appends_nothing_and_old_inputs_are_refused(tmp_path, caplog):
    url = str(tmp_path / "train")
    make(tmp_path, url, 2)
    before = files_of(url)
    done("convert", part(tmp_path, 103, 160), url, "--append", "--no-shuffle")
    assert "version 2 has added these rows already" in caplog.text
    assert "version 1" in refused(2, "convert", part(tmp_path, 0, 103), url, "--append")
    both = [part(tmp_path, 103, 160), part(tmp_path, 200, 210)]
    assert "version 2" in refused(2, "convert", *both, url, "--append")
    assert files_of(url) == before


def test_classes_only_grow_and_keep_their_numbers(tmp_path):
    url = str(tmp_path / "train")
    wdsplit.convert(labelled(tmp_path / "a.parquet", ["dog", "cat", "dog"] * 4), url, key="id")
    new = ["ant", "cat", "zebra", "dog"]
    made = wdsplit.convert(labelled(tmp_path / "b.parquet", new, keys=range(50, 54)), url, append=True)
    assert made.class_names == {"cls": ("cat", "dog", "ant", "zebra")}
    assert wdsplit.Dataset(url, version=1).classes == ("cat", "dog")
    expected = {f"k{row}": ("dog", "cat", "dog")[row % 3] for row in range(12)}
    assert classes_by_key(url, version=1) == expected
    assert classes_by_key(url) == expected | {f"k{50 + row}": name for row, name in enumerate(new)}
    chosen = wdsplit.Samples(url, where="label == 'ant' or label == 'cat'")
    assert len(chosen) == 6  # sample tables have the same numbers
    assert "4 classes" in done("inspect", url, "--samples", "0").out
    made = wdsplit.convert(labelled(tmp_path / "c.parquet", ["cat"], keys=[99]), url, append=True)
    assert made.class_names == {"cls": ("cat", "dog", "ant", "zebra")}


def test_folders_of_images_keep_the_numbers_of_their_classes_and_bring_new_ones(tmp_path):
    url, folders = str(tmp_path / "train"), [tmp_path / name for name in "abcde"]
    write_files(folders[0], "cat/1.jpg", "cat/2.jpg", "dog/3.jpg")
    wdsplit.convert(folders[0], url, shards=1)
    write_files(folders[1], "zebra/4.jpg", "cat/5.jpg")
    wdsplit.convert(folders[1], url, append=True)
    write_files(folders[2], "dog/6.jpg", "ant/7.jpg")
    write_files(folders[3], "dog/8.jpg")  # alone: else one folder is no class
    made = wdsplit.convert([folders[2], folders[3]], url, append=True)
    assert made.class_names == {"cls": ("cat", "dog", "zebra", "ant")}
    found = {each["jpg"][3:8]: made.class_names["cls"][int(each["cls"])] for each in wdsplit.Samples(url)}
    names = [name for folder in folders for name in ([each.parent.name, each.stem] for each in folder.glob("*/*"))]
    assert found == {f"{name}/{stem}.jpg".encode()[:5]: name for name, stem in names}
    assert len(wdsplit.Samples(url, where="label == 'dog'")) == 3
    write_files(folders[4], "more/dog/9.jpg")
    with pytest.raises(InputError, match="label"):
        wdsplit.convert(folders[4], url, append=True)


def test_tars_are_appended_to_tars_that_were_indexed(tmp_path):
    """The sample tables of these have sizes of images in any case."""
    url, new = tmp_path / "train", tmp_path / "new"
    for folder, rows in ((url, range(5)), (new, range(5, 9))):
        folder.mkdir()
        members = [(f"k{row}.txt", b"row %d" % row) for row in rows]
        (folder / "0.tar").write_bytes(by_tarfile(members))
    wdsplit.index_tars(str(url))
    wdsplit.convert(new, str(url), append=True)
    assert sorted(each["txt"] for each in wdsplit.Samples(str(url))) == [b"row %d" % row for row in range(9)]
    assert wdsplit.verify(str(url)).problems == ()


@pytest.mark.parametrize(
    ("columns", "key", "found"),
    [
        ({"keys": [40, 3, 41]}, "", "k3"),  # of the first version
        ({"keys": [40, 21, 41]}, "", "k21"),  # of an appended one
        ({"keys": [40, 41, 40]}, "", "k40"),
        ({"label": [1, 2, 3]}, "int64", "label"),
        ({"x": [1, 2, 3]}, "int64", "x"),
        ({"x": pa.array([[1.0]] * 3)}, "list", "x"),
        ({"image": [PNG] * 3}, "binary", "image"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name_before_anything_is_written(tmp_path, columns, key, found):
    url = str(tmp_path / "train")
    image = {"bytes": PNG, "path": None}
    wdsplit.convert(labelled(tmp_path / "a.parquet", ["dog", "cat", "dog"] * 4, image=[image] * 12), url, key="id")
    more = labelled(tmp_path / "b.parquet", ["dog", "cat"], keys=[20, 21], image=[image] * 2)
    wdsplit.convert(more, url, append=True)
    before = files_of(url)
    columns = {"keys": range(60, 63), "image": [image] * 3, **columns}
    new = labelled(tmp_path / "c.parquet", ["dog", "cat", "dog"], **columns)
    with pytest.raises(InputError) as raised:
        wdsplit.convert(new, url, append=True)
    assert found in str(raised.value) and key in str(raised.value)
    assert files_of(url) == before


def test_missing_columns_options_of_the_dataset_and_missing_datasets_are_refused(tmp_path):
    url, table = str(tmp_path / "train"), pa.table({"id": ["k70"], "label": ["dog"]})
    wdsplit.convert(labelled(tmp_path / "a.parquet", ["dog", "cat", "dog"] * 4), url, key="id")
    before = files_of(url)
    for rows, column in ((table, "'x'"), (pa.table({"label": ["dog"], "x": [1.0]}), "'id'")):
        with pytest.raises(InputError, match=column):
            wdsplit.convert(rows, url, append=True)
    for name, value in {"lanes": 3, "splits": {"a": 1.0}, "mapping": {"txt": "x"}, "overwrite": True}.items():
        with pytest.raises(InputError, match=name):
            wdsplit.convert(table, url, append=True, **{name: value})
    with pytest.raises(DatasetNotFoundError):
        wdsplit.convert(table, str(tmp_path / "nothing"), append=True)
    assert files_of(url) == before and not (tmp_path / "nothing").exists()


def test_the_shards_of_an_append_have_the_size_of_the_dataset_and_the_bytes_do_not_depend_on_jobs(tmp_path):
    url, rows = tmp_path / "train", part(tmp_path, 200, 300)
    make(tmp_path, str(url), 1)
    shutil.copytree(url, tmp_path / "copy")
    made = wdsplit.convert(rows, str(url), append=True)
    again = wdsplit.convert(rows, str(tmp_path / "copy"), append=True, jobs=3)
    sizes, num_old = made.shards.column("num_bytes"), 5
    assert sizes[num_old:].max() < 2 * sizes[:num_old].max()
    assert again.fingerprint == made.fingerprint
    large = wdsplit.convert(part(tmp_path, 400, 4000), str(url), append=True)
    assert len(large.shards) - len(made.shards) <= PLAN["lanes"] + 1  # of much more data, as many as the lanes need
    fixed = wdsplit.convert(part(tmp_path, 5000, 5100), str(url), append=True, samples_per_shard=10)
    assert len(fixed.shards) - len(large.shards) == 10


def test_index_files_list_the_shards_of_the_latest_version(tmp_path):
    url = tmp_path / "train"
    wdsplit.convert(part(tmp_path, 0, 103), str(url), **PLAN, emit=("wids", "dali", "energon"))
    made = wdsplit.convert(part(tmp_path, 103, 160), str(url), append=True)
    paths = made.shards.table.column("path").to_pylist()
    listed = orjson.loads((url / "wids.json").read_bytes())["shardlist"]
    assert [each["url"] for each in listed] == paths
    assert list(orjson.loads((url / ".nv-meta" / ".info.json").read_bytes())["shard_counts"]) == paths
    assert all((url / path.replace(".tar", ".idx")).exists() for path in paths)


def test_overwriting_replaces_all_versions_but_no_file_of_others(tmp_path):
    url = tmp_path / "train"
    make(tmp_path, str(url))
    (url / "added" / "mine").mkdir()
    with pytest.raises(WdsplitError, match="added"):
        wdsplit.convert(part(tmp_path, 0, 103), str(url), **PLAN, overwrite=True)
    (url / "added" / "mine").rmdir()
    wdsplit.convert(part(tmp_path, 0, 103), str(url), **PLAN, overwrite=True)
    make(tmp_path / "b", str(tmp_path / "new"), 1)
    assert files_of(url).keys() == files_of(tmp_path / "new").keys()


# Views and annotations


def test_a_view_is_extended_and_stays_for_its_version(tmp_path):
    url = str(tmp_path / "train")
    make(tmp_path, url, 1)
    wdsplit.make_view(url, "odd", where="cls >= 50", repeat=None)
    wdsplit.make_view(url, "late", view="odd", where="cls >= 90")
    wdsplit.make_view(url, "pairs", where="cls < 3 or cls > 150", group="cls", size=2, allow_pads=True)
    (loader,) = loaders_of(url, 1, view="odd")
    batches = [deliveries(batch) for batch in loader]
    state = loader.state_dict() | {"epoch": 0, "position": 12, "view": "odd"}
    state |= {"view_fingerprint": loader.dataset.source.view_at(0).fingerprint}
    state.pop("previous")
    wdsplit.convert(part(tmp_path, 103, 160), url, append=True, shuffle=False)
    assert wdsplit.verify(url).problems == ()
    with pytest.raises(InputError, match="version 1") as raised:
        wdsplit.Dataset(url, view="odd")
    assert "--update" in raised.value.remedy and "version=1" in raised.value.remedy
    assert "made for version 1" in done("inspect", url, "--samples", 0).out
    with pytest.raises(InputError, match="odd"):
        wdsplit.make_view(url, "late", update=True)  # the view that it selects from comes first
    pairs = wdsplit.Loader(wdsplit.Dataset(url, view="pairs", version=1, rank=0, world_size=1), 1).state_dict()
    for name in ("odd", "late", "pairs"):
        done("view", url, name, "--update")
    assert wdsplit.list_views(url)["pairs"].recipe["pads"] == 12, "as many are allowed as before"
    for name, low in (("odd", 50), ("late", 90)):
        for version, stop in ((1, 103), (2, 160)):
            (loader,) = loaders_of(url, 1, view=name, version=version)
            assert real_rows(all_deliveries(loader)) == list(range(low, stop))
    (loader,) = loaders_of(url, 1, view="odd")
    with pytest.warns(UserWarning, match="version 1"):
        loader.load_state_dict(state)
    assert [deliveries(batch) for batch in loader] == batches[1:]
    with pytest.warns(UserWarning, match=r"its 3 samples in 3 groups are read; .* has 12 samples in 12 groups"):
        wdsplit.Loader(wdsplit.Dataset(url, view="pairs", rank=0, world_size=1), 1).load_state_dict(pairs)
    for version in (1, 2):
        assert wdsplit.verify(url, version=version).problems == ()
    wdsplit.drop_view(url, "odd")
    with pytest.raises(InputError, match="odd"):
        wdsplit.Dataset(url, view="odd", version=1)
    wdsplit.make_view(url, "odd", where="cls >= 50")
    with pytest.raises(InputError, match="'odd' was made for version 2 of the dataset") as raised:
        wdsplit.Dataset(url, view="odd", version=1)
    assert raised.value.remedy == "open the dataset with version=2"


def test_a_view_of_keys_cannot_be_updated_and_an_annotation_says_which_version_it_covers(tmp_path):
    url = str(tmp_path / "train")
    make(tmp_path, url, 1)
    wdsplit.make_view(url, "some", keys=["00000003"])
    pq.write_table(pa.table({"key": [f"{key:08d}" for key in range(103)], "score": range(103)}), tmp_path / "s.parquet")
    wdsplit.annotate(url, str(tmp_path / "s.parquet"), key="key", name="scores")
    wdsplit.convert(part(tmp_path, 103, 160), url, append=True)
    assert "--overwrite" in refused(2, "view", url, "some", "--update")
    with pytest.raises(InputError, match="where"):
        wdsplit.make_view(url, "some", where="cls > 3", update=True)
    with pytest.raises(InputError, match="version 1"):
        wdsplit.Dataset(url, where="score > 5")
    assert len(wdsplit.Samples(url, where="score >= 5", version=1)) == 98
    assert wdsplit.verify(url).problems == ()


# Interrupted and concurrent writers


def test_a_version_whose_writer_ended_before_the_last_file_is_finished_by_the_next(tmp_path):
    url = tmp_path / "train"
    make(tmp_path, str(url), 1)
    first = (url / "wdsplit.json").read_bytes()
    wdsplit.convert(part(tmp_path, 103, 160), str(url), append=True, shuffle=False)
    whole = files_of(url)
    (url / "wdsplit.json").write_bytes(first)
    assert len(wdsplit.Samples(str(url))) == 103 and len(wdsplit.Samples(str(url), version=2)) == 160
    assert [each.number for each in wdsplit.list_versions(str(url))] == [1, 2]
    wdsplit.convert(part(tmp_path, 103, 160), str(url), append=True, shuffle=False)
    assert files_of(url) == whole
    (url / "wdsplit.json").write_bytes(first)
    made = wdsplit.convert(part(tmp_path, 160, 161), str(url), append=True)
    assert (made.version, made.num_samples) == (3, 161)


def test_of_two_writers_on_one_machine_one_is_refused(tmp_path):
    url = str(tmp_path / "train")
    make(tmp_path, url, 1)

    def append_another(progress):
        with pytest.raises(StorageError, match="another process"):
            wdsplit.convert(part(tmp_path, 160, 161), url, append=True)

    wdsplit.convert(part(tmp_path, 103, 160), url, progress=append_another, append=True)
    assert [each.num_samples for each in wdsplit.list_versions(url)] == [103, 160]


def test_of_two_writers_that_see_no_lock_one_makes_the_version(place, tmp_path):
    url, _ = place
    make(tmp_path, url, 1)
    won = []

    def win(progress):
        """Make version 2 as a writer on another machine would, while this one writes."""
        if progress.name == "write" and progress.done == progress.total and not won:
            won.append(True)
            manifest, entries = read_manifest(open_storage(url)), wdsplit.list_versions(url)
            later = dataclasses.replace(entries[0], number=2, source="other")
            assert write_version(open_storage(url), dataclasses.replace(manifest, history=(*entries, later)))

    with pytest.raises(ConvertError, match="version 2"):
        wdsplit.convert(part(tmp_path, 103, 160), url, progress=win, append=True, shuffle=False)
    assert [each.source for each in wdsplit.list_versions(url)] == ["", "other"]
    made = wdsplit.convert(part(tmp_path, 103, 160), url, append=True, shuffle=False)
    assert (made.version, made.num_samples) == (3, 160)
    assert sorted(int(each["cls"]) for each in wdsplit.Samples(url)) == list(range(160))


def test_an_append_that_was_stopped_continues(tmp_path):
    url = tmp_path / "train"
    make(tmp_path, str(url), 1)
    shutil.copytree(url, tmp_path / "undisturbed")
    rows = part(tmp_path, 200, 1400)
    before = files_of(url)
    with stopped_at(done=2) as stop:
        wdsplit.convert(rows, str(url), progress=stop, append=True)
    assert {name: data for name, data in files_of(url).items() if not name.startswith("added/")} == before
    assert len(wdsplit.Samples(str(url))) == 103
    seen = []
    wdsplit.convert(rows, str(url), progress=seen.append, append=True)
    assert max(progress.skipped for progress in seen) >= 2
    wdsplit.convert(rows, str(tmp_path / "undisturbed"), append=True)
    tars = [name for name in files_of(url) if name.endswith((".tar", ".places", ".parquet"))]
    assert [files_of(url)[name] for name in tars] == [files_of(tmp_path / "undisturbed")[name] for name in tars]
    assert np.array_equal(read_manifest(open_storage(str(url))).shards.num_real[:5], [21, 21, 21, 20, 20])
    assert len(all_samples(url)) == 103  # a pattern of the folder's own tars
