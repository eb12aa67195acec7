import os
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from tables import files_below, sample_offsets, tar_samples
from tars import binary
from wdsplit.errors import CorruptDataError, DatasetNotFoundError, InputError
from wdsplit.loading.reading.open_shard import check_tail, open_shard
from wdsplit.loading.reading.windows import read_window
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


def test_a_shard_holds_the_samples_of_all_batches_in_order_and_is_read_as_it_was_written(written):
    samples = [
        ("a", {"jpg": b"x" * 600, "cls": b"1"}),
        ("dir/b", {"jpg": b"", "cls": b"2"}),
        ("c", {"jpg": b"y" * 512, "cls": b"3"}),
    ]
    assert tar_samples(written.tar) == samples
    assert files_below(written.storage.root) == [PATH, f"{PATH}.places"]
    assert written.open().places.offsets().tolist() == sample_offsets(written.tar)
    window = read_window(written.open(), np.arange(3))
    assert window.keys.tolist() == ["a", "dir/b", "c"]
    for row, (sample, (key, fields)) in enumerate(zip(window.samples(), samples, strict=True)):
        names = {"__key__": key, "__url__": str(written.tar), "__position__": row, "__pad__": False}
        assert sample == {**names, **fields}


def test_an_error_in_a_late_batch_leaves_no_tar_that_looks_valid(tmp_path):
    def failing():
        yield from bodies()
        raise InputError("a value is null")

    with pytest.raises(InputError, match="is null"):
        write_shard(LocalStorage(str(tmp_path)), PATH, failing(), NAMES, 0)
    assert files_below(tmp_path) == []


def overwrite(written):
    """As by `convert --overwrite` with another seed, while a reader has the manifest of before."""
    other = body(["a", "dir/b", "d"], jpg=[b"z" * 600, b"", b"y" * 512], cls=[b"1"] * 3)
    write_shard(written.storage, PATH, [other], NAMES, 1)
    assert written.tar.stat().st_size == written.shard.num_bytes


@pytest.mark.parametrize(
    ("damage", "name", "error", "said"),
    [
        (lambda written: os.truncate(written.tar, 512), "tar", CorruptDataError, ["another size", "512 bytes"]),
        (lambda written: os.truncate(written.tar, 0), "tar", CorruptDataError, ["another size", "10240 bytes"]),
        (lambda written: written.tar.unlink(), "tar", DatasetNotFoundError, []),
        (lambda written: written.places.unlink(), "places", DatasetNotFoundError, []),
        (lambda written: written.places.write_bytes(bytes(63)), "places", CorruptDataError, []),
        (overwrite, "places", CorruptDataError, ["belong to another tar", "overwritten"]),
    ],
)
def test_a_damaged_missing_or_overwritten_shard_is_refused_by_name(written, damage, name, error, said):
    damage(written)
    with pytest.raises(error) as caught:
        written.open()
    said = [*said, str(getattr(written, name))]
    assert [part for part in said if part not in str(caught.value)] == []


def test_large_places_are_refused_by_their_size_before_they_are_read(written):
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
