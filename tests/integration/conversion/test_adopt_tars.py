import dataclasses
import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
import webdataset
import xxhash

import wdsplit
from made_datasets import numbers_dataset
from tables import files_below, sample_offsets, session_processes, start_script, wait_until
from tars import by_tarfile, gnu_tar
from wdsplit.checks.audit import AuditOptions, audit
from wdsplit.checks.verify import verify
from wdsplit.cli.main import main
from wdsplit.conversion import adopt_tars
from wdsplit.conversion.adopt_tars import index_tars
from wdsplit.conversion.plan.options import IndexOptions
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, OutputExistsError, StorageError
from wdsplit.indexing import tars
from wdsplit.shards.files import read_manifest
from wdsplit.shards.manifest import HEADER_NAME, RUN_FOLDER, SHARDS_NAME
from wdsplit.shards.places import places_path
from wdsplit.storage.opening import open_storage
from wdsplit.tar.places import parse_places

COUNTS = (5, 1, 12)


def written_by_webdataset(path, keys):
    with webdataset.TarWriter(str(path)) as writer:
        for key in keys:
            writer.write({"__key__": key, "txt": f"text of {key}", "cls": len(key)})


def written_by_tarfile(path, keys, format=tarfile.PAX_FORMAT):
    members = [(f"{key}.{field}", f"{field} of {key}".encode()) for key in keys for field in ("JPG", "cls")]
    path.write_bytes(by_tarfile(members, format))


def written_by_gnu_tar(path, keys, format="gnu"):
    source = path.with_suffix(".in")
    for key in keys:
        (source / key).parent.mkdir(parents=True, exist_ok=True)
        for field in ("txt", "cls"):
            (source / f"{key}.{field}").write_text(f"{field} of {key}")
    gnu_tar("-cf", str(path), f"--format={format}", "--sort=name", ".", cwd=source)
    shutil.rmtree(source)


WRITERS = {
    "ShardWriter": written_by_webdataset,
    "tarfile, ustar": lambda path, keys: written_by_tarfile(path, keys, tarfile.USTAR_FORMAT),
    "tarfile, pax": written_by_tarfile,
    "tarfile, gnu": lambda path, keys: written_by_tarfile(path, keys, tarfile.GNU_FORMAT),
    "GNU tar, gnu": written_by_gnu_tar,
    "GNU tar, pax": lambda path, keys: written_by_gnu_tar(path, keys, "pax"),
    "GNU tar, v7": lambda path, keys: written_by_gnu_tar(path, keys, "v7"),
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


def by_loader(folder, **options):
    """Return the samples of an epoch as our loader reads them, by their keys."""
    dataset = wdsplit.Dataset(str(folder), rank=0, world_size=1, **options)
    loader = wdsplit.Loader(dataset, batch_size=4, collate_fn=list)
    samples = [sample for batch in loader for sample in batch if not sample["__pad__"]]
    assert len({sample["__key__"] for sample in samples}) == len(samples)
    return {sample["__key__"]: fields_of(sample) for sample in samples}


def by_webdataset(folder):
    """Return the samples of all tars as webdataset reads them, by their keys, without a leading `./`."""
    pipeline = webdataset.DataPipeline(
        webdataset.SimpleShardList([str(path) for path in sorted(folder.rglob("*.tar"))]),
        webdataset.tarfile_to_samples(),
    )
    return {sample["__key__"].removeprefix("./"): fields_of(sample) for sample in pipeline}


def fields_of(sample):
    return {name: value for name, value in sample.items() if not name.startswith("__")}


# What it makes


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_tars_of_any_writer_are_read_by_the_loader_as_by_webdataset(tmp_path, write):
    folder = tars_of(tmp_path / "data", write)
    before = tars_in(folder)
    manifest = index_tars(folder)
    assert tars_in(folder) == before
    assert by_loader(folder) == by_webdataset(folder)
    assert len(by_loader(folder, shuffle=False)) == manifest.num_samples == sum(COUNTS)
    assert verify(str(folder)).problems == ()


def test_the_manifest_tells_of_each_tar_in_the_order_of_the_paths(folder):
    manifest = index_tars(str(folder), IndexOptions(world_size=2, workers=3))
    again = read_manifest(open_storage(str(folder)))
    assert [dataclasses.astuple(again.shards[row])[:4] for row in range(3)] == [
        ("part-0.tar", 5, 0, (folder / "part-0.tar").stat().st_size),
        ("part-2.tar", 12, 0, (folder / "part-2.tar").stat().st_size),
        ("sub/größe 1.tar", 1, 0, (folder / "sub/größe 1.tar").stat().st_size),
    ]
    assert [(field.name, field.encoding, field.type) for field in again.fields] == [
        ("cls", "bytes", "binary"),
        ("txt", "bytes", "binary"),
    ]
    assert (again.lanes, again.window, again.pad) == (18, 1024, "none")
    assert again.fingerprint == manifest.fingerprint
    tars = ["part-0.tar", "part-2.tar", "sub/größe 1.tar"]
    indexes = [places_path(path) for path in tars]
    assert files_below(folder) == sorted([*tars, *indexes, SHARDS_NAME, HEADER_NAME])


def offsets_of(tar):
    """Return where the samples of a tar begin, and where the last ends, as its places say."""
    data, places = tar.read_bytes(), Path(f"{tar}.places").read_bytes()
    return parse_places(places, len(data), xxhash.xxh3_128_hexdigest(data)).offsets().tolist()


@pytest.mark.parametrize("write", [written_by_webdataset, written_by_tarfile])
def test_the_index_of_a_tar_is_what_the_standard_library_finds(tmp_path, write):
    folder = tars_of(tmp_path / "data", write)
    index_tars(folder)
    for path in folder.rglob("*.tar"):
        assert offsets_of(path) == sample_offsets(path)


def test_the_same_files_come_of_any_number_of_jobs(tmp_path):
    made = []
    for jobs in (1, 2):
        folder = tars_of(tmp_path / str(jobs), written_by_tarfile)
        told = []
        index_tars(folder, IndexOptions(jobs=jobs), told.append)
        assert [(each.tars, each.num_tars) for each in told] == [(number, 3) for number in (0, 1, 2, 3)]
        assert told[-1].samples == 18
        assert told[-1].num_bytes == sum(map(len, tars_in(folder).values()))
        made.append({name: (folder / name).read_bytes() for name in files_below(folder)})
    assert made[0] == made[1]


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


def test_files_that_name_no_sample_are_left_out_with_a_warning(tmp_path, caplog):
    members = [("README", b"1"), ("a.jpg", b"2"), ("__meta__/x.json", b"3"), ("b.jpg", b"4"), ("._b.jpg", b"5")]
    (tmp_path / "a.tar").write_bytes(by_tarfile(members))
    with caplog.at_level(logging.WARNING, "wdsplit"):
        manifest = index_tars(tmp_path)
    [record] = caplog.records
    names = "README, __meta__/x.json, ._b.jpg"
    assert (
        record.getMessage()
        == f"left out 3 files in the tars that belong to no sample, such as {names} in {tmp_path}/a.tar"
    )
    assert manifest.provenance["num_left_out"] == 3
    assert by_loader(tmp_path) == {"a": {"jpg": b"2"}, "b": {"jpg": b"4"}}
    assert verify(str(tmp_path)).problems == ()


@pytest.mark.parametrize("blocks", [0, 1, 2, 9])
def test_a_tar_may_end_as_its_writer_likes(tmp_path, blocks):
    data = by_tarfile([("a.jpg", b"1"), ("b.jpg", b"2")])[: 4 * 512]
    (tmp_path / "a.tar").write_bytes(data + bytes(512 * blocks))
    index_tars(tmp_path)
    assert len(by_loader(tmp_path)) == 2
    assert verify(str(tmp_path)).problems == ()


@pytest.mark.parametrize(
    ("num_tars", "readers", "lanes"),
    [(1, 1, 16), (3, 2, 16), (16, 4, 16), (48, 1, 16), (17, 1, 16), (24, 8, 24), (101, 1, 16)],
)
def test_lanes_are_such_as_suit_the_readers_and_the_tars(tmp_path, num_tars, readers, lanes):
    tars_of(tmp_path, written_by_tarfile, [1] * num_tars, [f"{number:03d}.tar" for number in range(num_tars)])
    assert index_tars(tmp_path, IndexOptions(world_size=readers)).lanes == lanes
    again = IndexOptions(lanes=5, window=7, overwrite=True)
    assert (index_tars(tmp_path, again).lanes, read_manifest(open_storage(str(tmp_path))).window) == (5, 7)


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_promises_hold_for_uneven_tars(folder, world_size):
    index_tars(folder, IndexOptions(world_size=world_size, workers=2))
    options = AuditOptions(world_size=world_size, num_workers=2, batch_size=2, read=True)
    findings = audit(str(folder), options).findings
    assert findings
    assert [finding for finding in findings if not finding.held] == []


# What it refuses


@pytest.mark.parametrize("wrong", [{"world_size": 0}, {"workers": -1}, {"lanes": 0}, {"window": 0}, {"jobs": 0}])
def test_options_that_cannot_be_are_refused_by_name(wrong):
    with pytest.raises(InputError, match="invalid options") as caught:
        IndexOptions(**wrong)
    assert next(iter(wrong)) in caught.value.found


@pytest.mark.parametrize("name", ["nothing", "", "data/part-0.tar"])
def test_a_folder_without_tars_is_refused(folder, tmp_path, name):
    (tmp_path / "empty").mkdir()
    place = tmp_path / (name or "empty")
    with pytest.raises(DatasetNotFoundError, match="no tars") as caught:
        index_tars(place)
    assert caught.value.place == str(place)
    assert files_below(tmp_path / "empty") == []


@pytest.mark.parametrize("data", [b"", bytes(10_240), by_tarfile([("README", b"1")])], ids=["empty", "zeros", "no key"])
def test_a_tar_without_samples_is_refused_by_name(folder, data):
    (folder / "part-1.tar").write_bytes(data)
    with pytest.raises(InputError, match="no samples") as caught:
        index_tars(folder)
    assert caught.value.url == str(folder / "part-1.tar")
    assert not (folder / HEADER_NAME).exists()
    assert not (folder / RUN_FOLDER).exists()


def truncated(data):
    return data[:2000]


def twice(data):
    return data + data


def shuffled(data):
    return by_tarfile([("a.jpg", b""), ("b.jpg", b""), ("a.cls", b"")])


@pytest.mark.parametrize(
    ("damage", "kind"), [(truncated, CorruptDataError), (twice, InputError), (shuffled, InputError)]
)
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_tar_that_cannot_be_adopted_is_named(folder, damage, kind, jobs):
    path = folder / "sub" / "größe 1.tar"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(kind) as caught:
        index_tars(folder, IndexOptions(jobs=jobs))
    assert caught.value.url == str(path)
    assert str(path) in caught.value.place
    assert caught.value.remedy
    assert not (folder / HEADER_NAME).exists()


def test_a_key_that_stands_in_two_tars_is_refused_with_both(folder):
    written_by_tarfile(folder / "z.tar", ["new", "d.x/key 0005-ü"])
    with pytest.raises(InputError, match="duplicate key") as caught:
        index_tars(folder)
    assert caught.value.key == "d.x/key 0005-ü"
    assert caught.value.place == str(folder / "z.tar")
    assert str(folder / "sub" / "größe 1.tar") in caught.value.found
    assert "wdsplit convert" in caught.value.remedy
    assert not (folder / HEADER_NAME).exists()


@pytest.mark.parametrize("name", ["a\\b.tar", "a\nb.tar", "c:a.tar", "b\udcff.tar"])
def test_a_name_that_no_manifest_takes_is_refused(folder, name):
    written_by_tarfile(folder / "ok.tar", ["new"])
    os.rename(folder / "ok.tar", folder / name)
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


def a_folder_takes_the_place_of_an_index(folder):
    (folder / "part-0.tar.places").mkdir()


def the_folder_is_sealed(folder):
    folder.chmod(0o500)


UNWRITABLE = [a_folder_takes_the_place_of_an_index, *([the_folder_is_sealed] if os.geteuid() else [])]
"""Nothing is sealed for root."""


@pytest.mark.parametrize("prepare", UNWRITABLE, ids=lambda prepare: prepare.__name__)
def test_a_folder_that_cannot_be_written_to_is_named(folder, prepare):
    prepare(folder)
    with pytest.raises(StorageError, match="refused") as caught:
        index_tars(folder)
    folder.chmod(0o700)
    assert str(folder) in caught.value.place
    assert not (folder / HEADER_NAME).exists()


# What is there already


def test_a_dataset_is_replaced_only_if_asked_for(folder):
    index_tars(folder)
    before = {name: (folder / name).read_bytes() for name in files_below(folder)}
    with pytest.raises(OutputExistsError, match="already a dataset") as caught:
        index_tars(folder)
    assert "--overwrite" in caught.value.remedy
    assert {name: (folder / name).read_bytes() for name in files_below(folder)} == before
    assert index_tars(folder, IndexOptions(lanes=3, overwrite=True)).lanes == 3
    assert read_manifest(open_storage(str(folder))).lanes == 3


def test_an_index_that_is_right_is_left_as_it_is(folder):
    index_tars(folder)
    (folder / HEADER_NAME).unlink()
    index = folder / "part-0.tar.places"
    os.utime(index, ns=(1, 1))
    index_tars(folder)
    assert index.stat().st_mtime_ns == 1


def test_another_index_is_replaced_only_if_asked_for(folder):
    index = folder / "part-2.tar.places"
    index.write_bytes(b"of another program")
    with pytest.raises(OutputExistsError, match="not one of wdsplit's") as caught:
        index_tars(folder)
    assert caught.value.url == str(index)
    assert index.read_bytes() == b"of another program"
    assert not (folder / HEADER_NAME).exists()
    index_tars(folder, IndexOptions(overwrite=True))
    assert offsets_of(folder / "part-2.tar") == sample_offsets(folder / "part-2.tar")


def test_a_dataset_whose_tars_cannot_be_adopted_anew_stays_as_long_as_its_indexes_do(folder):
    index_tars(folder)
    written_by_tarfile(folder / "z.tar", ["d.x/key 0005-ü"])
    with pytest.raises(InputError, match="duplicate key"):
        index_tars(folder, IndexOptions(overwrite=True))
    assert len(by_loader(folder)) == sum(COUNTS)


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


def test_an_unfinished_conversion_is_left_alone(folder):
    (folder / RUN_FOLDER).mkdir()
    (folder / RUN_FOLDER / "plan.json").write_text("{}")
    for overwrite in (False, True):
        with pytest.raises(OutputExistsError, match="unfinished") as caught:
            index_tars(folder, IndexOptions(overwrite=overwrite))
        assert "--resume" in caught.value.remedy
    assert (folder / RUN_FOLDER / "plan.json").exists()


def test_another_process_that_writes_into_the_folder_is_waited_for(folder):
    storage = open_storage(str(folder))
    with storage.lock(f"{RUN_FOLDER}/lock"), pytest.raises(StorageError, match="another process"):
        index_tars(folder)
    index_tars(folder)
    assert not (folder / RUN_FOLDER).exists()


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
        script = start_script(INDEX, folder)
        assert script.stdout.readline() == "ready\n"
        try:
            script.wait(next(parts) * duration_s)
            duration_s *= 0.9
        except subprocess.TimeoutExpired:
            os.killpg(script.pid, signal.SIGKILL)
            kills += 1
        script.communicate()
        wait_until(lambda script=script: not session_processes(script.pid), "no process is left")
        replaced = sum(path.read_bytes() != b"another index" for path in folder.glob("*.places"))
        assert not (folder / HEADER_NAME).exists() or replaced in (0, 40)
    index_tars(folder, IndexOptions(overwrite=True))
    assert verify(str(folder)).problems == ()


# The command


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as end:
        main([str(argument) for argument in arguments])
    return (end.value.code or 0, *capsys.readouterr())


def test_the_command_says_what_it_made(folder, capsys):
    code, out, err = run(capsys, "index", folder, "--jobs", 1)
    assert (code, err) == (0, "")
    assert f"{folder}: 3 shards, 18 samples, 0 pads" in out
    assert "fields: cls, txt" in out
    assert "lanes 16, window 1024" in out
    code, out, err = run(capsys, "index", folder, "--jobs", 2, "--overwrite", "--lanes", 4, "--window", 9, "--json")
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
        "sample_columns": None,
    }


def test_the_other_commands_work_on_what_it_made(folder, capsys):
    run(capsys, "index", folder, "--jobs", 1, "--world-size", 2)
    for command in (
        ["inspect", folder],
        ["verify", folder, "--jobs", 1],
        ["assign", folder, "--world-size", 2, "--workers", 2],
        ["audit", folder, "--world-size", 2, "--batch-size", 2, "--read"],
    ):
        code, out, err = run(capsys, *command)
        assert (code, err) == (0, ""), command
        assert out


@pytest.mark.parametrize(
    ("prepare", "code", "said"),
    [
        (lambda folder: index_tars(folder), 2, "--overwrite"),
        (lambda folder: shutil.rmtree(folder), 2, "there are no tars"),
        (lambda folder: (folder / "x.tar").write_bytes(b"x" * 512), 1, "x.tar"),
        (lambda folder: (folder / "x.tar").write_bytes(b""), 2, "x.tar"),
    ],
)
def test_the_command_tells_what_cannot_be_by_its_code_and_without_a_traceback(folder, capsys, prepare, code, said):
    prepare(folder)
    found, out, err = run(capsys, "index", folder, "--jobs", 1)
    assert (found, out) == (code, "")
    assert err.startswith("error: ") and said in err and "remedy: " in err
