import os
from dataclasses import dataclass
from unittest.mock import patch

import pyarrow as pa
import pytest

from tables import sample_offsets
from tars import binary
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError
from wdsplit.loading.reading.open_shard import check_tail, open_shard
from wdsplit.shards.files import read_manifest, write_shard
from wdsplit.shards.manifest import Shard
from wdsplit.storage.local import LocalStorage
from wdsplit.tar.members import build_body

PATH, NAMES = "000000.tar", ("jpg", "cls")


def body(keys, **fields):
    fields = {name: binary(values) for name, values in fields.items()}
    return build_body(pa.array(keys, pa.string()), fields)


def bodies():
    yield body(["a", "dir/b"], jpg=[b"x" * 600, b""], cls=[b"1", b"2"])
    yield body(["c"], jpg=[b"y" * 512], cls=[b"3"])


@dataclass
class Written:
    storage: LocalStorage
    shard: Shard

    @property
    def tar(self):
        return self.storage.root / PATH

    @property
    def places(self):
        return self.storage.root / f"{PATH}.places"

    def open(self):
        return open_shard(self.storage, self.shard, NAMES)


@pytest.fixture
def written(tmp_path):
    storage = LocalStorage(str(tmp_path))
    return Written(storage, write_shard(storage, PATH, bodies(), NAMES, 1))


def test_places_that_are_too_short_are_refused_and_large_ones_before_they_are_read(written):
    os.truncate(written.places, 63)
    with pytest.raises(CorruptDataError) as caught:
        written.open()
    assert str(written.places) in caught.value.place
    os.truncate(written.places, 8 * 1024**3)
    unread = patch.object(os, "pread", side_effect=AssertionError("they were read"))
    with unread, pytest.raises(CorruptDataError, match="too large") as caught:
        written.open()
    assert f"{8 * 1024**3} bytes" in caught.value.found


def test_a_tail_that_holds_more_than_zeros_is_told_by_its_place(written):
    data = bytearray(written.tar.read_bytes())
    data[-1] = 1
    written.tar.write_bytes(data)
    error = check_tail(written.open())
    assert isinstance(error, CorruptDataError)
    assert error.url == str(written.tar)
    assert error.offset == sample_offsets(written.tar)[-1]
    assert "not all zero" in error.found


@pytest.mark.parametrize(
    ("header", "error", "found"),
    [
        (b"{", CorruptDataError, "invalid JSON"),
        (b"[]", CorruptDataError, "no format version"),
        (b'{"wdsplit": 99}', InputError, "99"),
    ],
)
def test_a_version_is_asked_of_a_header_that_cannot_be_read(tmp_path, header, error, found):
    (tmp_path / "wdsplit.json").write_bytes(header)
    with pytest.raises(error) as caught:
        read_manifest(LocalStorage(str(tmp_path)), version=1)
    assert found in caught.value.found and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "cause", "remedy"),
    [
        ("000000.tar", "a file is not a dataset", "wdsplit index"),
        ("t.parquet", "a file is not a dataset", "wdsplit convert t.parquet OUTPUT"),
        ("wdsplit.json", "a file is not a dataset", "the folder that contains it"),
        ("{0..3}.tar", "no dataset", "wdsplit index FOLDER"),
        ("nothing", "no dataset", "check the path"),
        ("data/cat", "no dataset", "wdsplit convert FOLDER OUTPUT"),
        ("data/.wdsplit-run", "no dataset", "continue the stopped conversion with --resume"),
    ],
)
def test_what_is_no_dataset_is_refused_with_the_command_for_it(tmp_path, name, cause, remedy):
    if cause[:2] == "a ":
        (tmp_path / name).write_bytes(b"x")
    if "/" in name:
        (tmp_path / name).mkdir(parents=True)
    with pytest.raises(DatasetNotFoundError, match=cause) as caught:
        read_manifest(LocalStorage(str(tmp_path / name.partition("/")[0])))
    assert remedy in caught.value.remedy
