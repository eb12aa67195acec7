"""Samples that are compared with their checksums as they are read: `Dataset(verify=True)`."""

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import wdsplit
from faults import Flip
from made_datasets import converted
from wdsplit.checks.verify import verify
from wdsplit.cli.main import main
from wdsplit.errors import CorruptDataError, InputError
from wdsplit.tar.index import parse_index

NUM_ROWS, SHARDS = 40, 4


def payload(row, num_bytes):
    return row.to_bytes(2, "big") * (num_bytes // 2)


@pytest.fixture(scope="session", params=[400, 30_000], ids=["small", "large"])
def made(request, tmp_path_factory):
    """Return a dataset with checksums of samples; the samples are small ones, or large ones."""
    table = pa.table({"bin": pa.array([payload(row, request.param) for row in range(NUM_ROWS)])})
    folder = converted(tmp_path_factory.mktemp("verified"), table, shards=SHARDS, lanes=2, window=5, shuffle=False)
    assert not verify(folder, emit=["checksums"]).problems
    return folder


@pytest.fixture
def dataset(made, tmp_path):
    return Path(shutil.copytree(made, tmp_path / "train"))


@pytest.fixture
def remote(made, bucket):
    shutil.copytree(made, bucket.folder / "train")
    return f"{bucket.url}/train"


def samples_of(dataset):
    return {sample["__key__"]: sample["bin"] for sample in dataset}


def payload_offset(folder, sample=3):
    """Return the offset of a byte in the payload of a sample of the second shard."""
    shard = Path(folder, "000001.tar")
    return int(parse_index(Path(f"{shard}.idx").read_bytes(), NUM_ROWS // SHARDS, shard.stat().st_size)[sample]) + 700


def flip(folder):
    """Change a byte of a payload: nothing but a checksum tells."""
    data = bytearray(Path(folder, "000001.tar").read_bytes())
    data[payload_offset(folder)] ^= 1
    Path(folder, "000001.tar").write_bytes(data)


def refused(read):
    with pytest.raises(CorruptDataError, match="a sample was changed") as caught:
        read()
    assert caught.value.url.endswith("/000001.tar") and "/000001.tar" in caught.value.place
    assert caught.value.key == "00000013"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_verified_samples_are_those_of_the_dataset(dataset, remote, num_workers):
    expected = samples_of(wdsplit.Dataset(str(dataset)))
    assert len(expected) == NUM_ROWS
    for path in (str(dataset), remote):
        loader = wdsplit.Loader(
            wdsplit.Dataset(path, verify=True).to_tuple("__key__", "bin"), 8, num_workers=num_workers
        )
        assert dict(pair for keys, values in loader for pair in zip(keys, values, strict=True)) == expected


@pytest.mark.parametrize("fields", [None, []])
def test_a_changed_payload_is_an_error_that_names_shard_and_key(dataset, fields):
    flip(dataset)
    assert len(list(wdsplit.Dataset(str(dataset), fields=fields))) == NUM_ROWS
    verified = wdsplit.Dataset(str(dataset), fields=fields, verify=True)
    refused(lambda: list(verified))
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
    assert samples_of(wdsplit.Dataset(remote)) != expected


def test_a_cached_shard_that_changes_while_it_is_open_is_downloaded_again(remote, dataset, tmp_path):
    expected = samples_of(wdsplit.Dataset(str(dataset)))
    verified = wdsplit.Dataset(remote, verify=True, cache_dir=tmp_path / "cache", shuffle=False, lanes=1)
    samples = iter(verified)
    found = [next(samples) for _ in range(11)]  # the second shard is open
    for path in (tmp_path / "cache").glob("*/*.tar"):
        data = bytearray(path.read_bytes())
        for offset in np.fromfile(f"{path}.idx", "<u8")[: NUM_ROWS // SHARDS].tolist():
            data[offset + 700] ^= 1  # in the payload
        with open(path, "r+b") as file:  # the file that is open, not another of its name
            file.write(data)
    found += samples
    assert {sample["__key__"]: sample["bin"] for sample in found} == expected


def test_a_dataset_without_checksums_is_refused_with_the_command_that_makes_them(dataset, capsys):
    for path in dataset.glob("*.sums"):
        path.unlink()
    with pytest.raises(InputError, match="no checksums of samples") as caught:
        list(wdsplit.Dataset(str(dataset), verify=True))
    assert caught.value.__suppress_context__  # one error is seen
    command = f"wdsplit verify {dataset} --emit checksums"
    assert command in caught.value.remedy
    with pytest.raises(SystemExit) as end:
        main([*command.split()[1:], "--jobs", "1"])
    assert not end.value.code
    assert ": ok: " in capsys.readouterr().out
    assert len(samples_of(wdsplit.Dataset(str(dataset), verify=True))) == NUM_ROWS


def test_only_shards_that_are_right_get_checksums(dataset):
    flip(dataset)
    for path in dataset.glob("*.sums"):
        path.unlink()
    assert len(verify(str(dataset), emit=["checksums"]).problems) == 1
    assert sorted(path.name for path in dataset.glob("*.sums")) == [f"00000{n}.tar.sums" for n in (0, 2, 3)]


def test_checksums_of_another_dataset_are_refused(dataset):
    shutil.copy(dataset / "000000.tar.sums", dataset / "000001.tar.sums")
    with pytest.raises(CorruptDataError, match="do not belong to their shard") as caught:
        list(wdsplit.Dataset(str(dataset), verify=True))
    assert "000001.tar.sums" in caught.value.place
    assert f"`wdsplit verify {dataset} --emit checksums`" in caught.value.remedy


def test_checksums_are_written_into_a_bucket_too(remote, bucket):
    expected = {path.name: path.read_bytes() for path in (bucket.folder / "train").glob("*.sums")}
    for name in expected:
        (bucket.folder / "train" / name).unlink()
    assert not verify(remote, emit=["checksums"]).problems
    assert {path.name: path.read_bytes() for path in (bucket.folder / "train").glob("*.sums")} == expected


def test_an_unknown_file_to_emit_is_refused(dataset):
    with pytest.raises(InputError, match="invalid emit"):
        verify(str(dataset), emit=["wids"])
