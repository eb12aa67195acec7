import dataclasses
import itertools
import json
import logging
import os
import shutil
import tarfile
import time
from functools import partial

import pytest
import webdataset

import wdsplit
from commands import run
from made_datasets import numbers_dataset
from stops import is_killed_in
from tables import files_below, files_of, sample_offsets
from tars import by_tarfile, gnu_tar
from wdsplit.checks.audit import AuditOptions, audit
from wdsplit.checks.verify import verify
from wdsplit.conversion import adopt_tars
from wdsplit.conversion.adopt_tars import index_tars
from wdsplit.conversion.plan.options import IndexOptions
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, OutputExistsError, StorageError
from wdsplit.indexing import tars
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import HEADER_NAME, RUN_FOLDER, SHARDS_NAME
from wdsplit.shards.places import places_path, read_places
from wdsplit.shards.sample_tables import samples_path
from wdsplit.storage.opening import open_storage

COUNTS = (5, 1, 12)


def written_by_webdataset(path, keys):
    with webdataset.TarWriter(str(path)) as writer:
        for key in keys:
            writer.write({"__key__": key, "txt": f"text of {key}", "cls": len(key)})


def written_by_tarfile(path, keys, format=tarfile.PAX_FORMAT):
    members = [(f"{key}.{field}", f"{field} of {key}".encode()) for key in keys for field in ("JPG", "cls")]
    path.write_bytes(by_tarfile(members, format))


def written_by_gnu_tar(path, keys, format):
    source = path.with_suffix(".in")
    for key in keys:
        (source / key).parent.mkdir(parents=True, exist_ok=True)
        for field in ("txt", "cls"):
            (source / f"{key}.{field}").write_text(f"{field} of {key}")
    gnu_tar("-cf", str(path), f"--format={format}", "--sort=name", ".", cwd=source)
    shutil.rmtree(source)


WRITERS = {
    "ShardWriter": written_by_webdataset,
    "tarfile, ustar": partial(written_by_tarfile, format=tarfile.USTAR_FORMAT),
    "tarfile, pax": written_by_tarfile,
    "tarfile, gnu": partial(written_by_tarfile, format=tarfile.GNU_FORMAT),
    **{f"GNU tar, {format}": partial(written_by_gnu_tar, format=format) for format in ("gnu", "pax", "v7")},
}


def tars_of(folder, write=written_by_webdataset, counts=COUNTS, names=None):
    """Write tars of these numbers of samples into a folder, some of them below it, with keys of all kinds."""
    first = 0
    for number, count in enumerate(counts):
        path = folder / (names[number] if names else ("part-{}.tar", "sub/größe {}.tar")[number % 2].format(number))
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path, [f"d.x/key {row:04d}-ü" for row in range(first, first + count)])
        first += count
    return folder


@pytest.fixture
def folder(tmp_path):
    """Return a folder of uneven tars as webdataset writes them."""
    return tars_of(tmp_path / "data")


def tars_in(folder):
    return {path: path.read_bytes() for path in sorted(folder.rglob("*.tar"))}


def by_key(samples):
    """Return fields by keys, which tars of GNU tar begin with `./`."""
    found = {}
    for sample in samples:
        key = sample["__key__"].removeprefix("./")
        assert key not in found
        found[key] = {name: value for name, value in sample.items() if not name.startswith("__")}
    return found


def by_loader(folder, **options):
    """Return the samples of an epoch as our loader reads them."""
    dataset = wdsplit.Dataset(str(folder), rank=0, world_size=1, **options)
    loader = wdsplit.Loader(dataset, batch_size=4, collate_fn=list)
    return by_key(sample for batch in loader for sample in batch if not sample["__pad__"])


def by_webdataset(folder):
    """Return the samples of all tars as webdataset reads them."""
    shards = webdataset.SimpleShardList([str(path) for path in sorted(folder.rglob("*.tar"))])
    return by_key(webdataset.DataPipeline(shards, webdataset.tarfile_to_samples()))


def assert_indexed(folder):
    """Check that the index of each tar is what the standard library finds in it."""
    storage = open_storage(str(folder))
    manifest = read_manifest(storage)
    assert len(manifest.shards) == len(tars_in(folder))
    for number in range(len(manifest.shards)):
        shard = manifest.shards[number]
        places = read_places(storage, shard, manifest.field_names)
        assert places.offsets().tolist() == sample_offsets(folder / shard.path)


# What it makes


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("name", WRITERS)
def test_tars_of_any_writer_are_read_by_the_loader_as_by_webdataset(tmp_path, name):
    folder = tars_of(tmp_path / "data", WRITERS[name])
    before = tars_in(folder)
    manifest = index_tars(folder)
    assert tars_in(folder) == before
    assert by_loader(folder) == by_webdataset(folder)
    assert len(by_loader(folder, shuffle=False)) == manifest.num_samples == sum(COUNTS)
    if "GNU tar" not in name:  # whose tars have members for folders
        assert_indexed(folder)
    assert verify(str(folder)).problems == ()


def test_the_manifest_tells_of_each_tar_in_the_order_of_the_paths(folder):
    told = []
    manifest = index_tars(str(folder), IndexOptions(world_size=2, workers=3, jobs=2), told.append)
    assert [(each.tars, each.num_tars) for each in told] == [(number, 3) for number in range(4)]
    assert (told[-1].samples, told[-1].num_bytes) == (18, sum(map(len, tars_in(folder).values())))
    again = read_manifest(open_storage(str(folder)))
    tars = {"part-0.tar": 5, "part-2.tar": 12, "sub/größe 1.tar": 1}
    assert [dataclasses.astuple(again.shards[row])[:4] for row in range(3)] == [
        (name, count, 0, (folder / name).stat().st_size) for name, count in tars.items()
    ]
    assert [dataclasses.astuple(field)[:4] for field in again.fields] == [
        (name, name, "bytes", "binary") for name in ("cls", "txt")
    ]
    assert (again.lanes, again.window, again.pad) == (18, 1024, "none")
    assert again.fingerprint == manifest.fingerprint
    beside = [*map(places_path, tars), *map(samples_path, tars)]
    assert files_below(folder) == sorted([*tars, *beside, SHARDS_NAME, HEADER_NAME])


def test_hidden_and_temporary_files_are_no_shards(folder):
    (folder / ".hidden").mkdir()
    written_by_webdataset(folder / ".hidden" / "a.tar", ["hidden"])
    written_by_webdataset(folder / ".a.tar", ["hidden"])
    (folder / ".part-9.tar.12-3.tmp").write_bytes(b"half a tar")
    (folder / "sub" / ".größe 1.tar.places.12-3.tmp").write_bytes(b"half an index")
    (folder / "notes.txt").write_text("no tar")
    (folder / "folder.tar").mkdir()
    assert len(index_tars(folder).shards) == 3
    assert not list(folder.rglob("*.places.*.tmp")), "what killed attempts have left is cleared up"


def test_tars_that_wdsplit_wrote_are_adopted_and_their_pads_are_pads(tmp_path):
    path = numbers_dataset(tmp_path, 101, shards=7)
    folder, before = open_storage(path).root, read_manifest(open_storage(path))
    files = {name: (folder / name).read_bytes() for name in files_below(folder) if name.endswith(".tar")}
    (folder / HEADER_NAME).unlink()
    (folder / "000003.tar.places").unlink()
    manifest = index_tars(folder)
    assert manifest.num_pads == before.num_pads == 4
    assert manifest.fingerprint == before.fingerprint
    assert {name: (folder / name).read_bytes() for name in files} == files
    assert verify(path).problems == ()


@pytest.mark.parametrize("blocks", [0, 9])
def test_files_that_name_no_sample_are_left_out_with_a_warning(tmp_path, caplog, blocks):
    """And a tar may end as its writer likes."""
    members = [("README", b"1"), ("a.jpg", b"2"), ("__meta__/x.json", b"3"), ("b.jpg", b"4"), ("._b.jpg", b"5")]
    (tmp_path / "a.tar").write_bytes(by_tarfile(members)[: 2 * 512 * len(members)] + bytes(512 * blocks))
    with caplog.at_level(logging.WARNING, "wdsplit"):
        manifest = index_tars(tmp_path)
    [record] = caplog.records
    names = f"README, __meta__/x.json, ._b.jpg in {tmp_path}/a.tar"
    assert record.getMessage() == f"left out 3 files in the tars that belong to no sample, such as {names}"
    assert manifest.provenance["num_left_out"] == 3
    assert by_loader(tmp_path) == {"a": {"jpg": b"2"}, "b": {"jpg": b"4"}}
    assert verify(str(tmp_path)).problems == ()


def test_the_promises_hold_for_uneven_tars(folder):
    index_tars(folder, IndexOptions(world_size=3, workers=2))
    options = AuditOptions(world_size=3, num_workers=2, batch_size=2, read=True)
    findings = audit(str(folder), options).findings
    assert findings and all(finding.held for finding in findings)


# What it refuses


def test_a_folder_without_tars_is_refused(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    for name in ("nothing", "empty", "data/part-0.tar"):
        with pytest.raises(DatasetNotFoundError, match="no tars") as caught:
            index_tars(tmp_path / name)
        assert caught.value.place == str(tmp_path / name)
    assert files_below(tmp_path / "empty") == []


TWO_KEYS = by_tarfile([("a.jpg", b""), ("b.jpg", b""), ("a.cls", b"")])


@pytest.mark.parametrize(
    ("name", "data", "kind", "cause"),
    [
        ("part-1.tar", b"", InputError, "no samples"),
        ("part-1.tar", bytes(10_240), InputError, "no samples"),
        ("part-1.tar", by_tarfile([("README", b"1")]), InputError, "no samples"),
        ("sub/größe 1.tar", by_tarfile([("a.jpg", bytes(2000))])[:2000], CorruptDataError, ""),
        ("sub/größe 1.tar", by_tarfile([("a.jpg", b"")]) * 2, InputError, ""),
        ("sub/größe 1.tar", TWO_KEYS, InputError, ""),
        ("z.tar", by_tarfile([("new.jpg", b""), ("d.x/key 0005-ü.jpg", b"")]), InputError, "duplicate key"),
    ],
)
def test_a_tar_that_cannot_be_adopted_is_named(folder, name, data, kind, cause):
    path = folder / name
    path.write_bytes(data)
    with pytest.raises(kind, match=cause or None) as caught:
        index_tars(folder)
    assert caught.value.place.startswith(str(path)) and caught.value.remedy
    if cause == "duplicate key":
        assert caught.value.key == "d.x/key 0005-ü"
        assert str(folder / "sub" / "größe 1.tar") in caught.value.found
        assert "wdsplit convert" in caught.value.remedy
    else:
        assert caught.value.url == str(path)
    assert not (folder / HEADER_NAME).exists() and not (folder / RUN_FOLDER).exists()


def test_a_name_that_no_manifest_takes_is_refused(folder):
    os.rename(folder / "part-0.tar", folder / "b\udcff.tar")
    with pytest.raises(InputError, match="invalid name of a tar") as caught:
        index_tars(folder)
    assert str(folder) in caught.value.place
    assert not list(folder.rglob("*.places"))


def test_a_tar_that_is_written_to_while_it_is_read_is_refused(folder, monkeypatch):
    def scan_and_touch(data):
        os.utime(folder / "part-0.tar", ns=(1, 1))
        return scan_tar(data)

    scan_tar = tars.scan_tar
    monkeypatch.setattr(tars, "scan_tar", scan_and_touch)
    with pytest.raises(InputError, match="changed while it was read") as caught:
        index_tars(folder)
    assert caught.value.url == str(folder / "part-0.tar")
    assert not list(folder.rglob("*.places"))


# What is there already


def test_a_dataset_is_replaced_only_if_asked_for(folder):
    index_tars(folder)
    before = files_of(folder)
    with pytest.raises(OutputExistsError, match="already a dataset"):
        index_tars(folder)
    assert files_of(folder) == before
    assert index_tars(folder, IndexOptions(lanes=3, overwrite=True)).lanes == 3
    assert read_manifest(open_storage(str(folder))).lanes == 3
    written_by_tarfile(folder / "z.tar", ["d.x/key 0005-ü"])
    with pytest.raises(InputError, match="duplicate key"):
        index_tars(folder, IndexOptions(overwrite=True))
    assert len(by_loader(folder)) == sum(COUNTS), "it stays as long as its indexes do"


def test_a_converted_dataset_is_never_replaced_whatever_of_its_manifest_is_damaged(tmp_path):
    folder = open_storage(numbers_dataset(tmp_path, 20, shards=2)).root
    for name, error in ((SHARDS_NAME, OutputExistsError), (HEADER_NAME, CorruptDataError)):
        (folder / name).write_bytes(b"damaged")
        before = files_of(folder)
        with pytest.raises(error, match="convert") as caught:
            index_tars(folder, IndexOptions(overwrite=True))
        assert str(folder) in str(caught.value)
        assert files_of(folder) == before


def test_another_index_is_replaced_only_if_asked_for_and_one_that_is_right_left_as_it_is(folder):
    index = folder / "part-2.tar.places"
    index.mkdir()
    with pytest.raises(StorageError, match="refused") as caught:
        index_tars(folder)
    assert str(folder) in caught.value.place
    index.rmdir()
    index.write_bytes(b"of another program")
    with pytest.raises(OutputExistsError, match="not one of wdsplit's") as caught:
        index_tars(folder)
    assert caught.value.url == str(index)
    assert index.read_bytes() == b"of another program"
    assert not (folder / HEADER_NAME).exists()
    index_tars(folder, IndexOptions(overwrite=True))
    assert_indexed(folder)
    (folder / HEADER_NAME).unlink()
    os.utime(index, ns=(1, 1))
    index_tars(folder)
    assert index.stat().st_mtime_ns == 1


def test_a_header_never_stands_for_another_index(folder):
    index_tars(folder)
    written_by_webdataset(folder / "part-0.tar", ["one", "two"])
    written_by_tarfile(folder / "z.tar", ["one"])
    with pytest.raises(InputError, match="duplicate key"):
        index_tars(folder, IndexOptions(overwrite=True))
    assert not (folder / HEADER_NAME).exists()


def test_the_header_of_before_is_gone_when_the_manifest_is_written(folder, monkeypatch):
    def killed(storage, manifest):
        raise KeyboardInterrupt

    index_tars(folder)
    monkeypatch.setattr(adopt_tars, "write_manifest", killed)
    with pytest.raises(KeyboardInterrupt):
        index_tars(folder, IndexOptions(overwrite=True))
    assert not (folder / HEADER_NAME).exists()
    assert not (folder / RUN_FOLDER).exists()


def test_an_unfinished_conversion_and_another_process_are_left_alone(folder):
    with open_storage(str(folder)).lock(f"{RUN_FOLDER}/lock"), pytest.raises(StorageError, match="another process"):
        index_tars(folder)
    (folder / RUN_FOLDER).mkdir(exist_ok=True)
    (folder / RUN_FOLDER / "plan.json").write_text("{}")
    for overwrite in (False, True):
        with pytest.raises(OutputExistsError, match="unfinished"):
            index_tars(folder, IndexOptions(overwrite=overwrite))
    assert (folder / RUN_FOLDER / "plan.json").exists()


INDEX = """
import sys
from wdsplit.conversion.adopt_tars import index_tars
from wdsplit.conversion.plan.options import IndexOptions

if __name__ == "__main__":
    print("ready", flush=True)
    index_tars(sys.argv[1], IndexOptions(overwrite=True))
"""


@pytest.mark.slow
def test_killed_at_any_moment_it_leaves_a_whole_dataset_or_none(tmp_path):
    counts = [3] * 40
    folder = tars_of(tmp_path / "data", written_by_tarfile, counts, [f"{number:03d}.tar" for number in range(40)])
    index_tars(folder)
    began = time.monotonic()
    index_tars(folder, IndexOptions(overwrite=True))
    duration_s = time.monotonic() - began
    kills, parts = 0, itertools.cycle((0.1, 1.2, 0.3, 0.6, 0.9))
    while kills < 4:
        for path in folder.glob("*.places"):
            path.write_bytes(b"another index")
        was_killed = is_killed_in(next(parts) * duration_s, INDEX, folder)
        kills, duration_s = kills + was_killed, duration_s if was_killed else 0.9 * duration_s
        replaced = sum(path.read_bytes() != b"another index" for path in folder.glob("*.places"))
        assert not (folder / HEADER_NAME).exists() or replaced in (0, 40)
    index_tars(folder, IndexOptions(overwrite=True))
    assert verify(str(folder)).problems == ()


# The command


def test_the_command_says_what_it_made_or_what_cannot_be_without_a_traceback(folder):
    code, out, err = run("index", folder, "--jobs", 1)
    assert (code, err) == (0, "")
    for text in (f"{folder}: 3 shards, 18 samples, 0 pads", "fields: cls, txt", "lanes 16, window 1024"):
        assert text in out
    code, out, err = run("index", folder, "--jobs", 2, "--overwrite", "--lanes", 4, "--window", 9, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "dataset": str(folder),
        "shards": 3,
        "samples": 18,
        "pads": 0,
        "bytes": sum(map(len, tars_in(folder).values())),
        "lanes": 4,
        "window": 9,
        "fields": ["cls", "txt"],
        "left_out": 0,
    }
    for data, expected, said in ((None, 2, "--overwrite"), (b"x" * 512, 1, "x.tar"), (b"", 2, "x.tar")):
        if data is not None:
            (folder / HEADER_NAME).unlink(missing_ok=True)
            (folder / "x.tar").write_bytes(data)
        code, out, err = run("index", folder, "--jobs", 1)
        assert (code, out) == (expected, "")
        assert err.startswith("error: ") and said in err and "remedy: " in err
