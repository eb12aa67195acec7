"""Datasets of tars without a manifest: opened by a pattern or a list, indexed once into a cache folder."""

import logging
import multiprocessing
import os
import shutil

import pytest

import wdsplit
from s3server import S3Server
from tables import converted, files_below, write_table
from tars import by_tarfile
from wdsplit.conversion.adopt_tars import index_tars
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError, StorageError
from wdsplit.indexing import tars as indexing
from wdsplit.loading import tars as loading_tars

COUNTS = (5, 1, 12, 7)
TARS = ["0.tar", "1.tar", "2.tar", "3.tar"]


def tars_into(folder, counts=COUNTS):
    """Write tars of these numbers of samples, named 0.tar, 1.tar, ..."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, count in enumerate(counts):
        tar_of(folder / f"{number}.tar", [f"{number}-{row:03d}" for row in range(count)])
    return folder


def tar_of(path, keys, fields=("cls", "txt")):
    path.write_bytes(by_tarfile((f"{key}.{field}", key.encode()) for key in keys for field in fields))


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Return the user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/wdsplit/indexes"


@pytest.fixture
def folder(tmp_path):
    """Return a folder of uneven tars."""
    return tars_into(tmp_path / "data")


@pytest.fixture
def scanned(tmp_path, monkeypatch):
    """Return a function: which tars were read whole since the last call, by this process or forks of it?"""
    log, read_tar = tmp_path / "log", indexing.read_tar
    log.touch()

    def counted(storage, path, scratch):
        with open(log, "a") as file:
            file.write(f"{path}\n")
        return read_tar(storage, path, scratch)

    def scanned():
        found = sorted(log.read_text().split())
        log.write_text("")
        return found

    monkeypatch.setattr(loading_tars, "read_tar", counted)
    return scanned


def samples_of(dataset, num_workers=0):
    loader = wdsplit.Loader(dataset, 4, num_workers=num_workers, collate_fn=list)
    loader.set_epoch(3)
    return [{name: sample[name] for name in sample if name != "__url__"} for batch in loader for sample in batch]


def expected_of(folder, tmp_path):
    """Return what the same tars give once `wdsplit index` has made a dataset of a copy of them."""
    shutil.copytree(folder, tmp_path / "indexed")
    index_tars(tmp_path / "indexed")
    return wdsplit.Dataset(tmp_path / "indexed", seed=5)


@pytest.mark.parametrize("patterns", [["*.tar"], ["[01].tar", "{2,3}.tar"]])
def test_local_tars_give_the_samples_and_the_order_of_an_indexed_folder_and_nothing_is_written_there(
    folder, tmp_path, patterns
):
    before = files_below(folder)
    paths = [f"{folder}/{pattern}" for pattern in patterns]
    dataset = wdsplit.Dataset(paths if paths[1:] else paths[0], seed=5)
    expected = expected_of(folder, tmp_path)
    assert samples_of(dataset) == samples_of(expected)
    assert samples_of(dataset, num_workers=2) == samples_of(expected)
    assert dataset.source.fingerprint == expected.source.fingerprint
    assert dataset.options == expected.options
    assert {sample["__url__"] for sample in dataset} == {f"{folder}/{number}.tar" for number in range(4)}
    tar_of(tmp_path / "z.tar", ["x", "y"])
    listed = wdsplit.Dataset([tmp_path / "z.tar", folder / "1.tar"], shuffle=False, lanes=1)
    assert [sample["__key__"] for sample in listed] == ["x", "y", "1-000"], "a list keeps its order"
    assert files_below(folder) == before


def test_tars_of_a_bucket_are_inspected_assigned_and_audited_and_a_changed_one_is_noticed_by_its_etag(
    folder, bucket, tmp_path, scanned
):
    expected_of(folder, tmp_path)
    pattern = f"{bucket.put(folder, 'data')}/*.tar"

    def found(path):
        inspected, assigned = wdsplit.inspect(path), wdsplit.assign(path, world_size=2, num_workers=2)
        audited = wdsplit.audit(path, wdsplit.AuditOptions(world_size=2, batch_size=3, read=True))
        kept = [{name: sample[name] for name in sample if name != "__url__"} for sample in inspected.first_samples]
        return inspected.num_samples, inspected.contents, kept, assigned, audited

    assert found(pattern) == found(str(tmp_path / "indexed"))
    assert scanned() == TARS
    tar_of(bucket.folder / "data/1.tar", ["1-00x"])
    assert "1-00x" in {sample["__key__"] for sample in wdsplit.Dataset(pattern)}
    assert scanned() == TARS


def test_tars_of_a_web_server_are_read_with_the_signature_of_each(folder, tmp_path):
    with S3Server(tmp_path, protocol="http") as server:
        urls = [f"{server.endpoint}/data/{number}.tar?signature={number}" for number in range(4)]
        dataset = wdsplit.Dataset(urls, seed=5)
        assert samples_of(dataset) == samples_of(expected_of(folder, tmp_path))
        assert "signature" not in repr(dataset) + "".join(sample["__url__"] for sample in dataset)


def test_tars_are_read_once_and_again_only_if_one_has_changed(folder, scanned):
    first = wdsplit.Dataset(f"{folder}/*.tar").source.fingerprint
    assert scanned() == TARS
    assert wdsplit.Dataset(f"{folder}/{{0..3}}.tar").source.fingerprint == first
    assert scanned() == []
    size = (folder / "1.tar").stat().st_size
    tar_of(folder / "1.tar", ["1-00x"])
    assert (folder / "1.tar").stat().st_size == size
    dataset = wdsplit.Dataset(f"{folder}/*.tar")
    assert scanned() == TARS
    assert dataset.source.fingerprint != first
    assert "1-00x" in {sample["__key__"] for sample in dataset}


def test_a_tar_that_changed_behind_its_size_and_time_is_an_error_that_names_its_index(tmp_path, cache):
    short, long = ["a" * 10 + f"{row:03d}" for row in range(8)], ["b" * 90 + f"{row:03d}" for row in range(4)]
    path = tmp_path / "a.tar"
    tar_of(path, [*short, *long], fields=("x", "y" * 20))  # long names have headers of their own
    list(wdsplit.Dataset(path, window=3))
    before = path.stat()
    tar_of(path, [*long, *short], fields=("x", "y" * 20))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    with pytest.raises(CorruptDataError, match="a tar was changed after it was indexed") as caught:
        list(wdsplit.Dataset(path, window=3))
    (index,) = cache.iterdir()
    assert f"remove its index {index}," in caught.value.remedy
    shutil.rmtree(index)
    assert len(list(wdsplit.Dataset(path, window=3))) == 12


def test_a_scan_that_was_killed_is_done_again(folder, scanned, cache, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(loading_tars, "write_manifest", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            wdsplit.Dataset(f"{folder}/*.tar")
    assert len(wdsplit.Dataset(f"{folder}/*.tar").manifest.shards) == 4
    assert scanned() == sorted(2 * TARS)
    (header,) = cache.glob("*/wdsplit.json")
    header.write_bytes(b"{")
    assert len(wdsplit.Dataset(f"{folder}/*.tar").manifest.shards) == 4
    assert scanned() == TARS


def test_of_processes_that_open_tars_at_once_one_reads_them_and_all_have_one_manifest(folder, scanned):
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def opened():
        results.put(wdsplit.Dataset(f"{folder}/*.tar").source.fingerprint)

    processes = [context.Process(target=opened) for _ in range(4)]
    for process in processes:
        process.start()
    assert len({results.get() for _ in processes}) == 1
    for process in processes:
        process.join()
    assert scanned() == TARS


def test_shards_of_two_datasets_are_one_whose_pads_may_have_the_same_keys(tmp_path):
    for name in ("a", "b"):
        table = {"__key__": [f"{name}{number}" for number in range(10)], "txt": list("0123456789")}
        path = write_table(tmp_path / f"{name}.parquet", table)
        assert converted(path, tmp_path / "both" / name, shards=3, key="__key__").num_pads == 2
    dataset = wdsplit.Dataset([str(tmp_path / "both" / name / "*.tar") for name in "ab"])
    assert {sample["__key__"] for sample in dataset} == {f"{name}{number}" for name in "ab" for number in range(10)}
    assert dataset.manifest.num_pads == 4
    for name in "ab":
        (tmp_path / "both" / name / "wdsplit.json").unlink()
    index_tars(str(tmp_path / "both"))
    assert not wdsplit.verify(str(tmp_path / "both")).problems


# What is refused


@pytest.mark.parametrize("variable", ["XDG_CACHE_HOME", "HOME"])
def test_a_place_that_cannot_be_written_to_is_named_with_the_option(folder, tmp_path, monkeypatch, variable):
    (tmp_path / "file").touch()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    with pytest.raises(StorageError, match="cache_dir=") as caught:
        wdsplit.Dataset(f"{folder}/*.tar")
    assert str(tmp_path / "file") in caught.value.place


def test_tars_that_are_not_there_or_named_twice_or_everywhere_are_refused(folder):
    with pytest.raises(DatasetNotFoundError, match="there are no tars"):
        wdsplit.Dataset(f"{folder}/x*.tar")
    with pytest.raises(DatasetNotFoundError, match=r"9\.tar"):
        wdsplit.Dataset(f"{folder}/{{3,9}}.tar")
    with pytest.raises(InputError, match="duplicate tar"):
        wdsplit.Dataset([f"{folder}/*.tar", f"{folder}/0.tar"])
    with pytest.raises(InputError, match="no sample tables, which views need"):
        wdsplit.Dataset(f"{folder}/*.tar", where="cls > 1")
    with pytest.raises(InputError, match="several kinds"):
        wdsplit.Dataset([f"{folder}/0.tar", "s3://bucket/1.tar"])


def test_fields_that_not_all_samples_have_bring_a_warning_with_counts_and_a_key(folder, caplog):
    tar_of(folder / "4.tar", ["b.0001", "a"], fields=("cls",))
    with caplog.at_level(logging.WARNING):
        wdsplit.Dataset(f"{folder}/*.tar")
    (text,) = [record.getMessage() for record in caplog.records if "same fields" in record.getMessage()]
    assert "0001.cls is in 1 of 27 (not in all of " in text
    assert "txt is in 25 of 27 (not in all of 4.tar)" in text
    assert "cls is in 26 of 27 (not in all of 4.tar)" in text
