"""Samples that are compared with their hashes as they are read: large ones only with `Dataset(verify=True)`."""

import shutil
import tarfile
from pathlib import Path

import pytest

import wdsplit
from faults import Flip
from made_datasets import converted, payloads_table
from wdsplit.errors import CorruptDataError
from wdsplit.loading.reading import source
from wdsplit.shards.files import read_manifest
from wdsplit.shards.places import read_places
from wdsplit.storage.opening import open_storage

NUM_ROWS, SHARDS = 40, 4


@pytest.fixture(scope="session", params=[400, 30_000], ids=["small", "large"])
def made(request, tmp_path_factory):
    """Return a dataset of small samples, or of large ones."""
    table = payloads_table(NUM_ROWS, request.param)
    return converted(tmp_path_factory.mktemp("verified"), table, shards=SHARDS, lanes=2, window=5, shuffle=False)


@pytest.fixture
def dataset(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "train"))


@pytest.fixture
def remote(made, bucket):
    return bucket.put(made)


def samples_of(dataset):
    return {sample["__key__"]: sample["bin"] for sample in dataset}


def payload_offset(folder, sample=3):
    """Return the offset of a byte in the payload of a sample of the second shard."""
    storage = open_storage(str(folder))
    manifest = read_manifest(storage)
    return read_places(storage, manifest.shards[1], manifest.field_names).begin_of(sample) + 700


def refused(read):
    with pytest.raises(CorruptDataError, match="a sample was changed") as caught:
        read()
    assert caught.value.url.endswith("/000001.tar") and "/000001.tar" in caught.value.place
    assert caught.value.key == "00000013"


@pytest.mark.parametrize("fields", [None, []])
def test_a_changed_payload_is_an_error_that_names_shard_and_key(dataset, fields):
    data = bytearray(Path(dataset, "000001.tar").read_bytes())
    data[payload_offset(dataset)] ^= 1  # nothing but a checksum tells
    Path(dataset, "000001.tar").write_bytes(data)
    unverified = wdsplit.Dataset(str(dataset), fields=fields)
    if payload_offset(dataset) > 30_000:
        assert len(list(unverified)) == NUM_ROWS
    else:
        refused(lambda: list(unverified))
    verified = wdsplit.Dataset(str(dataset), fields=fields, verify=True)
    refused(lambda: list(verified))
    with pytest.raises(CorruptDataError):
        list(wdsplit.Loader(verified, 8, num_workers=2))
    refused(lambda: verified.sample(13))
    assert verified.sample(12)["__key__"] == "00000012"


def test_a_window_that_was_changed_on_its_way_is_fetched_again_once(remote, dataset, fault_proxy):
    expected, flipped = samples_of(wdsplit.Dataset(str(dataset))), []
    place = payload_offset(dataset)

    def plan(request):
        first, last = request.range or (0, -1)
        if request.path.endswith("/000001.tar") and first <= place <= last and len(flipped) < times:
            flipped.append(request)
            return Flip(place - first)
        return None

    fault_proxy.plan, times = plan, 1
    assert samples_of(wdsplit.Dataset(remote, verify=True)) == expected
    assert len(flipped) == 1
    times = 10
    refused(lambda: samples_of(wdsplit.Dataset(remote, verify=True)))
    assert len(flipped) == 3
    refused(lambda: samples_of(wdsplit.Dataset(remote)))  # fetched whole, so compared in any case


def test_a_cached_shard_that_changes_while_it_is_open_is_downloaded_again(remote, dataset, tmp_path, monkeypatch):
    monkeypatch.setattr(source, "_MIN_AT_ONCE", 5)  # else all is read before it changes
    expected = samples_of(wdsplit.Dataset(str(dataset)))
    is_large = payload_offset(dataset) > 30_000  # small samples are compared in any case
    options = {"cache_dir": tmp_path / "cache", "cache_size": "1GB", "shuffle": False, "lanes": 1}
    samples = iter(wdsplit.Dataset(remote, verify=is_large, **options))
    found = [next(samples) for _ in range(11)]  # the second shard is open
    for path in (tmp_path / "cache").rglob("*.shard"):
        data = bytearray(path.read_bytes())
        with tarfile.open(path) as tar:
            for info in tar:
                data[info.offset_data + 100] ^= 1
        with open(path, "r+b") as file:  # the file that is open, not another of its name
            file.write(data)
    found += samples
    assert {sample["__key__"]: sample["bin"] for sample in found} == expected
